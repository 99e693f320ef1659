"""Envelopes, pointers and nodes: what is kept, what is damage, what is newer."""

from __future__ import annotations

from typing import Any

import pytest
from each_case import for_each

from stateline.bundle import canonical
from stateline.bundle.envelope import (
    Envelope,
    Link,
    Pointer,
    Ref,
    at,
    check_version,
    read_envelope,
    read_node,
    read_pointer,
)
from stateline.errors import IntegrityError, NewerVersionError

SHA = "ab" * 32
NAME = "state-2026-11-20T092659.123455Z-abababab.json"
REF = {"sha256": SHA, "size": 3, "media_type": "application/json"}


def document(**changes: Any) -> dict[str, Any]:
    found = {
        "version": "1",
        "seq": 1,
        "created_at": "2026-11-20T09:26:59.123456Z",
        "tool_version": "0.1.0",
        "scope": "notes:x",
        "prev_sha": SHA,
        "prev": NAME,
        "kind": "notes",
        "event": {"why": "test"},
        "state": {"n": 1, "big": None, "l": [None]},
        "objects": {"/big": REF},
    } | changes
    return {name: value for name, value in found.items() if value is not ...}


def read(**changes: Any) -> Envelope:
    return read_envelope(canonical.encode(document(**changes), depth=130))


def test_an_envelope_reads_back_to_the_same_bytes() -> None:
    data = canonical.encode(document())
    envelope = read_envelope(data)
    assert canonical.encode(envelope.document()) == data
    assert envelope.objects == {"/big": Ref(SHA, 3)}


def test_a_forks_first_snapshot_has_an_origin_and_no_parents_file() -> None:
    envelope = read(seq=0, prev=None, origin={"scope": "run:a", "seq": 7, "sha256": SHA})
    assert envelope.origin == Link("run:a", 7, SHA)
    assert envelope.document()["origin"] == {"scope": "run:a", "seq": 7, "sha256": SHA}


def test_a_merge_names_what_was_merged() -> None:
    assert read(merged={"scope": "run:b", "seq": 2, "sha256": SHA}).merged == Link("run:b", 2, SHA)


def test_unknown_fields_of_a_newer_minor_version_are_kept() -> None:
    def check(version: str) -> None:
        data = canonical.encode(document(version=version, extra={"a": 1}, signature=[1, 2], zzz=None))
        envelope = read_envelope(data)
        assert envelope.extra == {"extra": {"a": 1}, "signature": [1, 2], "zzz": None}
        assert canonical.encode(envelope.document()) == data

    for_each(check, ["1", "1.1", "1.999999999"])


def test_another_major_version_is_reported_as_newer() -> None:
    def check(version: str) -> None:
        with pytest.raises(NewerVersionError, match="left untouched"):
            read(version=version, seq="in the future this may be a string")

    for_each(check, ["2", "2.0", "10"])


def test_an_unreadable_version_is_damage() -> None:
    def check(version: Any) -> None:
        with pytest.raises(IntegrityError, match="no readable version"):
            read(version=version)

    for_each(check, [..., None, 1, "", "0", "01", "0.9", "1.", "1.1.1", "1 ", "\u0661", "1\n", "9" * 10, ["1"]])


MALFORMED: list[dict[str, Any]] = [
    *({name: ...} for name in ("seq", "created_at", "tool_version", "scope", "prev_sha", "prev", "kind", "event")),
    {"state": ...},
    {"objects": ...},
    {"seq": -1},
    {"seq": 1.0},
    {"seq": "1"},
    {"seq": True},
    {"seq": 2**63},
    {"seq": None},
    {"created_at": "2026-11-20T09:26:59Z"},
    {"created_at": "2026-11-20T09:26:59.123456+00:00"},
    {"created_at": 0},
    {"scope": None},
    {"event": []},
    {"event": None},
    {"prev_sha": None},
    {"prev": None},
    {"prev_sha": "ab"},
    {"prev_sha": SHA.upper()},
    {"prev": "../" + NAME},
    {"prev": "latest.json"},
    {"seq": 0},
    {"seq": 0, "prev_sha": None},
    {"seq": 0, "prev": None},
    {"origin": {"scope": "run:a", "seq": 7, "sha256": SHA}},
    {"seq": 0, "origin": {"scope": "run:a", "seq": 7, "sha256": SHA}},
    {"seq": 0, "prev": None, "origin": {"scope": "run:a", "seq": 7, "sha256": "cd" * 32}},
    {"seq": 0, "prev": None, "prev_sha": "x", "origin": {"scope": "run:a", "seq": 7, "sha256": "x"}},
    {"seq": 0, "prev": None, "origin": {"scope": "run:a", "seq": 7}},
    {"merged": {"scope": "run:a", "seq": 7, "sha256": "x"}},
    {"merged": "run:a"},
    {"objects": []},
    {"objects": {"/big": None}},
    {"objects": {"/big": {"sha256": SHA}}},
]


def test_a_malformed_envelope_is_damage() -> None:
    def check(changes: dict[str, Any]) -> None:
        with pytest.raises(IntegrityError) as caught:
            read(**changes)
        assert caught.value.finding == "malformed"

    for_each(check, MALFORMED)


HOSTILE_TABLES: list[tuple[Any, dict[str, Any]]] = [
    ({"big": None}, {"": REF}),
    (None, {"": REF}),
    (None, {"x": REF}),
    ({"": None}, {"": REF}),
    ({"big": None}, {"big": REF}),
    ({"big": 1}, {"/big": REF}),
    ({"big": {}}, {"/big": REF}),
    ({"big": None}, {"/none": REF}),
    ({"big": None}, {"/big/deeper": REF}),
    ({"big": None}, {"/big": REF, "/big/0": REF}),
    ({"big": "text"}, {"/big/0": REF}),
    ({"l": [None]}, {"/l/1": REF}),
    ({"l": [None]}, {"/l/-1": REF}),
    ({"l": [None]}, {"/l/-": REF}),
    ({"l": [None]}, {"/l/00": REF}),
    ({"l": [None]}, {"/l/+0": REF}),
    ({"l": [None]}, {"/l/\u0660": REF}),
    ({"l": [None]}, {"/l/": REF}),
    ({"l": [None]}, {"/l/" + "9" * 5000: REF}),
    # Two spellings of one place: which object would win?
    ({"a~2": None}, {"/a~2": REF}),
    ({"a~": None}, {"/a~": REF}),
    ({"big": None}, {"/big": REF | {"sha256": "x"}}),
    ({"big": None}, {"/big": REF | {"sha256": "../" * 21 + "x"}}),
    ({"big": None}, {"/big": REF | {"size": -1}}),
    ({"big": None}, {"/big": REF | {"size": 1.5}}),
    ({"big": None}, {"/big": REF | {"media_type": "text"}}),
    ({"big": None}, {"/big": REF | {"media_type": "a/b\n"}}),
]


def test_a_table_that_does_not_fit_its_value_is_damage() -> None:
    def check(value: Any, table: dict[str, Any]) -> None:
        with pytest.raises(IntegrityError) as caught:
            read(state=value, objects=table)
        assert caught.value.finding == "malformed"
        with pytest.raises(IntegrityError):
            read_node(canonical.encode({"value": value, "objects": table}))

    for_each(check, HOSTILE_TABLES)


def test_bytes_that_are_not_a_canonical_object_are_damage_in_every_file() -> None:
    def check(data: bytes) -> None:
        for reader in (read_envelope, read_pointer, read_node):
            with pytest.raises(IntegrityError):
                reader(data)

    for_each(check, [b"", b"{", b"null", b"[]", b'"x"', b"{} ", b'{"version":"1","version":"1"}'])


def test_a_pointer_reads_back() -> None:
    pointer = Pointer(NAME, SHA)
    assert pointer.encode() == f'{{"path":"{NAME}","sha256":"{SHA}","version":"1"}}'.encode()
    assert read_pointer(pointer.encode()) == pointer


def test_a_pointer_without_a_full_name_of_a_snapshot_is_damage() -> None:
    def check(changes: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            read_pointer(canonical.encode({"version": "1", "path": NAME, "sha256": SHA} | changes))

    for_each(
        check,
        [
            ({"version": "2"}, NewerVersionError),
            ({"version": None}, IntegrityError),
            ({"path": "../x.json"}, IntegrityError),
            ({"path": "latest.json"}, IntegrityError),
            ({"path": f"x/{NAME}"}, IntegrityError),
            ({"path": None}, IntegrityError),
            ({"sha256": ""}, IntegrityError),
            ({"sha256": SHA[:8]}, IntegrityError),
            ({"sha256": SHA.upper()}, IntegrityError),
            ({"sha256": None}, IntegrityError),
        ],
    )


def test_a_node_has_a_value_and_a_table_and_nothing_else() -> None:
    node = {"value": {"a": None}, "objects": {"/a": REF}}
    assert read_node(canonical.encode(node)) == ({"a": None}, {"/a": Ref(SHA, 3)})
    for other in ({"value": 1}, {"objects": {}}, node | {"more": 1}):
        with pytest.raises(IntegrityError):
            read_node(canonical.encode(other))


def test_a_json_pointer_leads_to_its_place() -> None:
    value = {"a/b": [{"m~n": 1}], "": {"": 2}, "0": "zero"}
    assert at(value, "/a~1b/0/m~0n") == 1
    assert at(value, "//") == 2
    assert at(value, "/0") == "zero"
    assert at(value, "") is value


def test_check_version_names_the_file_in_its_message() -> None:
    check_version("1", "x")
    with pytest.raises(NewerVersionError, match=r"^the pointer is of format version 3"):
        check_version("3", "the pointer")
