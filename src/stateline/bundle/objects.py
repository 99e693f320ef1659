"""Split large subtrees off a value, and put them back. Pure.

Any subtree of 4 KiB or more, measured bottom-up after its own parts have been taken out, becomes an object: its
canonical JSON, or a *node* (``{"value", "objects"}``) where parts were taken out of it; a list that needs more than one
object becomes a chain of *chunks* (``bundle/chunks.py``). An unchanged part keeps its digest, so it is not written
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.chunks import ChunkBuilder, reopen
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

PARENT_TYPES = (NODE_TYPE, LIST_TYPE)
"""Media types of objects that refer to others."""

_REFERENCE = b'"media_type":'

Fetch = Callable[[Ref], bytes]
"""Reads an object's bytes, and verifies their digest and size."""


class Artifact(msgspec.Struct, frozen=True):
    """Raw bytes inside a value, stored as an object as they are: not redacted, not interpreted."""

    data: bytes
    media_type: str = "application/octet-stream"


class Split(msgspec.Struct, frozen=True):
    """A value that was split: ``value`` with null at each pointer of ``objects``; ``contents`` are the bytes of new
    objects by Ref, children before their parents, and ``children`` the Refs in each parent."""

    value: Json
    objects: dict[str, Ref]
    contents: dict[Ref, bytes]
    children: dict[Ref, tuple[Ref, ...]] = {}

    def all_refs(self) -> set[Ref]:
        """Return all objects that must exist before the value is acknowledged."""
        return {*self.contents, *self.objects.values(), *(ref for refs in self.children.values() for ref in refs)}


_NONE: dict[str, Ref] = {}
"""Table of a value that nothing was taken out of."""
_Part = tuple[Json, dict[str, Ref]]
"""A part as it stands inline, and the table of the objects taken out of it (pointer "" for all of it)."""


def split(value: Json, *, threshold: int = THRESHOLD, encoded: bytes | None = None) -> Split:
    """Take the large parts out of ``value``, which may hold :class:`Ref` (an object that is stored already) and
    :class:`Artifact` leaves. ``value`` itself stays inline and is not changed; if it has no large parts it comes back.

    ``encoded`` is ``canonical.encode_unchecked(value)`` if the caller has it. The depth of a value without large parts
    is then not checked here. Raises :class:`InvalidValueError` for values that format 1 cannot hold.
    """
    # The bytes of a Ref or an Artifact have this member; without it, each part is exactly its bytes.
    plain = encoded is not None and _REFERENCE not in encoded
    if plain and encoded is not None and len(encoded) < threshold:
        return Split(value, _NONE, {})
    splitter = _Splitter(threshold, plain=plain)
    packed, objects = splitter.inside(value, 0)
    if not objects:
        return Split(value, _NONE, {})
    if plain and encoded is not None and canonical.deeper_than(encoded, canonical.DEPTH):
        # Each object is encoded separately, so the depth of the whole is only known here.
        raise canonical.too_deep()
    return Split(packed, objects, splitter.contents, splitter.children)


def extend(ref: Ref, data: bytes, items: list[Json], *, threshold: int = THRESHOLD) -> Split:
    """Append ``items`` to the stored list whose last object is ``ref`` (``data`` its bytes). The new list is
    ``objects[""]`` of the result. Of a chain only the last chunk is read and written again.

    Raises :class:`InvalidValueError` if the object is not a list, or for items that format 1 cannot hold.
    """
    splitter = _Splitter(threshold)
    if ref.media_type == LIST_TYPE:
        builder = reopen(read_chunk(data, f"the object {ref.sha256}"), threshold)
        whole = splitter.chunk(splitter.filled(builder, (splitter.part(item, 1) for item in items)))
    else:
        value = _decoded(ref, data) if is_json(ref) else None
        if not isinstance(value, list):
            raise InvalidValueError(
                f"the object {ref.sha256} is not a list; nothing was written", hint="append to a list"
            )
        packed, table = splitter.part(value + items, 0)
        whole = table[""] if "" in table else splitter.whole(packed, table)
    return Split(None, {"": whole}, splitter.contents, splitter.children)


class _Splitter:
    """One walk through a value, and the objects taken out so far. ``level`` counts the containers around a part.
    ``plain``: the value holds no references, and its depth is checked elsewhere."""

    def __init__(self, threshold: int, *, plain: bool = False) -> None:
        self.threshold = threshold
        self.plain = plain
        self.contents: dict[Ref, bytes] = {}
        self.children: dict[Ref, tuple[Ref, ...]] = {}

    def inside(self, value: Json, level: int) -> _Part:
        """Return ``value`` without its large parts."""
        return _joined(value, self.parts(value, level)) if isinstance(value, dict | list) else (value, {})

    def parts(self, value: dict[Any, Json] | list[Json], level: int) -> list[_Part]:
        """Return the children of a container, in its order."""
        if level >= canonical.DEPTH:
            raise canonical.too_deep()
        children = value.values() if isinstance(value, dict) else value
        return [self.part(child, level + 1) for child in children]

    def part(self, child: Json, level: int) -> _Part:
        """Return one child, taken out if it is large."""
        if isinstance(child, Ref):
            return None, {"": _checked(child)}
        if isinstance(child, Artifact):
            ref = artifact_ref(child)
            self.contents[ref] = child.data
            return None, {"": ref}
        # A tuple of types takes a third of the time of a union, and this runs for each number.
        if not isinstance(child, (dict, list, str)):
            return child, _NONE
        if 0 <= self.size(child, level) < self.threshold:
            return child, _NONE
        parts = [] if isinstance(child, str) else self.parts(child, level)
        packed, table = _joined(child, parts)
        if isinstance(child, list) and _weight(packed, table) >= self.threshold:
            last = self.filled(ChunkBuilder(None, self.threshold), parts)
            # All in one chunk: a value or a node is shorter.
            if last.before is not None:
                return None, {"": self.chunk(last)}
        # A part that stays is checked with the whole; one that is taken out, when it is encoded as an object.
        data = canonical.encode_unchecked(packed)
        if data is not None and len(data) < self.threshold:
            return packed, table
        return None, {"": self.whole(packed, table)}

    def size(self, child: Json, level: int) -> int:
        """Return an upper bound for the size of the child's canonical form [bytes], or -1 if it may hold references or
        cannot be encoded.

        Raises :class:`InvalidValueError` if it nests too deep: each object is encoded separately, so the depth of the
        whole value is only known here.
        """
        if isinstance(child, str) and len(child) * 6 + 2 < self.threshold:
            return len(child) * 6 + 2
        data = canonical.encode_unchecked(child)
        if data is None or self.plain:
            return -1 if data is None else len(data)
        if _REFERENCE in data:
            return -1
        if canonical.deeper_than(data, canonical.DEPTH - level):
            raise canonical.too_deep()
        return len(data)

    def whole(self, packed: Json, table: dict[str, Ref]) -> Ref:
        """Store a value, as a node if objects were taken out of it."""
        if not table:
            return self.put(canonical.encode(packed), JSON_TYPE)
        node = {"value": packed, "objects": {pointer: ref.document() for pointer, ref in table.items()}}
        return self.put(canonical.encode(node, depth=canonical.FILE_DEPTH), NODE_TYPE, tuple(table.values()))

    def filled(self, builder: ChunkBuilder, parts: Iterable[_Part]) -> ChunkBuilder:
        """Add ``parts`` to the list that ends with ``builder``; return its last chunk, which is not stored yet."""
        for item, table in parts:
            if builder.full:
                builder = ChunkBuilder(self.chunk(builder), self.threshold)
            builder.add(item, table)
        return builder

    def chunk(self, builder: ChunkBuilder) -> Ref:
        chunk = builder.chunk()
        return self.put(chunk.encode(), LIST_TYPE, chunk.children)

    def put(self, data: bytes, media_type: str, children: tuple[Ref, ...] = ()) -> Ref:
        _require_size(data)
        ref = Ref(sha256(data), len(data), media_type)
        self.contents[ref] = data
        if children:
            self.children[ref] = children
        return ref


def _joined(value: Json, parts: list[_Part]) -> _Part:
    """Return a container with its children as they are inline. A container that nothing was taken out of, and a scalar,
    stay as they are."""
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
    entries = {pointer: ref.document() for pointer, ref in table.items()}
    return len(canonical.encode(packed)) + (len(canonical.encode(entries)) if entries else 0)


def artifact_ref(artifact: Artifact) -> Ref:
    """Return the Ref of an artifact. Raises :class:`InvalidValueError` for a media type that a table of objects cannot
    hold, and for one that makes readers take raw bytes for a value."""
    if artifact.media_type == JSON_TYPE or artifact.media_type.startswith(OWN_TYPES):
        raise InvalidValueError(
            f"an artifact of type {artifact.media_type} would be read as a value; nothing was written",
            hint="store the parsed value instead, or call the bytes application/octet-stream",
        )
    _require_size(artifact.data)
    return _checked(Ref(sha256(artifact.data), len(artifact.data), artifact.media_type))


def _require_size(data: bytes) -> None:
    if len(data) > canonical.OBJECT_LIMIT:
        raise InvalidValueError(
            f"an object is larger than {canonical.OBJECT_LIMIT} bytes (limit `object`, the default)",
            hint="split the value",
        )


def _checked(ref: Ref) -> Ref:
    if problem := ref_problem(ref):
        raise InvalidValueError(f"an object cannot be stored: {problem}", hint="for example text/plain")
    return ref


def is_json(ref: Ref) -> bool:
    """Return true for a value (or a node or chunk of values), false for an artifact."""
    return ref.media_type in (JSON_TYPE, *PARENT_TYPES)


def with_refs(value: Json, objects: Mapping[str, Ref]) -> Json:
    """Return ``value`` with each object's :class:`Ref` at its place. Nothing is read."""
    if not objects:
        return value
    filled = canonical.map_leaves(value, lambda leaf: leaf)
    for pointer, ref in objects.items():
        put_at(filled, pointer, ref)
    return filled


def resolve(value: Json, fetch: Fetch) -> Json:
    """Return ``value`` with the content of every JSON object in place of its :class:`Ref`; artifacts stay Refs.

    Raises :class:`NewerVersionError` for an unknown media type of this format, :class:`IntegrityError` for an object
    that does not fit its media type, and for tables that expand to more than ``DEPTH`` levels or ``OBJECT_LIMIT``
    bytes: shared digests could otherwise grow without bound.
    """
    return _Resolver(fetch).value(value, 0)


class _Content(msgspec.Struct):
    """Expanded content of an object, its size [bytes], and its levels of nesting."""

    value: Json
    expanded: int
    height: int


class _Resolver:
    """One expansion: each digest is read once, and the expanded size is counted."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        self.done: dict[Ref, _Content] = {}
        # Shared by lists with the same beginning.
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
                value = self.value(_decoded(ref, self.fetch(ref)), level)
            self.done[ref] = _Content(value, self.expanded - before, self.deepest - level)
            self.deepest = max(self.deepest, outer)
        else:
            self.count(self.done[ref].expanded)
            self.reach(level + self.done[ref].height)
        return self.done[ref].value

    def chain(self, ref: Ref) -> list[list[Json]]:
        """Return the items of each chunk, from the first. Not recursive: a chain may be thousands of chunks long."""
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
        """Count ``size`` [bytes] before they are read."""
        self.expanded += size
        if self.expanded > canonical.OBJECT_LIMIT:
            raise IntegrityError(f"objects expand to more than {canonical.OBJECT_LIMIT} bytes", finding="malformed")


def _decoded(ref: Ref, data: bytes) -> Json:
    """Return the content of a value's or a node's object, with Refs. Raises :class:`IntegrityError`."""
    if ref.media_type == JSON_TYPE:
        return canonical.decode(data)
    return with_refs(*read_node(data, f"the object {ref.sha256}"))


def _require_known(ref: Ref) -> None:
    if ref.media_type.startswith(OWN_TYPES) and ref.media_type not in PARENT_TYPES:
        raise NewerVersionError(
            f"the object {ref.sha256} is of type {ref.media_type}, which this Stateline does not know. "
            "It was left untouched.",
            hint="upgrade stateline",
        )


def references(data: bytes, ref: Ref) -> list[Ref]:
    """Return the objects that an object refers to: those of a node's or chunk's table, and the chunk before. Raises
    :class:`IntegrityError`, or :class:`NewerVersionError` for an unknown type of this format."""
    _require_known(ref)
    what = f"the object {ref.sha256}"
    if ref.media_type == NODE_TYPE:
        return list(read_node(data, what)[1].values())
    if ref.media_type == LIST_TYPE:
        return list(read_chunk(data, what).children)
    if ref.media_type == JSON_TYPE:
        canonical.decode(data)
    return []
