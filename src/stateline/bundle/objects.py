"""Taking large subtrees out of a value, and putting them back. Pure.

Any subtree of 4 KiB or more, measured bottom-up after its own parts have been taken out, becomes an object: its
canonical JSON, or a *node* (``{"value", "objects"}``) where parts were taken out of it. What did not change keeps its
digest, so it is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.envelope import JSON_TYPE, NODE_TYPE, OWN_TYPES, Ref, put_at, read_node, ref_problem
from stateline.errors import IntegrityError, NewerVersion, ValueRefused

THRESHOLD = 4096
"""Size at which a subtree becomes an object [bytes]: one page, below which a file costs more than it saves."""

_encoder = msgspec.json.Encoder(order="sorted")

Fetch = Callable[[Ref], bytes]
"""Gives an object's bytes, their digest and size verified."""


class Artifact(msgspec.Struct, frozen=True):
    """Raw bytes inside a value, kept as an object as they are: not redacted, not interpreted."""

    data: bytes
    media_type: str = "application/octet-stream"


class Split(msgspec.Struct, frozen=True):
    """A value taken apart: ``value`` with null at each pointer of ``objects``; ``contents`` are the new objects'
    bytes by Ref, parts before the wholes that name them."""

    value: Json
    objects: dict[str, Ref]
    contents: dict[Ref, bytes]


def split(value: Json, *, threshold: int = THRESHOLD) -> Split:
    """Take the large parts out of ``value``, which may hold :class:`Ref` (an object that is stored already) and
    :class:`Artifact` leaves. ``value`` itself stays inline and is not changed.

    Raises :class:`ValueRefused` for what format 1 cannot hold.
    """
    contents: dict[Ref, bytes] = {}
    packed, objects = _split(value, threshold, contents, 0)
    return Split(packed, objects, contents)


def _split(value: Json, threshold: int, contents: dict[Ref, bytes], level: int) -> tuple[Json, dict[str, Ref]]:
    """``value``, which stands inside ``level`` containers, without its large parts, and the table of them."""
    if level >= canonical.DEPTH and isinstance(value, dict | list):
        raise _too_deep()
    children: list[tuple[Any, Json]]
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    else:
        return value, {}
    changed: dict[Any, Json] = {}
    objects: dict[str, Ref] = {}
    for key, child in children:
        packed, table = _part(child, threshold, contents, level + 1)
        if packed is not child:
            changed[key] = packed
        for pointer, ref in table.items():
            objects[f"/{canonical.escape(str(key))}{pointer}"] = ref
    if changed:
        if isinstance(value, dict):
            value = {**value, **changed}
        else:
            value = [changed.get(index, child) for index, child in enumerate(value)]
    return value, objects


def _part(child: Json, threshold: int, contents: dict[Ref, bytes], level: int) -> tuple[Json, dict[str, Ref]]:
    """One child, as it stands inline, and the table of what was taken out of it (pointer "" for the child itself)."""
    if isinstance(child, Ref):
        return None, {"": _checked(child)}
    if isinstance(child, Artifact):
        ref = artifact_ref(child)
        contents[ref] = child.data
        return None, {"": ref}
    if not isinstance(child, dict | list | str):
        return child, {}
    size = _size(child, canonical.DEPTH - level)
    if 0 <= size < threshold:
        return child, {}
    packed, table = _split(child, threshold, contents, level)
    if not table:
        data = canonical.encode(packed)
        return (packed, {}) if len(data) < threshold else (None, {"": _put(data, JSON_TYPE, contents)})
    inline = canonical.encode(packed)
    if len(inline) < threshold:
        return packed, table
    node = {"value": packed, "objects": {pointer: ref.document() for pointer, ref in table.items()}}
    return None, {"": _put(canonical.encode(node, depth=canonical.FILE_DEPTH), NODE_TYPE, contents)}


def _too_deep() -> ValueRefused:
    return ValueRefused(f"nested deeper than {canonical.DEPTH} levels", hint="flatten the value")


def _size(child: Json, depth: int) -> int:
    """Bytes of the child's canonical form, or -1 if it holds references (or what cannot be encoded).

    Raises :class:`ValueRefused` if it nests deeper than ``depth``: that the whole value does is seen here only, since
    each object is encoded for itself.
    """
    if isinstance(child, str) and len(child) * 6 + 2 < 64:
        return 0
    try:
        data = _encoder.encode(child)
    except (TypeError, ValueError, RecursionError):
        return -1
    # A Ref or an Artifact encodes with this name in it; only then is the value walked to be sure.
    if b'"media_type":' in data and _holds_reference(child):
        return -1
    if canonical.deeper_than(data, depth):
        raise _too_deep()
    return len(data)


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


def _put(data: bytes, media_type: str, contents: dict[Ref, bytes]) -> Ref:
    _demand_size(data)
    ref = Ref(sha256(data), len(data), media_type)
    contents[ref] = data
    return ref


def artifact_ref(artifact: Artifact) -> Ref:
    """The Ref of an artifact. Raises :class:`ValueRefused` for a media type that a table of objects cannot hold, and
    for one that would make a reader take raw bytes for a value."""
    if artifact.media_type == JSON_TYPE or artifact.media_type.startswith(OWN_TYPES):
        raise ValueRefused(
            f"an artifact of type {artifact.media_type} would be read as a value; nothing was written",
            hint="store the parsed value instead, or call the bytes application/octet-stream",
        )
    _demand_size(artifact.data)
    return _checked(Ref(sha256(artifact.data), len(artifact.data), artifact.media_type))


def _demand_size(data: bytes) -> None:
    if len(data) > canonical.OBJECT_LIMIT:
        raise ValueRefused(f"an object is larger than {canonical.OBJECT_LIMIT} bytes", hint="split the value")


def _checked(ref: Ref) -> Ref:
    problem = ref_problem(ref)
    if problem:
        raise ValueRefused(f"an object cannot be stored: {problem}", hint="for example text/plain")
    return ref


def is_json(ref: Ref) -> bool:
    """Whether the object is a value (or a node of values) rather than an artifact."""
    return ref.media_type in (JSON_TYPE, NODE_TYPE)


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

    Raises :class:`NewerVersion` for a media type of this format that is not known, :class:`IntegrityError` for an
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
            _demand_known(value)
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
            data = self.fetch(ref)
            what = f"the object {ref.sha256}"
            inner = canonical.decode(data) if ref.media_type == JSON_TYPE else with_refs(*read_node(data, what))
            self.expanded += ref.size
            value = self.value(inner, level)
            self.done[ref] = _Content(value, self.expanded - before, self.deepest - level)
            self.deepest = max(self.deepest, outer)
        else:
            self.expanded += self.done[ref].expanded
            self.reach(level + self.done[ref].height)
        if self.expanded > canonical.OBJECT_LIMIT:
            raise IntegrityError(f"objects expand to more than {canonical.OBJECT_LIMIT} bytes", finding="malformed")
        return self.done[ref].value


def _demand_known(ref: Ref) -> None:
    if ref.media_type.startswith(OWN_TYPES) and ref.media_type != NODE_TYPE:
        raise NewerVersion(
            f"the object {ref.sha256} is of type {ref.media_type}, which this Stateline does not know. "
            "It was left untouched.",
            hint="upgrade stateline",
        )


def references(data: bytes, ref: Ref) -> list[Ref]:
    """The objects that an object names itself: those of a node's table. Raises :class:`IntegrityError`, or
    :class:`NewerVersion` for a type of this format that is not known."""
    _demand_known(ref)
    if ref.media_type == NODE_TYPE:
        return list(read_node(data, f"the object {ref.sha256}")[1].values())
    if ref.media_type == JSON_TYPE:
        canonical.decode(data)
    return []
