"""Taking large parts out of a value and putting them back."""

from __future__ import annotations

import time
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, Ref, read_chunk, read_node
from stateline.bundle.objects import THRESHOLD, Artifact, Split, is_json, references, resolve, split, with_refs
from stateline.errors import IntegrityError, InvalidValueError


def joined(parts: Split) -> Any:
    return resolve(with_refs(parts.value, parts.objects), parts.contents.__getitem__)


def nested(levels: int, inside: Any = 0) -> Any:
    for _ in range(levels):
        inside = [inside]
    return inside


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda v: (
        st.lists(v, max_size=6) | st.dictionaries(TEXT | st.sampled_from(["media_type", "a/b~", "0"]), v, max_size=6)
    ),
    max_leaves=40,
)


def sizes(parts: Split, threshold: int) -> None:
    """Check that parts taken out are large and parts that stay are small, at every level."""
    for ref, data in parts.contents.items():
        assert ref.sha256 == canonical.sha256(data)
        assert ref.size == len(data)
        # The last chunk of a list may be of any size.
        assert len(data) >= threshold or ref.media_type == LIST_TYPE
    inline = [parts.value] + [read_node(data)[0] for ref, data in parts.contents.items() if ref.media_type == NODE_TYPE]
    inline += [read_chunk(data).items for ref, data in parts.contents.items() if ref.media_type == LIST_TYPE]
    for value in inline:
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        assert all(len(canonical.encode(child)) < threshold for child in children)


@given(VALUES, st.integers(32, 200))
def test_a_value_taken_apart_is_put_together_again(value: Any, threshold: int) -> None:
    before = canonical.encode(value)
    parts = split(value, threshold=threshold)
    assert canonical.encode(value) == before, "the value itself is not changed"
    assert canonical.encode(joined(parts)) == before
    assert split(value, threshold=threshold) == parts, "the same value gives the same objects"
    sizes(parts, threshold)


@given(VALUES, st.integers(32, 60))
def test_a_value_with_references_in_it_splits_to_the_same_objects(value: Any, threshold: int) -> None:
    whole = split(value, threshold=threshold)
    again = split(with_refs(whole.value, whole.objects), threshold=threshold)
    assert (again.value, again.objects) == (whole.value, whole.objects)
    assert again.contents == {}


def test_an_object_begins_at_4096_bytes_of_canonical_json() -> None:
    def check(length: int, out: bool) -> None:
        parts = split({"text": "x" * length})
        assert (parts.objects.keys() == {"/text"}) is out
        assert parts.value == {"text": None if out else "x" * length}

    for_each(check, [(4093, False), (4094, True)])


def test_length_counts_bytes_not_characters() -> None:
    assert split({"a": "é" * 2047}).objects.keys() == {"/a"}
    assert split({"a": "\x01" * 683}).objects.keys() == {"/a"}
    assert split({"a": "é" * 2046}).objects == {}


def test_the_value_itself_stays_inline_at_any_size() -> None:
    assert split("x" * 10_000) == Split("x" * 10_000, {}, {})
    many = {f"k{number}": number for number in range(5000)}
    assert split(many) == Split(many, {}, {})


def test_a_value_that_is_small_without_its_parts_stays_inline() -> None:
    parts = split({"outer": {"big": "x" * 5000, "small": 1}})
    assert parts.value == {"outer": {"big": None, "small": 1}}
    assert parts.objects.keys() == {"/outer/big"}


def test_a_value_that_is_large_without_its_parts_becomes_a_node_with_a_table() -> None:
    small = {f"k{number}": "y" * 100 for number in range(50)}
    parts = split({"outer": {"big": "x" * 5000} | small})
    assert parts.value == {"outer": None}
    node = parts.objects["/outer"]
    assert node.media_type == NODE_TYPE
    value, table = read_node(parts.contents[node])
    assert value == {"big": None} | small
    assert table.keys() == {"/big"}


def test_nodes_nest_and_parts_come_before_the_wholes_that_name_them() -> None:
    def level(deeper: Any) -> Any:
        return {"pad": [f"{number}" * 20 for number in range(30)], "deeper": deeper, "text": "t" * 150}

    value = {"top": level(level(level("x" * 300)))}
    parts = split(value, threshold=200)
    assert joined(parts) == value
    seen: set[Ref] = set()
    for ref, data in parts.contents.items():
        assert set(references(data, ref)) <= seen
        seen.add(ref)
    assert sum(ref.media_type == NODE_TYPE for ref in seen) >= 1


def test_pointers_escape_special_characters_of_keys() -> None:
    value = {"a/b": {"m~n": "x" * 5000}, "": ["y" * 5000], "0": "z" * 5000}
    parts = split(value)
    assert parts.objects.keys() == {"/a~1b/m~0n", "//0", "/0"}
    assert joined(parts) == value


def test_an_artifact_is_kept_byte_for_byte_however_small() -> None:
    parts = split({"a": Artifact(b"\0\xff", "image/png"), "l": [Artifact(b"")]})
    assert parts.value == {"a": None, "l": [None]}
    assert sorted(parts.contents.values()) == [b"", b"\0\xff"]
    assert parts.objects["/a"].media_type == "image/png"
    assert joined(parts) == {"a": parts.objects["/a"], "l": [parts.objects["/l/0"]]}, "artifacts stay references"
    assert not is_json(parts.objects["/a"])


def test_equal_parts_are_one_object() -> None:
    parts = split({"a": "x" * 5000, "b": ["x" * 5000]})
    assert len(parts.contents) == 1


def test_a_word_of_the_table_in_user_data_means_nothing() -> None:
    value = {"sha256": "0" * 64, "size": 1, "media_type": "application/json", "objects": {"/a": 1}, "value": "x" * 5000}
    assert joined(split({"v": value})) == {"v": value}


def test_a_value_that_is_not_json_is_refused_inside_objects() -> None:
    def check(bad: Any) -> None:
        with pytest.raises(InvalidValueError):
            split({"large": ["x" * 3000, "y" * 3000, [bad, "z" * 4090]], "direct": ["x" * 4096, bad] * 50})

    for_each(check, [(case,) for case in [float("nan"), 2**64, "\ud800", (1,), b"x", {1: 2}]])


def test_a_reference_that_no_reader_would_take_is_refused_on_the_way_in() -> None:
    def check(leaf: Any) -> None:
        for value in ({"a": leaf}, {"a": [leaf, "x" * 5000]}, [leaf]):
            with pytest.raises(InvalidValueError):
                split(value)

    for_each(
        check,
        [
            Ref("../../../etc/passwd", 1),
            Ref("A" * 64, 1),
            Ref("0" * 64, -1),
            Ref("0" * 64, 1, "text"),
            Ref("0" * 64, 1, "Text/Plain; charset=utf-8"),
            Artifact(b"x", "text/plain; charset=utf-8"),
            Artifact(b"x", ""),
            Artifact(b"x", "a/b\n"),
        ],
    )


def test_depth_is_that_of_the_whole_value_not_of_each_part() -> None:
    def check(pad: str, outer: int) -> None:
        fits = nested(outer, [pad, nested(127 - outer)])
        assert joined(split(fits)) == fits
        with pytest.raises(InvalidValueError, match="128 levels"):
            split(nested(outer, [pad, nested(128 - outer)]))

    for_each(check, ["x", "x" * 5000], [0, 1, 60, 127])


def test_a_bomb_of_depth_is_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match="128 levels"):
        split({"a": nested(100_000)})


# -- hostile stores ----------------------------------------------------------------------------------------------------


def node(value: Any, objects: dict[str, Ref], store: dict[Ref, bytes]) -> Ref:
    table = {pointer: ref.document() for pointer, ref in objects.items()}
    data = canonical.encode({"value": value, "objects": table}, depth=130)
    ref = Ref(canonical.sha256(data), len(data), NODE_TYPE)
    store[ref] = data
    return ref


def plain(value: Any, store: dict[Ref, bytes]) -> Ref:
    data = canonical.encode(value)
    ref = Ref(canonical.sha256(data), len(data), JSON_TYPE)
    store[ref] = data
    return ref


def test_a_digest_shared_thousands_of_times_is_read_once() -> None:
    store: dict[Ref, bytes] = {}
    ref = plain(["x" * 5000], store)
    fetched: list[Ref] = []

    def fetch(wanted: Ref) -> bytes:
        fetched.append(wanted)
        return store[wanted]

    assert len(resolve([ref] * 5000, fetch)) == 5000
    assert fetched == [ref]


def test_nodes_that_double_at_each_level_are_refused_before_they_fill_the_memory() -> None:
    store: dict[Ref, bytes] = {}
    ref = plain("x" * 5000, store)
    for _ in range(60):
        ref = node([None, None], {"/0": ref, "/1": ref}, store)
    began = time.perf_counter()
    with pytest.raises(IntegrityError, match="expand to more"):
        resolve({"bomb": ref}, store.__getitem__)
    assert time.perf_counter() - began < 5


def test_shared_nodes_cannot_hide_depth() -> None:
    store: dict[Ref, bytes] = {}
    chain = [plain(nested(100), store)]
    for _ in range(20):
        inner = nested(99, [None])
        chain.append(node(inner, {"/0" * 100: chain[-1]}, store))
    with pytest.raises(IntegrityError, match="128 levels"):
        resolve(list(chain), store.__getitem__)


def test_objects_that_do_not_fit_their_media_type_are_damage() -> None:
    for data, media_type in ((b"{", JSON_TYPE), (b'{ "a":1}', JSON_TYPE), (b"{}", NODE_TYPE), (b"[]", NODE_TYPE)):
        ref = Ref(canonical.sha256(data), len(data), media_type)
        with pytest.raises(IntegrityError):
            resolve({"a": ref}, {ref: data}.__getitem__)
        with pytest.raises(IntegrityError):
            references(data, ref)


def test_an_object_nested_deeper_than_a_value_may_be_is_damage() -> None:
    data = canonical.encode(nested(129), depth=130)
    ref = Ref(canonical.sha256(data), len(data), JSON_TYPE)
    with pytest.raises(IntegrityError):
        resolve(ref, {ref: data}.__getitem__)


def test_resolving_leaves_the_given_value_alone() -> None:
    store: dict[Ref, bytes] = {}
    ref = plain({"deep": 1}, store)
    value = {"a": ref, "l": [ref]}
    assert resolve(value, store.__getitem__) == {"a": {"deep": 1}, "l": [{"deep": 1}]}
    assert value == {"a": ref, "l": [ref]}


def test_given_bytes_do_not_change_the_split() -> None:
    def check(size: int, threshold: int) -> None:
        texts = {"plain": "x" * size, "escaped": '"' * (size // 2), "list": ["\x00" * (size // 6), {"a": "y" * size}]}
        holding = {**texts, "ref": Ref("ab" * 32, 5), "artifact": Artifact(b"raw"), "media_type": "text/plain"}
        for value in (texts, {"in": [texts, texts]}, holding, [texts] * 100, {"media_type": texts}, "x" * size, size):
            with_draft = split(value, threshold=threshold, encoded=canonical.encode_unchecked(value))
            assert with_draft == split(value, threshold=threshold)

    for_each(check, [10, 700, 4000, 4096, 5000], [64, THRESHOLD])
