"""The prefilter compared with a search for everything: the same masks, in linear time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st
from redaction.corpus import CARRIERS, KINDS, ORDINARY
from redaction.test_formats import FRAGMENTS, REDACT, known, made, trees

from stateline.bundle import canonical
from stateline.redaction.masking import PLACEHOLDER, Masker
from stateline.redaction.prefilter import ALL_PATTERNS, CONTEXT_CHECKS, TOKEN_CHECKS, candidates
from stateline.redaction.redactor import Redactor
from stateline.redaction.tokens import SIGNS, TOKENS


def everywhere(value: Any, redactor: Redactor) -> tuple[Any, int]:
    """Search each string and key for each format and known value, without the prefilter."""
    masking = Masker(list(redactor._forms), ALL_PATTERNS)
    return masking.value(value), masking.count


PLAIN = Redactor()


@given(trees, known)
def test_the_prefilter_gives_the_masks_of_a_search_for_everything(value: Any, values: list[str]) -> None:
    redactor = Redactor([("A", value) for value in values])
    assert redactor.redact(value) == everywhere(value, redactor)


# Beginnings and ends of contexts and tokens, in any order: they overlap, and one may hide another.
PIECES = [
    "uthorization", "AUTHORIZATION", "Bearer", "bearer%20", "Basic ", "ookie", "Cookies", "key", "KEY", "ecret",
    "access", "private ", "PRIVATE%20", "hooks", ".slack", "web", "/", "\\/", "\\", "%2F", "0", "1", "://", ":\\\\/",
    "12345678", ":", "AA", "AKIA", "ASIA", "AIza", "ATATT3", "A", "eyJ", "J", "sk-", "g", "hf_", "-", "_", ".", "=",
    "%3D", "token", "sig", "@", "%40", "user:pass12@", "dapi", "0123456789abcdef", "aB3aB3aB3aB3", "-----", '"', "'",
    "`", "(", "[", "b'", " ", "\t", "\n", "é", "\u2028", "\x00", "\x7f", "\u017f", "\u0131", "\u212a", '"' * 20, "\\t",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES + FRAGMENTS), max_size=14).map("".join), st.booleans())
def test_pieces_of_secrets_in_any_order_are_masked_as_in_a_search_for_everything(text: str, in_json: bool) -> None:
    value = {"text": json.dumps(text) if in_json else text}
    assert PLAIN.redact(value) == everywhere(value, PLAIN)


def test_a_secret_that_is_cut_off_anywhere_is_masked_as_in_a_search_for_everything() -> None:
    """The requirements of each check are met by the shortest match of its pattern."""

    def check(kind: str) -> None:
        text, _ = made(kind)
        # Of what surrounds a secret, only where it begins and ends can matter, so every third place will do.
        for carrier, first, step in (("alone", 1, 1), ("in JSON", 1, 3), ("URL-quoted", 2, 3)):
            carried = CARRIERS[carrier](text)
            lengths = range(first, min(len(carried), 400), step)
            for cut in [carried[:length] for length in lengths] + [carried[length:] for length in lengths]:
                assert PLAIN.redact(cut) == everywhere(cut, PLAIN), cut

    for_each(check, KINDS)


def test_of_two_secrets_with_nothing_between_neither_hides_the_other() -> None:
    def check(kind: str) -> None:
        text, _ = made(kind)
        for other in KINDS:
            for value in (text + made(other)[0], text[:12] + made(other)[0]):
                assert PLAIN.redact(value) == everywhere(value, PLAIN), value

    for_each(check, KINDS)


def test_ordinary_texts_seldom_have_candidates() -> None:
    """Each false report costs the search for a pattern. Texts about secrets have some."""
    texts = [
        make(random.Random(f"{name} {number}"))
        for name, make in ORDINARY.items()
        if "secret" not in name
        for number in range(50)
    ]
    assert sum(bool(candidates(canonical.encode(text))) for text in texts) <= len(texts) / 10


def test_every_token_has_a_sign_or_a_context_check() -> None:
    placed = {token for place in CONTEXT_CHECKS for token in place._formats}
    for token in TOKENS:
        assert token in placed or all(any(sign in needle for sign in SIGNS) for needle in token.needles)
    pairs = [pair for signed in TOKEN_CHECKS for parts in (signed._ahead, signed._behind) for pair in parts.values()]
    assert set(ALL_PATTERNS) == placed | {token for some in pairs for _, token in some}


def test_the_characters_behind_a_sign_decide_the_direction_of_the_comparison() -> None:
    """A hit reports one needle, so no needle that is compared backwards may begin like one compared forwards."""
    for signed in TOKEN_CHECKS:
        sign = signed.sign.decode()
        for needle in (needle.decode() for pairs in signed._behind.values() for needle, _ in pairs):
            rest = needle.partition(sign)[2]
            for part in signed._ahead:
                assert not rest.startswith(part[: len(rest)])


SLASHES = ["/", r"\/", r"\\/", r"\\\/", r"\\\\/", r"\\\\\\\/"]


def test_the_password_of_a_url_is_masked_however_often_its_slashes_were_escaped() -> None:
    def check(slash: str) -> None:
        assert REDACT(f"postgres:{slash}{slash}ann:hunter22@db") == (f"postgres:{slash}{slash}ann:{PLACEHOLDER}@db", 1)

    for_each(check, SLASHES)


NAMES = ["token", "password", "api_key", "Cookies", "authorization", "credential", "page_token", "tokens", "name"]
separated = st.tuples(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(0, 14), st.sampled_from("-_. "))))


@given(st.lists(separated, min_size=1, max_size=3), st.sampled_from(["", "x", 'say "', "a:b", '":', "\\", "é"]))
def test_a_secrets_name_is_seen_however_it_is_written(names: list[tuple[str, Any]], before: str) -> None:
    value: dict[str, Any] = {}
    for name, separators in names:
        for place, separator in separators:
            name = name[:place] + separator + name[place:]
        value[before + name] = "x"
        value[(before + name).upper()] = ["x"]
    assert PLAIN.redact({"deep": [value]}) == everywhere({"deep": [value]}, PLAIN)


def test_letters_that_only_unicode_folds_to_ascii_do_not_match_a_name() -> None:
    def check(name: str) -> None:
        value = f"{name}: sid=a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1"
        assert PLAIN.redact(value) == everywhere(value, PLAIN) == (value, 0)

    for_each(check, ["Cookie\u017f", "Author\u0131zation", "Authori\u017fation", "secret_\u212aey"])


def test_how_much_is_escaped_between_a_name_and_its_value_does_not_count() -> None:
    """So a mask does not depend on the rest of the value."""

    def check(between: str, name: str) -> None:
        secret = "a1B2c3D4" * 6
        text = f"{name}{between}{'sid=' if name == 'Cookie' else ''}{secret}"
        masked, count = PLAIN.redact(text)
        assert count == 1
        assert secret not in str(masked)
        assert PLAIN.redact([text, made("npm")[0]]) == ([masked, PLACEHOLDER], 2)

    for_each(
        check,
        ['"' * 20 + ":", "\\" * 20 + ":", '"' * 20 + ",", '"' + "\\" * 20 + "t:", ": \t" + "\\" * 20 + '"'],
        ["Authorization", "aws_secret_access_key", "Cookie"],
    )


def test_a_text_of_many_prefixes_takes_no_memory_for_each() -> None:
    def check(repeated: str) -> None:
        encoded = canonical.encode(repeated * (1 << 18))
        candidates(b'"sk-AKIAeyJ%2F0//0xoxb-ghp_."')
        tracemalloc.start()
        try:
            candidates(encoded)
            # The lower-case copy.
            assert tracemalloc.get_traced_memory()[1] < 2 * len(encoded) + (1 << 20)
        finally:
            tracemalloc.stop()

    for_each(check, ["sk-", "AKIA", "eyJ", "%2F0", "xoxb-", "ghp_"])


def test_the_first_short_texts_of_a_process_are_masked_as_in_a_search_for_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(kind: str) -> None:
        for look in (*CONTEXT_CHECKS, *TOKEN_CHECKS):
            monkeypatch.setattr(look, "_uncompiled", 1 << 30)
        text, _ = made(kind)
        for carrier, carry in CARRIERS.items():
            value = {"text": carry(text)}
            assert PLAIN.redact(value) == everywhere(value, PLAIN), carrier

    for_each(check, KINDS)


def test_a_small_event_compiles_at_most_one_check() -> None:
    program = (
        "from stateline.redaction.prefilter import CONTEXT_CHECKS, TOKEN_CHECKS\n"
        "from stateline.redaction.redactor import Redactor\n"
        "event = {'type': 'task', 'argv': ['python', '-m', 'pip', '--book=1'], 'cwd': '/work/my_dir-1/x.y'}\n"
        "Redactor().redact({'files': ['src/a_b-c.py', 'SIZE', 'JSON'], 'event': event})\n"
        "print(sum('_pattern' in vars(look) for look in CONTEXT_CHECKS + TOKEN_CHECKS))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) <= 1
