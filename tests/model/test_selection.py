"""Names of models, base URLs and keys: which are accepted, and which are refused before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from each_case import each

from stateline.errors import RequestError
from stateline.model.providers.selection import MANUAL, Choice, choose, open_model

LOCAL = "http://127.0.0.1:8000/v1"
KEY = "sk-test-0123456789abcdef"


@each(
    "name, base_url, choice",
    [
        ("openai/gpt-5-mini", "", Choice("openai", "gpt-5-mini")),
        ("anthropic/claude-x", "", Choice("anthropic", "claude-x")),
        (" openai/gpt-5-mini ", " ", Choice("openai", "gpt-5-mini")),
        ("openai/gpt-5-mini", LOCAL, Choice("openai", "gpt-5-mini", LOCAL)),
        ("anthropic/claude-x", LOCAL, Choice("anthropic", "claude-x", "http://127.0.0.1:8000")),
        ("llama3", LOCAL, Choice("openai", "llama3", LOCAL)),
        ("meta-llama/Llama-3:free", LOCAL, Choice("openai", "meta-llama/Llama-3:free", LOCAL)),
        ("openai/openai/gpt-5-mini", LOCAL, Choice("openai", "openai/gpt-5-mini", LOCAL)),
        (MANUAL, "", None),
        (MANUAL, LOCAL, None),
        ("", "", None),
    ],
)
def test_a_name_means_one_model(name: str, base_url: str, choice: Choice | None) -> None:
    assert choose(name, base_url, environ={}) == choice
    if choice is not None:
        assert choose(choice.name, choice.base_url, environ={}) == choice


def test_the_provider_s_own_variable_is_a_base_url() -> None:
    environ = {"OPENAI_BASE_URL": LOCAL, "ANTHROPIC_BASE_URL": "http://other"}
    assert choose("openai/x", environ=environ) == Choice("openai", "x", LOCAL)
    assert choose("anthropic/x", environ=environ) == Choice("anthropic", "x", "http://other")
    assert choose("llama3", environ=environ) == Choice("openai", "llama3", LOCAL)
    assert choose("openai/x", "http://flag", environ=environ) == Choice("openai", "x", "http://flag")
    assert choose("openai/x", environ={"OPENAI_BASE_URL": " "}) == Choice("openai", "x")


@each(
    "url, same",
    [
        ("https://api.openai.com/v1", ""),
        ("https://api.openai.com/v1/", ""),
        ("HTTPS://API.OpenAI.com:443/v1", ""),
        ("http://Host:80/v1//", "http://host/v1"),
        ("http://host:8000", "http://host:8000"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000/v1"),
    ],
)
def test_a_base_url_has_one_form(url: str, same: str) -> None:
    assert choose("openai/x", url, environ={}) == Choice("openai", "x", same)


def test_anthropic_s_own_url_may_be_written_with_its_version() -> None:
    for url in ("https://api.anthropic.com", "https://api.anthropic.com/", "https://api.anthropic.com/v1/"):
        assert choose("anthropic/x", url, environ={}) == Choice("anthropic", "x")


@each("name", ["gpt-5-mini", "google/gemini", "/x"])
def test_a_name_without_a_known_provider_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises(RequestError) as raised:
        choose(name, environ={})
    assert repr(name) in raised.value.message
    assert "openai, anthropic" in raised.value.message
    for way in ("openai/NAME", "anthropic/NAME", "--base-url", "manual"):
        assert way in raised.value.hint


@each("name", ["openai", "openai/", "anthropic/", "openai/ x", "openai/x\x1b[2J", "openai/a\nb"])
def test_a_provider_without_a_model_s_name_is_refused(name: str) -> None:
    with pytest.raises(RequestError) as raised:
        choose(name, LOCAL, environ={})
    assert raised.value.message.isprintable()


@each(
    "url",
    [
        "https://user:pass-word-12@host/v1",
        "https://user@host/v1",
        "https://sk-known-secret-1@host",
        "https://host/sk-known-secret-1/v1",
        "https://host/v1?key=sk-known-secret-1",
        "https://host/v1?key=x",
        "https://host/v1#x",
        "host/v1",
        "ftp://host/v1",
        "http:///v1/x",
        "http://host:port/v1",
        "http://[::1/v1",
        "http://ho st/v1",
        "http://host/\x1b[2J",
    ],
)
@each("by", ["flag", "variable"])
def test_a_base_url_that_is_none_or_holds_a_secret_is_refused_unquoted(url: str, by: str) -> None:
    environ = {"SOME_API_KEY": "sk-known-secret-1", **({"OPENAI_BASE_URL": url} if by == "variable" else {})}
    with pytest.raises(RequestError) as raised:
        choose("openai/x", url if by == "flag" else "", environ=environ)
    told = raised.value.message + raised.value.hint
    assert "known-secret" not in told
    assert "pass-word" not in told
    assert url not in told


@each("host", ["a..b", ".a", "a..", "a" * 64, "é" * 60])
def test_a_host_that_no_name_server_can_be_asked_for_is_refused(host: str) -> None:
    with pytest.raises(RequestError, match="not an http:// or https:// URL"):
        choose("openai/x", f"http://{host}/v1", environ={})


TOKEN = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"


@each(
    "name",
    [
        "openai/sk-known-secret-1",
        "anthropic/sk-known-secret-1",
        "sk-known-secret-1",
        "sk-known-secret-1/x",
        "openai/org/sk-known-secret-1:free",
        f"openai/{TOKEN}",
        TOKEN,
    ],
)
@each("url", ["", "http://127.0.0.1:1/v1"])
def test_a_name_that_holds_a_secret_is_refused_unquoted(name: str, url: str) -> None:
    with pytest.raises(RequestError, match="the model's name holds a secret") as raised:
        choose(name, url, environ={"SOME_API_KEY": "sk-known-secret-1"})
    told = raised.value.message + raised.value.hint
    assert "known-secret" not in told
    assert TOKEN not in told


@each("url", [f"https://host/{TOKEN}/v1", f"https://{TOKEN}.host/v1", "https://KNOWN-SECRET-1.host/v1"])
def test_a_base_url_that_would_be_masked_is_refused_unquoted(url: str) -> None:
    with pytest.raises(RequestError, match="known secret") as raised:
        choose("openai/x", url, environ={"SOME_API_KEY": "known-secret-1"})
    told = raised.value.message + raised.value.hint
    assert TOKEN not in told
    assert "known-secret" not in told.lower()


@each("provider", ["openai", "anthropic"])
@each("key", [None, "", "  "])
def test_a_missing_key_is_named_before_anything_is_sent(provider: str, key: str | None) -> None:
    variable = f"{provider.upper()}_API_KEY"
    environ = {} if key is None else {variable: key}
    with pytest.raises(RequestError) as raised:
        open_model(Choice(provider, "x"), environ=environ)
    assert raised.value.message == f"{variable} is not set; {provider}/x was not called"
    assert variable in raised.value.hint


@each("provider", ["openai", "anthropic"])
def test_no_key_is_needed_elsewhere(provider: str) -> None:
    open_model(Choice(provider, "x", LOCAL), environ={})


@each("key", ["sk-test-ключ-123456", "sk-test 0123456789", "sk-test\r\nX-Header: 1", "sk-\x00-012345678"])
def test_a_key_that_no_header_can_hold_is_refused_unquoted(key: str) -> None:
    with pytest.raises(RequestError) as raised:
        open_model(Choice("openai", "x"), environ={"OPENAI_API_KEY": key})
    assert "OPENAI_API_KEY" in raised.value.message
    assert "sk-" not in raised.value.message + raised.value.hint


def test_white_space_around_a_key_is_no_part_of_it() -> None:
    open_model(Choice("openai", "x"), environ={"OPENAI_API_KEY": f" {KEY}\n"})


@each("provider", ["openai", "anthropic"])
def test_a_missing_sdk_is_told_with_what_installs_it(provider: str) -> None:
    program = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == {provider!r}:
            raise ModuleNotFoundError(name)
sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, "path_entries")]
import importlib.machinery, importlib.util
real = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, *rest: None if name == {provider!r} else real(name, *rest))
from stateline.errors import RequestError
from stateline.model.providers.selection import Choice, open_model
try:
    open_model(Choice({provider!r}, "x"), environ={{}})
except RequestError as error:
    print(error.message, "|", error.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    expected = f"the SDK for {provider} is not installed | pip install 'stateline[{provider}]'\n"
    assert done.stdout == expected


def test_a_choice_loads_no_sdk_and_no_http_library() -> None:
    program = """
import sys
from stateline.model.providers.selection import choose, open_model
from stateline.model import manual_reply, protocol
open_model(choose("openai/x", environ={}), environ={"OPENAI_API_KEY": "sk-test-0123456789"})
open_model(choose("anthropic/x", environ={}), environ={"ANTHROPIC_API_KEY": "sk-test-0123456789"})
heavy = ("openai", "anthropic", "httpx", "httpx2", "pydantic", "jsonschema_rs", "ssl", "socket", "asyncio", "logging")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_choice_is_a_value() -> None:
    chosen: dict[Any, int] = {Choice("openai", "x"): 1}
    assert chosen[Choice("openai", "x", "")] == 1
    with pytest.raises(AttributeError):
        Choice("openai", "x").model = "y"  # type: ignore[misc]
