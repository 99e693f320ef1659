"""What is different between two states, as steps that turn the one into the other.

The comparison goes down both states side by side. Objects with the same digest are equal, so they are not read; of the
others only what stands on the way to a difference is. The order of the steps counts, as in a patch (RFC 6902): the
path of a step is where its value lies once the steps before it are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, OWN_TYPES, Chunk, Ref, read_chunk, read_node
from stateline.bundle.objects import with_refs
from stateline.errors import IntegrityError
from stateline.history.list_diff import Step, steps
from stateline.store.store import Store

Path = tuple[str | int, ...]
"""Keys (str) and indices (int) from the state down to a place in it; empty for the state itself."""

END = -1
"""As an index: after the last item of a long list, whose items before that nobody had to count."""

_encoder = msgspec.json.Encoder(order="sorted")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One step. ``old`` is what lay at ``path`` (for a move: at ``source``) and ``new`` what lies there afterwards,
    both as they are stored: with a :class:`Ref` where an object belongs. A ``replace`` of one artifact by another is
    a change too, although both stand as null in a resolved state."""

    op: Literal["add", "remove", "replace", "move"]
    path: Path
    old: Json = None
    new: Json = None
    source: Path = ()

    @property
    def of_bytes_only(self) -> bool:
        """Whether the resolved state is the same before and after: only an artifact is another one."""
        return self.op == "replace" and all(value is None or is_artifact(value) for value in (self.old, self.new))


def is_artifact(value: Json) -> bool:
    """Whether ``value`` stands for raw bytes, and not for a value."""
    return isinstance(value, Ref) and value.media_type != JSON_TYPE and not value.media_type.startswith(OWN_TYPES)


def compare(store: Store, old: Json, new: Json) -> list[Change]:
    """The steps from ``old`` to ``new``, which hold Refs as ``Snapshot.state`` does; none if both are equal.

    Raises ``IntegrityError`` for an object on the way that is missing or damaged, or that nests or expands without
    bound, and ``NewerVersionError`` for one of a type that is not known.
    """
    comparison = _Comparison(store)
    comparison.value((), old, new)
    return comparison.changes


def patch(store: Store, changes: Sequence[Change]) -> list[Json]:
    """The steps as an RFC 6902 patch for the resolved state, in which artifacts are null. Raises as :func:`compare`.

    Reads what is added, whole: a patch holds the values themselves.
    """
    told = [change for change in changes if not change.of_bytes_only]
    if len(told) == 1:  # perhaps the state itself, which is as deep as a value may be
        return [_operation(told[0], resolved(store, told[0].new))]
    # All in one go, so that what they expand to is bounded together.
    values = resolved(store, [change.new for change in told])
    return [_operation(change, value) for change, value in zip(told, values, strict=True)]


def _operation(change: Change, value: Json) -> dict[str, Json]:
    document: dict[str, Json] = {"op": change.op, "path": pointer(change.path)}
    if change.op == "move":
        document["from"] = pointer(change.source)
    elif change.op != "remove":
        document["value"] = value
    return document


def pointer(path: Path) -> str:
    """``path`` as a JSON Pointer (RFC 6901)."""
    return "".join("/-" if token == END else f"/{canonical.escape(str(token))}" for token in path)


def resolved(store: Store, value: Json) -> Json:
    """``value`` with the content of every object in its place, and null for artifacts: they are bytes, not JSON."""
    return canonical.walk(store.resolve(value), lambda leaf: None if isinstance(leaf, Ref) else leaf)


def opened(store: Store, ref: Ref) -> Json:
    """What one object that is no long list holds, with Refs for the objects in it, which are not read.

    Raises as :func:`compare`.
    """
    if ref.media_type == JSON_TYPE:
        return canonical.decode(store.get(ref))
    if ref.media_type == NODE_TYPE:
        return with_refs(*read_node(store.get(ref), f"the object {ref.sha256}"))
    return store.resolve(ref)  # which says that this type is not known


def is_long_list(value: Json) -> bool:
    """Whether ``value`` stands for a list in chunks; its size is that of the last one only."""
    return isinstance(value, Ref) and value.media_type == LIST_TYPE


class _Comparison:
    """One comparison; ``changes`` is the result. Each object is read once at most."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.changes: list[Change] = []
        self._opened: dict[Ref, Json] = {}
        self._chunks: dict[Ref, Chunk] = {}
        self._expanded = 0

    def value(self, path: Path, old: Json, new: Json) -> None:
        """Add the steps that turn what lies at ``path`` from ``old`` into ``new``."""
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
        """The steps of a list, or of the end of one: ``first`` then tells the index at which both begin."""
        numbers: dict[bytes, int] = {}
        before = [numbers.setdefault(_spelled(item), len(numbers)) for item in old]
        after = [numbers.setdefault(_spelled(item), len(numbers)) for item in new]
        found = steps(before, after)
        if first is not None and found and found[0].op == "add" and found[0].index == len(old):
            self.changes += [Change(op="add", path=(*path, END), new=item) for item in new[len(old) :]]
            return
        values = dict(zip(after, new, strict=True))
        now = list(old)
        offset = first() if first is not None and found else 0
        for step in found:
            self._step(path, offset, step, now, values)

    def _step(self, path: Path, offset: int, step: Step, now: list[Json], values: dict[int, Json]) -> None:
        """Take one step of a list: on ``now``, which is the list as the steps before left it, and in the result."""
        place = (*path, offset + step.index)
        if step.op == "replace":
            # No later step takes this item up again, so it may stay in ``now``.
            self.value(place, now[step.index], values[step.number])
        elif step.op == "add":
            now.insert(step.index, values[step.number])
            self.changes.append(Change(op="add", path=place, new=values[step.number]))
        elif step.op == "remove":
            self.changes.append(Change(op="remove", path=place, old=now.pop(step.index)))
        else:
            item = now.pop(step.source)
            now.insert(step.index, item)
            source = (*path, offset + step.source)
            self.changes.append(Change(op="move", path=place, old=item, source=source))

    # -- objects ---------------------------------------------------------------------------------------------------

    def _content(self, value: Json) -> Json:
        """What an object holds, one level of objects down; anything else as it is."""
        if not isinstance(value, Ref):
            return value
        if is_long_list(value):
            return self._from(value, None)
        if value not in self._opened:
            self._opened[value] = opened(self.store, value)
        self._expand(value)
        return self._opened[value]

    def _expand(self, ref: Ref) -> None:
        # Shared digests could otherwise make a small store a comparison without end.
        self._expanded += ref.size
        if self._expanded > 2 * canonical.OBJECT_LIMIT:
            raise IntegrityError(f"objects expand to more than {canonical.OBJECT_LIMIT} bytes", finding="malformed")

    # -- long lists: chunks, each of which names the one before ----------------------------------------------------

    def _long_list(self, path: Path, old: Ref, new: Ref) -> None:
        """What both begin with are the same chunks: they are found from the end, and not read."""
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
        self._items(path, self._from(old, shared), self._from(new, shared), lambda: self._count(shared))

    def _from(self, last: Ref, shared: Ref | None) -> list[Json]:
        """The items of a long list, those up to the chunk ``shared`` left out."""
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
    """Whether two values are equal as JSON of the canonical form says: 1, 1.0 and true differ, 0.0 and -0.0 too."""
    return type(old) is type(new) and old == new and (type(old) is not float or repr(old) == repr(new))


def _spelled(item: Json) -> bytes:
    """Bytes that are equal for equal items only. Objects are told by their digests, so none is read."""
    data = _encoder.encode(item)
    # A Ref has this name in it; a value that is spelled like one must not be taken for it.
    return b"~" + _encoder.encode(canonical.walk(item, _marked)) if b'"media_type":' in data else data


def _marked(leaf: Json) -> Json:
    return {"object": leaf} if isinstance(leaf, Ref) else {"value": leaf}
