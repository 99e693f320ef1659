"""Long lists as chains of chunks: where chunks end, that lists come back as they were, and hostile chains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical
from stateline.bundle.chunks import CONTAINERS
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, Chunk, Ref, read_chunk
from stateline.bundle.objects import THRESHOLD, Artifact, Split, extend, references, resolve, split, with_refs
from stateline.errors import IntegrityError, InvalidValueError, NewerVersionError

ITEMS = st.one_of(
    st.none(),
    st.integers(-9, 9),
    st.text(st.characters(codec="ascii"), max_size=90),
    st.lists(st.integers(0, 9), max_size=4),
    st.dictionaries(st.sampled_from(["a", "b/~", "0"]), st.text("xy", max_size=120), max_size=3),
)
LISTS = st.lists(ITEMS, max_size=60)
THRESHOLDS = st.integers(40, 300)


def joined(parts: Split) -> Any:
    return resolve(with_refs(parts.value, parts.objects), parts.contents.__getitem__)


def chain(parts: Split, ref: Ref) -> list[Chunk]:
    """The chunks of a list, from the first."""
    chunks: list[Chunk] = []
    link: Ref | None = ref
    while link is not None:
        chunks.append(read_chunk(parts.contents[link]))
        link = chunks[-1].before
    return chunks[::-1]


def weight(chunk: Chunk) -> int:
    """By the words of docs/format.md."""
    table = {pointer: ref.document() for pointer, ref in chunk.objects.items()}
    return len(canonical.encode(chunk.items)) + (len(canonical.encode(table)) if table else 0)


def full(chunk: Chunk, threshold: int) -> bool:
    return weight(chunk) >= threshold or sum(isinstance(item, dict | list) for item in chunk.items) >= CONTAINERS


def message(number: int, size: int = 500) -> dict[str, str]:
    text = f"{number} "
    return {"role": "user", "text": text + "x" * (size - len(text) - 26)}


# -- where chunks end --------------------------------------------------------------------------------------------------


@given(LISTS, THRESHOLDS)
def test_a_list_taken_apart_is_put_together_again(value: list[Any], threshold: int) -> None:
    before = canonical.encode(value)
    parts = split({"list": value, "in": [value]}, threshold=threshold)
    assert canonical.encode(value) == before, "the list itself is not changed"
    assert canonical.encode(joined(parts)) == canonical.encode({"list": value, "in": [value]})


@given(LISTS, THRESHOLDS)
def test_every_chunk_but_the_last_is_full_and_was_not_before_its_last_item(value: list[Any], threshold: int) -> None:
    parts = split({"list": value}, threshold=threshold)
    ref = parts.objects.get("/list")
    if ref is None or ref.media_type != LIST_TYPE:
        return
    chunks = chain(parts, ref)
    assert len(chunks) > 1, "one chunk is a value or a node"
    for chunk in chunks[:-1]:
        assert full(chunk, threshold)
    for chunk in chunks:
        last = f"/{len(chunk.items) - 1}"
        table = {p: r for p, r in chunk.objects.items() if p != last and not p.startswith(last + "/")}
        shorter = Chunk(chunk.before, chunk.items[:-1], table)
        assert not shorter.items or not full(shorter, threshold)


@given(LISTS, LISTS, THRESHOLDS)
def test_a_list_that_grows_keeps_every_chunk_but_the_last(value: list[Any], more: list[Any], threshold: int) -> None:
    first = split({"list": value}, threshold=threshold)
    second = split({"list": value + more}, threshold=threshold)
    ref = first.objects.get("/list")
    if ref is not None and ref.media_type == LIST_TYPE:
        kept = {one for one in first.contents if one.media_type == LIST_TYPE} - {ref}
        assert kept <= second.contents.keys()


@given(LISTS, st.lists(LISTS, max_size=4), THRESHOLDS)
def test_a_list_has_the_same_objects_however_it_came_about(
    value: list[Any], more: list[list[Any]], threshold: int
) -> None:
    contents: dict[Ref, bytes] = {}
    parts = split({"list": value}, threshold=threshold)
    contents.update(parts.contents)
    ref = parts.objects.get("/list")
    for items in more:
        value = value + items
        if ref is not None:
            grown = extend(ref, contents[ref], items, threshold=threshold)
            contents.update(grown.contents)
            ref = grown.objects[""]
        whole = split({"list": value}, threshold=threshold).objects.get("/list")
        ref = whole if ref is None else ref
        if whole is not None:
            assert ref == whole
            contents.update(split({"list": value}, threshold=threshold).contents)
    if ref is not None:
        assert canonical.encode(resolve(ref, contents.__getitem__)) == canonical.encode(value)


@given(LISTS, THRESHOLDS)
def test_a_list_with_references_in_it_gives_the_same_chunks(value: list[Any], threshold: int) -> None:
    whole = split({"list": value}, threshold=threshold)
    ref = whole.objects.get("/list")
    if ref is None or ref.media_type != LIST_TYPE:
        return
    inside = [item for chunk in chain(whole, ref) for item in with_refs(chunk.items, chunk.objects)]
    again = split({"list": inside}, threshold=threshold)
    assert again.objects == whole.objects
    assert again.contents.items() <= whole.contents.items()


def test_the_first_chunk_of_messages_ends_at_4096_bytes_or_64_items() -> None:
    def check(size: int, count: int) -> None:
        parts = split({"chat": [message(number, size) for number in range(200)]})
        chunks = chain(parts, parts.objects["/chat"])
        assert len(chunks[0].items) == count

    for_each(check, [(500, 9), (60, 64), (100, 41)])


def test_a_chunk_with_a_table_is_full_at_4096_bytes_of_items_and_table_exactly() -> None:
    def check(more: int, count: int) -> None:
        stored = Ref("ab" * 32, 9, "text/plain")
        table = {"/0": stored.document()}
        rest = THRESHOLD - len(canonical.encode(table)) - len(canonical.encode([None, ""]))
        value = [stored, "x" * (rest + more), 1, *["y" * 900] * 10]
        parts = split({"list": value})
        assert len(chain(parts, parts.objects["/list"])[0].items) == count

    for_each(check, [(-1, 3), (0, 2), (1, 2)])


def test_small_numbers_fill_a_chunk_by_their_bytes_only() -> None:
    parts = split({"numbers": [7] * 5000})
    chunks = chain(parts, parts.objects["/numbers"])
    assert [len(chunk.items) for chunk in chunks] == [2048, 2048, 904]


def test_a_list_that_fits_one_chunk_is_a_value_as_before() -> None:
    value = [message(number) for number in range(9)]
    assert split({"chat": value}).objects["/chat"].media_type == JSON_TYPE
    assert split({"chat": [*value, 0]}).objects["/chat"].media_type == LIST_TYPE


def test_many_small_containers_under_4096_bytes_stay_inline() -> None:
    assert split({"list": [{}] * 1000}).objects == {}


def test_a_list_of_large_messages_is_chunked_by_its_table() -> None:
    parts = split({"chat": [message(number, 5000) for number in range(100)]})
    assert parts.objects["/chat"].media_type == LIST_TYPE
    chunks = chain(parts, parts.objects["/chat"])
    assert len(chunks) == 4
    assert all(item == {"role": "user", "text": None} for chunk in chunks for item in chunk.items)
    assert max(len(data) for ref, data in parts.contents.items() if ref.media_type == LIST_TYPE) < 5000


def test_artifacts_and_references_are_items_like_others() -> None:
    stored = Ref("ab" * 32, 3, "text/plain")
    value = [stored, Artifact(b"raw"), *[message(number) for number in range(30)], [stored], Artifact(b"raw")]
    parts = split({"list": value})
    assert parts.objects["/list"].media_type == LIST_TYPE
    back = joined(parts)["list"]
    assert (back[0], back[-2], back[2:-2]) == (stored, [stored], value[2:-2])
    assert parts.contents[back[1]] == b"raw"
    assert back[1] == back[-1]


def test_lists_in_lists_are_chains_in_chains() -> None:
    value = [[message(10 * outer + inner) for inner in range(20)] for outer in range(60)]
    parts = split({"lists": value})
    assert sum(ref.media_type == LIST_TYPE for ref in parts.objects.values()) == 1
    assert joined(parts) == {"lists": value}


def test_children_come_before_their_parents_and_each_parent_lists_its_children() -> None:
    value = {"list": [message(n, 5000 if n % 7 == 0 else 300) for n in range(300)], "n": {"big": "x" * 5000}}
    parts = split({"v": value, "pad": {"deep": [value["list"], "y" * 5000], "p": ["z" * 100] * 50}})
    seen: set[Ref] = set()
    for ref, data in parts.contents.items():
        named = references(data, ref)
        assert set(named) <= seen
        assert set(named) == set(parts.children.get(ref, ()))
        seen.add(ref)
    assert parts.all_refs() == seen


# -- depth -------------------------------------------------------------------------------------------------------------


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def test_the_items_of_a_chunk_are_at_the_level_of_the_items_of_its_list() -> None:
    def check(outer: int) -> None:
        def around(deep: Any) -> Any:
            value: Any = [*["x" * 500] * 20, deep]
            for _ in range(outer - 1):
                value = {"v": value}
            return {"v": value}

        fits = around(nested(127 - outer))
        parts = split(fits)
        assert [ref.media_type for ref in parts.objects.values()] == [LIST_TYPE]
        assert joined(parts) == fits
        with pytest.raises(InvalidValueError, match="128 levels"):
            split(around(nested(128 - outer)))

    for_each(check, [1, 60, 126])


def test_chains_nest_as_deep_as_a_value_may() -> None:
    value: Any = 0
    for _ in range(127):
        value = ["x" * 50, "y" * 50, value]
    parts = split({"v": value}, threshold=60)
    assert sum(ref.media_type == LIST_TYPE for ref in parts.contents) == 1 + 127, "all begin with the same chunk"
    assert joined(parts) == {"v": value}


# -- appending ---------------------------------------------------------------------------------------------------------


def test_appending_needs_the_last_chunk_only_and_rewrites_it_only() -> None:
    parts = split({"chat": [message(number) for number in range(1000)]})
    ref = parts.objects["/chat"]
    grown = extend(ref, parts.contents[ref], [message(1000), message(1001, 5000)])
    expected = split({"chat": [*[message(number) for number in range(1001)], message(1001, 5000)]})
    assert grown.objects[""] == expected.objects["/chat"]
    assert len(grown.contents) == 2, "the large message, and the chunk that was the last"


def test_a_chunk_that_is_taken_up_again_keeps_the_places_of_its_objects() -> None:
    value = [message(number, 5000 if number % 3 == 1 else 200) for number in range(40)]
    parts = split({"chat": value})
    contents = dict(parts.contents)
    ref = parts.objects["/chat"]
    for number in range(40, 60):
        value.append(message(number, 5000 if number % 3 == 1 else 200))
        grown = extend(ref, contents[ref], value[-1:])
        contents.update(grown.contents)
        ref = grown.objects[""]
        assert ref == split({"chat": value}).objects["/chat"]
    assert resolve(ref, contents.__getitem__) == value


def test_appending_nothing_changes_nothing() -> None:
    parts = split({"chat": [message(number) for number in range(100)]})
    ref = parts.objects["/chat"]
    assert extend(ref, parts.contents[ref], []).objects == {"": ref}


def test_a_short_stored_list_grows_into_a_chain() -> None:
    data = canonical.encode([message(0)])
    ref = Ref(canonical.sha256(data), len(data))
    two = extend(ref, data, [message(1)])
    assert two.objects[""].media_type == JSON_TYPE
    assert resolve(two.objects[""], two.contents.__getitem__) == [message(0), message(1)]
    many = extend(ref, data, [message(number) for number in range(1, 50)])
    assert many.objects[""] == split({"l": [message(number) for number in range(50)]}).objects["/l"]
    with_artifact = extend(ref, data, [Artifact(b"raw")])
    assert with_artifact.objects[""].media_type == NODE_TYPE


def test_only_a_list_can_be_appended_to() -> None:
    def check(data: bytes, media_type: str) -> None:
        with pytest.raises(InvalidValueError, match="is not a list"):
            extend(Ref(canonical.sha256(data), len(data), media_type), data, [1])

    for_each(
        check,
        [
            (b'{"a":1}', JSON_TYPE),
            (b'"text"', JSON_TYPE),
            (b'{"objects":{},"value":{}}', NODE_TYPE),
            (b"x", "text/plain"),
        ],
    )


def test_an_item_that_is_not_json_is_refused() -> None:
    def check(bad: Any) -> None:
        parts = split({"chat": [message(number) for number in range(100)]})
        ref = parts.objects["/chat"]
        for items in ([bad], [message(1), bad, message(2)] * 20):
            with pytest.raises(InvalidValueError):
                extend(ref, parts.contents[ref], items)
            with pytest.raises(InvalidValueError):
                split({"chat": [message(number) for number in range(100)] + items})

    for_each(check, [(case,) for case in [float("nan"), 2**64, "\ud800", (1,), b"x", {1: 2}, nested(200)]])


# -- hostile stores ----------------------------------------------------------------------------------------------------


def kept(document: Any, store: dict[Ref, bytes], media_type: str = LIST_TYPE) -> Ref:
    data = canonical.encode(document, depth=canonical.FILE_DEPTH)
    ref = Ref(canonical.sha256(data), len(data), media_type)
    store[ref] = data
    return ref


def linked(before: Ref | None, items: Any, store: dict[Ref, bytes], objects: Any = None) -> Ref:
    document = {"before": before and before.document(), "items": items, "objects": objects or {}}
    return kept(document, store)


GOOD = {"sha256": "0" * 64, "size": 9, "media_type": LIST_TYPE}


def test_a_malformed_chunk_is_damage_for_every_reader() -> None:
    def check(document: Any) -> None:
        store: dict[Ref, bytes] = {}
        ref = kept(document, store)
        last = linked(ref, [1], store)
        for read in (
            lambda: references(store[ref], ref),
            lambda: resolve({"a": ref}, store.__getitem__),
            lambda: resolve({"a": last}, store.__getitem__),
            lambda: extend(ref, store[ref], [1]),
        ):
            with pytest.raises(IntegrityError) as caught:
                read()
            assert caught.value.finding == "malformed"

    for_each(
        check,
        [
            [],
            {},
            {"before": None, "items": [1]},
            {"before": None, "items": [1], "objects": {}, "count": 1},
            {"items": [1], "objects": {}},
            {"before": None, "items": [], "objects": {}},
            {"before": GOOD, "items": [], "objects": {}},
            {"before": None, "items": {"0": 1}, "objects": {}},
            {"before": None, "items": None, "objects": {}},
            {"before": None, "items": [1], "objects": []},
            {"before": None, "items": [1], "objects": {"/0": GOOD}},
            {"before": None, "items": [None], "objects": {"/1": GOOD}},
            {"before": None, "items": [None], "objects": {"": GOOD}},
            {"before": None, "items": [None], "objects": {"/00": GOOD}},
            {"before": None, "items": [None], "objects": {"/0": GOOD | {"sha256": "../x"}}},
            {"before": "0" * 64, "items": [1], "objects": {}},
            {"before": GOOD | {"media_type": NODE_TYPE}, "items": [1], "objects": {}},
            {"before": GOOD | {"media_type": JSON_TYPE}, "items": [1], "objects": {}},
            {"before": GOOD | {"sha256": "0" * 63}, "items": [1], "objects": {}},
            {"before": GOOD | {"size": -1}, "items": [1], "objects": {}},
            {"before": GOOD | {"more": 1}, "items": [1], "objects": {}},
            {"before": {"sha256": "0" * 64, "size": 9}, "items": [1], "objects": {}},
        ],
    )


def test_a_chain_of_thousands_is_read_and_each_chunk_once() -> None:
    store: dict[Ref, bytes] = {}
    ref = None
    for number in range(5000):
        ref = linked(ref, [number], store)
    assert ref is not None
    fetched: list[Ref] = []

    def fetch(wanted: Ref) -> bytes:
        fetched.append(wanted)
        return store[wanted]

    assert resolve({"a": ref, "b": [ref]}, fetch) == {"a": list(range(5000)), "b": [list(range(5000))]}
    assert len(fetched) == 5000


def test_lists_that_share_their_beginning_read_it_once() -> None:
    store: dict[Ref, bytes] = {}
    refs = [linked(None, [0], store)]
    for number in range(1, 50):
        refs.append(linked(refs[-1], [number], store))
    fetched: list[Ref] = []

    def fetch(wanted: Ref) -> bytes:
        fetched.append(wanted)
        return store[wanted]

    assert resolve(list(refs), fetch) == [list(range(number + 1)) for number in range(50)]
    assert len(fetched) == 50


def test_a_chain_that_claims_more_bytes_than_an_object_may_have_is_not_read() -> None:
    store: dict[Ref, bytes] = {}
    huge = Ref("0" * 64, canonical.OBJECT_LIMIT, LIST_TYPE)
    ref = linked(huge, [1], store)
    fetched: list[Ref] = []

    def fetch(wanted: Ref) -> bytes:
        fetched.append(wanted)
        return store[wanted]

    with pytest.raises(IntegrityError, match="expand to more"):
        resolve({"a": ref}, fetch)
    assert fetched == [ref]


def test_lists_that_double_at_each_level_are_refused_before_they_fill_the_memory() -> None:
    store: dict[Ref, bytes] = {}
    ref = linked(None, ["x" * 5000], store)
    for _ in range(60):
        entry = ref.document()
        ref = linked(None, [None, None], store, {"/0": entry, "/1": entry})
    reads = 0

    def fetch(wanted: Ref) -> bytes:
        nonlocal reads
        reads += 1
        return store[wanted]

    with pytest.raises(IntegrityError, match="expand to more"):
        resolve({"bomb": ref}, fetch)
    assert reads <= 61


def test_chains_cannot_hide_depth() -> None:
    store: dict[Ref, bytes] = {}
    ref = kept(nested(100), store, JSON_TYPE)
    for _ in range(30):
        ref = linked(linked(None, [1], store), [None], store, {"/0": ref.document()})
    with pytest.raises(IntegrityError, match="128 levels"):
        resolve(ref, store.__getitem__)


def test_a_chunk_whose_items_are_of_a_later_type_asks_for_an_upgrade() -> None:
    store: dict[Ref, bytes] = {}
    later = {"sha256": "0" * 64, "size": 1, "media_type": "application/vnd.stateline.later+json"}
    with pytest.raises(NewerVersionError):
        resolve(linked(None, [None], store, {"/0": later}), store.__getitem__)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_example_of_the_page_has_its_bytes_and_digests() -> None:
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    section = page[page.index("### Lists") : page.index("## Runs, contexts and machine records")]
    parts = split({"log": ["b" * 3000, "b" * 3000, 7, {"text": "a" * 4094}]})
    last = parts.objects["/log"]
    first = read_chunk(parts.contents[last]).before
    assert first is not None
    shown = re.findall(r"`([0-9a-f]{64})`", section)
    inner = read_chunk(parts.contents[last]).objects["/1/text"]
    assert shown == [inner.sha256, first.sha256, last.sha256]
    assert re.findall(r"^```text\n(.*?)\n```$", section, re.MULTILINE) == [parts.contents[last].decode()]
    assert f"has {first.size:,} bytes" in section
    assert f"has {last.size:,} bytes" in section
    assert f"or {CONTAINERS} of its items" in section
    assert f"has {THRESHOLD:,} bytes or more" in section
