"""Models behind a real server on loopback."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from model_server import ModelServer

from stateline.model.protocol import Model
from stateline.model.providers.selection import Choice, open_model

KEY = "sk-test-0123456789abcdef"

Opened = Callable[[str, ModelServer], Model]


@pytest.fixture(autouse=True)
def backoff(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Says how long [s] the SDKs wait before their second attempt where no server says so: for tests of what a call
    does, hardly at all."""

    def say(seconds: float) -> None:
        import anthropic._base_client
        import openai._base_client

        for sdk in (anthropic, openai):
            monkeypatch.setattr(sdk._base_client, "INITIAL_RETRY_DELAY", seconds)

    if {"opened", "provider"} & set(request.fixturenames):  # the others need not load the SDKs
        say(0.01)
    return say


@pytest.fixture
def opened() -> Opened:
    """Opens the model of a provider that a server stands for."""

    def open_at(provider: str, server: ModelServer) -> Model:
        url = server.url if provider == "openai" else server.origin
        return open_model(Choice(provider, "model-1", url), environ={f"{provider.upper()}_API_KEY": KEY})

    return open_at


@pytest.fixture(params=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest) -> str:
    """Each provider in turn."""
    name: str = request.param
    return name


@pytest.fixture(params=["plain", "streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    """Without and with somebody who hears the text."""
    return bool(request.param == "streamed")
