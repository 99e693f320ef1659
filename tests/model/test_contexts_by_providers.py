"""Contexts by each provider: the SDK's own mechanism for a JSON Schema, in the SDK's types."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from each_case import each
from model_server import ModelServer, Say
from pydantic import TypeAdapter

from stateline import Store
from stateline.contexts import by_model
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.errors import RequestError
from stateline.model.protocol import Model, ToolSpec
from stateline.model.providers.selection import PROVIDERS

Opened = Callable[[str, ModelServer], Model]

TOOLS = [ToolSpec("search", "Finds.", {"type": "object", "properties": {"q": {"type": "string"}}})]
WISHES = ContextRequest(
    model="p/m", tools=TOOLS, developer=["Cite."], settings={"top_k": 3}, task="What is in the box?"
)
CONTEXT = '{"prompts": {"system": "Be brief.", "developer": ["Ask."]}, "settings": {"temperature": 0.2}}'


def shape(provider: str) -> Any:
    """The SDK's type of a request's body."""
    if provider == "anthropic":
        from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as Anthropic

        return Anthropic
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as OpenAI

    return OpenAI


def require_shape(provider: str, body: dict[str, Any]) -> None:
    """The body is one that the SDK's own types allow: no member that they do not know, and none of another type."""
    typed = shape(provider)
    assert body.keys() <= get_type_hints(typed).keys()
    TypeAdapter(typed).validate_python(body)
    if provider == "anthropic":
        from anthropic.types import JSONOutputFormatParam, OutputConfigParam

        assert body["output_config"].keys() <= get_type_hints(OutputConfigParam).keys()
        assert body["output_config"]["format"].keys() == get_type_hints(JSONOutputFormatParam).keys()
    else:
        from openai.types.shared_params import ResponseFormatJSONSchema
        from openai.types.shared_params.response_format_json_schema import JSONSchema

        assert body["response_format"].keys() == get_type_hints(ResponseFormatJSONSchema).keys()
        assert body["response_format"]["json_schema"].keys() <= get_type_hints(JSONSchema).keys()


def derived(store: Store, model: Model, **changes: Any) -> Any:
    """The state of the context that a model derives."""
    from msgspec.structs import replace

    prepared = prepare(store, ContextOptions(name="demo", context_request=replace(WISHES, **changes), model=model))
    return store.resolve(prepared.head.state)


@each("provider", PROVIDERS)
def test_the_request_has_the_schema_where_the_sdk_has_it(opened: Opened, provider: str) -> None:
    schema = by_model.reply_schema(WISHES.settings)
    with ModelServer(Say(CONTEXT), Say(CONTEXT)) as server:
        store, model = Store.in_memory(), opened(provider, server)
        assert derived(store, model)["settings"] == {"temperature": 0.2, "top_k": 3}
        derived(store, model, refine="Tighten it.")
        for sent in server.requests:
            require_shape(provider, sent)
            if provider == "anthropic":
                assert sent["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
            else:
                asked = {"name": "output", "schema": schema}
                assert sent["response_format"] == {"type": "json_schema", "json_schema": asked}
            # No tool is forced, and none is offered: those that are there are told of as data.
            assert "tools" not in sent
            assert "tool_choice" not in sent
            assert "valid under the JSON Schema" not in json.dumps(sent)


@each("provider", PROVIDERS)
def test_an_endpoint_without_schemas_is_asked_once_more_in_words(opened: Opened, provider: str) -> None:
    words = {"anthropic": "output_config: Extra inputs are not permitted", "openai": "unknown field response_format"}
    fenced = Say(f"```json\n{CONTEXT}\n```")
    with ModelServer(Say(words[provider], status=400), fenced) as server:
        assert derived(Store.in_memory(), opened(provider, server))["prompts"]["system"] == "Be brief."
        first, second = server.requests
    require_shape(provider, first)
    assert not second.keys() & {"output_config", "response_format"}
    assert "valid under the JSON Schema" in json.dumps(second)


@each("provider", PROVIDERS)
@each(
    "said",
    [
        Say("I would rather not."),
        Say(CONTEXT[:-1]),
        Say(CONTEXT, finish="length"),
        Say('{"prompts": {"system": "x"}, "settings": {}}'),
        Say(calls=[("search", {"q": "x"})]),
    ],
)
def test_a_reply_that_is_no_context_derives_nothing(opened: Opened, provider: str, said: Say) -> None:
    store = Store.in_memory()
    with ModelServer(said) as server, pytest.raises(RequestError, match="no context was saved"):
        derived(store, opened(provider, server))
    head = store.scope("context:demo").head()
    assert head is None or head.state is None
