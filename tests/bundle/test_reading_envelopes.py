"""The quick reader of a usual snapshot's file, against the one that takes every file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical, envelope
from stateline.errors import IntegrityError, NewerVersion

SHA = st.sampled_from(["a" * 64, "0" * 64, "A" * 64, "a" * 63, 1, None])
NAME = st.sampled_from([f"state-2026-11-20T092659.123456Z-{'a' * 8}.json", "state-x.json", "", 1, None])
REF = st.fixed_dictionaries(
    {"sha256": SHA, "size": st.sampled_from([0, 5000, -1, 2**63, 1.0, "1", True])},
    optional={"media_type": st.sampled_from(["application/json", "A/b", "text/plain", None]), "more": st.just(1)},
)
LINK = st.fixed_dictionaries(
    {"scope": st.sampled_from(["run:a", "", 3]), "seq": st.sampled_from([0, 3, "x"]), "sha256": SHA},
    optional={"more": st.just(1)},
)
MEMBERS = {
    "version": st.sampled_from(["1", "1.1", "2", "x", 1, None]),
    "seq": st.sampled_from([0, 1, -1, 2**63, 1.0, "1", True, None]),
    "created_at": st.sampled_from(["2026-11-20T09:26:59.123456Z", "2026-11-20", 1]),
    "tool_version": st.sampled_from(["0.1", 3]),
    "scope": st.sampled_from(["run:a", 3]),
    "prev_sha": SHA,
    "prev": NAME,
    "kind": st.sampled_from(["run", None]),
    "event": st.sampled_from([{}, {"n": 2**64 - 1}, [], None]),
    "state": st.sampled_from([None, {"a": None}, {"a": 1}, [None], 2**63]),
    "objects": st.dictionaries(st.sampled_from(["/a", "/0", "a", "/~2", ""]), REF, max_size=2) | st.none(),
    "origin": LINK | st.none(),
    "merged": LINK | st.none(),
    "later": st.just(1),
}
GOOD = {
    "version": "1",
    "seq": 1,
    "created_at": "2026-11-20T09:26:59.123456Z",
    "tool_version": "0.1",
    "scope": "run:a",
    "prev_sha": "a" * 64,
    "prev": f"state-2026-11-20T092659.123456Z-{'a' * 8}.json",
    "kind": "run",
    "event": {},
    "state": {"a": None},
    "objects": {},
}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A good snapshot with up to three members changed, added or left out."""
    document = dict(GOOD)
    for name in draw(st.lists(st.sampled_from(sorted(MEMBERS)), max_size=3, unique=True)):
        if draw(st.integers(0, 4)):
            document[name] = draw(MEMBERS[name])
        else:
            document.pop(name, None)
    return document


def outcome(read: Any, data: bytes) -> Any:
    try:
        return read(data, "it")
    except (IntegrityError, NewerVersion) as error:
        return type(error), error.message, getattr(error, "finding", "")


@given(documents())
def test_a_usual_file_is_read_as_any_other_is(document: dict[str, Any]) -> None:
    data = canonical.encode(document)
    spellings = [data, data + b" ", data[:-1], data.replace(b'"seq"', b'"kind":"x","seq"'), data.replace(b"1", b"1.0")]
    for spelled in spellings:
        assert outcome(envelope.read_envelope, spelled) == outcome(envelope._read_envelope, spelled)


def test_nearly_every_file_takes_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {**GOOD, "seq": 0, "prev": None, "origin": {"scope": "run:b", "seq": 4, "sha256": "a" * 64}}
    table = {"/a": {"sha256": "b" * 64, "size": 5000, "media_type": "application/json"}}
    monkeypatch.setattr(envelope, "_read_envelope", None)
    for document in (GOOD, first, {**GOOD, "objects": table}):
        assert envelope.read_envelope(canonical.encode(document)).document() == document


@given(documents())
def test_what_is_written_is_seen_as_a_reader_sees_it(document: dict[str, Any]) -> None:
    try:
        given_one = envelope.read_envelope(canonical.encode(document))
    except (IntegrityError, NewerVersion):
        return
    data, seen = envelope.write_envelope(given_one)
    assert seen == envelope.read_envelope(data)
    assert seen.event is not given_one.event
