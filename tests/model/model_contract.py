"""The contract suite for models: every promise of ``stateline.model.protocol`` as a test. This module imports pytest.

A model of your own (another provider, a wrapper, a fake) passes it or is not a model::

    from stateline.testing.models import ModelContract

    class TestMyModel(ModelContract):
        @pytest.fixture
        def scripted(self):
            def make(*script): ...  # a model that gives these replies, and fails with these failures, in this order
            return make

``make`` decides how the replies come about: best by a server that speaks the provider's protocol, so that what reads it
is tested too. Failures stand for what the other side does: whatever makes the model fail with that kind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, get_args

import pytest
from each_case import each

from stateline.bundle.canonical import Json
from stateline.model.protocol import FailureKind, Model, ModelCallError, ModelRequest, Reply, ToolCall, ToolSpec, Usage

Scripted = Callable[..., Model]
"""Gives a model that answers with these ``Reply`` and ``ModelCallError``, in this order."""

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
THREADS = 8
PATIENCE = 60.0
"""How long a thread may take before the suite calls it hung [s]."""

TOOLS = [
    ToolSpec("search", "Searches.", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}),
    ToolSpec("now", "Tells the time.", {"type": "object"}),
]
RESULTS: list[Json] = [
    "text",
    "",
    None,
    7,
    0.5,
    True,
    [],
    [1, {"a": None}],
    {},
    {"error": {"kind": "exit"}},
    "é \U0001f600",
]
"""What tools may have given: any JSON."""
TEXTS = ("Hello.", "é \U0001f600 \u2028 \x00", '{"not": "a call"}', " spaces \n", "long " * 5000)


def asked(*messages: dict[str, Json], **changes: Any) -> ModelRequest:
    """A request; of one user's message unless ``messages`` says otherwise."""
    given = {"model": "model-1", "messages": list(messages) or [{"role": "user", "content": "Hi"}], "timeout": 20.0}
    return ModelRequest(**{**given, **changes})


def conversation() -> list[dict[str, Json]]:
    """Messages of every role, with a result of every kind."""
    calls = [{"id": f"id-{n}", "name": "search", "arguments": {"q": str(n)}} for n in range(len(RESULTS))]
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Say please."},
        {"role": "developer", "content": "Say thanks."},
        {"role": "user", "content": "Search."},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": f"id-{n}", "name": "search", "content": result}
            for n, result in enumerate(RESULTS)
        ),
        {"role": "assistant", "content": "Found."},
        {"role": "user", "content": "And now?"},
    ]


class ModelContract:
    """Inherit from this, give the fixture ``scripted``, and pytest runs the suite. ``TIME`` [s] is what a call gets
    that shall run out of time."""

    TIME = 1.0

    @each("text", TEXTS)
    def test_a_text_comes_as_it_was_said(self, scripted: Scripted, text: str) -> None:
        reply = scripted(Reply(content=text)).reply(asked())
        assert (reply.content, reply.tool_calls, reply.finish) == (text, [], "stop")

    @each("text", TEXTS)
    def test_what_is_told_is_the_text(self, scripted: Scripted, text: str) -> None:
        told: list[str] = []
        reply = scripted(Reply(content=text)).reply(asked(), told.append)
        assert "".join(told) == reply.content == text

    @each("heard", [False, True])
    def test_calls_come_in_order_with_ids_of_their_own(self, scripted: Scripted, heard: bool) -> None:
        calls = [ToolCall("a", "search", {"q": "é", "deep": [{"n": 1.5}]}), ToolCall("b", "now", {})]
        model = scripted(Reply(content="", tool_calls=calls, finish="tool_calls"))
        told: list[str] = []
        reply = model.reply(asked(tools=TOOLS), told.append if heard else None)
        assert [(call.name, call.arguments) for call in reply.tool_calls] == [(c.name, c.arguments) for c in calls]
        assert len({call.id for call in reply.tool_calls}) == 2
        assert reply.finish == "tool_calls"
        assert "".join(told) == reply.content == ""

    def test_ids_are_apart_from_those_of_the_conversation(self, scripted: Scripted) -> None:
        script = Reply(tool_calls=[ToolCall("id-3", "search", {"q": "x"})], finish="tool_calls")
        messages = conversation()
        reply = scripted(script).reply(asked(*messages, tools=TOOLS))
        assert reply.tool_calls[0].id not in {f"id-{n}" for n in range(len(RESULTS))}

    def test_text_may_come_with_calls(self, scripted: Scripted) -> None:
        said = Reply(content="Let me see.", tool_calls=[ToolCall("a", "now", {})], finish="tool_calls")
        reply = scripted(said).reply(asked(tools=TOOLS))
        assert (reply.content, [call.name for call in reply.tool_calls]) == ("Let me see.", ["now"])

    def test_what_it_cost_is_told_or_unknown(self, scripted: Scripted) -> None:
        reply = scripted(Reply(content="Hi.", usage=Usage(12, 34))).reply(asked())
        assert reply.usage in (None, Usage(12, 34))

    @each("heard", [False, True])
    def test_every_kind_of_message_is_taken(self, scripted: Scripted, heard: bool) -> None:
        request = asked(*conversation(), tools=TOOLS, settings={"temperature": 0.2}, key="run:1:0:birth")
        told: list[str] = []
        reply = scripted(Reply(content="Noon.")).reply(request, told.append if heard else None)
        assert reply.content == "Noon."

    @each("schema", [{"type": "object"}, {"type": "integer"}, True])
    def test_a_schema_of_the_output_is_taken(self, scripted: Scripted, schema: Json) -> None:
        assert scripted(Reply(content="7")).reply(asked(output_schema=schema)).content == "7"

    def test_a_request_is_left_as_it_was(self, scripted: Scripted) -> None:
        request = asked(*conversation(), tools=TOOLS, settings={"temperature": 0.2}, output_schema={"type": "object"})
        before = request.digest()
        scripted(Reply(content="{}")).reply(request)
        assert request.digest() == before

    @each("heard", [False, True])
    @each("kind", KINDS)
    def test_a_failure_is_typed_and_the_next_call_is_another(
        self, scripted: Scripted, kind: FailureKind, heard: bool
    ) -> None:
        model = scripted(ModelCallError(kind, "it went wrong"), Reply(content="Well."))
        told = (lambda text: None) if heard else None
        with pytest.raises(ModelCallError) as raised:
            model.reply(asked(timeout=self.TIME if kind == "timeout" else 20.0), told)
        assert raised.value.kind == kind
        assert raised.value.message == str(raised.value)
        assert raised.value.message.isprintable()
        assert raised.value.hint.isprintable()
        assert model.reply(asked(), told).content == "Well."

    def test_replies_come_one_after_the_other(self, scripted: Scripted) -> None:
        model = scripted(*(Reply(content=f"number {n}") for n in range(3)))
        assert [model.reply(asked()).content for _ in range(3)] == ["number 0", "number 1", "number 2"]

    def test_threads_get_a_reply_each(self, scripted: Scripted) -> None:
        model = scripted(*(Reply(content=f"number {n}") for n in range(THREADS)))
        replies: list[str] = []
        threads = [
            threading.Thread(target=lambda: replies.append(model.reply(asked()).content)) for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(replies) == [f"number {n}" for n in range(THREADS)]
