"""Snapshots: read them checked, find a scope's head, and publish new ones."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.envelope import VERSION, Envelope, Pointer, read_envelope, write_envelope
from stateline.bundle.limits import DEFAULT, Limits
from stateline.bundle.objects import with_refs
from stateline.bundle.repair_record import MEMBER
from stateline.errors import IntegrityError, InvalidValueError, NewerVersionError, UnsafePathError
from stateline.store.protocol import DAMAGE_HINT, Backend, BlobExistsError, BlobMissingError


class Snapshot(msgspec.Struct, frozen=True):
    """One immutable bundle file.

    ``scope`` is the hash of its scope's key, ``path`` the file's name in that scope, ``sha256`` the digest of ``data``,
    the file's exact bytes.
    """

    scope: str
    path: str
    sha256: str
    data: bytes
    envelope: Envelope

    @property
    def seq(self) -> int:
        """The snapshot's number in its scope, from 0."""
        return self.envelope.seq

    @property
    def event(self) -> dict[str, Json]:
        """The change that led to this snapshot. ``durability`` is the store's own member."""
        return self.envelope.event

    @property
    def pointer(self) -> Pointer:
        """The pointer that makes this snapshot the head."""
        return Pointer(self.path, self.sha256)

    @property
    def state(self) -> Json:
        """The state with a :class:`Ref` in place of each object. ``Store.resolve`` fills them in."""
        return with_refs(self.envelope.state, self.envelope.objects)


def read_snapshot(backend: Backend, scope: str, pointer: Pointer) -> Snapshot:
    """Return the snapshot that a pointer or a child names, checked: bytes, canonical form, digest, name and scope.

    ``scope`` is a scope's hash. Raises ``IntegrityError``, ``NewerVersionError`` or ``UnsafePathError``.
    """
    name = f"{scope}/{pointer.path}"
    try:
        data = backend.get(name, canonical.SNAPSHOT_LIMIT)
    except BlobMissingError:
        raise IntegrityError(f"the snapshot {name} is missing", finding="missing", hint=DAMAGE_HINT) from None
    sha = sha256(data)
    if sha != pointer.sha256:
        finding = "truncated" if is_truncated(data) else "altered"
        message = f"the snapshot {name} is {finding}: its SHA-256 is not the one that the reference to it gives"
        raise IntegrityError(message, finding=finding, hint=DAMAGE_HINT)
    return parse_snapshot(scope, pointer.path, data, sha)


def parse_snapshot(scope: str, path: str, data: bytes, sha: str | None = None) -> Snapshot:
    """Return a snapshot from a file's bytes (with the digest ``sha``, if known), checked against its scope's hash and
    its name. Raises as :func:`read_snapshot`."""
    sha = sha or sha256(data)
    try:
        envelope = read_envelope(data, f"the snapshot {scope}/{path}")
    except IntegrityError as error:
        raise IntegrityError(error.message, finding=error.finding, hint=DAMAGE_HINT) from None
    if naming.scope_hash(envelope.scope) != scope or not naming.name_fits(path, envelope.created_at, sha):
        message = f"the snapshot {scope}/{path} is misplaced: its scope {envelope.scope} or its content does not fit"
        raise IntegrityError(message, finding="misplaced", hint=DAMAGE_HINT)
    return Snapshot(scope, path, sha, data, envelope)


def is_truncated(data: bytes) -> bool:
    """Return True if the end of a JSON object's bytes is missing; False if they were altered otherwise."""
    if data.rstrip().endswith(b"}"):
        return False
    import json

    try:
        # A whole value with something behind it has grown.
        json.JSONDecoder(strict=False).raw_decode(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return True
    return False


def read_head(backend: Backend, scope: str) -> Snapshot | None:
    """Return the head of the scope with this hash, or None for a scope that does not exist. Never writes.

    Raises ``IntegrityError`` for a damaged pointer or head, or for a missing pointer beside snapshots that a first
    save cannot have left behind.
    """
    pointer = backend.read(scope)
    if pointer is None:
        try:
            require_no_snapshots(backend, scope)
        except IntegrityError:
            # A first save may have finished since the pointer was read, so read it again.
            pointer = backend.read(scope)
            if pointer is None:
                raise
    return None if pointer is None else read_snapshot(backend, scope, pointer)


def require_no_snapshots(backend: Backend, scope: str) -> None:
    """Raise ``IntegrityError`` for a scope that lost its pointer: a new chain beside its snapshots would hide that.

    A crash during a first save leaves intact first snapshots without a pointer; any other snapshot means that the
    pointer was lost.
    """
    for name in backend.list(scope):
        if naming.snapshot_parts(name) is None:
            continue
        try:
            if parse_snapshot(scope, name, backend.get(f"{scope}/{name}", canonical.SNAPSHOT_LIMIT)).seq == 0:
                continue
        except BlobMissingError:
            continue
        except (IntegrityError, UnsafePathError):
            pass
        message = f"the pointer {scope}/{naming.POINTER} is missing, but its snapshots exist"
        raise IntegrityError(message, finding="missing", hint=DAMAGE_HINT)


def publish(backend: Backend, envelope: Envelope, state: bytes | None = None, *, limits: Limits = DEFAULT) -> Snapshot:
    """Write a snapshot without making it the head. The scope's lock must be held. ``state`` as in ``write_envelope``.

    Raises ``InvalidValueError`` for one that is too large.
    """
    # What is published is what a reader will see; it shares nothing with the caller's value.
    data, seen = write_envelope(envelope, state)
    if len(data) > limits.snapshot:
        raise InvalidValueError(
            f"the snapshot would have {len(data)} bytes, over {limits.text('snapshot')}; nothing was written",
            hint="keep large values inside lists or mappings, where they become objects",
        )
    scope, sha = naming.scope_hash(envelope.scope), sha256(data)
    for label in (naming.LABEL, 2 * naming.LABEL, 64):
        path = naming.snapshot_name(envelope.created_at, sha, label)
        try:
            backend.put(f"{scope}/{path}", data)
        except BlobExistsError:
            # The label is taken by other content: a longer one tells them apart, nothing is overwritten.
            continue
        return Snapshot(scope, path, sha, data, seen)
    raise IntegrityError(f"the name {path} is taken by other content", finding="misplaced", hint=DAMAGE_HINT)


def require_known_version(head: Snapshot) -> None:
    """Raise ``NewerVersionError`` for a head of a newer minor version: a snapshot built on it here would drop fields
    that this version does not know. Reading it is fine."""
    if head.envelope.version != VERSION:
        raise NewerVersionError(
            f"the head of {head.envelope.scope} is of format version {head.envelope.version}; this Stateline writes "
            f"version {VERSION}. It was left untouched.",
            hint="upgrade stateline",
        )


def require_caller_event(event: Mapping[str, Json], *, masked: bool) -> None:
    """Raise ``InvalidValueError`` for a member of an event that only the store may set: what a repair declares lost,
    and how many secrets were masked. A caller that has ``masked`` them itself may give the latter."""
    for name in (MEMBER,) if masked else (MEMBER, "redactions"):
        if name in event:
            raise InvalidValueError(
                f"the event member `{name}` is reserved for the store; nothing was written",
                where=f"/{name}",
                hint="give it another name",
            )
