"""The public store: scopes, snapshots, objects. Backends only keep bytes; what they mean is decided here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Literal

from stateline._version import __version__
from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.envelope import Envelope, Link, Pointer, Ref, read_envelope, write_envelope
from stateline.bundle.objects import WHOLES, Artifact, Split, artifact_ref, extend, references, resolve, split
from stateline.errors import (
    ConflictError,
    DurabilityUnknownError,
    IntegrityError,
    InvalidValueError,
    NotFoundError,
    RequestError,
    StorageError,
    UnsafePathError,
)
from stateline.redaction.redactor import Redactor
from stateline.store.dedup import held
from stateline.store.durability import rest_on, settle_objects, settle_past
from stateline.store.protocol import FAST, FULL, Backend, BlobExistsError, BlobMissingError, Durability
from stateline.store.snapshot import Snapshot, require_callers_words, require_known_version
from stateline.store.walking import walk

WAIT = 10.0
"""How long a writer waits for a scope's lock by default [s]."""

LATEST: Literal["latest"] = "latest"
"""As ``parent``: whatever is the head when the lock is held."""


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
        self._settled: set[Ref] = set()
        self._clock = clock or time.time_ns
        self.planned: list[Json] | None = None
        """Descriptions of the effects that a dry run came to; None in a store whose effects are performed."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        redactor: Redactor | None = None,
        durability: Durability = FULL,
        trust_parent: bool = False,
    ) -> Store:
        """The store in the directory ``path``, which need not exist yet.

        Without ``redactor``, values of environment variables that are named like keys are masked. ``durability``
        ``fast`` syncs nothing of a save: what is acknowledged survives the death of every process, and a power loss
        may take the newest of it away. ``trust_parent`` writes although others may write in a directory above.
        """
        from stateline.store.local.backend import LocalBackend

        backend = LocalBackend(os.fspath(path), durability=durability, trust_parent=trust_parent)
        return cls(backend, redactor=redactor or Redactor.from_environment(os.environ))

    @classmethod
    def in_memory(cls, *, redactor: Redactor | None = None) -> Store:
        """An empty store that is gone with this process. ``redactor`` as in :meth:`open`."""
        from stateline.store.memory import MemoryBackend

        return cls(MemoryBackend(), redactor=redactor or Redactor.from_environment(os.environ))

    def with_backend(self, backend: Backend) -> Store:
        """A store over another backend, with the redactor and the clock of this one."""
        return Store(backend, redactor=self.redactor, clock=self._clock)

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
        """Keep a JSON value as one object, as it is (not redacted); durable on return. Raises ``InvalidValueError``."""
        data = canonical.encode(value)
        ref = Ref(sha256(data), len(data))
        self._put_object(ref, data)
        return ref

    def append(self, ref: Ref, items: list[Json]) -> Ref:
        """The list that is stored as ``ref``, with ``items`` behind it; ``ref`` stays.

        Of a long list only the last chunk is read, and that one and new ones are written. In a ``full`` store a ``ref``
        that it has not kept itself, nor found in the table of a ``full`` head, is first read and made durable whole.
        ``items`` may hold :class:`Ref` and :class:`Artifact` leaves. Secrets in them are masked, but not because of the
        key under which the list will stand (``api_key``), which is not known here. Raises ``InvalidValueError`` if the
        object is not a list, ``NotFoundError`` for a Ref to what is not there, ``IntegrityError``, ``StorageError``.
        """
        data = self.get(ref)
        if ref not in self._kept and ref not in self._settled:
            settle_objects(self, [ref])
        parts = extend(ref, data, self.redactor.redact(items)[0])
        self._put_parts(parts, {ref, *references(data, ref)})
        return parts.objects[""]

    def get(self, ref: Ref) -> bytes:
        """An object's bytes, digest and size checked. Raises ``IntegrityError`` if they are missing or altered."""
        name = naming.object_path(ref.sha256)
        try:
            data = self.backend.get(name, max(ref.size, 1))
        except BlobMissingError:
            raise IntegrityError(f"the object {ref.sha256} is missing", finding="missing", hint=_DAMAGE) from None
        except IntegrityError as error:
            if error.finding != "too_large":
                raise
            said = f"the object {ref.sha256} is too large: its table says {ref.size} bytes, and it has more"
            raise IntegrityError(said, finding="too_large", hint=_DAMAGE) from None
        if sha256(data) != ref.sha256 or len(data) != ref.size:
            finding = "truncated" if len(data) < ref.size else "altered"
            raise IntegrityError(f"the object {ref.sha256} is {finding}", finding=finding, hint=_DAMAGE)
        return data

    def resolve(self, value: Json) -> Json:
        """``value`` with the content of every JSON object in the place of its :class:`Ref`; artifacts stay Refs."""
        return resolve(value, self.get)

    def read_snapshot(self, scope: str, pointer: Pointer) -> Snapshot:
        """The snapshot that a pointer or a child names, checked: bytes, canonical form, digest, name, scope.

        ``scope`` is a scope's hash. Raises ``IntegrityError``, ``NewerVersionError`` or ``UnsafePathError``.
        """
        name = f"{scope}/{pointer.path}"
        try:
            data = self.backend.get(name, canonical.SNAPSHOT_LIMIT)
        except BlobMissingError:
            raise IntegrityError(f"the snapshot {name} is missing", finding="missing", hint=_DAMAGE) from None
        sha = sha256(data)
        if sha != pointer.sha256:
            from stateline.store.truncation import torn

            finding = torn(data)
            said = f"the snapshot {name} is {finding}: its SHA-256 is not the one that leads to it"
            raise IntegrityError(said, finding=finding, hint=_DAMAGE)
        return self._parsed(scope, pointer.path, data, sha)

    def parse_snapshot(self, scope: str, path: str, data: bytes) -> Snapshot:
        """A snapshot from a file's bytes, checked against its place. Raises as :meth:`read_snapshot`."""
        return self._parsed(scope, path, data, sha256(data))

    def _parsed(self, scope: str, path: str, data: bytes, sha: str) -> Snapshot:
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
            except BlobMissingError:
                continue
            except (IntegrityError, UnsafePathError):
                return True
        return False

    def read_head(self, scope: str) -> Snapshot | None:
        """Return the head of the scope with that hash, or None for a scope that does not exist. Never writes.

        Raises ``IntegrityError`` for a damaged pointer or head, or for a missing pointer beside snapshots that a first
        save cannot have left behind.
        """
        pointer = self.backend.read(scope)
        if pointer is None and self.holds_more_than_a_first(scope):
            # A first save may have finished since the pointer was read, so read it again.
            pointer = self.backend.read(scope)
            if pointer is None and self.holds_more_than_a_first(scope):
                raise IntegrityError(
                    f"the pointer {scope}/{naming.POINTER} is missing, but its snapshots exist",
                    finding="missing",
                    hint=_DAMAGE,
                )
        return None if pointer is None else self.read_snapshot(scope, pointer)

    def _put_parts(self, parts: Split, known: set[Ref]) -> None:
        """Keep the objects of a split value, parts before wholes; those that are ``known`` are there already.

        What they name must be there too, before anything is acknowledged. Raises ``NotFoundError``.
        """
        known = known | self._still_kept(parts.named() - known)
        rest_on(self, sorted(parts.named() - known - parts.contents.keys()))
        for ref, data in parts.contents.items():
            if ref not in known:
                self._put_object(ref, data)

    def _still_kept(self, refs: set[Ref]) -> set[Ref]:
        """Those of ``refs`` that this store kept and nobody took away since: a repair in another process may have."""
        gone = {ref for ref in refs & self._kept if not self.backend.has(naming.object_path(ref.sha256), ref.size)}
        self._kept -= gone
        return refs & self._kept

    def forget_objects(self) -> None:
        """Take no object for kept because this process kept it: a repair may have set it aside."""
        self._kept.clear()
        self._settled.clear()

    def apply_losses(self, head: Snapshot) -> None:
        """Remember which lists are as durable as they can be, for :meth:`append`: a ``full`` snapshot was written after
        all that it rests on."""
        if head.event.get("durability") != FAST:
            self._settled.update(ref for ref in head.envelope.objects.values() if ref.media_type in WHOLES)

    def _put_object(self, ref: Ref, data: bytes) -> None:
        try:
            self.backend.put(naming.object_path(ref.sha256), data)
        except BlobExistsError:
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
        from stateline.store.timestamps import following

        return following(self._clock(), after)


class Scope:
    """One named chain of snapshots. ``key`` is its name, ``hash`` where it lies."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self.hash = naming.scope_hash(key)
        self._saved: Snapshot | None = None

    def locked(self, wait: float = WAIT) -> AbstractContextManager[None]:
        """Hold the scope alone, for load, effects and save together. Raises ``LockTimeoutError`` after ``wait`` [s]."""
        return self.store.backend.lock(self.hash, wait)

    def head(self) -> Snapshot | None:
        """The newest acknowledged snapshot, or None for a scope that does not exist. Never writes.

        Raises ``IntegrityError``, naming the newest intact snapshot, when the pointer or what it names is damaged.
        """
        try:
            head = self.store.read_head(self.hash)
        except IntegrityError as error:
            raise self.with_way_out(error) from None
        if head is not None:
            self.store.apply_losses(head)
        return head

    def load(self) -> Snapshot:
        """The head. Raises ``NotFoundError`` for a scope that does not exist."""
        snapshot = self.head()
        if snapshot is None:
            raise NotFoundError(f"there is no scope {self.key}", hint="`stateline scopes` lists the scopes there are")
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
        """From ``start`` (default: the head) back to the first, one read a step. Where a snapshot is missing that a
        newer one declares lost, it goes on where that one says; ``seq`` then skips. Raises ``IntegrityError``."""
        return walk(self, start)

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
        """Append a snapshot with ``state``, which may hold :class:`Ref` and :class:`Artifact` leaves. A ``fast`` save
        checks that what a Ref names is there and whole, and not what lies below that.

        Secrets are masked first; the snapshot that is returned holds what was stored, so go on with its state.
        ``kind`` defaults to the kind in the scope's key. ``parent`` demands a head: a snapshot, or None for a scope
        that must not exist yet. ``masked`` says that the caller has masked what people and programs said; names that
        the caller made itself are then safe from a secret that happens to be spelled like one of them. On return the
        snapshot is as durable as the store promises; with ``full`` durability all its past is, too.

        Raises ``ConflictError`` when the parent is not the head, ``LockTimeoutError``, ``InvalidValueError``,
        ``IntegrityError`` when the head is damaged (nothing starts afresh), ``UnsafePathError``, ``StorageError``; the
        chain is then as it was. Only after ``DurabilityUnknownError`` it may hold the new head.
        """
        said = dict(event or {})
        require_callers_words(said, masked=masked)
        with self.locked(wait):
            try:
                pointer = self.store.backend.read(self.hash)
                head = self._expected_head(pointer, parent)
                if head is None:
                    self._require_empty()
                    self.require_key_without_secrets()
                else:
                    require_known_version(head)
                    self.settle(head)
            except IntegrityError as error:
                raise self.with_way_out(error) from None
            draft = canonical.draft(state)
            if not masked:
                state, said, draft = self._masked(state, said, draft)
            try:
                snapshot = self._write(head, (state, draft), kind or self.key.partition(":")[0], said)
            except DurabilityUnknownError as error:
                # A part of the save is visible and nothing leads to it: for the chain nothing has happened.
                raise StorageError(f"{error.message}; the head is as it was", hint=error.hint) from error
            self.store.backend.swap(self.hash, pointer, snapshot.pointer)
            self.store.apply_losses(snapshot)
            self._saved = snapshot
            return snapshot

    def _expected_head(self, pointer: Pointer | None, parent: Snapshot | Literal["latest"] | None) -> Snapshot | None:
        if isinstance(parent, str):
            # What was saved here need not be parsed again, as long as the file has the very bytes.
            saved = self._saved
            if saved is not None and saved.pointer == pointer and self._lies_there(saved):
                return saved
            return None if pointer is None else self.store.read_snapshot(self.hash, pointer)
        if (None if parent is None else parent.pointer) != pointer:
            now = "empty" if pointer is None else f"at {pointer.sha256}"
            raise ConflictError(
                f"the scope {self.key} is {now}, not where this change began; nothing was written",
                hint="load the head again and repeat the change",
            )
        if parent is not None and not self._lies_there(parent):
            self.store.read_snapshot(self.hash, parent.pointer)  # which says what is wrong with it
        return parent

    def _lies_there(self, snapshot: Snapshot) -> bool:
        """Whether the file still has the bytes that the caller read: nothing is built on a head that was damaged."""
        try:
            return self.store.backend.get(f"{self.hash}/{snapshot.path}", canonical.SNAPSHOT_LIMIT) == snapshot.data
        except BlobMissingError:
            return False

    def settle(self, snapshot: Snapshot) -> None:
        """Make durable what a snapshot and its past rest on, if it was saved ``fast`` and this store is ``full``: for
        whoever names it in something that has to last. Raises ``IntegrityError`` for a damaged past, ``StorageError``.
        """
        try:
            settle_past(self, snapshot)
        except IntegrityError as error:
            raise self.with_way_out(error) from None

    def _masked(
        self, state: Json, event: dict[str, Json], draft: bytes | None
    ) -> tuple[Json, dict[str, Json], bytes | None]:
        """State and event without secrets, and the draft of the state: a new one if something was masked in it."""
        said = canonical.draft(event)
        encoded = None if draft is None or said is None else b'{"event":%b,"state":%b}' % (said, draft)
        masked, count = self.store.redactor.redact({"state": state, "event": event}, encoded=encoded)
        event = dict(masked["event"])
        if count:
            event["redactions"] = count
        return masked["state"], event, draft if masked["state"] is state else canonical.draft(masked["state"])

    def require_key_without_secrets(self) -> None:
        """Raise ``RequestError`` for a name with a secret in it: names are kept as they are."""
        if sighting := self.store.redactor.find(self.key):
            raise RequestError(
                f"the scope's name holds a secret ({sighting}); nothing was written",
                hint="choose another name, or unset the variable if its value is no secret",
            )

    def _write(
        self, head: Snapshot | None, drafted: tuple[Json, bytes | None], kind: str, event: dict[str, Json]
    ) -> Snapshot:
        event["durability"] = self.store.backend.durability
        state, draft = drafted
        parts = split(state, draft=draft)
        self.store._put_parts(parts, self._held(head, parts))
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
        return self.seal(envelope, None if parts.objects else draft)

    def seal(self, envelope: Envelope, state: bytes | None = None) -> Snapshot:
        """Publish a snapshot of this scope as it is, without making it the head; ``save`` is what checks it first. The
        lock must be held. ``state`` as in ``write_envelope``. Raises ``InvalidValueError`` for one that is too large."""
        # What is published is what a reader will see, and it shares nothing with the caller's value.
        data, seen = write_envelope(envelope, state)
        if len(data) > canonical.SNAPSHOT_LIMIT:
            raise InvalidValueError(
                f"the snapshot would have {len(data)} bytes, over the limit of {canonical.SNAPSHOT_LIMIT}; "
                "nothing was written",
                hint="keep large values inside lists or mappings, where they become objects",
            )
        return self._publish(seen, data)

    def _held(self, head: Snapshot | None, parts: Split) -> set[Ref]:
        """Objects that the parent holds: they are as durable as this save shall be, since the parent was settled."""
        if head is None:
            return set()
        return held(head.envelope.objects.values(), parts, parts.named() - self.store._kept, self.store.get)

    def _publish(self, envelope: Envelope, data: bytes) -> Snapshot:
        sha = sha256(data)
        for label in (naming.LABEL, 2 * naming.LABEL, 64):
            path = naming.snapshot_name(envelope.created_at, sha, label)
            try:
                self.store.backend.put(f"{self.hash}/{path}", data)
            except BlobExistsError:
                # The label is taken by other content: a longer one tells them apart, nothing is overwritten.
                continue
            return Snapshot(self.hash, path, sha, data, envelope)
        raise IntegrityError(f"the name {path} is taken by other content", finding="misplaced", hint=_DAMAGE)

    def _require_empty(self) -> None:
        """Starting afresh beside the snapshots of a scope that lost its pointer would hide that it did."""
        if self.store.holds_more_than_a_first(self.hash):
            raise IntegrityError(f"the pointer of the scope {self.key} is missing", finding="missing")

    def with_way_out(self, error: IntegrityError) -> IntegrityError:
        """The same error, with the newest intact snapshot named, and what to do about the damage."""
        from stateline.store.recovery_hint import with_way_out

        return with_way_out(self, error)

    def newest_intact(self) -> Snapshot | None:
        """The newest snapshot whose own bytes are in order and whose objects are too, wherever the pointer points.
        Reads from the newest, and no further than it must."""
        from stateline.store.recovery_hint import newest_intact

        return newest_intact(self)


_DAMAGE = "nothing was changed; `stateline verify` lists all damage, `stateline repair` plans how to go on"

__all__ = ["LATEST", "WAIT", "Artifact", "Link", "Ref", "Scope", "Snapshot", "Store", "require_known_version"]
