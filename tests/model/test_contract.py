"""The providers fulfil the published contract of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from model.model_contract import ModelContract, Scripted
from model_server import ModelServer, Say

from stateline.model.protocol import Model, ModelCallError, Reply

FAULTS = {
    "model": [Say("it went wrong", status=400)],
    "timeout": [Say("Late.", delay=30)],
    "reply": [Say("Half of it", finish="length")],
}


def said(one: Reply | ModelCallError) -> list[Say]:
    """Return the server's answer that leads to this outcome."""
    if isinstance(one, ModelCallError):
        return FAULTS[one.kind]
    calls = [(call.name, call.arguments) for call in one.tool_calls]
    usage = None if one.usage is None else (one.usage.input, one.usage.output)
    return [Say(one.content, calls=calls, ids=[call.id for call in one.tool_calls], usage=usage)]


class Contract(ModelContract):
    """The suite against a server that says what the script wants."""

    PROVIDER = ""
    TIME = 0.3

    @pytest.fixture
    def scripted(self, opened: Callable[[str, ModelServer], Model]) -> Iterator[Scripted]:
        """A model of the provider, behind a server of its own."""
        with ExitStack() as stack:

            def make(*script: Reply | ModelCallError) -> Model:
                server = stack.enter_context(ModelServer(*(say for one in script for say in said(one))))
                return opened(self.PROVIDER, server)

            yield make


class TestOpenAI(Contract):
    """OpenAI's chat completions."""

    PROVIDER = "openai"


class TestAnthropic(Contract):
    """Anthropic's messages."""

    PROVIDER = "anthropic"
