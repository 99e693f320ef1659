"""The providers against llmock, a server by other authors: tool calls, streams and faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from stateline.model.protocol import Model, ModelCallError, ModelRequest, Reply, ToolSpec
from stateline.model.providers.selection import choose, open_model

if TYPE_CHECKING:
    from llmock.pytest_plugin import LLMock
    from llmock.testing import LLMockServer

HI: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = ToolSpec(
    "get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)


@pytest.fixture(scope="module")
def llmock_server() -> Iterator[LLMockServer]:
    """The server for this module alone: a request that it still stalls over draws random numbers at its end, and
    Hypothesis, in the tests of other modules, takes those for its own."""
    from llmock.testing import LLMockServer

    with LLMockServer() as server:
        yield server


@pytest.fixture
def model(llmock: LLMock, provider: str) -> Model:
    """A model that is found by the provider's own variables, which the ``llmock`` fixture sets."""
    choice = choose(f"{provider}/model-1")
    assert choice is not None
    assert choice.base_url == llmock.base_url(provider)
    return open_model(choice)


def ask(model: Model, streamed: bool, **changes: Any) -> Reply:
    """The reply; its text must be what was told, if anybody heard it."""
    heard: list[str] = []
    request = ModelRequest(**{"model": "model-1", "messages": HI, **changes})
    reply = model.reply(request, heard.append if streamed else None)
    assert not streamed or "".join(heard) == reply.content
    return reply


def test_llmock_answers_and_counts(model: Model, llmock: LLMock, streamed: bool) -> None:
    llmock.reply("Sunny, they say.")
    reply = ask(model, streamed)
    assert (reply.content, reply.finish, reply.model) == ("Sunny, they say.", "stop", "model-1")
    assert reply.usage is not None
    assert reply.usage.input > 0
    assert reply.usage.output > 0
    llmock.assert_resilient(strict=True)


def test_llmock_calls_a_tool_and_takes_its_result(model: Model, llmock: LLMock, streamed: bool) -> None:
    llmock.call_tool("get_weather", {"city": "Paris"})
    reply = ask(model, streamed, tools=[WEATHER])
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("get_weather", {"city": "Paris"})]
    call = reply.tool_calls[0]
    asked = {"id": call.id, "name": call.name, "arguments": call.arguments}
    talk = [
        *HI,
        {"role": "assistant", "content": reply.content, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": {"sky": "blue"}},
    ]
    llmock.reply("The sky is blue.")
    assert ask(model, streamed, tools=[WEATHER], messages=talk).content == "The sky is blue."
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("provider", ["openai"])  # of Anthropic's it knows an older spelling only
def test_llmock_answers_by_a_schema(model: Model, llmock: LLMock, streamed: bool) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    reply = ask(model, streamed, output_schema={**schema, "required": ["n"]})
    assert type(json.loads(reply.content)["n"]) is int


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_llmock_fails_and_then_answers(model: Model, llmock: LLMock, streamed: bool, status: int) -> None:
    llmock.fail(status, times=2, retry_after=0.01).reply("At last.")
    assert ask(model, streamed).content == "At last."
    assert [record.status for record in llmock.requests] == [status, status, 200]
    llmock.assert_resilient()


def test_llmock_limits_the_rate_and_is_left_alone_for_as_long_as_it_says(
    model: Model, llmock: LLMock, streamed: bool
) -> None:
    llmock.rate_limit(retry_after=0.3).reply("At last.")
    assert ask(model, streamed).content == "At last."
    first, second = llmock.requests
    assert (first.status, second.status) == (429, 200)
    assert first.retry_after is not None
    assert second.started_at - first.ended_at >= first.retry_after >= 0.3
    llmock.assert_resilient(strict=True)


def test_llmock_stays_down(model: Model, llmock: LLMock, streamed: bool) -> None:
    llmock.fail(503, times=None, retry_after=0.01)
    with pytest.raises(ModelCallError) as raised:
        ask(model, streamed)
    assert raised.value.kind == "model"
    assert "Service unavailable" in raised.value.message
    assert len(llmock.requests) == 3


def test_llmock_refuses_a_prompt_that_is_too_long(model: Model, llmock: LLMock, streamed: bool) -> None:
    llmock.context_overflow()
    with pytest.raises(ModelCallError, match="maximum context length") as raised:
        ask(model, streamed)
    assert (raised.value.kind, raised.value.sent) == ("model", False)
    assert len(llmock.requests) == 1


def test_llmock_stalls_before_it_answers(model: Model, llmock: LLMock, streamed: bool) -> None:
    llmock.delay(1.0, times=None)
    with pytest.raises(ModelCallError) as raised:
        ask(model, streamed, timeout=0.2)
    assert (raised.value.kind, raised.value.sent) == ("timeout", True)


def test_llmock_stalls_once_and_answers_the_next_call(model: Model, llmock: LLMock, streamed: bool) -> None:
    llmock.delay(1.0).reply("Never read.").reply("In time.")
    with pytest.raises(ModelCallError):
        ask(model, streamed, timeout=0.2)
    assert ask(model, streamed, timeout=30.0).content == "In time."


@pytest.mark.parametrize("fault", ["disconnect", "truncate", "corrupt"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_llmock_breaks_a_stream(model: Model, llmock: LLMock, fault: str, after: int) -> None:
    getattr(llmock, fault)(after_chunks=after).reply("A reply that is long enough to be broken in two.", times=None)
    with pytest.raises(ModelCallError) as raised:
        ask(model, True)
    assert (raised.value.kind, raised.value.sent) == ("reply", True)
    assert len(llmock.requests) == 1
    # The next call is another one.
    assert ask(model, True).content == "A reply that is long enough to be broken in two."
    llmock.assert_resilient()


def test_llmock_stalls_in_a_stream(model: Model, llmock: LLMock) -> None:
    llmock.stall(after_chunks=2, seconds=1.0)
    with pytest.raises(ModelCallError) as raised:
        ask(model, True, timeout=0.3)
    assert (raised.value.kind, raised.value.sent) == ("timeout", True)
    assert len(llmock.requests) == 1


def test_llmock_breaks_the_arguments_of_a_call(model: Model, llmock: LLMock) -> None:
    llmock.call_tool("get_weather", {"city": "Paris"}).break_tool_call("malformed_arguments")
    with pytest.raises(ModelCallError) as raised:
        ask(model, True, tools=[WEATHER])
    assert raised.value.kind == "reply"


def test_llmock_calls_a_tool_that_nobody_offered(model: Model, llmock: LLMock, streamed: bool) -> None:
    # Such a call is the run's to answer: a model can mend it, and the reply is whole.
    llmock.call_tool("get_weather", {"city": "Paris"}).break_tool_call("unknown_tool")
    reply = ask(model, streamed, tools=[WEATHER])
    assert [call.name != "get_weather" for call in reply.tool_calls] == [True]
