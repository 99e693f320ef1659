"""Snapshot, pointer, node and chunk files. Pure: bytes in, typed data out.

The rule is ``docs/format.md``; this module is its only reader and writer. ``seq`` and ``prev_sha`` define the order;
``created_at`` is for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.errors import IntegrityError, NewerVersionError

VERSION = "1"
FORMAT = "stateline/1"
JSON_TYPE = "application/json"
NODE_TYPE = "application/vnd.stateline.node+json"
LIST_TYPE = "application/vnd.stateline.list+json"
OWN_TYPES = "application/vnd.stateline."
"""Prefix of the media types that this format defines. A reader refuses one that it does not know."""

_version = re.compile(r"([1-9][0-9]{0,8})(\.[0-9]{1,9})?")
_media_type = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")


class Ref(msgspec.Struct, frozen=True, order=True):
    """Reference to an object by digest; ``size`` [bytes]. In a value it replaces the object's content."""

    sha256: str
    size: int
    media_type: str = JSON_TYPE

    def document(self) -> dict[str, Json]:
        """Return the entry of a table of objects."""
        return {"sha256": self.sha256, "size": self.size, "media_type": self.media_type}


class Link(msgspec.Struct, frozen=True):
    """Reference to a snapshot of any scope."""

    scope: str
    seq: int
    sha256: str


class Pointer(msgspec.Struct, frozen=True):
    """Content of ``latest.json``: the head's file name and digest."""

    path: str
    sha256: str

    def encode(self) -> bytes:
        """Return the bytes of ``latest.json``."""
        return canonical.encode({"version": VERSION, "path": self.path, "sha256": self.sha256})


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a long list: ``items`` with null at each pointer of ``objects`` (relative to ``items``). The items of
    the chunk ``before`` (None for the first) come first."""

    before: Ref | None
    items: list[Json]
    objects: dict[str, Ref]

    def encode(self) -> bytes:
        """Return the chunk as an object's bytes. Raises ``InvalidValueError`` for items that format 1 cannot hold."""
        document = {
            "before": self.before and self.before.document(),
            "items": self.items,
            "objects": {pointer: ref.document() for pointer, ref in self.objects.items()},
        }
        return canonical.encode(document, depth=canonical.FILE_DEPTH)

    @property
    def children(self) -> tuple[Ref, ...]:
        """The objects that the chunk refers to: those of its table, then the chunk before it."""
        return (*self.objects.values(), self.before) if self.before else tuple(self.objects.values())


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One snapshot. ``state`` has null where ``objects`` (JSON Pointer relative to ``state`` -> Ref) has an entry.

    ``kind`` is the kind of state (``run``, ``context``, ``machine``, or an embedder's own), ``event`` describes the
    change. ``extra`` keeps top-level fields of a newer minor version.
    """

    # msgspec writes one without ``extra`` as ``document`` does: a default that a lambda makes is not omitted.

    seq: int
    created_at: str
    tool_version: str
    scope: str
    prev_sha: str | None
    prev: str | None
    kind: str
    event: dict[str, Json]
    state: Json
    objects: dict[str, Ref] = msgspec.field(default_factory=lambda: {})  # noqa: PIE807 - dict would be omitted
    origin: Link | None = None
    merged: Link | None = None
    version: str = msgspec.field(default_factory=lambda: VERSION)
    extra: dict[str, Json] = {}

    def document(self) -> dict[str, Json]:
        """Return the bundle as the JSON object of its file."""
        document: dict[str, Json] = {
            "version": self.version,
            "seq": self.seq,
            "created_at": self.created_at,
            "tool_version": self.tool_version,
            "scope": self.scope,
            "prev_sha": self.prev_sha,
            "prev": self.prev,
            "kind": self.kind,
            "event": self.event,
            "state": self.state,
            "objects": {pointer: ref.document() for pointer, ref in self.objects.items()},
        }
        for name, link in (("origin", self.origin), ("merged", self.merged)):
            if link is not None:
                document[name] = msgspec.to_builtins(link)
        return {**self.extra, **document}


_decoder = msgspec.json.Decoder(Envelope)
_STATE_DEPTH = canonical.DEPTH + 1
"""Deepest nesting of a file whose state is certainly not too deep."""
_ENTRY = {"media_type", "sha256", "size"}
_FIELDS = frozenset(Envelope.__struct_fields__) - {"extra"}


def check_version(version: Json, what: str) -> None:
    """Accept "1" and its minor versions. Raises :class:`NewerVersionError` or :class:`IntegrityError`."""
    match = _version.fullmatch(version) if isinstance(version, str) else None
    if match is None:
        raise IntegrityError(f"{what} has no readable version", finding="malformed")
    if match[1] != VERSION:
        raise NewerVersionError(
            f"{what} is of format version {version}; this Stateline reads version {VERSION}. It was left untouched.",
            hint="upgrade stateline",
        )


def read_envelope(data: bytes, what: str = "the snapshot") -> Envelope:
    """Read a snapshot's bytes. Raises :class:`IntegrityError` (with the kind of damage in ``finding``) or
    :class:`NewerVersionError`. Links to other files are not checked here, but by the store and ``verify``."""
    envelope = canonical.decode_as(_decoder, data, depth=_STATE_DEPTH)
    if envelope is not None and _is_ordinary(envelope):
        return envelope
    return _read_envelope(data, what)


def write_envelope(envelope: Envelope, state: bytes | None = None) -> tuple[bytes, Envelope]:
    """Return a snapshot's bytes, and the snapshot that a reader gets from them, which shares nothing with ``envelope``.

    ``state`` is ``canonical.encode_unchecked(envelope.state)`` if the caller has it and has not checked its depth.
    Raises :class:`InvalidValueError` for what format 1 cannot hold, and as :func:`read_envelope`.
    """
    document = envelope.document()
    if state is not None:
        document["state"] = msgspec.Raw(state)
    # The depth of a state whose bytes were given is checked here, in the whole file: one level is around it.
    written = canonical.encode_as(_decoder, document, depth=_STATE_DEPTH)
    # The comparison finds values that JSON does not have: they are read differently.
    if written is not None and written[1] == envelope and _is_ordinary(written[1]):
        return written
    if _too_deep(canonical.encode_unchecked(envelope.state) if state is None else state):
        raise canonical.too_deep()
    data = canonical.encode(envelope.document(), depth=canonical.FILE_DEPTH)
    return data, read_envelope(data)


def _is_ordinary(envelope: Envelope) -> bool:
    """Return true for a valid snapshot of this version without unknown fields, as nearly all are."""
    return envelope.version == VERSION and not envelope.extra and not _problem(envelope)


def _read_envelope(data: bytes, what: str) -> Envelope:
    """Read a snapshot field by field: of a newer minor version, or with a mistake, which the error names."""
    document = _object(data, what)
    check_version(document.get("version"), what)
    known = {name: document[name] for name in document.keys() & _FIELDS}
    extra = {name: document[name] for name in document.keys() - _FIELDS}
    try:
        envelope = msgspec.convert({**known, "extra": extra}, Envelope)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{what} is not a bundle: {error}", finding="malformed") from None
    problem = _untyped_problem(document) or _problem(envelope)
    if not problem and _too_deep(canonical.encode_unchecked(envelope.state)):
        problem = f"`state` nests deeper than {canonical.DEPTH} levels"
    if problem:
        raise IntegrityError(f"{what} is not a bundle: {problem}", finding="malformed")
    return envelope


def _too_deep(state: bytes | None) -> bool:
    return state is not None and canonical.deeper_than(state, canonical.DEPTH)


def _untyped_problem(document: Mapping[str, Any]) -> str:
    if "objects" not in document:
        return "`objects` is missing"
    for name in ("origin", "merged"):
        if name in document and document[name] is None:
            return f"`{name}` is null"
    return _members_problem(document["objects"])


def _members_problem(objects: Mapping[str, Any]) -> str:
    for pointer, entry in objects.items():
        if entry.keys() != _ENTRY:
            return f"the entry of `objects` for {pointer[:80]!r} must have the members media_type, sha256 and size"
    return ""


def _problem(envelope: Envelope) -> str:
    """Return the problem of a well-typed envelope, or ""."""
    if not 0 <= envelope.seq < 2**63:
        return "`seq` is out of range"
    if not naming.is_created_at(envelope.created_at):
        return "`created_at` is not RFC 3339 UTC with microseconds"
    first = envelope.seq == 0
    if first and envelope.origin is None and (envelope.prev_sha, envelope.prev) != (None, None):
        return "the first snapshot names a parent"
    if envelope.origin is not None and (not first or envelope.prev_sha != envelope.origin.sha256 or envelope.prev):
        return "`origin` does not agree with `seq`, `prev_sha` and `prev`"
    if not first and (envelope.prev_sha is None or envelope.prev is None):
        return "`prev_sha` or `prev` is missing"
    if envelope.prev_sha is not None and not naming.is_sha256(envelope.prev_sha):
        return "`prev_sha` is not a SHA-256"
    if envelope.prev is not None and naming.snapshot_parts(envelope.prev) is None:
        return "`prev` is not a snapshot's name"
    for name, link in (("origin", envelope.origin), ("merged", envelope.merged)):
        if link is not None and not (naming.is_sha256(link.sha256) and 0 <= link.seq < 2**63 and link.scope):
            return f"`{name}` does not name a snapshot"
    return table_problem(envelope.state, envelope.objects)


def ref_problem(ref: Ref) -> str:
    """Return the reason why a Ref cannot stand in a table of objects, or ""."""
    if not naming.is_sha256(ref.sha256):
        return "the digest is not a SHA-256 in lower-case hex"
    if not 0 <= ref.size <= canonical.OBJECT_LIMIT:
        return "the size is out of range"
    if not _media_type.fullmatch(ref.media_type):
        return "the media type is not TYPE/SUBTYPE in lower case without parameters"
    return ""


def table_problem(value: Json, objects: Mapping[str, Ref]) -> str:
    """Return the mismatch between a value and its table of objects, or ""."""
    for pointer, ref in objects.items():
        if problem := ref_problem(ref):
            return f"in the entry of `objects` for {pointer[:80]!r} {problem}"
        # One place has one spelling: with two, the object would be ambiguous.
        if "/".join(canonical.escape(canonical.unescape(token)) for token in pointer.split("/")) != pointer:
            return f"the pointer {pointer[:80]!r} is malformed"
        try:
            if not pointer.startswith("/") or at(value, pointer) is not None:
                return f"the place of the object {pointer[:80]!r} is not null"
        except (KeyError, IndexError, ValueError, TypeError):
            return f"the object {pointer[:80]!r} has no place"
    return ""


def at(value: Json, pointer: str) -> Json:
    """Return the value at a JSON Pointer (RFC 6901). Raises KeyError, IndexError, ValueError or TypeError."""
    for token in pointer.split("/")[1:]:
        if type(value) is list:
            if not (token.isascii() and token.isdigit()) or (token[0] == "0" and token != "0"):
                raise ValueError(token)
            value = value[int(token)]
        else:
            value = value[canonical.unescape(token)]
    return value


def put_at(value: Json, pointer: str, item: Json) -> None:
    """Set the item at a JSON Pointer, in place."""
    path, _, token = pointer.rpartition("/")
    container = at(value, path)
    if type(container) is list:
        container[int(token)] = item
    else:
        container[canonical.unescape(token)] = item


def read_pointer(data: bytes, what: str = "the pointer") -> Pointer:
    """Read ``latest.json``. Raises :class:`IntegrityError` or :class:`NewerVersionError`."""
    document = _object(data, what)
    check_version(document.get("version"), what)
    path, sha = document.get("path"), document.get("sha256")
    if not isinstance(path, str) or naming.snapshot_parts(path) is None or not naming.is_sha256(sha):
        raise IntegrityError(f"{what} does not name a snapshot", finding="malformed")
    if document["version"] == VERSION and document.keys() != {"path", "sha256", "version"}:
        raise IntegrityError(f"{what} has fields that version {VERSION} does not have", finding="malformed")
    return Pointer(path=path, sha256=str(sha))


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    value: Json
    objects: dict[str, Ref]


def read_node(data: bytes, what: str = "the node") -> tuple[Json, dict[str, Ref]]:
    """Return (value, table of objects) of a node's bytes. Raises :class:`IntegrityError`."""
    document = _object(data, what)
    try:
        node = msgspec.convert(document, _Node)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{what} is not a node: {error}", finding="malformed") from None
    if problem := _members_problem(document["objects"]) or table_problem(node.value, node.objects):
        raise IntegrityError(f"{what} is not a node: {problem}", finding="malformed")
    return node.value, node.objects


def read_chunk(data: bytes, what: str = "the chunk") -> Chunk:
    """Return a chunk from its bytes. Raises :class:`IntegrityError`, also for a chunk without items."""
    document = _object(data, what)
    try:
        chunk = msgspec.convert(document, Chunk)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{what} is not a chunk of a list: {error}", finding="malformed") from None
    if problem := _chunk_problem(chunk, document):
        raise IntegrityError(f"{what} is not a chunk of a list: {problem}", finding="malformed")
    return chunk


def _chunk_problem(chunk: Chunk, document: Mapping[str, Any]) -> str:
    if not chunk.items:
        return "it has no items"
    if chunk.before is not None:
        if document["before"].keys() != _ENTRY or chunk.before.media_type != LIST_TYPE:
            return "`before` does not name a chunk"
        if problem := ref_problem(chunk.before):
            return f"in `before` {problem}"
    return _members_problem(document["objects"]) or table_problem(chunk.items, chunk.objects)


def _object(data: bytes, what: str) -> dict[str, Json]:
    try:
        document = canonical.decode(data)
    except IntegrityError as error:
        raise IntegrityError(f"{what}: {error.message}", finding=error.finding) from None
    if type(document) is not dict:
        raise IntegrityError(f"{what} is not a JSON object", finding="malformed")
    return document
