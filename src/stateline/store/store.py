"""The public store: scopes, snapshots, objects. Backends only keep bytes; what they mean is decided here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import msgspec

from stateline._version import __version__
from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.envelope import VERSION, Envelope, Link, Pointer, Ref, read_envelope
from stateline.bundle.objects import Artifact, Split, artifact_ref, references, resolve, split, with_refs
from stateline.bundle.redact import Redactor
from stateline.errors import (
    ConflictError,
    IntegrityError,
    NewerVersion,
    NotFound,
    RequestError,
    UnsafePlace,
    ValueRefused,
)
from stateline.store.protocol import Backend, BlobExists, BlobMissing

WAIT = 10.0
"""How long a writer waits for a scope's lock by default [s]."""

LATEST: Literal["latest"] = "latest"
"""As ``parent``: whatever is the head when the lock is held."""


class Snapshot(msgspec.Struct, frozen=True):
    """One immutable bundle file. ``sha256`` is the digest of ``data``, the file's exact bytes."""

    scope: str
    path: str
    sha256: str
    data: bytes
    envelope: Envelope

    @property
    def seq(self) -> int:
        return self.envelope.seq

    @property
    def event(self) -> dict[str, Json]:
        return self.envelope.event

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.path, self.sha256)

    @property
    def state(self) -> Json:
        """The state with a :class:`Ref` where an object belongs. ``Store.resolve`` fills them in."""
        return with_refs(self.envelope.state, self.envelope.objects)


class Store:
    """A place that holds scopes. Opening touches nothing; the first save creates what is missing.

    >>> from stateline import Store
    >>> from stateline.store.memory import MemoryBackend
    >>> store = Store(MemoryBackend())
    >>> first = store.scope("notes:demo").save({"n": 1}, event={"why": "first"})
    >>> store.scope("notes:demo").load().state
    {'n': 1}
    """

    def __init__(
        self,
        backend: Backend,
        *,
        redactor: Redactor | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """``redactor`` masks secrets before anything is hashed (default: none known, key names only); ``clock``
        gives the time as [ns] since 1970 (default: ``time.time_ns``)."""
        import time

        self.backend = backend
        self.redactor = redactor or Redactor()
        self._kept: set[Ref] = set()
        self._clock = clock or time.time_ns

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, redactor: Redactor | None = None) -> Store:
        """The store in the directory ``path``, which need not exist yet.

        Without ``redactor``, values of environment variables that are named like keys are masked.
        """
        from stateline.store.local import LocalBackend

        return cls(LocalBackend(os.fspath(path)), redactor=redactor or Redactor.from_environment(os.environ))

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the place, found so far."""
        return self.backend.warnings

    def scope(self, key: str) -> Scope:
        """The scope of that key (``KIND:NAME``), whether it exists or not. Raises ``UsageError`` for a bad key."""
        return Scope(self, naming.checked_key(key))

    def heads(self) -> Iterator[Snapshot]:
        """The head of every scope that has one, in no order. Raises ``IntegrityError`` at the first damaged one."""
        for scope in self.backend.scopes():
            pointer = self.backend.read(scope)
            if pointer is not None:
                yield self.read_snapshot(scope, pointer)

    def put(self, artifact: Artifact) -> Ref:
        """Keep raw bytes; durable on return. Artifacts are not redacted."""
        ref = artifact_ref(artifact)
        self._put_object(ref, artifact.data)
        return ref

    def put_value(self, value: Json) -> Ref:
        """Keep a JSON value as one object, as it is (not redacted); durable on return. Raises ``ValueRefused``."""
        data = canonical.encode(value)
        ref = Ref(sha256(data), len(data))
        self._put_object(ref, data)
        return ref

    def get(self, ref: Ref) -> bytes:
        """An object's bytes, digest and size checked. Raises ``IntegrityError`` if they are missing or altered."""
        name = naming.object_path(ref.sha256)
        try:
            data = self.backend.get(name, max(ref.size, 1))
        except BlobMissing:
            raise IntegrityError(f"the object {ref.sha256} is missing", finding="missing", hint=_DAMAGE) from None
        if sha256(data) != ref.sha256 or len(data) != ref.size:
            finding = "truncated" if len(data) < ref.size else "altered"
            raise IntegrityError(f"the object {ref.sha256} is {finding}", finding=finding, hint=_DAMAGE)
        return data

    def resolve(self, value: Json) -> Json:
        """``value`` with the content of every JSON object in the place of its :class:`Ref`; artifacts stay Refs."""
        return resolve(value, self.get)

    def read_snapshot(self, scope: str, pointer: Pointer) -> Snapshot:
        """The snapshot that a pointer or a child names, checked: bytes, canonical form, digest, name, scope.

        ``scope`` is a scope's hash. Raises ``IntegrityError``, ``NewerVersion`` or ``UnsafePlace``.
        """
        name = f"{scope}/{pointer.path}"
        try:
            data = self.backend.get(name, canonical.SNAPSHOT_LIMIT)
        except BlobMissing:
            raise IntegrityError(f"the snapshot {name} is missing", finding="missing", hint=_DAMAGE) from None
        if sha256(data) != pointer.sha256:
            finding = "truncated" if not data.endswith(b"}") else "altered"
            raise IntegrityError(
                f"the snapshot {name} is {finding}: its SHA-256 is not the one that leads to it",
                finding=finding,
                hint=_DAMAGE,
            )
        return self.parse_snapshot(scope, pointer.path, data)

    def parse_snapshot(self, scope: str, path: str, data: bytes) -> Snapshot:
        """A snapshot from a file's bytes, checked against its place. Raises as :meth:`read_snapshot`."""
        sha = sha256(data)
        try:
            envelope = read_envelope(data, f"the snapshot {scope}/{path}")
        except IntegrityError as error:
            raise IntegrityError(error.message, finding=error.finding, hint=_DAMAGE) from None
        problem = ""
        if naming.scope_hash(envelope.scope) != scope:
            problem = f"it belongs to the scope {envelope.scope}"
        elif not naming.name_fits(path, envelope.created_at, sha):
            problem = "its name does not fit its content"
        if problem:
            raise IntegrityError(
                f"the snapshot {scope}/{path} is misplaced: {problem}", finding="misplaced", hint=_DAMAGE
            )
        return Snapshot(scope, path, sha, data, envelope)

    def holds_more_than_a_first(self, scope: str) -> bool:
        """Whether the scope with that hash holds a snapshot that is not an intact first one. Without a pointer, first
        snapshots are what a crash leaves of a first save; anything else means that the pointer was lost."""
        for name in self.backend.list(scope):
            if naming.snapshot_parts(name) is None:
                continue
            try:
                data = self.backend.get(f"{scope}/{name}", canonical.SNAPSHOT_LIMIT)
                if self.parse_snapshot(scope, name, data).seq > 0:
                    return True
            except BlobMissing:
                continue
            except (IntegrityError, UnsafePlace):
                return True
        return False

    def _put_object(self, ref: Ref, data: bytes) -> None:
        try:
            self.backend.put(naming.object_path(ref.sha256), data)
        except BlobExists:
            raise IntegrityError(
                f"the object {ref.sha256} is there with other bytes; nothing was written",
                finding="altered",
                hint=_DAMAGE,
            ) from None
        self._kept.add(ref)

    def now(self, after: str | None) -> str:
        """The time as envelopes hold it, at least a microsecond later than ``after``, whatever the clock does.

        Raises ``IntegrityError`` for an ``after`` that no time can follow (31 February, the last second of 9999).
        """
        import datetime

        moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
            microseconds=self._clock() // 1000
        )
        if after is not None:
            try:
                following = datetime.datetime.fromisoformat(after) + datetime.timedelta(microseconds=1)
            except (ValueError, OverflowError):
                raise IntegrityError(
                    f"no time can follow the head's created_at, {after}; nothing was written",
                    finding="malformed",
                    hint=_DAMAGE,
                ) from None
            moment = max(moment, following)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def demand_known_version(head: Snapshot) -> None:
    """Raise ``NewerVersion`` for a head of a newer minor version: it may hold what this version does not know, and a
    snapshot on top of it would drop that. Reading goes on."""
    if head.envelope.version != VERSION:
        raise NewerVersion(
            f"the head of {head.envelope.scope} is of format version {head.envelope.version}; this Stateline writes "
            f"version {VERSION}. It was left untouched.",
            hint="upgrade stateline",
        )


class Scope:
    """One named chain of snapshots. ``key`` is its name, ``hash`` where it lies."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self.hash = naming.scope_hash(key)

    @contextmanager
    def locked(self, wait: float = WAIT) -> Iterator[None]:
        """Hold the scope alone, for load, effects and save together. Raises ``LockTimeout`` after ``wait`` [s]."""
        with self.store.backend.lock(self.hash, wait):
            yield

    def head(self) -> Snapshot | None:
        """The newest acknowledged snapshot, or None for a scope that does not exist. Never writes.

        Raises ``IntegrityError``, naming the newest intact snapshot, when the pointer or what it names is damaged.
        """
        try:
            pointer = self.store.backend.read(self.hash)
            return None if pointer is None else self.store.read_snapshot(self.hash, pointer)
        except IntegrityError as error:
            raise self._with_way_out(error) from None

    def load(self) -> Snapshot:
        """The head. Raises ``NotFound`` for a scope that does not exist."""
        snapshot = self.head()
        if snapshot is None:
            raise NotFound(f"there is no scope {self.key}", hint="`stateline scopes` lists the scopes there are")
        return snapshot

    def parent(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot before this one in the same scope, or None at its first. Raises ``IntegrityError``."""
        envelope = snapshot.envelope
        if envelope.prev is None or envelope.prev_sha is None:
            return None
        before = self.store.read_snapshot(self.hash, Pointer(envelope.prev, envelope.prev_sha))
        if before.seq + 1 != envelope.seq or before.envelope.created_at >= envelope.created_at:
            raise IntegrityError(
                f"the snapshots {before.path} and {snapshot.path} are not in order", finding="misordered", hint=_DAMAGE
            )
        return before

    def walk(self, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """From ``start`` (default: the head) back to the first, one read a step. Raises ``IntegrityError``."""
        snapshot = start or self.head()
        while snapshot is not None:
            yield snapshot
            snapshot = self.parent(snapshot)

    def save(
        self,
        state: Json,
        *,
        kind: str = "",
        event: Mapping[str, Json] | None = None,
        parent: Snapshot | Literal["latest"] | None = LATEST,
        wait: float = WAIT,
        masked: bool = False,
    ) -> Snapshot:
        """Append a snapshot with ``state``, which may hold :class:`Ref` and :class:`Artifact` leaves.

        Secrets are masked first; the snapshot that is returned holds what was stored, so go on with its state.
        ``kind`` defaults to the kind in the scope's key. ``parent`` demands a head: a snapshot, or None for a scope
        that must not exist yet. ``masked`` says that the caller has masked what people and programs said; names that
        the caller made itself are then safe from a secret that happens to be spelled like one of them. On return the
        snapshot survives a power loss.

        Raises ``ConflictError`` when the parent is not the head, ``LockTimeout``, ``ValueRefused``,
        ``IntegrityError`` when the head is damaged (nothing starts afresh), ``UnsafePlace``, ``StorageError``; the
        chain is then as it was.
        """
        with self.locked(wait):
            try:
                pointer = self.store.backend.read(self.hash)
                head = self._expected_head(pointer, parent)
            except IntegrityError as error:
                raise self._with_way_out(error) from None
            if head is None:
                self._demand_empty()
                self.demand_key_without_secrets()
            else:
                demand_known_version(head)
            said = dict(event or {})
            if not masked:
                state, said = self._masked(state, said)
            snapshot = self._write(head, state, kind or self.key.partition(":")[0], said)
            self.store.backend.swap(self.hash, pointer, snapshot.pointer)
            return snapshot

    def _expected_head(self, pointer: Pointer | None, parent: Snapshot | Literal["latest"] | None) -> Snapshot | None:
        if isinstance(parent, str):
            return None if pointer is None else self.store.read_snapshot(self.hash, pointer)
        if (None if parent is None else parent.pointer) != pointer:
            now = "empty" if pointer is None else f"at {pointer.sha256}"
            raise ConflictError(
                f"the scope {self.key} is {now}, not where this change began; nothing was written",
                hint="load the head again and repeat the change",
            )
        return parent

    def _masked(self, state: Json, event: dict[str, Json]) -> tuple[Json, dict[str, Json]]:
        masked, count = self.store.redactor.redact({"state": state, "event": event})
        event = dict(masked["event"])
        if count:
            event["redactions"] = count
        return masked["state"], event

    def demand_key_without_secrets(self) -> None:
        """Raise ``RequestError`` for a name with a secret in it: names are kept as they are."""
        if self.store.redactor.find(self.key):
            raise RequestError(
                "the scope's name holds a secret that is also in the environment; nothing was written",
                hint="choose another name, or unset the variable if its value is no secret",
            )

    def _write(self, head: Snapshot | None, state: Json, kind: str, event: dict[str, Json]) -> Snapshot:
        event["durability"] = "full"
        parts = split(state)
        known = set(head.envelope.objects.values()) if head else set()
        self._demand_objects(parts, known)
        for ref, data in parts.contents.items():
            # What the parent names is durable since the parent was acknowledged.
            if ref not in known:
                self.store._put_object(ref, data)
        envelope = Envelope(
            seq=head.seq + 1 if head else 0,
            created_at=self.store.now(head.envelope.created_at if head else None),
            tool_version=__version__,
            scope=self.key,
            prev_sha=head.sha256 if head else None,
            prev=head.path if head else None,
            kind=kind,
            event=event,
            state=parts.value,
            objects=parts.objects,
        )
        data = canonical.encode(envelope.document(), depth=canonical.FILE_DEPTH)
        if len(data) > canonical.SNAPSHOT_LIMIT:
            raise ValueRefused(
                f"the snapshot would have {len(data)} bytes, over the limit of {canonical.SNAPSHOT_LIMIT}; "
                "nothing was written",
                hint="keep large values inside lists or mappings, where they become objects",
            )
        # What is published is what a reader will see, and it shares nothing with the caller's value.
        return self._publish(read_envelope(data, "the new snapshot"), data)

    def _demand_objects(self, parts: Split, known: set[Ref]) -> None:
        """What a snapshot names must be there before it is acknowledged. Raises ``NotFound``."""
        named = set(parts.objects.values())
        for ref, data in parts.contents.items():
            named.update(references(data, ref))
        for ref in sorted(named - known - self.store._kept - parts.contents.keys()):
            try:
                self.store.get(ref)
            except IntegrityError as error:
                if error.finding != "missing":
                    raise
                raise NotFound(
                    f"there is no object {ref.sha256} in this store; nothing was written",
                    hint="put the content into this store first (Store.put), or save the value itself",
                ) from None

    def _publish(self, envelope: Envelope, data: bytes) -> Snapshot:
        sha = sha256(data)
        for label in (naming.LABEL, 2 * naming.LABEL, 64):
            path = naming.snapshot_name(envelope.created_at, sha, label)
            try:
                self.store.backend.put(f"{self.hash}/{path}", data)
            except BlobExists:
                # The label is taken by other content: a longer one tells them apart, nothing is overwritten.
                continue
            return Snapshot(self.hash, path, sha, data, envelope)
        raise IntegrityError(f"the name {path} is taken by other content", finding="misplaced", hint=_DAMAGE)

    def _demand_empty(self) -> None:
        """Starting afresh beside the snapshots of a scope that lost its pointer would hide that it did."""
        if self.store.holds_more_than_a_first(self.hash):
            error = IntegrityError(f"the pointer of the scope {self.key} is missing", finding="missing")
            raise self._with_way_out(error)

    def _with_way_out(self, error: IntegrityError) -> IntegrityError:
        """The same error, with the newest intact snapshot named."""
        newest = self.newest_intact()
        found = f"the newest intact snapshot is {newest.path}" if newest else "no snapshot of it is intact"
        return IntegrityError(
            f"{error.message}. Nothing was changed; {found}.",
            finding=error.finding,
            hint=f"`stateline verify {self.key}` lists all damage; `stateline repair` sets it aside",
        )

    def newest_intact(self) -> Snapshot | None:
        """The newest snapshot file whose own bytes are in order, wherever the pointer points. Reads from the newest."""
        names = sorted((n for n in self.store.backend.list(self.hash) if naming.snapshot_parts(n)), reverse=True)
        for name in names:
            try:
                data = self.store.backend.get(f"{self.hash}/{name}", canonical.SNAPSHOT_LIMIT)
                return self.store.parse_snapshot(self.hash, name, data)
            except (IntegrityError, UnsafePlace, BlobMissing):
                continue
        return None


_DAMAGE = "nothing was changed; `stateline verify` lists all damage"

__all__ = ["LATEST", "WAIT", "Artifact", "Link", "Ref", "Scope", "Snapshot", "Store"]
