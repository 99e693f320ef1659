"""A scope: one named chain of snapshots, read from its head back and extended under its lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Literal

from stateline._version import __version__
from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Envelope, Pointer
from stateline.bundle.objects import split
from stateline.bundle.repair_record import MEMBER, DeclaredLosses
from stateline.errors import (
    ConflictError,
    DurabilityUnknownError,
    IntegrityError,
    LockTimeoutError,
    NotFoundError,
    RequestError,
    StorageError,
)
from stateline.redaction.redactor import Redactor
from stateline.store.actor import actor_of
from stateline.store.durability import sync_past
from stateline.store.objects import ObjectStore
from stateline.store.protocol import DAMAGE_HINT, BlobMissingError, lock_timeout
from stateline.store.snapshot import (
    Snapshot,
    publish,
    read_head,
    read_snapshot,
    require_caller_event,
    require_known_version,
    require_no_snapshots,
)

WAIT = 10.0
"""Default limit of the wait for a scope's lock [s]."""

LATEST: Literal["latest"] = "latest"
"""The ``parent`` of a save that builds on the snapshot that is the head when the lock is held."""


class Scope:
    """One named chain of snapshots. ``key`` is its name, ``hash`` the name of its directory.

    Get one with :meth:`Store.scope`; it need not exist yet. A scope may be used by several threads.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.store = store
        self.key = key
        self.hash = naming.scope_hash(key)
        self._saved: Snapshot | None = None

    def locked(self, wait: float = WAIT) -> AbstractContextManager[None]:
        """Hold the scope's lock for a ``with`` block: load, effects and save together.

        The lock belongs to the thread that takes it, which may take it again inside the block. Raises
        ``LockTimeoutError`` if it is not free within ``wait`` [s].
        """
        return self._locked(wait)

    @contextmanager
    def _locked(self, wait: float) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self.store.backend.lock(self.hash, wait))
            except LockTimeoutError as error:
                if error.holder:
                    raise lock_timeout(error.holder, wait, self.key) from None
                raise
            yield

    def head(self) -> Snapshot | None:
        """Return the newest acknowledged snapshot, or None for a scope that does not exist. Never writes.

        Raises ``IntegrityError``, naming the newest intact snapshot, when the pointer or the head is damaged.
        """
        try:
            head = read_head(self.store.backend, self.hash)
        except IntegrityError as error:
            raise self._with_hint(error) from None
        if head is not None:
            self.store._note_durable(head)
        return head

    def load(self) -> Snapshot:
        """Return the head. Raises ``NotFoundError`` for a scope that does not exist, and as :meth:`head`."""
        snapshot = self.head()
        if snapshot is None:
            raise NotFoundError(f"there is no scope {self.key}", hint="`stateline scopes` lists the scopes there are")
        return snapshot

    def parent(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the snapshot before this one in the same scope, or None at its first. Raises ``IntegrityError``."""
        envelope = snapshot.envelope
        if envelope.prev is None or envelope.prev_sha is None:
            return None
        before = read_snapshot(self.store.backend, self.hash, Pointer(envelope.prev, envelope.prev_sha))
        return _checked_order(before, snapshot, envelope.seq - 1)

    def walk(self, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Yield snapshots from ``start`` (default: the head) back to the first, reading one file a step.

        Where a newer snapshot declares a missing one lost (after ``stateline repair``), the walk continues at the next
        surviving one; ``seq`` then skips. Raises ``IntegrityError`` for any other damage.
        """
        losses: DeclaredLosses | None = None
        snapshot = start or self.head()
        while snapshot is not None:
            yield snapshot
            if losses is None and MEMBER in snapshot.event:
                losses = DeclaredLosses()
            if losses is not None:
                losses.add(snapshot.event)
            child = snapshot
            try:
                snapshot = self.parent(child)
            except IntegrityError as error:
                if error.finding != "missing" or (losses is None and start is None):
                    raise
                losses = losses or DeclaredLosses()
                if start is not None and child.envelope.prev_sha not in losses.gaps:
                    self._read_newer_losses(start, losses)
                snapshot = self._below_gap(child, losses, error)

    def _read_newer_losses(self, start: Snapshot, losses: DeclaredLosses) -> None:
        """Add what snapshots newer than ``start`` declare lost, for a walk that began in the middle."""
        try:
            for newer in self.walk():
                if newer.seq <= start.seq:
                    return
                losses.add(newer.event)
        except IntegrityError:
            # Damage above ``start`` is not what was asked about; losses declared before it count.
            return

    def _below_gap(self, child: Snapshot, losses: DeclaredLosses, error: IntegrityError) -> Snapshot | None:
        """Return the snapshot at which the chain resumes below ``child``, or None if nothing older survives.

        Raises ``error`` for a missing snapshot that was not declared lost.
        """
        gap = losses.take_gap(child.envelope.prev_sha or "")
        while gap is not None and gap.resumes is not None:
            resumes = gap.resumes
            try:
                below = read_snapshot(self.store.backend, self.hash, resumes.pointer)
            except IntegrityError as other:
                if other.finding != "missing":
                    raise
                gap, error = losses.take_gap(resumes.sha256), other
                continue
            return _checked_order(below, child, resumes.seq)
        if gap is None:
            raise error
        return None

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
        """Append a snapshot with ``state``, and return it. On return it is as durable as the store promises.

        ``state`` may hold :class:`Ref` and :class:`Artifact` leaves. ``event`` describes the change; the store adds
        ``actor``, unless it is given. ``kind`` defaults to the kind in the scope's key. ``parent`` is the head that
        this change is based on: a snapshot, None for a scope that must not exist yet, or ``LATEST``. ``wait`` [s]
        limits the wait for the lock.

        Secrets in ``state`` and ``event`` are masked first, so continue with the state of the snapshot that is
        returned. ``masked`` means that the caller has masked everything that people and programs supplied; names that
        the caller chose are then safe from a secret that happens to be spelled like one of them. With ``full``
        durability the snapshot's whole past is made durable too; a ``fast`` save checks the objects that it names, but
        not the objects below them.

        Raises ``ConflictError`` when ``parent`` is not the head, ``LockTimeoutError``, ``InvalidValueError``,
        ``IntegrityError`` when the head is damaged (a chain is never silently started over), ``UnsafePathError``,
        ``StorageError``; the chain is then as it was. Only after ``DurabilityUnknownError`` it may have the new head.
        """
        event = dict(event or {})
        require_caller_event(event, masked=masked)
        event = with_actor(self.store, event, masked=masked)
        with self.locked(wait):
            pointer, head = self._require_parent(parent)
            draft = canonical.encode_unchecked(state)
            if not masked:
                state, event, draft = self._mask(state, event, draft)
            try:
                snapshot = self._write(head, (state, draft), kind or self.key.partition(":")[0], event)
            except DurabilityUnknownError as error:
                # A part of the save is visible and nothing leads to it: the chain is unchanged.
                raise StorageError(f"{error.message}; the head is as it was", hint=error.hint) from error
            self.store.backend.swap(self.hash, pointer, snapshot.pointer)
            self.store._note_durable(snapshot)
            self._saved = snapshot
            return snapshot

    def _require_parent(self, parent: Snapshot | Literal["latest"] | None) -> tuple[Pointer | None, Snapshot | None]:
        """Return the pointer and the head that a save builds on, checked and durable."""
        try:
            pointer = self.store.backend.read(self.hash)
            head = self._expected_head(pointer, parent)
            if head is None:
                require_no_snapshots(self.store.backend, self.hash)
                require_key_without_secret(self.store.redactor, self.key)
            else:
                require_known_version(head)
                make_durable(self, head)
        except IntegrityError as error:
            raise self._with_hint(error) from None
        return pointer, head

    def _expected_head(self, pointer: Pointer | None, parent: Snapshot | Literal["latest"] | None) -> Snapshot | None:
        if isinstance(parent, str):
            # A snapshot saved here need not be parsed again, as long as the file has the same bytes.
            saved = self._saved
            if saved is not None and saved.pointer == pointer and self._is_unchanged(saved):
                return saved
            return None if pointer is None else read_snapshot(self.store.backend, self.hash, pointer)
        if (None if parent is None else parent.pointer) != pointer:
            now = "empty" if pointer is None else f"at {pointer.sha256}"
            raise ConflictError(
                f"the scope {self.key} is {now}, not where this change began; nothing was written",
                hint="load the head again and repeat the change",
            )
        if parent is not None and not self._is_unchanged(parent):
            read_snapshot(self.store.backend, self.hash, parent.pointer)  # raises the error that fits
        return parent

    def _is_unchanged(self, snapshot: Snapshot) -> bool:
        """Return True if the file still has the bytes that the caller read."""
        try:
            data = self.store.backend.get(f"{self.hash}/{snapshot.path}", canonical.SNAPSHOT_LIMIT)
        except BlobMissingError:
            return False
        return data == snapshot.data

    def _mask(
        self, state: Json, event: dict[str, Json], draft: bytes | None
    ) -> tuple[Json, dict[str, Json], bytes | None]:
        """Return state and event without secrets, and the draft of the state: a new one if something was masked."""
        event_draft = canonical.encode_unchecked(event)
        encoded = None if draft is None or event_draft is None else b'{"event":%b,"state":%b}' % (event_draft, draft)
        masked, count = self.store.redactor.redact({"state": state, "event": event}, encoded=encoded)
        event = dict(masked["event"])
        if count:
            event["redactions"] = count
        if masked["state"] is not state:
            draft = canonical.encode_unchecked(masked["state"])
        return masked["state"], event, draft

    def _write(
        self, head: Snapshot | None, drafted: tuple[Json, bytes | None], kind: str, event: dict[str, Json]
    ) -> Snapshot:
        from stateline.store.timestamps import next_timestamp

        event["durability"] = self.store.backend.durability
        state, draft = drafted
        if draft is not None:
            self.store.limits.require_depth(draft, what="the state")
        parts = split(state, encoded=draft)
        self.store._put_new(head, parts)
        envelope = Envelope(
            seq=head.seq + 1 if head else 0,
            created_at=next_timestamp(self.store.clock(), head.envelope.created_at if head else None),
            tool_version=__version__,
            scope=self.key,
            prev_sha=head.sha256 if head else None,
            prev=head.path if head else None,
            kind=kind,
            event=event,
            state=parts.value,
            objects=parts.objects,
        )
        return publish(self.store.backend, envelope, None if parts.objects else draft, limits=self.store.limits)

    def _with_hint(self, error: IntegrityError) -> IntegrityError:
        from stateline.store.integrity import with_recovery_hint

        return with_recovery_hint(self.store.backend, self.key, error)


def with_actor(store: ObjectStore, event: dict[str, Json], *, masked: bool) -> dict[str, Json]:
    """Return ``event`` with the actor, unless it names one. Secrets in it are masked here if the rest is ``masked``."""
    if "actor" in event:
        return event
    actor: Json = actor_of(store.actor)
    if masked:
        actor, count = store.redactor.redact(actor)
        if count:
            event = {**event, "redactions": event.get("redactions", 0) + count}
    return {**event, "actor": actor}


def make_durable(scope: Scope, snapshot: Snapshot) -> None:
    """Make a ``fast`` snapshot and its past durable in a ``full`` store, before something durable names it.

    Raises ``IntegrityError`` for a damaged past, ``StorageError``.
    """
    try:
        sync_past(scope.store.backend, snapshot, scope.walk, scope.store.get)
    except IntegrityError as error:
        raise scope._with_hint(error) from None


def require_key_without_secret(redactor: Redactor, key: str) -> None:
    """Raise ``RequestError`` for a scope's key that holds a secret: keys are stored as they are."""
    if match := redactor.find(key):
        raise RequestError(
            f"the scope's name holds a secret ({match}); nothing was written",
            hint="choose another name, or unset the variable if its value is not a secret",
        )


def _checked_order(below: Snapshot, child: Snapshot, seq: int) -> Snapshot:
    """Return ``below``, the snapshot before ``child``. Raises ``IntegrityError`` unless it is older and has ``seq``."""
    if below.seq == seq and below.envelope.created_at < child.envelope.created_at:
        return below
    message = f"the snapshots {below.path} and {child.path} are not in order"
    raise IntegrityError(message, finding="misordered", hint=DAMAGE_HINT)
