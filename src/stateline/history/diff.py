"""Differences between two states, as an ordered list of changes that turn one into the other.

Both states are walked side by side. Objects with the same digest are equal and are not read; of the others only those
above a difference are. As in a patch (RFC 6902), the path of a change is valid once the changes before it are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, OWN_TYPES, Chunk, Ref, read_chunk, read_node
from stateline.bundle.objects import with_refs
from stateline.errors import IntegrityError
from stateline.store.store import Store

Path = tuple[str | int, ...]
"""Keys (str) and indices (int) from the state down to a value; empty for the state itself."""

_EQUAL = 30
"""Most equal characters that are kept before the first difference of two long texts."""
END = -1
"""Index after the last item of a long list, whose earlier items were not counted."""

_encoder = msgspec.json.Encoder(order="sorted")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change. ``old`` is the value at ``path`` before (for a move: at ``source``), ``new`` the one afterwards.

    Values are as stored, with a :class:`Ref` in place of each object. A ``replace`` of one artifact by another is a
    change too, although both are null in a resolved state.
    """

    op: Literal["add", "remove", "replace", "move"]
    path: Path
    old: Json = None
    new: Json = None
    source: Path = ()

    @property
    def artifact_only(self) -> bool:
        """True if only an artifact changed, so that the resolved state is the same before and after."""
        return self.op == "replace" and all(value is None or is_artifact(value) for value in (self.old, self.new))


def is_artifact(value: Json) -> bool:
    """Return whether ``value`` refers to raw bytes, and not to a JSON value."""
    return isinstance(value, Ref) and value.media_type != JSON_TYPE and not value.media_type.startswith(OWN_TYPES)


def compare(store: Store, old: Json, new: Json) -> list[Change]:
    """Return the changes from ``old`` to ``new``, which hold Refs as ``Snapshot.state`` does.

    Raises ``IntegrityError`` for an object that is missing or damaged, nests too deep or expands beyond the limit, and
    ``NewerVersionError`` for one of an unknown type.
    """
    comparison = _Comparison(store)
    comparison.value((), old, new)
    return comparison.changes


def patch(store: Store, changes: Sequence[Change]) -> list[Json]:
    """Return the changes as an RFC 6902 patch for the resolved state, in which artifacts are null.

    Reads added values whole, since a patch holds them. Raises as :func:`compare`.
    """
    kept = [change for change in changes if not change.artifact_only]
    if len(kept) == 1:  # may be the state itself, which a list around it would nest too deep
        return [_operation(kept[0], resolved(store, kept[0].new))]
    # Resolve all at once, so that their expanded size is bounded together.
    values = resolved(store, [change.new for change in kept])
    return [_operation(change, value) for change, value in zip(kept, values, strict=True)]


def _operation(change: Change, value: Json) -> dict[str, Json]:
    document: dict[str, Json] = {"op": change.op, "path": pointer(change.path)}
    if change.op == "move":
        document["from"] = pointer(change.source)
    elif change.op != "remove":
        document["value"] = value
    return document


def pointer(path: Path) -> str:
    """Return ``path`` as a JSON Pointer (RFC 6901)."""
    return "".join("/-" if token == END else f"/{canonical.escape(str(token))}" for token in path)


def resolved(store: Store, value: Json) -> Json:
    """Return ``value`` with objects filled in, and null for artifacts, which are bytes and not JSON."""
    return canonical.map_leaves(store.resolve(value), lambda leaf: None if isinstance(leaf, Ref) else leaf)


def read_object(store: Store, ref: Ref) -> Json:
    """Return the content of an object other than a long list, with Refs for the objects in it, which are not read.

    Raises as :func:`compare`.
    """
    if ref.media_type == JSON_TYPE:
        return canonical.decode(store.get(ref))
    if ref.media_type == NODE_TYPE:
        return with_refs(*read_node(store.get(ref), f"the object {ref.sha256}"))
    return store.resolve(ref)  # raises for an unknown type


def focused(old: str, new: str, width: int) -> tuple[str, str]:
    """Return two lines of text, cut to ``width`` characters around their first difference."""
    pairs = enumerate(zip(old, new, strict=False))
    same = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(old), len(new)))
    start = max(same - min(_EQUAL, width // 3), 0) if max(len(old), len(new)) > width else 0
    shown = ((f"…{text[start:]}" if start else text) for text in (old, new))
    before, after = (text if len(text) <= width else text[: width - 1] + "…" for text in shown)
    return before, after


def is_long_list(value: Json) -> bool:
    """Return whether ``value`` refers to a list in chunks. The Ref's size is that of the last chunk only."""
    return isinstance(value, Ref) and value.media_type == LIST_TYPE


class _Comparison:
    """One comparison; ``changes`` is the result. Each object is read at most once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.changes: list[Change] = []
        self._opened: dict[Ref, Json] = {}
        self._chunks: dict[Ref, Chunk] = {}
        self._expanded = 0

    def value(self, path: Path, old: Json, new: Json) -> None:
        """Add the changes that turn the value at ``path`` from ``old`` into ``new``."""
        if len(path) > canonical.DEPTH:
            raise IntegrityError(f"objects nest deeper than {canonical.DEPTH} levels", finding="malformed")
        if isinstance(old, Ref) or isinstance(new, Ref):
            if old == new:
                return
            if is_artifact(old) or is_artifact(new):
                self._replace(path, old, new)
                return
            if is_long_list(old) and is_long_list(new):
                self._long_list(path, old, new)
                return
        before, after = self._content(old), self._content(new)
        if type(before) is dict and type(after) is dict:
            self._mapping(path, before, after)
        elif type(before) is list and type(after) is list:
            self._items(path, before, after, None)
        elif not _same(before, after):
            self._replace(path, old, new)

    def _replace(self, path: Path, old: Json, new: Json) -> None:
        self.changes.append(Change(op="replace", path=path, old=old, new=new))

    def _mapping(self, path: Path, old: dict[str, Json], new: dict[str, Json]) -> None:
        for key in sorted(old.keys() | new.keys()):
            place = (*path, key)
            if key not in new:
                self.changes.append(Change(op="remove", path=place, old=old[key]))
            elif key not in old:
                self.changes.append(Change(op="add", path=place, new=new[key]))
            else:
                self.value(place, old[key], new[key])

    def _items(self, path: Path, old: list[Json], new: list[Json], first: Callable[[], int] | None) -> None:
        """Add the changes of a list, or of its end: ``first`` then returns the index at which both begin."""
        numbers: dict[bytes, int] = {}
        before = [numbers.setdefault(_item_key(item), len(numbers)) for item in old]
        after = [numbers.setdefault(_item_key(item), len(numbers)) for item in new]
        edits = list_edits(before, after)
        if first is not None and edits and edits[0].op == "add" and edits[0].index == len(old):
            self.changes += [Change(op="add", path=(*path, END), new=item) for item in new[len(old) :]]
            return
        values = dict(zip(after, new, strict=True))
        current = list(old)
        offset = first() if first is not None and edits else 0
        for edit in edits:
            self._apply_edit((path, offset), edit, current, values)

    def _apply_edit(
        self, start: tuple[Path, int], edit: ListEdit, current: list[Json], values: dict[int, Json]
    ) -> None:
        """Apply one edit to ``current`` and add its changes. ``start`` is the list's path and the index of its part."""
        path, offset = start
        place = (*path, offset + edit.index)
        if edit.op == "replace":
            # No later edit takes this item up again, so it may stay in ``current``.
            self.value(place, current[edit.index], values[edit.number])
        elif edit.op == "add":
            current.insert(edit.index, values[edit.number])
            self.changes.append(Change(op="add", path=place, new=values[edit.number]))
        elif edit.op == "remove":
            self.changes.append(Change(op="remove", path=place, old=current.pop(edit.index)))
        else:
            item = current.pop(edit.source)
            current.insert(edit.index, item)
            source = (*path, offset + edit.source)
            self.changes.append(Change(op="move", path=place, old=item, source=source))

    # -- objects ---------------------------------------------------------------------------------------------------

    def _content(self, value: Json) -> Json:
        """Return the content of an object, one level of objects down; other values unchanged."""
        if not isinstance(value, Ref):
            return value
        if is_long_list(value):
            return self._items_after(value, None)
        if value not in self._opened:
            self._opened[value] = read_object(self.store, value)
        self._expand(value)
        return self._opened[value]

    def _expand(self, ref: Ref) -> None:
        # Without a limit, shared digests could make the comparison of a small store endless.
        self._expanded += ref.size
        if self._expanded > 2 * canonical.OBJECT_LIMIT:
            raise IntegrityError(f"objects expand to more than {canonical.OBJECT_LIMIT} bytes", finding="malformed")

    # -- long lists: chunks, each of which names the one before ----------------------------------------------------

    def _long_list(self, path: Path, old: Ref, new: Ref) -> None:
        """Find the last common chunk from both ends; common chunks need not be compared."""
        seen: tuple[dict[Ref, None], dict[Ref, None]] = ({}, {})
        at: list[Ref | None] = [old, new]
        shared: Ref | None = None
        while shared is None and (at[0] or at[1]):
            for side in (0, 1):
                ref = at[side]
                if ref is None:
                    continue
                if ref in seen[1 - side]:
                    shared = ref
                    break
                seen[side][ref] = None
                at[side] = self._chunk(ref).before
        self._items(path, self._items_after(old, shared), self._items_after(new, shared), lambda: self._count(shared))

    def _items_after(self, last: Ref, shared: Ref | None) -> list[Json]:
        """Return the items of a long list after those of the chunk ``shared``."""
        pieces = []
        ref: Ref | None = last
        while ref is not None and ref != shared:
            chunk = self._chunk(ref)
            self._expand(ref)
            pieces.append(with_refs(chunk.items, chunk.objects))
            ref = chunk.before
        return [item for piece in reversed(pieces) for item in piece]

    def _count(self, last: Ref | None) -> int:
        count = 0
        while last is not None:
            chunk = self._chunk(last)
            count += len(chunk.items)
            last = chunk.before
        return count

    def _chunk(self, ref: Ref) -> Chunk:
        if ref not in self._chunks:
            self._chunks[ref] = read_chunk(self.store.get(ref), f"the object {ref.sha256}")
        return self._chunks[ref]


def _same(old: Json, new: Json) -> bool:
    """Return whether two values have the same canonical form: 1, 1.0 and true differ, and so do 0.0 and -0.0."""
    return type(old) is type(new) and old == new and (type(old) is not float or repr(old) == repr(new))


def _item_key(item: Json) -> bytes:
    """Return bytes that are equal for equal items only. Objects are compared by digest and not read."""
    data = _encoder.encode(item)
    # A Ref encodes with this member; a plain value with the same members must not be taken for one.
    return b"~" + _encoder.encode(canonical.map_leaves(item, _tagged)) if b'"media_type":' in data else data


def _tagged(leaf: Json) -> Json:
    return {"object": leaf} if isinstance(leaf, Ref) else {"value": leaf}


class ListEdit(msgspec.Struct, frozen=True):
    """One edit. ``index`` is a place in the list as the edits before left it.

    ``number`` is the new item of an ``add`` or ``replace``, ``source`` the old index of a moved item.
    """

    op: Literal["add", "remove", "replace", "move"]
    index: int
    number: int = -1
    source: int = -1


def list_edits(old: Sequence[int], new: Sequence[int]) -> list[ListEdit]:
    """Return the edits from ``old`` to ``new``, in which equal numbers are equal items.

    Linear in a common beginning and end. The items between are aligned, so that an item inserted in front does not
    change all that follow.
    """
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return _middle_edits(old[start : len(old) - end], new[start : len(new) - end], start)


def _middle_edits(old: Sequence[int], new: Sequence[int], start: int) -> list[ListEdit]:
    if not old:
        return [ListEdit("add", start + index, number) for index, number in enumerate(new)]
    if not new:
        return [ListEdit("remove", start) for _ in old]
    if len(old) == len(new) == 1:
        return [ListEdit("replace", start, new[0])]
    # Imported here because it doubles the time of a short call, and most lists change in one place only.
    import jsonpatch

    return [_edit(operation, start) for operation in jsonpatch.make_patch(list(old), list(new))]


def _edit(operation: dict[str, Any], start: int) -> ListEdit:
    source = start + int(operation["from"][1:]) if "from" in operation else -1
    return ListEdit(operation["op"], start + int(operation["path"][1:]), operation.get("value", -1), source)
