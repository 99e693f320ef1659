"""The quick reader of a usual snapshot's file, against the one that takes every file."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical, envelope
from stateline.errors import IntegrityError, InvalidValueError, NewerVersionError

NESTED = [[None]]
for _ in range(128):
    NESTED.append([NESTED[-1]])  # type: ignore[list-item]  # each is in the next
SHA = st.sampled_from(["a" * 64, "0" * 64, "A" * 64, "a" * 63, 1, None])
NAME = st.sampled_from([f"state-2026-11-20T092659.123456Z-{'a' * 8}.json", "state-x.json", "", 1, None])
REF = st.fixed_dictionaries(
    {"sha256": SHA, "size": st.sampled_from([0, 5000, -1, 2**30 + 1, 2**63, 1.0, "1", True])},
    optional={"media_type": st.sampled_from(["application/json", "A/b", "text/plain", None]), "more": st.just(1)},
)
LINK = st.fixed_dictionaries(
    {"scope": st.sampled_from(["run:a", "", 3]), "seq": st.sampled_from([0, 3, -1, "x"]), "sha256": SHA},
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
    "state": st.sampled_from([None, {"a": None}, {"a": 1}, [None], 2**63, NESTED[127], NESTED[128]]),
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
    except (IntegrityError, NewerVersionError) as error:
        return type(error), error.message, getattr(error, "finding", "")


ENTRY: dict[str, Any] = {"sha256": "b" * 64, "size": 5000, "media_type": "application/json"}
ENTRIES = {
    "no media type": {name: ENTRY[name] for name in ("sha256", "size")},
    "another member": {**ENTRY, "more": 1},
    "a size over 1 GiB": {**ENTRY, "size": canonical.OBJECT_LIMIT + 1},
}


def test_an_entry_of_a_table_has_three_members_and_a_size_that_an_object_may_have() -> None:
    def check(entry: dict[str, Any], version: str) -> None:
        for table in ({"/a": ENTRY}, {"/a": {**ENTRY, "size": canonical.OBJECT_LIMIT}}):
            assert envelope.read_envelope(canonical.encode({**GOOD, "version": version, "objects": table})).objects
        files = [
            (envelope.read_envelope, {**GOOD, "version": version, "objects": {"/a": entry}}),
            (envelope.read_node, {"value": [None], "objects": {"/0": entry}}),
            (envelope.read_chunk, {"before": None, "items": [None], "objects": {"/0": entry}}),
            (envelope.read_chunk, {"before": {**entry, "media_type": envelope.LIST_TYPE}, "items": [1], "objects": {}}),
        ]
        for read, document in files[: 3 if "media_type" not in entry else 4]:
            with pytest.raises(IntegrityError) as caught:
                read(canonical.encode(document), "it")
            assert caught.value.finding == "malformed"

    for_each(check, ENTRIES.values(), ["1", "1.1"])


LINKED: dict[str, Any] = {"scope": "run:b", "seq": 4, "sha256": "a" * 64}


def test_a_link_names_a_snapshot_or_is_left_out() -> None:
    def check(link: Any, name: str) -> None:
        first = {**GOOD, "seq": 0, "prev": None}
        document = first if name == "origin" else GOOD
        assert envelope.read_envelope(canonical.encode({**document, name: LINKED}))
        with pytest.raises(IntegrityError, match=f"`{name}`") as caught:
            envelope.read_envelope(canonical.encode({**document, "prev_sha": GOOD["prev_sha"], name: link}))
        assert caught.value.finding == "malformed"

    for_each(
        check, [None, {**LINKED, "seq": -1}, {**LINKED, "seq": 2**63}, {**LINKED, "scope": ""}], ["origin", "merged"]
    )


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


def test_a_state_nests_no_deeper_than_a_value_may() -> None:
    for event in ({}, {"deep": nested(127)}):
        document = {**GOOD, "state": nested(128), "event": event}
        read = envelope.read_envelope(canonical.encode(document, depth=canonical.FILE_DEPTH))
        assert envelope.write_envelope(read)[1] == read
        document["state"] = nested(129)
        data = canonical.encode(document, depth=canonical.FILE_DEPTH)
        with pytest.raises(IntegrityError, match="`state` nests deeper than 128") as caught:
            envelope.read_envelope(data)
        assert caught.value.finding == "malformed"
        with pytest.raises(InvalidValueError, match="128"):
            envelope.write_envelope(msgspec.structs.replace(read, state=nested(129)))


@given(documents())
def test_a_usual_file_is_read_as_any_other_is(document: dict[str, Any]) -> None:
    data = canonical.encode(document, depth=canonical.FILE_DEPTH)
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
def test_a_writer_returns_the_envelope_that_a_reader_gets(document: dict[str, Any]) -> None:
    try:
        given_one = envelope.read_envelope(canonical.encode(document, depth=canonical.FILE_DEPTH))
    except (IntegrityError, NewerVersionError):
        return
    data, seen = envelope.write_envelope(given_one)
    assert seen == envelope.read_envelope(data)
    assert seen.event is not given_one.event
