"""Masking of a text that arrives in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from each_case import Failures
from hypothesis import given
from hypothesis import strategies as st

from stateline.cli.masked_stream import MaskedStream
from stateline.redaction.redactor import Redactor

KNOWN = "hunter2-Zq9/word+of=mine"
TOKEN = "ghp_" + "a1B2c3D4e5" * 4
SECRETS = [KNOWN, TOKEN, f"x:{TOKEN}.", f"password={KNOWN}", f"https://me:{KNOWN}@example.org/"]
redactor = Redactor([("A_KEY", KNOWN)])


def whole(text: str) -> str:
    return str(redactor.redact(text)[0])


def typed(pieces: list[str]) -> str:
    shown: list[str] = []
    listener = MaskedStream(shown.append, whole)
    for piece in pieces:
        listener.write(piece)
    listener.end()
    return "".join(shown)


def test_every_way_to_cut_a_text_in_three_shows_what_masking_the_whole_shows() -> None:
    failures = Failures()
    for secret in SECRETS:
        with failures.case(secret):
            text = f"The key is {secret} and again:\n{secret}"
            for first in range(len(text) + 1):
                for second in range(first, len(text) + 1, 7):
                    assert typed([text[:first], text[first:second], text[second:]]) == whole(text)
            assert KNOWN not in whole(text)
            assert TOKEN not in whole(text)
    failures.check()


words = st.one_of(st.text(max_size=12), st.sampled_from([*SECRETS, "Bearer", "\n", "sk-", "。"]))
texts = st.lists(st.tuples(words, st.sampled_from([" ", "\n", "\t"]))).map(
    lambda parts: "".join(word + space for word, space in parts)
)


@given(texts, st.lists(st.integers(0, 400)))
def test_any_text_in_any_pieces_is_shown_masked_as_a_whole(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    assert typed([text[a:b] for a, b in pairwise(edges)]) == whole(text)


def test_words_are_shown_as_soon_as_they_are_whole() -> None:
    shown: list[str] = []
    listener = MaskedStream(shown.append, whole)
    for piece in ("Hel", "lo wo", "rld.", "\nSo"):
        listener.write(piece)
    assert shown == ["Hello ", "world.\n"]
    listener.end()
    assert shown[-1] == "So"
    listener.end()
    assert shown[-1] == "So"


def test_of_a_private_key_nothing_but_its_first_line_is_shown() -> None:
    lines = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7" + f"{number:012}" for number in range(20)]
    text = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", "", "Done."])
    shown = typed(list(text))
    assert "MIIE" not in shown
    assert shown.endswith("Done.")


def test_a_long_text_is_not_kept_whole_and_stays_masked() -> None:
    text = f"word {TOKEN} " * 3000
    assert typed([text[at : at + 997] for at in range(0, len(text), 997)]) == whole(text)


def test_without_a_word_of_it_the_secrets_of_the_environment_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "some-very-plain-value")
    shown: list[str] = []
    listener = MaskedStream(shown.append)
    for piece in ("It is some-ve", "ry-plain-value, ", "yes"):
        listener.write(piece)
    listener.end()
    assert "".join(shown) == "It is [REDACTED], yes"
