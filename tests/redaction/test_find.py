"""Search for secrets in files and values that are refused instead of masked."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st
from redaction.corpus import CARRIERS, KINDS, ORDINARY, documents
from redaction.test_formats import made

from stateline.bundle import canonical
from stateline.bundle.canonical import DEPTH
from stateline.errors import InvalidValueError
from stateline.redaction import masking
from stateline.redaction.redactor import Redactor

FIND = Redactor().find


def test_a_secret_of_each_format_is_found_in_a_file_and_in_a_value() -> None:
    def check(kind: str) -> None:
        text, secret = made(kind)
        for carrier, carry in CARRIERS.items():
            carried = carry(text)
            for data in (carried.encode(), json.dumps([carried]).encode(), carried, {"a": [carried]}, {carried: 1}):
                match = FIND(data)
                assert match, (carrier, data)
                assert secret not in str(match)

    for_each(check, KINDS)


def test_a_match_has_a_line_in_a_file_and_a_pointer_in_a_value() -> None:
    token, _ = made("npm")
    file = f"stages:\n  a:\n    task: [npm, publish, --token, {token}]\n"
    assert str(FIND(file.encode())) == "line 3: npm token"
    assert str(FIND(f"{token}\r\n".encode())) == "line 1: npm token"
    assert str(FIND({"stages": {"a/b": {"task": ["npm", f"--token={token}"]}}})) == "/stages/a~1b/task/1: npm token"
    assert str(FIND(token)) == "npm token"


def test_keys_are_searched_on_request_and_never_shown() -> None:
    token, _ = made("npm")
    value = {"properties": {token: {"default": token}}}
    assert str(FIND(value)) == "a key of /properties: npm token"
    assert str(FIND(value, keys=False)) == "/properties/[REDACTED]/default: npm token"
    assert FIND({token: 1}, keys=False) is None


def test_a_known_value_is_reported_by_its_name() -> None:
    redactor = Redactor([("DEPLOY_TOKEN", "hunter2hunter2")])
    assert str(redactor.find(b"a: 1\nb: hunter2hunter2\n")) == "line 2: the value of DEPLOY_TOKEN"
    assert str(redactor.find({"b": "x hunter2hunter2"})) == "/b: the value of DEPLOY_TOKEN"


def test_bytes_that_are_not_utf_8_are_searched_too() -> None:
    token, _ = made("npm")
    assert str(FIND(b"\xff\n" + token.encode())) == "line 2: npm token"
    assert FIND(b"\xff\xfe\x00") is None


def test_an_example_does_not_refuse_a_file() -> None:
    def check(text: str) -> None:
        assert FIND(f"stages:\n  a:\n    task: [echo, '{text}']\n".encode()) is None
        assert FIND({"task": ["echo", text]}) is None

    for_each(
        check,
        [
            "AKIA" + "IOSFODNN7EXAMPLE",
            "ghp_" + "x" * 36,
            "sk-proj-" + "X" * 48,
            "OPENAI_API_KEY=sk-" + "0" * 48,
            "Authorization: Bearer your-token",
            "postgres://user:password@host/db",
            "https://${USER}:${TOKEN}@host/x.git",
            "sha256:" + "0a" * 32,
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
        ],
    )


def test_a_token_beside_an_example_is_found() -> None:
    token, _ = made("npm")
    assert str(FIND(f"ghp_{'x' * 36}\n{token}".encode())) == "line 2: npm token"
    key, _ = made("private key, OpenSSH")
    assert FIND(key.replace("\n", "A" * 20 + "\n", 2))


def test_at_most_one_ordinary_text_in_a_thousand_is_refused() -> None:
    texts = [make(random.Random(f"{name} {number}")) for name, make in ORDINARY.items() for number in range(60)]
    texts += documents()
    refused = [text for text in texts if FIND(text.encode()) or FIND({"text": text})]
    assert len(refused) <= len(texts) / 1000, refused
    assert refused == []


def test_names_of_keys_do_not_refuse_a_file() -> None:
    schema = {"password": "x", "properties": {"token": {"type": "string"}}, "api_key": ["from the environment"]}
    assert FIND(schema) is None
    assert FIND(json.dumps(schema).encode()) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_looked_at_without_an_error(data: bytes) -> None:
    FIND(data)


def test_each_key_of_a_pointer_is_masked_before_it_is_escaped() -> None:
    token, _ = made("npm")
    secret = "wJalrXUtn/K7MDENG/bPxRfiCYzz"
    redactor = Redactor([("AWS", secret)])
    assert str(redactor.find({"a": {secret: {"b/~": token}}}, keys=False)) == "/a/[REDACTED]/b~1~0: npm token"
    assert str(FIND({"https://u:hunter22@h": [token]}, keys=False)) == "/https:~1~1u:[REDACTED]@h/0: npm token"
    assert str(FIND({"https://u:hunter22@h": {"x": {token: 1}}}, keys=False)) == "None"


def test_secrets_in_json_escapes_are_found_in_values_and_keys() -> None:
    token, _ = made("npm")
    hidden = "\\u006e" + token[1:]
    assert str(FIND(f'{{"env": {{"{hidden}": "x"}}}}'.encode())) == "a key of /env: npm token"
    assert str(FIND(f' \n{{"env": ["{hidden}"]}}'.encode())) == "/env/0: npm token"
    assert FIND(f'{{"env": ["{hidden}"'.encode()) is None  # no JSON


def test_a_value_that_is_nested_too_deep_is_refused_with_a_type() -> None:
    def check(depth: int, value: Any) -> None:
        for _ in range(depth):
            value = [value]
        with pytest.raises(InvalidValueError, match="nested deeper"):
            FIND([value, made("npm")[0]])

    for_each(check, [2 * DEPTH, 2_000, 20_000], [[], {"k": []}])


def test_a_value_as_deep_as_a_store_takes_is_looked_at_to_its_ground() -> None:
    value: Any = made("npm")[0]
    for _ in range(DEPTH - 1):
        value = [value]
    assert str(FIND(value)) == "/0" * (DEPTH - 1) + ": npm token"


def test_only_the_reported_pointer_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(masking, "escape", lambda key: built.append(key) or canonical.escape(key))
    assert str(FIND({"a/b": [0, "x"] * 2_000 + [made("npm")[0]]})) == "/a~1b/4000: npm token"
    assert built == ["4000", "a/b"]
