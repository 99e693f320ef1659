"""Formats of secrets in every carrier, and ordinary texts that look like them. The corpus is corpus.py."""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st
from redaction.call_count import count_calls
from redaction.corpus import CARRIERS, KINDS, ORDINARY, TOKENS, documents

import stateline
from stateline import Store
from stateline.bundle import canonical
from stateline.redaction.masking import PLACEHOLDER, Masker
from stateline.redaction.prefilter import ALL_PATTERNS, present
from stateline.redaction.redactor import Redactor

SOURCE = Path(stateline.__file__).parent
EXAMPLES = 3
"""Of each kind, in each carrier."""
REDACT = Redactor().redact


def made(kind: str, number: int = 0) -> tuple[str, str]:
    """Return a text and the secret in it, the same in every run."""
    return KINDS[kind](random.Random(f"{kind} {number}"))


def pieces(secret: str, length: int = 8) -> set[str]:
    """Return the pieces of ``length`` characters, of each line, that must not survive."""
    return {line[i : i + length] for line in secret.split("\n") for i in range(len(line) - length + 1)}


def survivors(masked: Any, secret: str) -> set[str]:
    encoded = canonical.encode(masked).decode()
    return {piece for piece in pieces(secret) if piece in encoded}


def test_nothing_of_a_secret_survives_in_any_carrier() -> None:
    def check(kind: str) -> None:
        leaked = []
        for number in range(EXAMPLES):
            text, secret = made(kind, number)
            for carrier, carry in CARRIERS.items():
                for value in (carry(text), {"deep": [{"er": carry(text)}]}, {carry(text): 1}):
                    masked, count = REDACT(value)
                    if survivors(masked, secret) or not count:
                        leaked.append((carrier, carry(text), masked))
        assert leaked == []

    for_each(check, KINDS)


def test_the_text_around_a_secret_stays() -> None:
    def check(kind: str) -> None:
        text, _ = made(kind)
        masked, _ = REDACT(f"Ask Ann first.\n{text}\n\nThat is all of it.")
        assert masked.startswith("Ask Ann first.\n")
        assert masked.endswith("\n\nThat is all of it.") or "cut off at the end" in kind

    for_each(check, KINDS)


def test_two_tokens_side_by_side_both_go() -> None:
    def check(between: str, kind: str) -> None:
        if kind == "encrypted JSON Web Token" and not between:
            return  # its five parts have no fixed end: characters glued to them cannot be distinguished
        first, one = made(kind, 1)
        second, two = made(kind, 2)
        masked, count = REDACT(first + between + second)
        assert not survivors(masked, one) | survivors(masked, two)
        assert 1 <= count <= 2

    for_each(check, ["", " ", ",", "\n", ":", "|"], TOKENS)


def test_a_token_is_masked_whole_and_by_one_mask() -> None:
    def check(kind: str) -> None:
        text, _ = made(kind)
        public = {"Telegram": "1234567890:", "Google refresh token": "1//"}.get(kind, "")
        assert REDACT(f"<{text}>") == (f"<{public}{PLACEHOLDER}>", 1)

    for_each(check, TOKENS)


def test_secrets_in_their_place_leave_the_place() -> None:
    def masked(kind: str) -> str:
        return str(REDACT(made(kind)[0])[0])

    assert masked("Authorization: Bearer") == f"Authorization: Bearer {PLACEHOLDER}"
    assert masked("Authorization: Basic") == f"Authorization: Basic {PLACEHOLDER}"
    assert masked("Set-Cookie") == f"Set-Cookie: {PLACEHOLDER}"
    assert masked("password in a URL") == f"postgres://ann:{PLACEHOLDER}@db.example:5432/x"
    assert masked("parameter of a URL") == f"https://h.example/v1?api_key={PLACEHOLDER}&page=2"
    assert masked("line of an env file, key") == f"SOME_API_KEY={PLACEHOLDER}"
    assert masked("Slack webhook") == f"https://hooks.slack.com/services/{PLACEHOLDER}"
    assert masked("private key, RSA") == PLACEHOLDER


def test_json_in_a_text_is_json_after_masking() -> None:
    def check(carrier: str, kind: str) -> None:
        json.loads(REDACT(CARRIERS[carrier](made(kind)[0]))[0])

    for_each(check, ["in JSON", "in JSON inside JSON", "in JSON, three deep", "in JSON of PHP"], KINDS)


def test_a_known_value_and_a_token_that_overlap_make_one_mask() -> None:
    token, _ = made("Anthropic")
    inside = Redactor([("A", token[30:50])]).redact(f"a {token} b")
    across = Redactor([("A", f"key={token[:20]}")]).redact(f"a key={token} b")
    assert inside == across == (f"a {PLACEHOLDER} b", 1)


def test_a_secret_exposed_by_a_mask_is_found_at_once() -> None:
    token, _ = made("GitHub, personal")
    redactor = Redactor([("A", "hunter22")])
    assert REDACT(f"hunter22{token}")[1] == 0
    assert redactor.redact(f"hunter22{token}") == (PLACEHOLDER * 2, 2)


def test_keys_that_are_tokens_are_numbered_where_they_collide() -> None:
    masked, count = REDACT({made("npm", 1)[0]: 1, made("npm", 2)[0]: 2, "other": 3})
    assert set(masked) == {PLACEHOLDER, "[REDACTED#2]", "other"}
    assert count == 2


# Limits that the documents name.


def test_a_token_that_is_cut_in_two_or_hidden_in_base64_is_not_found() -> None:
    token, _ = made("GitHub, personal")
    for text in (f"{token[:20]}\n{token[20:]}", base64.b64encode(token.encode()).decode(), token[:16], f"x{token}"):
        assert REDACT(text) == (text, 0)


def test_a_prefix_at_the_end_of_a_word_does_not_count() -> None:
    def check(word: str, kind: str) -> None:
        token, _ = made(kind)
        assert REDACT(token) == (PLACEHOLDER, 1)
        assert REDACT(word + token) == (word + token, 0)

    for_each(
        check,
        [
            ("di", "OpenAI, old"),
            ("x-", "OpenAI, old"),
            ("self_", "Hugging Face"),
            ("ver", "Replicate"),
            ("MA", "AWS access key id"),
        ],
    )


# Ordinary texts.


def test_at_most_one_ordinary_text_in_a_thousand_is_touched() -> None:
    texts = [make(random.Random(f"{name} {number}")) for name, make in ORDINARY.items() for number in range(100)]
    texts += documents()
    touched = [(text, REDACT(text)[0]) for text in texts if REDACT(text)[1]]
    assert len(texts) > 4000
    assert len(touched) <= len(texts) / 1000, touched
    assert touched == []


def test_values_of_our_own_are_never_masked(tmp_path: Path) -> None:
    make = ORDINARY["identifiers of our own"]
    for number in range(1000):
        value = json.loads(make(random.Random(number)))
        assert REDACT(value) == (value, 0)
    scope = Store.open(tmp_path / "s", redactor=Redactor()).scope("context:docs")
    for number in range(5):
        saved = scope.save({"n": number})
        for own in (json.loads(saved.data), [saved.path, saved.sha256, scope.hash, scope.key]):
            assert REDACT(own) == (own, 0)


# Defects of an earlier system that leaked and corrupted.


def test_d10_tokens_in_prompts_and_secrets_in_headers_and_urls_do_not_survive() -> None:
    value = {
        "Authorization": f"Bearer {made('OpenAI, project')[1]}",
        "secret": {"value": "hunter2hunter2"},
        "password": "abc",
        "base_url": "https://ann:hunter2hunter2@h.example/v1?key=" + made("Google API key")[0],
        "prompt": f"Use {made('OpenAI, project')[0]} and {made('AWS access key id')[0]}.",
        "headers": "Proxy-Authorization: Basic " + base64.b64encode(b"ann:hunter2+hunter2/").decode(),
        "request_body": {"inner": {"note": json.dumps({"key": made("Anthropic")[0]})}},
        made("npm")[0]: "as a key",
    }
    masked = canonical.encode(REDACT(value)[0]).decode()
    for secret in ("hunter2", "abc", "AKIA", "sk-proj", "AIza", "sk-ant", "npm_", "YW5uOm"):
        assert secret not in masked


def test_d11_rules_paths_digests_and_counts_are_not_corrupted() -> None:
    value = {
        "prompt": "Title\n" + "=" * 70 + "\n\n" + "-" * 70,
        "path": "/" + "/".join(["directory"] * 12),
        "custom": {"sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
        "max_tokens": "4096",
        "image": base64.b64encode(bytes(range(256)) * 8).decode(),
    }
    assert REDACT(value) == (value, 0)


# Any byte written.


def test_no_byte_that_is_written_holds_a_token(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = Store.open(root, redactor=Redactor(), durability="fast")
    scope = store.scope("context:docs")
    secrets: set[str] = set()
    for number, kind in enumerate(KINDS):
        texts = []
        for place, carry in enumerate(CARRIERS.values()):
            text, secret = made(kind, 100 + place)
            texts.append(carry(text))
            # Longer than elsewhere: among so many digests eight digits are found by chance.
            secrets |= pieces(secret, 12)
        # Small, of the size of objects, in keys, in lists that become chains of chunks, in the event.
        state = {"texts": texts, "large": texts[number % len(texts)] + "." * 5000, "key": {texts[0]: texts[1]}}
        scope.save(state, event={"type": "test", "said": texts[number % len(texts)], texts[2]: 1})
        grown = store.append(store.put_value([{"n": 1}]), [{"said": text} for text in texts])
        store.scope("context:log").save({"log": grown})
    files = [path.read_bytes().decode() for path in sorted(root.rglob("*")) if path.is_file()]
    assert sum(text.count(PLACEHOLDER) for text in files) > len(KINDS) * len(CARRIERS)
    found = [secrets & {text[i : i + 12] for i in range(len(text) - 11)} for text in files]
    assert [piece for some in found for piece in some] == []


def test_a_save_masks_the_state_and_counts_the_masks_in_the_event(tmp_path: Path) -> None:
    token, _ = made("GitHub, personal")
    saved = Store.open(tmp_path / "s", redactor=Redactor()).scope("context:docs").save({"note": token})
    assert saved.state == {"note": PLACEHOLDER}
    assert saved.event["redactions"] == 1


# Redacting twice, and the prefilter.

FRAGMENTS = [
    "[REDACTED]", "[REDACTED#2]", "[REDACTED", "]", "sk-", "ghp_", "eyJ", "AKIA", "Authorization: ", "Bearer ",
    "Basic ", "Cookie: a=", "://", "@", ":", "u:p@", "API_KEY=", "?token=", "-----BEGIN RSA PRIVATE KEY-----",
    "\n", "\\n", "%20", "-----END RSA PRIVATE KEY-----", "secret_access_key=", "hooks.slack.com/services/",
    " ", "-", "_", ".", "'", '"',
    "abc123DEF456ghi789JKL", "0123456789abcdef", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "sha256:",
    "password", "é", "=", ";",
]  # fmt: skip
EVERYTHING = [made(kind, number)[0] for kind in KINDS for number in range(2)]
parts = st.sampled_from(FRAGMENTS) | st.sampled_from(EVERYTHING) | st.text(max_size=6)
mixed = st.lists(parts, max_size=8).map("".join)
halves = st.tuples(mixed, st.integers(0, 60), st.integers(0, 60)).map(lambda cut: cut[0][cut[1] : -cut[2] or None])
texts = mixed | halves
trees = st.recursive(
    texts | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
known = st.lists(st.text("abcDEF123_-", min_size=8, max_size=12) | st.sampled_from(EVERYTHING), max_size=2)


def is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@given(trees, known)
def test_redacting_twice_is_redacting_once(value: Any, values: list[str]) -> None:
    redactor = Redactor([("A", value) for value in values])
    once, _ = redactor.redact(value)
    again, count = redactor.redact(once)
    assert again is once
    assert count == 0


@given(trees)
def test_the_prefilter_misses_nothing(value: Any) -> None:
    encoded = canonical.encode_unchecked(value)
    if encoded is not None:
        names = {pattern.name for pattern in present(encoded)}
        for text in strings(value):
            for pattern in ALL_PATTERNS:
                assert pattern.name in names or not list(pattern.spans(text, 0, len(text)))


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@given(st.text("ab-_. \\n%20:=/@1", max_size=60))
def test_texts_without_a_format_come_back_as_the_same_object(text: str) -> None:
    value = {"text": text}
    assert REDACT(value)[0] is value


# Hostile texts. Work is counted, so that a busy machine does not matter: calls of Python and C functions, and the
# characters that searches read, since one call may read many.


class Counted(str):
    """A text that counts the characters read by searches for literals."""

    seen = 0

    def find(self, what: str, first: int = 0, last: int | None = None) -> int:  # type: ignore[override]
        found = super().find(what, first, last)
        Counted.seen += (len(self) if last is None else last) - first if found < 0 else found - first
        return found

    def __contains__(self, what: object) -> bool:
        Counted.seen += len(self)
        return super().__contains__(what)  # type: ignore[operator]


HOSTILE = {
    repr(unit)[:40]: unit
    for unit in [
        "sk-", "sk-proj-", "-sk-", " sk-a-b-c-", "ghp_", "glpat-", "-glpat-", "xox", "eyJ", "eyJ.", "-eyJ", ".eyJ",
        "%20eyJ", "1meyJ", "0meyJhbGciOi", "key%3D", "\x1b[1meyJ", "basic%20", "Hash: ",
        "eyJhbGciOiJIUzI1NiJ9.", "AKIA", "SG.", "ya29.", "12345678:AA", "1//0", "://", "://a:", "://a:b@",
        "%3A%2F%2Fa%3A", "a@://b:", "Authorization: ", "authorization:bearer+", "Authorization: Bearer ", "Bearer ",
        "Basic ", "Basic+", "Basic dXNl", "Cookie: ", "cookie=a=b;", "cookie:a=b; ", "key=", "API_KEY=", "?token=",
        "&key=&key=abcdefgh", "secret_key=", "secretkey=abc/", "-----BEGIN RSA PRIVATE KEY-----",
        "-----END RSA PRIVATE KEY-----", "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----\n" + "A" * 20 + "\n", "A" * 64 + "\n", "-", "=", "\\", "\\n", "%", "[REDACTED]sk-",
        "hooks.slack.com/services/", "webhooks/", "x", " ", "PRIVATE KEY-----", "https://h/?a=1&", "a.b.", "0a1b2c3d-",
        "sk_", "hf_", "p_", "_sk_", "AAKIA", "AIza", "ATATT3", ":AA", "//0", "\\/0", "xoxb-", "dapi",
        "dapi0123456789abcdef", "bearer%20", "basic ", "basic%20a", "uthorization", "uthorization\"'", "cookies\"",
        "cookies\\", "ecretaccesskey", "ecret_key\\", "private key", "hooks.slack", "webhooks\\", "webhooks%2f1",
        "=[", "_key=[", "token=b\\", "_key%3D[", ":\\", ":\\/", "ken\":", "_\":",
    ]
}  # fmt: skip


def test_the_work_grows_no_faster_than_a_hostile_text() -> None:
    def check(unit: str) -> None:
        def work(times: int) -> int:
            text = unit * times + "PRIVATE KEY@ ="
            return count_calls(lambda: REDACT(text))

        work(4000)  # patterns are compiled when a text of that size first needs them
        assert work(4000) <= 4.2 * work(1000) + 100

    for_each(check, HOSTILE.values())


def test_searches_go_over_a_hostile_text_a_bounded_number_of_times() -> None:
    def check(unit: str) -> None:
        def seen(times: int) -> int:
            text = unit * times + "PRIVATE KEY@ ="
            Counted.seen = 0
            for again in (text, REDACT(text)[0]):
                Masker([], ALL_PATTERNS).text(Counted(again))
            return Counted.seen

        assert seen(2000) <= 4.2 * seen(500) + 10_000

    for_each(check, HOSTILE.values())


def test_ten_hostile_mebibytes_are_searched_within_a_minute() -> None:
    """A pattern that scanned the whole rest from each beginning would take many minutes; these take a second."""

    script = (
        "import sys\nfrom stateline.redaction.redactor import Redactor\n"
        "for unit in sys.argv[1:]:\n"
        "    print(unit, flush=True)\n"
        "    Redactor().redact([unit * (2**20 // len(unit)) + 'PRIVATE KEY@ ='])\n"
    )
    units = ["key%3D", "1meyJ", "0meyJhbGciOi", "basic%20", "://a:{@", "secret_key\\", "//0", "_key%3D[", "p_", ":\\/"]
    subprocess.run([sys.executable, "-c", script, *units], check=True, timeout=60)


def test_a_plain_key_in_a_url_stays_and_an_api_key_is_masked() -> None:
    page = "https://h.example/x?key=products_2024_list_page"
    assert REDACT([page, page + "&key=2"])[1] == 0
    for name in ("api_key", "access_key", "token", "client_secret", "password", "sig"):
        url = f"https://h.example/x?{name}="
        assert REDACT(url + "0a1b2c3d4e5f6a7b8c9d") == (url + PLACEHOLDER, 1)


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 matches ``(?:ab?c)++`` wrongly (gh-106052); ``(?>(?:ab?c)+)`` is right everywhere."""
    files = [*SOURCE.glob("redaction/*.py"), *SOURCE.glob("machine/**/*.py")]
    text = {path.name: path.read_text() for path in files}
    groups = {name for source in text.values() for name in re.findall(r"^(_?[A-Z_]+) = r[f]?[\"']+\(\?", source, re.M)}
    repeated = re.compile(rf"(?:\)|\{{(?:{'|'.join(sorted(groups))})\}})(?:[*+?]|\{{+[0-9,]+\}}+)\+")
    assert len(groups) > 5
    assert not {name: found for name, source in text.items() if (found := repeated.findall(source))}
