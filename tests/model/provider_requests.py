"""Requests to providers, and their failures, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from model_server import ModelServer

from stateline.model.protocol import Model, ModelCallError, ModelRequest, Reply, ToolSpec

Opened = Callable[[str, ModelServer], Model]

SEARCH = ToolSpec("search", "Searches.", {"type": "object", "properties": {"q": {"type": "string"}}})
QUICK = {"retry-after-ms": "5"}


def asked(**changes: Any) -> ModelRequest:
    """A small request."""
    given: dict[str, Any] = {"model": "provider/name", "messages": [{"role": "user", "content": "Hi"}]}
    return ModelRequest(**{**given, **changes})


def ask(model: Model, request: ModelRequest, streamed: bool) -> Reply:
    """The reply; its text must be what was told, if anybody heard it."""
    heard: list[str] = []
    reply = model.reply(request, heard.append if streamed else None)
    if streamed:
        assert "".join(heard) == reply.content
    return reply


def refusal(model: Model, request: ModelRequest, streamed: bool) -> ModelCallError:
    """Return the failure of the call."""
    with pytest.raises(ModelCallError) as raised:
        ask(model, request, streamed)
    return raised.value
