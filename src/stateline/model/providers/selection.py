"""Select a model by its name, and open it. Loads no SDK before the first call, and sends nothing.

``openai/NAME`` and ``anthropic/NAME`` name a provider. With a base URL, any other name is the whole name of a model
behind an OpenAI-compatible endpoint (vLLM, Ollama, llama.cpp, OpenRouter ...). If the endpoint's own name begins with a
provider, write the provider twice: ``openai/openai/gpt-5-mini``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from stateline.errors import RequestError
from stateline.machine.problems import quoted
from stateline.model.protocol import Model
from stateline.redaction.redactor import Redactor

MANUAL = "manual"
"""The name for no model: the next call answers."""
PROVIDERS = ("openai", "anthropic")
"""Providers, as they are written before the slash."""
_OWN = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_BASE_URLS = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
_KEYS = {"openai": ("OPENAI_API_KEY",), "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")}
_PLACEHOLDER = "none"
_NAME_HINT = (
    "write openai/NAME or anthropic/NAME; for any other OpenAI-compatible server add --base-url; "
    "`manual` needs no model: you answer yourself"
)


class Choice(msgspec.Struct, frozen=True):
    """A provider, its model's name, and the base URL ("": the provider's own). Equal choices are the same model."""

    provider: str
    model: str
    base_url: str = ""

    @property
    def name(self) -> str:
        """``provider/model``, which chooses this again together with ``base_url``."""
        return f"{self.provider}/{self.model}"


def choose(name: str, base_url: str = "", *, environ: Mapping[str, str] | None = None) -> Choice | None:
    """Return the model of that name; None for ``manual`` and for "". Without ``base_url`` the provider's own variable
    applies (``OPENAI_BASE_URL``, ``ANTHROPIC_BASE_URL``).

    Raises :class:`RequestError` for an unknown provider, a name with a secret in it, a malformed base URL, and a base
    URL that holds a user's name, a password or a secret.
    """
    environ = os.environ if environ is None else environ
    name = name.strip()
    if name in ("", MANUAL):
        return None
    # First, because the other messages quote the name, and because a masked name selects no model.
    if _holds_secret(name, environ):
        raise RequestError(
            "the model's name holds a secret; it was not used",
            hint="give the model's name alone; keys are read from the environment",
        )
    provider, slash, model = name.partition("/")
    if provider not in PROVIDERS:
        provider, model = "openai", name
        if not (base_url or environ.get(_BASE_URLS[provider], "")).strip():
            message = f"the model {quoted(name)} names no known provider: {', '.join(PROVIDERS)}"
            raise RequestError(message, hint=_NAME_HINT)
    elif not slash or not model:
        raise RequestError(f"the model {quoted(name)} names a provider and no model", hint=f"write {provider}/NAME")
    if not model.isprintable() or model != model.strip():
        raise RequestError(f"{quoted(name)} is not the name of a model", hint=_NAME_HINT)
    url = base_url.strip() or environ.get(_BASE_URLS[provider], "").strip()
    return Choice(provider, model, _checked(url, provider, environ) if url else "")


def require_ready(choice: Choice, *, environ: Mapping[str, str] | None = None) -> None:
    """Raise :class:`RequestError` where the SDK or the key of ``choice`` is missing."""
    _require_sdk(choice.provider)
    _key(choice, os.environ if environ is None else environ)


def open_model(choice: Choice, *, environ: Mapping[str, str] | None = None) -> Model:
    """Return the model of ``choice``; the name in a request is only recorded.

    The first call loads the SDK. Raises :class:`RequestError` if the SDK is not installed, or if there is no key, which
    only the provider's own endpoint requires.
    """
    environ = os.environ if environ is None else environ
    _require_sdk(choice.provider)
    variable, key = _key(choice, environ)
    redactor = Redactor.from_environment(environ)
    redactor.add(key, name=variable)

    def mask(text: str) -> str:
        masked: str = redactor.redact(text)[0]
        return masked

    if choice.provider == "anthropic":
        from stateline.model.providers.anthropic import AnthropicModel

        return AnthropicModel(choice.model, choice.base_url, key, mask, bearer=variable == "ANTHROPIC_AUTH_TOKEN")
    from stateline.model.providers.openai import OpenAIModel

    return OpenAIModel(choice.model, choice.base_url, key, mask)


def _holds_secret(text: str, environ: Mapping[str, str]) -> bool:
    """Return whether ``text`` would be masked."""
    return bool(Redactor.from_environment(environ).redact(text)[1])


def _checked(url: str, provider: str, environ: Mapping[str, str]) -> str:
    """Return ``url`` in its normal form; "" for the provider's own."""
    from urllib.parse import urlsplit

    # Messages quote the URL only after this check.
    if "@" in url.split("?")[0] or _holds_secret(url, environ) or _holds_secret(url.lower(), environ):
        raise RequestError(
            "the base URL holds a user's name, a password or a known secret; it was not used",
            hint=f"give the URL alone; the key is read from {_KEYS[provider][0]}",
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as the lookup of the host does
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise RequestError("the base URL is not an http:// or https:// URL", hint="write it like https://HOST/v1")
    if parts.query or parts.fragment:
        raise RequestError("the base URL has a query or a fragment", hint="write it like https://HOST/v1")
    host = f"[{host}]" if ":" in host else host
    place = host if port is None or port == {"http": 80, "https": 443}[parts.scheme] else f"{host}:{port}"
    url = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
    if provider == "anthropic":
        url = url.removesuffix("/v1")  # the SDK adds it, and servers of both protocols document the URL with it
    return "" if url == _OWN[provider] else url


def _require_sdk(provider: str) -> None:
    from importlib.util import find_spec

    if find_spec(provider) is None:
        message = f"the SDK for {provider} is not installed"
        raise RequestError(message, hint=f"pip install 'stateline[{provider}]'")


def _key(choice: Choice, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the variable that holds the key, and the key."""
    variables = _KEYS[choice.provider]
    for variable in variables:
        key = environ.get(variable, "").strip()
        if key:
            if not key.isascii() or not key.isprintable() or " " in key:
                raise RequestError(
                    f"the value of {variable} is not a key", hint="it contains characters that a key cannot have"
                )
            return variable, key
    if not choice.base_url:
        message = f"{variables[0]} is not set; {choice.name} was not called"
        raise RequestError(message, hint=f"set {variables[0]} in the environment, or use `manual` and answer yourself")
    return variables[0], _PLACEHOLDER
