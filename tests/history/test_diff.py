"""Comparison of states: the changes turn one into the other, and little is read to find them."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_stores import OpenStore

from stateline.bundle import canonical
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, Chunk, Ref
from stateline.bundle.objects import Artifact
from stateline.errors import IntegrityError, NewerVersionError
from stateline.history.diff import Change, compare, list_edits, patch, pointer, resolved
from stateline.redaction.redactor import Redactor
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store

LARGE = "x" * 5000


def memory() -> Store:
    return Store(MemoryBackend(), redactor=Redactor())


def applied(document: Any, operations: list[Any]) -> Any:
    """Apply an RFC 6902 patch: a second oracle beside ``jsonpatch.apply_patch``."""
    root = [copy.deepcopy(document)]

    def found(text: str) -> tuple[Any, Any]:
        tokens = ["0", *(canonical.unescape(token) for token in text.split("/")[1:])]
        holder: Any = root
        for token in tokens[:-1]:
            holder = holder[int(token)] if isinstance(holder, list) else holder[token]
        if isinstance(holder, dict):
            return holder, tokens[-1]
        return holder, len(holder) if tokens[-1] == "-" else int(tokens[-1])

    def put(text: str, value: Any) -> None:
        holder, key = found(text)
        if isinstance(holder, list) and holder is not root:
            assert key <= len(holder)
            holder.insert(key, value)
        else:
            holder[key] = value

    for operation in operations:
        holder, key = found(operation["path"])
        if operation["op"] == "add":
            put(operation["path"], copy.deepcopy(operation["value"]))
        elif operation["op"] == "replace":
            assert (key in holder) if isinstance(holder, dict) else (key < len(holder))
            holder[key] = copy.deepcopy(operation["value"])
        elif operation["op"] == "remove":
            del holder[key]
        else:
            source, at = found(operation["from"])
            put(operation["path"], source.pop(at))
    return root[0]


def checked(store: Store, old: Any, new: Any) -> list[Any]:
    """Return the patch between two states (with Refs), checked by applying it in two ways."""
    operations = patch(store, compare(store, old, new))
    before, after = resolved(store, old), canonical.encode(resolved(store, new))
    assert canonical.encode(applied(before, operations)) == after
    assert canonical.encode(jsonpatch.apply_patch(copy.deepcopy(before), operations)) == after
    return operations


def saved(store: Store, state: Any) -> Snapshot:
    return store.scope("notes:x").save(state)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 1e300, "", "a", "1", LARGE, LARGE + "y", 2**64 - 1, -(2**63)])
)
keys = st.sampled_from(["", "a", "b", "a/b", "~", "~1", "0", "-", "media_type", "é", "x y"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=5), max_leaves=30
)


@given(values, values)
def test_a_patch_turns_the_first_state_into_the_second_byte_for_byte(old: Any, new: Any) -> None:
    store = memory()
    before, after = saved(store, old), saved(store, new)
    operations = checked(store, before.state, after.state)
    assert (operations == []) == (canonical.encode(old) == canonical.encode(new))


@given(st.lists(values, max_size=8), st.data())
def test_a_patch_of_an_edited_list_is_right(old: list[Any], data: st.DataObject) -> None:
    new = list(old)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(new)))
        edit = data.draw(st.sampled_from(["insert", "delete", "turn", "change"]))
        if edit == "insert":
            new.insert(at, data.draw(values))
        elif edit == "turn":
            new = new[at:] + new[:at]
        elif at < len(new):
            new[at : at + 1] = [] if edit == "delete" else [data.draw(values)]
    store = memory()
    before, after = saved(store, {"list": old}), saved(store, {"list": new})
    assert (checked(store, before.state, after.state) == []) == (canonical.encode(old) == canonical.encode(new))


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), max_size=12))
def test_edits_turn_one_list_into_the_other(old: list[int], new: list[int]) -> None:
    now = list(old)
    for edit in list_edits(old, new):
        if edit.op == "add":
            now.insert(edit.index, edit.number)
        elif edit.op == "replace":
            now[edit.index] = edit.number
        else:
            item = now.pop(edit.source if edit.op == "move" else edit.index)
            now[edit.index : edit.index] = [item] if edit.op == "move" else []
    assert now == new


def test_values_that_only_python_calls_equal_are_replaced() -> None:
    store = memory()
    pairs: list[tuple[Any, Any]] = [
        *((1, 1.0), (1, True), (0, False), (0.0, -0.0)),
        *(([1], [1.0]), ({"a": 0}, {"a": False}), (None, {})),
    ]
    for old, new in pairs:
        for wrap in (lambda value: value, lambda value: {"k": value}, lambda value: ["first", value, "last"]):
            (operation,) = checked(store, wrap(old), wrap(new))
            assert operation["op"] == "replace", (old, new)


def test_keys_are_escaped_in_pointers() -> None:
    store = memory()
    old = {"a/b": 1, "m~n": {"": 2}, "-": [1], "0": 3}
    operations = checked(store, old, {"a/b": 2, "m~n": {"": 3}, "-": [2], "0": 4})
    assert [operation["path"] for operation in operations] == ["/-/0", "/0", "/a~1b", "/m~0n/"]


def test_an_item_appended_is_one_operation() -> None:
    items = [{"role": "user", "n": number} for number in range(10_000)]
    assert checked(memory(), {"l": items}, {"l": [*items, "new"]}) == [
        {"op": "add", "path": "/l/10000", "value": "new"}
    ]


def test_an_item_inserted_in_front_does_not_change_the_others() -> None:
    items = [{"n": number} for number in range(2000)]
    changed = [{"n": -1}, *items[:1000], {"n": 1000, "more": 1}, *items[1001:]]
    operations = checked(memory(), items, changed)
    assert [(o["op"], o["path"]) for o in operations] == [("add", "/0"), ("add", "/1001/more")]


def test_an_item_that_only_moved_is_moved_and_not_read() -> None:
    store = memory()
    refs = [store.put_value({"text": LARGE, "n": number}) for number in range(4)]
    changes = compare(without_objects(store), refs, [*refs[1:], refs[0]])
    assert [(change.op, change.source, change.path) for change in changes] == [("move", (0,), (3,))]
    checked(store, refs, [*refs[1:], refs[0]])


def nested(leaf: Any, depth: int = canonical.DEPTH) -> Any:
    for number in range(depth):
        leaf = [leaf, number] if number % 2 else {"k": leaf, "n": number}
    return leaf


def test_the_deepest_value_is_compared() -> None:
    store = memory()
    (operation,) = checked(store, nested(1), nested(2))
    assert operation["path"].count("/") == canonical.DEPTH
    assert len(checked(store, nested(LARGE), nested([], canonical.DEPTH - 1))) >= 1


# -- objects ----------------------------------------------------------------------------------------------------------


def reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the digests of objects read from now on."""
    read: list[str] = []
    get = store.get

    def counted(ref: Ref) -> bytes:
        read.append(ref.sha256)
        return get(ref)

    monkeypatch.setattr(store, "get", counted)
    return read


def without_objects(store: Store) -> Store:
    """Return a store on the same backend that fails when an object is read."""
    blind = Store(store.backend, redactor=Redactor())
    blind.get = None  # type: ignore[assignment,method-assign]  # so that a call is a TypeError
    return blind


def test_equal_objects_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    kept = {f"k{number}": {"text": LARGE + str(number)} for number in range(50)}
    before = saved(store, {"kept": kept, "list": [LARGE, {"deep": [LARGE + "a"]}], "n": 1})
    after = saved(store, {"kept": kept, "list": [LARGE, {"deep": [LARGE + "a"]}], "n": 2})
    read = reading(store, monkeypatch)
    assert patch(store, compare(store, before.state, after.state)) == [{"op": "replace", "path": "/n", "value": 2}]
    assert read == []


def test_of_nested_objects_only_those_above_a_difference_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    # Mappings of large parts, so that each level is a separate object.
    old = {f"a{i}": {f"b{j}": {"text": LARGE, "i": i, "j": j, "k": "y" * 100} for j in range(40)} for i in range(3)}
    new = copy.deepcopy(old)
    new["a1"]["b7"]["i"] = "changed"
    before, after = saved(store, {"v": old}), saved(store, {"v": new})
    read = reading(store, monkeypatch)
    changes = compare(store, before.state, after.state)
    assert [change.path for change in changes] == [("v", "a1", "b7", "i")]
    whole = 1 + 3 + 3 * 40
    assert len(read) == len(set(read)) <= 8 < whole
    checked(store, before.state, after.state)


def test_an_object_that_stands_in_many_places_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    old, new = store.put_value({"n": 1}), store.put_value({"n": 2})
    read = reading(store, monkeypatch)
    assert len(compare(store, {"a": old, "b": old}, {"a": new, "b": new})) == 2
    assert sorted(read) == sorted([old.sha256, new.sha256])


def test_a_value_and_an_equal_object_are_equal() -> None:
    store = memory()
    value = {"a": [1, {"b": "c"}]}
    assert compare(store, {"v": store.put_value(value)}, {"v": value}) == []
    assert compare(store, [store.put_value(value), 1], [value, 1]) == []


def test_a_value_with_the_members_of_a_ref_is_not_taken_for_one() -> None:
    store = memory()
    ref = store.put_value([1, 2])
    for old, new in (([ref], [ref.document()]), ([ref, 0], [0, ref.document()]), ([[ref]], [[ref.document()], 1])):
        assert checked(store, old, new)
        assert checked(store, new, old)
        marked = [{"object": ref.document()}, {"value": ref.document()}]
        assert checked(store, old, marked)


def test_a_changed_artifact_is_a_change_and_not_in_the_patch() -> None:
    store = memory()
    one, other = store.put(Artifact(b"one")), store.put(Artifact(b"other", "text/plain"))
    changes = compare(store, {"file": one, "n": 1}, {"file": other, "n": 2})
    assert changes[0] == Change(op="replace", path=("file",), old=one, new=other)
    assert patch(store, changes) == [{"op": "replace", "path": "/n", "value": 2}]
    assert compare(store, {"file": one}, {"file": one}) == []
    assert len(compare(store, {"file": one}, {"file": None})) == 1
    for old, new in ((one, "text"), ("text", one), (one, None), ([one, other], [other, one, None]), ([one], [[one]])):
        checked(store, {"file": old}, {"file": new})


def test_artifacts_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    one, other = store.put(Artifact(b"1" * 9000)), store.put(Artifact(b"2" * 9000))
    read = reading(store, monkeypatch)
    patch(store, compare(store, {"a": one, "l": [one]}, {"a": other, "b": [one, other], "l": [other]}))
    assert read == []


# -- long lists -------------------------------------------------------------------------------------------------------


def long_list(store: Store, items: list[Any], size: int = 3) -> Ref:
    """A list in chunks of ``size`` items, as the format allows them."""
    ref: Ref | None = None
    for start in range(0, len(items), size):
        data = Chunk(ref, items[start : start + size], {}).encode()
        ref = Ref(canonical.sha256(data), len(data), LIST_TYPE)
        store._put(ref, data)
    assert ref is not None
    return ref


@given(st.lists(values, min_size=1, max_size=12), st.lists(values, max_size=6), st.integers(0, 12))
def test_long_lists_with_any_common_part_are_compared(start: list[Any], rest: list[Any], kept: int) -> None:
    store = memory()
    new = start[:kept] + rest or [0]
    old_list, new_list = {"l": long_list(store, start)}, {"l": long_list(store, new)}
    # The items are inline on purpose; chunks made by the store are tested above.
    assert (checked(store, old_list, new_list) == []) == (canonical.encode(start) == canonical.encode(new))
    checked(store, {"l": start}, new_list)
    checked(store, new_list, {"l": start})


def test_only_the_ends_of_a_long_list_that_grew_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    items = [{"n": number} for number in range(301)]
    old, new = long_list(store, items), long_list(store, [*items, "a", "b", "c", "d"])
    read = reading(store, monkeypatch)
    operations = patch(store, compare(store, {"l": old}, {"l": new}))
    assert operations == [{"op": "add", "path": "/l/-", "value": value} for value in "abcd"]
    assert len(read) <= 5
    assert checked(store, {"l": old}, {"l": new}) == operations


def test_a_conversation_that_grew_in_the_store_is_a_small_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory()
    messages = [{"role": "user", "text": f"{number} " + "w" * 500} for number in range(200)]
    before, after = saved(store, {"log": messages}), saved(store, {"log": [*messages, "end"]})
    read = reading(store, monkeypatch)
    (operation,) = patch(store, compare(store, before.state, after.state))
    assert operation["value"] == "end"
    assert len(read) <= 5
    checked(store, before.state, after.state)


def test_a_change_inside_a_long_list_has_its_index() -> None:
    store = memory()
    items: list[Any] = [{"n": number} for number in range(30)]
    changed = [*items[:25], {"n": "x"}, *items[26:]]
    operations = checked(store, {"l": long_list(store, items)}, {"l": long_list(store, changed)})
    assert operations == [{"op": "replace", "path": "/l/25/n", "value": "x"}]


# -- damaged and hostile objects ---------------------------------------------------------------------------------------


def test_a_missing_object_above_a_difference_is_damage() -> None:
    store = memory()
    gone = Ref("0" * 64, 9000)
    with pytest.raises(IntegrityError, match="missing"):
        compare(store, {"v": gone}, {"v": [1]})
    assert compare(store, {"v": gone}, {"v": gone}) == []


def test_an_object_of_a_type_of_a_newer_format_is_refused() -> None:
    store = memory()
    newer = Ref("0" * 64, 9000, "application/vnd.stateline.later+json")
    with pytest.raises(NewerVersionError):
        compare(store, {"v": newer}, {"v": 1})
    with pytest.raises(NewerVersionError):
        patch(store, compare(store, {}, {"v": newer}))


def node(store: Store, value: Any, objects: dict[str, Ref]) -> Ref:
    table = {pointer: ref.document() for pointer, ref in objects.items()}
    data = canonical.encode({"value": value, "objects": table}, depth=canonical.FILE_DEPTH)
    ref = Ref(canonical.sha256(data), len(data), NODE_TYPE)
    store._put(ref, data)
    return ref


def test_objects_that_nest_without_bound_are_refused() -> None:
    store = memory()
    ends = []
    for leaf in (1, 2):
        ref = store.put_value([leaf])
        for _ in range(canonical.DEPTH + 1):
            ref = node(store, {"k": None}, {"/k": ref})
        ends.append(ref)
    with pytest.raises(IntegrityError, match="nest deeper"):
        compare(store, {"v": ends[0]}, {"v": ends[1]})


def test_objects_that_expand_without_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "OBJECT_LIMIT", 200_000)
    store = memory()
    ends = []
    for leaf in ("1", "2"):
        ref = store.put_value(leaf)
        for _ in range(8):
            ref = node(store, [None] * 8, {f"/{index}": ref for index in range(8)})
        ends.append(ref)
    with pytest.raises(IntegrityError, match="expand"):
        compare(store, {"v": ends[0]}, {"v": ends[1]})
    with pytest.raises(IntegrityError, match="expand"):
        patch(store, [Change(op="add", path=(str(number),), new=ends[0]) for number in range(2)])


def test_pointers_name_keys_and_the_place_after_the_last_item() -> None:
    assert pointer(()) == ""
    assert pointer(("a/b", 3, "", "~")) == "/a~1b/3//~0"
    assert pointer(("l", -1)) == "/l/-"


def test_an_object_that_is_not_of_its_type_is_damage(open_store: OpenStore) -> None:
    store = open_store()
    data = b"[1, 2]"
    ref = Ref(canonical.sha256(data), len(data), JSON_TYPE)
    store._put(ref, data)
    with pytest.raises(IntegrityError):
        compare(store, {"v": ref}, {"v": []})
