"""Taking large subtrees out of a value, and putting them back. Pure.

Any subtree of 4 KiB or more, measured bottom-up after its own parts have been taken out, becomes an object: its
canonical JSON, or a *node* (``{"value", "objects"}``) where parts were taken out of it; a list that needs more than one
becomes a chain of *chunks* (``bundle/chunks.py``). What did not change keeps its digest, so it is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.chunks import Filling, resumed
from stateline.bundle.envelope import (
    JSON_TYPE,
    LIST_TYPE,
    NODE_TYPE,
    OWN_TYPES,
    Ref,
    put_at,
    read_chunk,
    read_node,
    ref_problem,
)
from stateline.errors import IntegrityError, InvalidValueError, NewerVersionError

THRESHOLD = 4096
"""Size at which a subtree becomes an object [bytes]: one page, below which a file costs more than it saves."""

WHOLES = (NODE_TYPE, LIST_TYPE)
"""Media types of objects that name others."""

_REFERENCE = b'"media_type":'

Fetch = Callable[[Ref], bytes]
"""Gives an object's bytes, their digest and size verified."""


class Artifact(msgspec.Struct, frozen=True):
    """Raw bytes inside a value, kept as an object as they are: not redacted, not interpreted."""

    data: bytes
    media_type: str = "application/octet-stream"


class Split(msgspec.Struct, frozen=True):
    """A value taken apart: ``value`` with null at each pointer of ``objects``; ``contents`` are the new objects'
    bytes by Ref, parts before the wholes that name them, and ``names`` what each whole names itself."""

    value: Json
    objects: dict[str, Ref]
    contents: dict[Ref, bytes]
    names: dict[Ref, tuple[Ref, ...]] = {}

    def named(self) -> set[Ref]:
        """All objects that must be there before the value is acknowledged."""
        return {*self.contents, *self.objects.values(), *(ref for refs in self.names.values() for ref in refs)}


_NONE: dict[str, Ref] = {}
"""The table of what nothing was taken out of."""
_Part = tuple[Json, dict[str, Ref]]
"""A part as it stands inline, and the table of what was taken out of it (pointer "" for all of it)."""


def split(value: Json, *, threshold: int = THRESHOLD, draft: bytes | None = None) -> Split:
    """Take the large parts out of ``value``, which may hold :class:`Ref` (an object that is stored already) and
    :class:`Artifact` leaves. ``value`` itself stays inline and is not changed; if it has no large parts it comes back.

    ``draft`` is ``canonical.draft(value)`` if the caller has it. How deep a value without large parts nests is then
    left to who writes it. Raises :class:`InvalidValueError` for what format 1 cannot hold.
    """
    # A Ref or an Artifact is drafted with this name in it; where it is missing, each part is what its bytes say.
    plain = draft is not None and _REFERENCE not in draft
    if plain and draft is not None and len(draft) < threshold:
        return Split(value, _NONE, {})
    taking = _Taking(threshold, plain=plain)
    packed, objects = taking.inside(value, 0)
    if not objects:
        return Split(value, _NONE, {})
    if plain and draft is not None and canonical.deeper_than(draft, canonical.DEPTH):
        # Each object is encoded for itself, so that the whole is too deep is seen here only.
        raise canonical.too_deep()
    return Split(packed, objects, taking.contents, taking.names)


def extend(ref: Ref, data: bytes, items: list[Json], *, threshold: int = THRESHOLD) -> Split:
    """The stored list whose last object is ``ref`` (``data`` its bytes), with ``items`` behind it, as an object:
    ``objects[""]`` of what is returned. Of a chain only the last chunk is needed, and taken up again.

    Raises :class:`InvalidValueError` if the object is not a list, or for items that format 1 cannot hold.
    """
    taking = _Taking(threshold)
    if ref.media_type == LIST_TYPE:
        filling = resumed(read_chunk(data, f"the object {ref.sha256}"), threshold)
        whole = taking.chunk(taking.filled(filling, (taking.part(item, 1) for item in items)))
    else:
        value = _opened(ref, data) if is_json(ref) else None
        if not isinstance(value, list):
            raise InvalidValueError(
                f"the object {ref.sha256} is not a list; nothing was written", hint="append to a list"
            )
        packed, table = taking.part(value + items, 0)
        whole = table[""] if "" in table else taking.whole(packed, table)
    return Split(None, {"": whole}, taking.contents, taking.names)


class _Taking:
    """One walk through a value, and the objects taken out so far. A ``level`` is how many containers are around.
    ``plain``: the value holds no references, and somebody else looks how deep it nests."""

    def __init__(self, threshold: int, *, plain: bool = False) -> None:
        self.threshold = threshold
        self.plain = plain
        self.contents: dict[Ref, bytes] = {}
        self.names: dict[Ref, tuple[Ref, ...]] = {}

    def inside(self, value: Json, level: int) -> _Part:
        """``value`` without its large parts."""
        return _joined(value, self.parts(value, level)) if isinstance(value, dict | list) else (value, {})

    def parts(self, value: dict[Any, Json] | list[Json], level: int) -> list[_Part]:
        """The children of a container, in its order."""
        if level >= canonical.DEPTH:
            raise canonical.too_deep()
        children = value.values() if isinstance(value, dict) else value
        return [self.part(child, level + 1) for child in children]

    def part(self, child: Json, level: int) -> _Part:
        """One child, itself taken out if it is large."""
        if isinstance(child, Ref):
            return None, {"": _checked(child)}
        if isinstance(child, Artifact):
            ref = artifact_ref(child)
            self.contents[ref] = child.data
            return None, {"": ref}
        # A tuple of types is asked in a third of the time of a union, and this is asked for each number.
        if not isinstance(child, (dict, list, str)):
            return child, _NONE
        if 0 <= self.size(child, level) < self.threshold:
            return child, _NONE
        parts = [] if isinstance(child, str) else self.parts(child, level)
        packed, table = _joined(child, parts)
        if isinstance(child, list) and _weight(packed, table) >= self.threshold:
            last = self.filled(Filling(None, self.threshold), parts)
            # All in one chunk: a value or a node says the same in fewer words.
            if last.before is not None:
                return None, {"": self.chunk(last)}
        # What stays here is looked at with the whole; what goes, when it is encoded as an object.
        data = canonical.draft(packed)
        if data is not None and len(data) < self.threshold:
            return packed, table
        return None, {"": self.whole(packed, table)}

    def size(self, child: Json, level: int) -> int:
        """Bytes of the child's canonical form, at most; or -1 if it holds references (or what cannot be encoded).

        Raises :class:`InvalidValueError` if it nests too deep: that the whole value does is seen here only, since each
        object is encoded for itself.
        """
        if isinstance(child, str) and len(child) * 6 + 2 < self.threshold:
            return len(child) * 6 + 2
        data = canonical.draft(child)
        if data is None or self.plain:
            return -1 if data is None else len(data)
        if _REFERENCE in data and _holds_reference(child):
            return -1
        if canonical.deeper_than(data, canonical.DEPTH - level):
            raise canonical.too_deep()
        return len(data)

    def whole(self, packed: Json, table: dict[str, Ref]) -> Ref:
        """A value, or a node if something was taken out of it."""
        if not table:
            return self.put(canonical.encode(packed), JSON_TYPE)
        node = {"value": packed, "objects": {pointer: ref.document() for pointer, ref in table.items()}}
        return self.put(canonical.encode(node, depth=canonical.FILE_DEPTH), NODE_TYPE, tuple(table.values()))

    def filled(self, filling: Filling, parts: Iterable[_Part]) -> Filling:
        """The last chunk, not yet taken out, of the list that goes on from ``filling`` with ``parts``."""
        for item, table in parts:
            if filling.full:
                filling = Filling(self.chunk(filling), self.threshold)
            filling.add(item, table)
        return filling

    def chunk(self, filling: Filling) -> Ref:
        chunk = filling.chunk()
        return self.put(chunk.encode(), LIST_TYPE, chunk.names)

    def put(self, data: bytes, media_type: str, names: tuple[Ref, ...] = ()) -> Ref:
        _require_size(data)
        ref = Ref(sha256(data), len(data), media_type)
        self.contents[ref] = data
        if names:
            self.names[ref] = names
        return ref


def _joined(value: Json, parts: list[_Part]) -> _Part:
    """A container put together from what its children are inline; one that nothing was taken out of stays as it is, and
    so does a scalar."""
    if not any(table for _, table in parts):
        return value, _NONE
    keys: Iterable[Any] = value if isinstance(value, dict) else range(len(value))
    packed: list[Json] = []
    objects: dict[str, Ref] = {}
    for key, (item, table) in zip(keys, parts, strict=True):
        packed.append(item)
        if table:
            place = f"/{canonical.escape(str(key))}"
            objects.update((place + pointer, ref) for pointer, ref in table.items())
    return dict(zip(value, packed, strict=True)) if isinstance(value, dict) else packed, objects


def _weight(packed: Json, table: dict[str, Ref]) -> int:
    """What a list costs where it stands [bytes]: its items, and its table if it has one."""
    entries = {pointer: ref.document() for pointer, ref in table.items()}
    return len(canonical.encode(packed)) + (len(canonical.encode(entries)) if entries else 0)


def _holds_reference(child: Json) -> bool:
    stack = [child]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, Ref | Artifact):
            return True
    return False


def artifact_ref(artifact: Artifact) -> Ref:
    """The Ref of an artifact. Raises :class:`InvalidValueError` for a media type that a table of objects cannot hold, and
    for one that would make a reader take raw bytes for a value."""
    if artifact.media_type == JSON_TYPE or artifact.media_type.startswith(OWN_TYPES):
        raise InvalidValueError(
            f"an artifact of type {artifact.media_type} would be read as a value; nothing was written",
            hint="store the parsed value instead, or call the bytes application/octet-stream",
        )
    _require_size(artifact.data)
    return _checked(Ref(sha256(artifact.data), len(artifact.data), artifact.media_type))


def _require_size(data: bytes) -> None:
    if len(data) > canonical.OBJECT_LIMIT:
        raise InvalidValueError(f"an object is larger than {canonical.OBJECT_LIMIT} bytes", hint="split the value")


def _checked(ref: Ref) -> Ref:
    problem = ref_problem(ref)
    if problem:
        raise InvalidValueError(f"an object cannot be stored: {problem}", hint="for example text/plain")
    return ref


def is_json(ref: Ref) -> bool:
    """Whether the object is a value (or a node or chunk of values) rather than an artifact."""
    return ref.media_type in (JSON_TYPE, *WHOLES)


def with_refs(value: Json, objects: Mapping[str, Ref]) -> Json:
    """``value`` with each object's :class:`Ref` at its place, nothing read."""
    if not objects:
        return value
    filled = canonical.walk(value, lambda leaf: leaf)
    for pointer, ref in objects.items():
        put_at(filled, pointer, ref)
    return filled


def resolve(value: Json, fetch: Fetch) -> Json:
    """``value`` with the content of every JSON object in place of its :class:`Ref`; artifacts stay Refs.

    Raises :class:`NewerVersionError` for a media type of this format that is not known, :class:`IntegrityError` for an
    object that is not what its media type says, and for tables that expand to more than ``DEPTH`` levels or
    ``OBJECT_LIMIT`` bytes: shared digests could otherwise grow without bound.
    """
    return _Resolver(fetch).value(value, 0)


class _Content(msgspec.Struct):
    """An object's content once it was expanded: its size [bytes], and how many levels it nests."""

    value: Json
    expanded: int
    height: int


class _Resolver:
    """One expansion: each digest is read once, and the expanded size of all is counted."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        self.done: dict[Ref, _Content] = {}
        # Lists that share their beginning share these.
        self.chunks: dict[Ref, tuple[Ref | None, list[Json]]] = {}
        self.expanded = 0
        self.deepest = 0

    def value(self, value: Json, level: int) -> Json:
        if isinstance(value, dict):
            self.reach(level + 1)
            return {key: self.value(child, level + 1) for key, child in value.items()}
        if isinstance(value, list):
            self.reach(level + 1)
            return [self.value(child, level + 1) for child in value]
        if isinstance(value, Ref):
            _require_known(value)
            return self.content(value, level) if is_json(value) else value
        return value

    def reach(self, level: int) -> None:
        self.deepest = max(self.deepest, level)
        if level > canonical.DEPTH:
            raise IntegrityError(f"objects nest deeper than {canonical.DEPTH} levels", finding="malformed")

    def content(self, ref: Ref, level: int) -> Json:
        if ref not in self.done:
            before, outer = self.expanded, self.deepest
            self.deepest = level
            if ref.media_type == LIST_TYPE:
                self.reach(level + 1)
                value: Json = [self.value(item, level + 1) for chunk in self.chain(ref) for item in chunk]
            else:
                self.count(ref.size)
                value = self.value(_opened(ref, self.fetch(ref)), level)
            self.done[ref] = _Content(value, self.expanded - before, self.deepest - level)
            self.deepest = max(self.deepest, outer)
        else:
            self.count(self.done[ref].expanded)
            self.reach(level + self.done[ref].height)
        return self.done[ref].value

    def chain(self, ref: Ref) -> list[list[Json]]:
        """The items of each chunk, from the first. Not by recursion: a chain may be thousands long."""
        chain = []
        link: Ref | None = ref
        while link is not None:
            self.count(link.size)
            if link not in self.chunks:
                chunk = read_chunk(self.fetch(link), f"the object {link.sha256}")
                self.chunks[link] = chunk.before, with_refs(chunk.items, chunk.objects)
            link, items = self.chunks[link]
            chain.append(items)
        return chain[::-1]

    def count(self, size: int) -> None:
        """Take ``size`` [bytes] into account, before they are read."""
        self.expanded += size
        if self.expanded > canonical.OBJECT_LIMIT:
            raise IntegrityError(f"objects expand to more than {canonical.OBJECT_LIMIT} bytes", finding="malformed")


def _opened(ref: Ref, data: bytes) -> Json:
    """What a value's or a node's object holds, with Refs. Raises :class:`IntegrityError`."""
    if ref.media_type == JSON_TYPE:
        return canonical.decode(data)
    return with_refs(*read_node(data, f"the object {ref.sha256}"))


def _require_known(ref: Ref) -> None:
    if ref.media_type.startswith(OWN_TYPES) and ref.media_type not in WHOLES:
        raise NewerVersionError(
            f"the object {ref.sha256} is of type {ref.media_type}, which this Stateline does not know. "
            "It was left untouched.",
            hint="upgrade stateline",
        )


def references(data: bytes, ref: Ref) -> list[Ref]:
    """The objects that an object names itself: those of a node's or chunk's table, and the chunk before. Raises
    :class:`IntegrityError`, or :class:`NewerVersionError` for a type of this format that is not known."""
    _require_known(ref)
    what = f"the object {ref.sha256}"
    if ref.media_type == NODE_TYPE:
        return list(read_node(data, what)[1].values())
    if ref.media_type == LIST_TYPE:
        return list(read_chunk(data, what).names)
    if ref.media_type == JSON_TYPE:
        canonical.decode(data)
    return []
