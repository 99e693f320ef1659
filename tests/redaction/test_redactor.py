from __future__ import annotations

import base64
import itertools
import json
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec
import pytest
from each_case import for_each
from hypothesis import assume, given
from hypothesis import strategies as st
from redaction.call_count import count_calls

from stateline.bundle import canonical
from stateline.errors import InvalidValueError
from stateline.redaction.masking import PLACEHOLDER
from stateline.redaction.redactor import Redactor

SECRET = 'pa$$ "w\\rd"/<é>&+𝄞\n§9'
PLAIN = "sk-1234567890abcdef"


def redact(value: Any, *secrets: str) -> Any:
    return Redactor([("A", secret) for secret in secrets]).redact(value)[0]


def b64(data: str) -> str:
    return base64.b64encode(data.encode()).decode()


# Known values


CARRIERS: dict[str, Callable[[str], str]] = {
    "as it is": lambda secret: secret,
    "inside text": lambda secret: f"token={secret};",
    "base64": b64,
    "base64 of user:VALUE, first alignment": lambda secret: b64(f"abc{secret}"),
    "base64 of user:VALUE, second alignment": lambda secret: b64(f"a{secret}tail"),
    "base64 of user:VALUE, third alignment": lambda secret: b64(f"ab{secret}t"),
    "base64, URL-safe": lambda secret: base64.urlsafe_b64encode(f"x:{secret}".encode()).decode(),
    "base64 without padding": lambda secret: b64(secret).rstrip("="),
    "URL path": quote,
    "URL component": lambda secret: quote(secret, safe=""),
    "JavaScript's encodeURIComponent": lambda secret: quote(secret, safe="!'()*"),
    "lower-case URL quoting": lambda secret: re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
    "HTML form": quote_plus,
    "JSON": lambda secret: json.dumps(secret),
    "JSON with plain Unicode": lambda secret: json.dumps(secret, ensure_ascii=False),
    "JSON of PHP": lambda secret: json.dumps(secret).replace("/", "\\/"),
    "JSON of Go": lambda secret: (
        json.dumps(secret, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    ),
}


def test_a_known_value_is_found_in_every_form_that_is_promised() -> None:
    def check(carry: Callable[[str], str], secret: str) -> None:
        value = {"text": ["before", carry(secret)]}
        masked, count = Redactor([("A", secret)]).redact(value)
        assert count == 1
        assert PLACEHOLDER in masked["text"][1]
        assert not leaks(masked, secret)
        assert Redactor([("A", secret)]).find(canonical.encode(value))
        assert Redactor([("A", secret)]).find(carry(secret))

    for_each(check, CARRIERS.values(), [SECRET, PLAIN, "12345678", "ééééééééééé"])


def test_text_around_a_known_value_stays() -> None:
    assert redact(f"curl -H 'X: {PLAIN}' https://host", PLAIN) == f"curl -H 'X: {PLACEHOLDER}' https://host"


def test_overlapping_values_make_one_mask_and_leave_no_end_of_either() -> None:
    assert Redactor([("A", "abcdefgh"), ("B", "efghijkl")]).redact("<abcdefghijkl>") == (f"<{PLACEHOLDER}>", 1)


def test_a_value_inside_a_longer_one_does_not_leave_the_rest_of_the_longer_one() -> None:
    assert redact("x-abcdefgh-12345-y", "abcdefgh", "abcdefgh-12345") == f"x-{PLACEHOLDER}-y"


def test_neighbours_are_masked_one_by_one() -> None:
    assert Redactor([("A", "abcdefgh")]).redact("abcdefghabcdefgh") == (PLACEHOLDER * 2, 2)


def test_values_that_would_hit_by_chance_or_are_masks_already_are_left_out() -> None:
    def check(value: str) -> None:
        redactor = Redactor()
        assert not redactor.add(value)
        assert redactor.redact({"text": f"short12 {PLACEHOLDER} [REDACTED#2]"})[1] == 0

    for_each(check, ["", "short12", "  short12  ", f"a{PLACEHOLDER}b", "[REDACTED#2]", "\ud800abcdefgh"])


def test_white_space_around_a_registered_value_does_not_hide_the_value() -> None:
    assert redact(PLAIN, f"{PLAIN}\n") == PLACEHOLDER


def test_a_variable_that_is_not_utf8_is_found_in_its_encoded_forms() -> None:
    raw = b"\xff\xfe-secret-\x80"
    value = {"a": base64.b64encode(raw).decode(), "b": quote(raw)}
    assert not leaks(redact(value, os.fsdecode(raw)), "-secret-")


def test_a_number_that_is_a_known_value_is_masked_and_one_that_contains_it_stays() -> None:
    assert redact({"pin": 12345678, "at": 1234567890}, "12345678") == {"pin": PLACEHOLDER, "at": 1234567890}
    assert redact([1.2345678e30, True, None], "1.2345678e30") == [PLACEHOLDER, True, None]


def test_known_values_in_keys_are_masked_and_numbered_where_they_collide() -> None:
    value = {"abcdefgh": 1, "12345678": 2, "u:abcdefgh": 3, "u:12345678": 4, PLACEHOLDER: 5, "other": 6}
    masked, count = Redactor([("A", "abcdefgh"), ("B", "12345678")]).redact(value)
    assert masked == {
        "[REDACTED]": 5,
        "[REDACTED#2]": 2,
        "[REDACTED#3]": 1,
        "u:[REDACTED]": 4,
        "u:[REDACTED#2]": 3,
        "other": 6,
    }
    assert count == 4


def test_the_numbers_of_masked_keys_do_not_depend_on_the_order_of_insertion() -> None:
    items = [(f"key{number}-abcdefgh"[-8 - number :], number) for number in range(3)] + [("12345678", 9)]
    results = {canonical.encode(redact(dict(order), "abcdefgh", "12345678")) for order in itertools.permutations(items)}
    assert len(results) == 1


def test_the_value_given_is_not_changed_and_untouched_parts_are_shared() -> None:
    untouched = {"a": [1, 2]}
    value = {"secret": PLAIN, "rest": untouched}
    masked, _ = Redactor().redact(value)
    assert value["secret"] == PLAIN
    assert masked["rest"] is untouched


class Artifact(msgspec.Struct, frozen=True):
    data: bytes


def test_leaves_that_are_not_json_are_left_alone() -> None:
    def check(leaf: Any) -> None:
        masked, count = Redactor([("A", PLAIN)]).redact({"leaf": leaf, "text": PLAIN, "secret": [leaf]})
        assert masked["leaf"] is leaf
        assert masked["secret"][0] is leaf
        assert (masked["text"], count) == (PLACEHOLDER, 1)

    for_each(check, [(case,) for case in [Artifact(PLAIN.encode()), object(), (PLAIN,)]])


def test_values_that_are_not_json_are_masked_and_kept() -> None:
    def check(bad: Any) -> None:
        masked, _ = Redactor([("A", PLAIN)]).redact({"bad": [bad], "text": PLAIN})
        assert masked["text"] == PLACEHOLDER
        with pytest.raises(InvalidValueError):
            canonical.encode(masked)

    for_each(check, [float("nan"), 2**70, "\ud800", {1: 2}, b"x", {"\ud800": 1}])


def test_a_depth_bomb_is_refused_and_not_a_crash() -> None:
    value: Any = PLAIN
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidValueError, match="nested deeper"):
        redact(value, PLAIN)


def test_the_deepest_legal_value_is_masked() -> None:
    value: Any = PLAIN
    for level in range(canonical.DEPTH):
        value = {"a": value} if level % 2 else [value]
    assert PLAIN.encode() not in canonical.encode(redact(value, PLAIN))


def test_the_callers_encoding_is_used_instead_of_another_one() -> None:
    redactor = Redactor([("A", PLAIN)])
    value = {"text": PLAIN}
    assert redactor.redact(value, encoded=canonical.encode(value)) == ({"text": PLACEHOLDER}, 1)
    # Bytes that do not belong to the value show that they are what is looked at.
    assert redactor.redact(value, encoded=b"{}") == (value, 0)


# Key names


def test_strings_under_a_secrets_key_name_are_masked() -> None:
    def check(key: str) -> None:
        assert Redactor().redact({"a": [{key: "hunter2"}]}) == ({"a": [{key: PLACEHOLDER}]}, 1)

    for_each(
        check,
        [
            "Authorization",
            "Proxy-Authorization",
            "X-Api-Key",
            "apiKey",
            "API_KEY",
            "api key",
            "openai.api-key",
            "client_secret",
            "clientSecret",
            "secret",
            "password",
            "db_password",
            "PASSWD",
            "passphrase",
            "access_token",
            "refreshToken",
            "token",
            "Set-Cookie",
            "cookie",
            "cookies",
            "private_key",
            "aws_secret_access_key",
            "secretKey",
            "credentials",
            "AccountKey",
            "signing-key_",
        ],
    )


def test_strings_under_other_keys_stay() -> None:
    def check(key: str) -> None:
        value = {"a": {key: "hunter2-and-more"}, "b": [{key: ["hunter2-and-more"]}]}
        assert Redactor().redact(value) == (value, 0)

    for_each(
        check,
        [
            "max_tokens",
            "total_tokens",
            "tokens",
            "token_count",
            "tokenizer",
            "secrets",
            "secretary",
            "passwords",
            "password_policy",
            "key",
            "keys",
            "idempotency_key",
            "public_key",
            "next_page_token",
            "nextToken",
            "eos_token",
            "author",
            "authorized",
            "pwd",
            "cookie_policy",
            "credentialed",
            "sha256",
            "source_hash",
            "",
        ],
    )


def test_everything_textual_below_a_secret_name_is_masked_and_nothing_else() -> None:
    value = {"credentials": {"user": "ann", "parts": ["x", 1, True, None, {"y": "z"}], "empty": ""}, "user": "ann"}
    assert Redactor().redact(value) == (
        {
            "credentials": {
                "user": PLACEHOLDER,
                "parts": [PLACEHOLDER, 1, True, None, {"y": PLACEHOLDER}],
                "empty": "",
            },
            "user": "ann",
        },
        3,
    )


def test_names_of_properties_in_a_json_schema_are_not_secrets() -> None:
    schema = {
        "type": "object",
        "required": ["password"],
        "properties": {"password": {"type": "string", "minLength": 8}, "api_key": {"$ref": "#/$defs/token"}},
        "$defs": {"token": {"type": "string"}},
        "definitions": {"secret": {"type": "string"}},
        "patternProperties": {"_token": {"type": "string"}},
        "dependentRequired": {"password": ["user"]},
        "dependencies": {"password": ["user"], "token": {"required": ["user"]}},
    }
    assert Redactor().redact({"schema": schema}) == ({"schema": schema}, 0)


def test_a_string_directly_under_a_secret_name_is_masked_even_inside_properties() -> None:
    value = {"properties": {"token": "hunter2", "password": ["hunter2"]}, "list": {"properties": [{"token": "x"}]}}
    assert Redactor().redact(value)[0] == {
        "properties": {"token": PLACEHOLDER, "password": [PLACEHOLDER]},
        "list": {"properties": [{"token": PLACEHOLDER}]},
    }


def test_values_in_a_schema_are_masked_as_anywhere() -> None:
    value = {"properties": {"password": {"default": PLAIN, "examples": [{"token": "x"}]}}}
    assert redact(value, PLAIN) == {
        "properties": {"password": {"default": PLACEHOLDER, "examples": [{"token": PLACEHOLDER}]}}
    }


def test_key_names_in_texts_are_not_keys() -> None:
    value = {"prompt": 'Send {"token": "abc"}, password: x, Authorization: Basic', "json": '{"password":"x"}'}
    assert Redactor().redact(value) == (value, 0)


def test_a_key_that_becomes_a_secret_name_by_being_masked_counts_at_once() -> None:
    redactor = Redactor([("A", "next_page")])
    once, _ = redactor.redact({"next_page_token": "abc"})
    assert once == {"[REDACTED]_token": PLACEHOLDER}
    assert redactor.redact(once) == (once, 0)


def test_ordinary_values_that_look_random_are_not_corrupted() -> None:
    value = {
        "max_tokens": 4096,
        "max_tokens_text": "4096",
        "rule": "=" * 100 + "\n" + "-" * 100,
        "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "path": "/usr/lib/python3/dist-packages/a/very/long/path/of/more/than/64/characters/module.py",
        "base64": b64("nothing to hide here, only an image or so " * 3),
        "jwt_like": "a.b.c",
        "uuid": "123e4567-e89b-12d3-a456-426614174000",
    }
    redactor = Redactor([("A", PLAIN), ("B", SECRET), ("C", "hunter2hunter2")])
    masked, count = redactor.redact(value)
    assert masked is value
    assert count == 0


# The environment


ENVIRONMENT = {
    "OPENAI_API_KEY": "value-of-openai",
    "GH_TOKEN": "value-of-github",
    "github_token": "value-of-lower-case",
    "CLIENT_SECRET": "value-of-secret",
    "PGPASSWORD": "value-of-postgres",
    "SMTP_PASS": "value-of-smtp",
    "DB_PASSWD_OLD": "value-of-passwd",
    "AWS_CREDENTIALS": "value-of-aws",
    "SECRET_KEY_BASE": "value-of-rails",
    "DATABASE_URL": "postgres://ann:value%2Dof%2Durl@db.example/x?sslmode=on",
    "SENTRY_DSN": "https://public:value-of-dsn@sentry.example/1",
    "https_proxy": "http://ann:value-of-p@oxy@proxy.example:3128",
    "INDEXES": "https://a.example/ https://u:value-of-index@b.example/simple",
}


def test_values_of_variables_named_like_keys_and_passwords_in_urls_are_known() -> None:
    def check(secret: str) -> None:
        assert Redactor.from_environment(ENVIRONMENT).redact(f"<{secret}>") == (f"<{PLACEHOLDER}>", 1)

    for_each(
        check,
        [
            "value-of-openai",
            "value-of-github",
            "value-of-lower-case",
            "value-of-secret",
            "value-of-postgres",
            "value-of-smtp",
            "value-of-passwd",
            "value-of-aws",
            "value-of-rails",
            "value-of-url",
            "value%2Dof%2Durl",
            "value-of-dsn",
            "value-of-p@oxy",
            "value-of-index",
        ],
    )


def test_other_variables_are_not_known() -> None:
    environment = {
        "HOME": "/home/somebody",
        "OLDPWD": "/home/somebody/else",
        "KEYBOARD": "german-nodeadkeys",
        "TOKENIZERS_PARALLELISM": "disabled-for-now",
        "SSH_AUTH_SOCK": "/run/user/1000/socket",
        "SSH_ASKPASS": "/usr/lib/ssh/askpass",
        "POSTGRES_PASSWORD_FILE": "/run/secrets/postgres",
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/google/account.json",
        "AWS_ACCESS_KEY_ID": "AKIA" + "IOSFODNN7EXAMPLE",
        "DEPLOY_PUBLIC_KEY": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
        "SHORT_TOKEN": "seven77",
        "HOMEPAGE_URL": "https://www.example/a:b@c/page",
        "REPOSITORY_URL": "ssh://git-user-name@host.example/repository",
        "SHORT_URL": "https://ann:short@host.example",
    }
    redactor = Redactor.from_environment(environment)
    assert not redactor._forms


def test_a_known_value_in_a_file_is_reported_with_its_line_and_name() -> None:
    redactor = Redactor.from_environment(ENVIRONMENT)
    file = f"stages:\n  a: {{task: [curl, -u, '{b64('ann:value-of-github')}', value-of-openai]}}\n"
    sighting = redactor.find(file.encode())
    assert str(sighting) in ("line 2: the value of GH_TOKEN", "line 2: the value of OPENAI_API_KEY")
    assert redactor.find(file)
    assert not redactor.find("stages:\n  a: {task: [curl], env: [GH_TOKEN, OPENAI_API_KEY]}\n")
    assert str(Redactor([("A", SECRET)]).find(SECRET)) == "the value of A"


# Whatever the value


def strings(value: Any) -> list[str]:
    """Every key and every string leaf, with numbers as text."""
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def leaks(value: Any, secret: str) -> bool:
    """Return true if decoding ``value`` in any way shows ``secret``: an oracle that decodes, where redaction encodes.
    Masks are removed before."""
    return any(
        secret in reading
        for text in strings(value)
        for part in re.split(r"\[REDACTED(?:#\d+)?\]", text)
        for reading in readings(part)
    )


def readings(text: str) -> list[str]:
    found = [text, unquote(text), unquote_plus(text)]
    try:
        found.append(json.loads(f'"{text.strip(chr(34))}"', strict=False))
    except ValueError:
        pass
    for run in re.findall(r"[A-Za-z0-9+/_-]{8,}", text):
        standard = run.replace("-", "+").replace("_", "/")
        for first in range(4):
            piece = standard[first:]
            found.append(base64.b64decode(piece + "A" * (-len(piece) % 4)).decode("utf-8", "ignore"))
    return found


def test_the_oracle_finds_secrets_that_are_not_masked() -> None:
    def check(carry: Callable[[str], str]) -> None:
        assert leaks({"a": [carry(PLAIN)]}, PLAIN)

    for_each(check, CARRIERS.values())


benign = st.text('abcXYZ019 _-./:=#\n"\\é', max_size=12)
secrets = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=24).filter(
    lambda text: len(text.strip()) >= 8 and text == text.strip() and not re.search(r"\[REDACTED(#\d+)?\]", text)
)
awkward_secrets = st.text("[]REDACT#12ab", min_size=8, max_size=14).filter(
    lambda text: not re.search(r"\[REDACTED(#\d+)?\]", text)
)


def trees(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves | st.integers(-5, 5) | st.booleans() | st.none() | st.floats(0, 1),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=12,
    )


@st.composite
def carried(draw: st.DrawFn, secret: str) -> str:
    carry = draw(st.sampled_from(list(CARRIERS.values())))
    return draw(benign) + " " + carry(secret) + " " + draw(benign)


@given(st.data(), st.lists(secrets, min_size=1, max_size=3))
def test_no_known_value_survives_in_any_form(data: st.DataObject, known: list[str]) -> None:
    loaded = st.sampled_from(known).flatmap(carried)
    value = data.draw(trees(loaded | benign, benign | loaded))
    masked, count = Redactor([("A", secret) for secret in known]).redact(value)
    for secret in known:
        assert not leaks(masked, secret)
    assert (count == 0) == (masked is value)
    canonical.encode(masked)


@given(st.data(), st.lists(secrets | awkward_secrets, min_size=1, max_size=3))
def test_redacting_twice_is_redacting_once(data: st.DataObject, known: list[str]) -> None:
    loaded = st.sampled_from(known).flatmap(carried)
    dense = st.lists(st.sampled_from([*known, PLACEHOLDER, "[REDACTED#2]", "[", "]", "x"]), max_size=6).map("".join)
    names = st.sampled_from(["password", "properties", "$defs", "next_page_token", "dependencies"])
    value = data.draw(trees(loaded | dense | benign, benign | dense | names))
    redactor = Redactor([("A", secret) for secret in known])
    once, _ = redactor.redact(value)
    again, count = redactor.redact(once)
    assert again is once
    assert count == 0


@given(trees(benign, benign), st.lists(st.text("QRSTUVW%", min_size=8), max_size=3))
def test_without_a_secret_and_a_key_name_the_same_object_comes_back(value: Any, known: list[str]) -> None:
    redactor = Redactor([("A", secret) for secret in known])
    assert redactor.redact(value) == (value, 0)
    assert redactor.redact(value)[0] is value


@given(awkward_secrets, st.text("[]REDACT#12ab", max_size=40))
def test_a_value_that_resembles_the_mask_is_masked_wherever_no_mask_is(secret: str, text: str) -> None:
    assume(not re.search(r"\[REDACTED(#\d+)?\]", text))
    assert not leaks(redact(text, secret), secret)


# Growth. Counted in calls, of Python and of C functions, which no busy machine can change; that each of those C
# functions (str.find, bytes.translate, `in`) is linear is CPython's promise.


HOSTILE: dict[str, Callable[[int], Any]] = {
    "one character": lambda size: "a" * size,
    "nothing but values": lambda size: "abcdefgh" * size,
    "nothing but masks": lambda size: "[REDACTED]abcdefgh" * size,
    "half masks": lambda size: "[REDACTED" * size + "abcdefgh",
    "half escapes": lambda size: '\\"%' * size + "abcdefgh",
    "keys that collide": lambda size: (
        {f"abcdefgh{i % 2}{'abcdefgh' * (i % 50)}{i // 100}": i for i in range(size)}
        | {f"[REDACTED#{i}]": i for i in range(size)}
    ),
    "keys that say secret": lambda size: [{"token": "x"} for _ in range(size)],
}


def test_the_work_grows_no_faster_than_the_value() -> None:
    def check(make: Callable[[int], Any]) -> None:
        redactor = Redactor([("A", "abcdefgh"), ("B", "aaaaaaaa"), ("C", "aaaaaaaab")])
        small, large = make(1000), make(4000)
        redactor.redact(large)  # compiles patterns
        assert count_calls(lambda: redactor.redact(large)) <= 4.2 * count_calls(lambda: redactor.redact(small)) + 100

    for_each(check, HOSTILE.values())


def test_the_work_grows_no_faster_than_the_number_of_known_values() -> None:
    value = {"text": "a" * 1000, "token": "x"}
    few, many = (Redactor([("A", f"{number:08d}") for number in range(size)]) for size in (250, 1000))
    assert count_calls(lambda: many.redact(value)) <= 4.2 * count_calls(lambda: few.redact(value)) + 100


def test_a_mebibyte_of_one_character_is_masked_whole() -> None:
    redactor = Redactor([("A", "a" * 8), *(("B", f"a{number:08d}") for number in range(200))])
    assert redactor.redact("a" * 2**20) == (PLACEHOLDER * 2**17, 2**17)


def test_a_secrets_name_at_the_end_of_a_key_is_recognised_behind_any_prefix() -> None:
    def check(key: str) -> None:
        masked = {"text": "a: b", key: PLACEHOLDER}
        assert Redactor().redact({"text": "a: b", key: "hunter22"}) == (masked, 1)
        assert Redactor().redact([{"x": [{key: "hunter22"}]}, 'password":'])[1] == 1

    for_each(
        check,
        [
            "password",
            "a:password",
            'say "password',
            'end":password',
            "api:key:API-Key",
            "\\token",
            "\n_secret",
            "é:Cookie",
        ],
    )
