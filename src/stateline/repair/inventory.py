"""What lies in one scope's directory, for a repair: every file looked at once. Only reads."""

from __future__ import annotations

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import VERSION, Link, Pointer, Ref, read_envelope
from stateline.bundle.repair_record import MEMBER
from stateline.errors import IntegrityError, NewerVersionError, StatelineError, UnsafePathError
from stateline.store.integrity import Objects, out_of_kind
from stateline.store.protocol import BlobMissingError
from stateline.store.store import Snapshot, Store
from stateline.verify.digest_mismatch import classify_error
from stateline.verify.origins import origin_problem


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An intact snapshot: what is needed to tell where it belongs. ``lost`` are the objects that it needs and that are
    not there; ``declares`` is what it says of losses; ``origin_lost`` whether it is a fork of what is not there."""

    path: str
    sha256: str
    seq: int
    created_at: str
    prev_sha: str | None
    prev: str | None
    lost: tuple[str, ...] = ()
    declares: dict[str, Json] = {}
    origin: Link | None = None
    origin_lost: bool = False
    version: str = VERSION

    @property
    def time(self) -> str:
        """``created_at`` as it stands in a file's name; such times sort."""
        return self.created_at.replace(":", "")

    def follows(self, parent: Item) -> bool:
        """Whether this one may stand right on ``parent``."""
        return parent.seq + 1 == self.seq and parent.created_at < self.created_at


class Stray(msgspec.Struct, frozen=True):
    """A snapshot of the scope ``key`` that lies under the name ``lies``; ``item`` is as it would stand under its own.
    ``code``: ``misplaced``, or ``altered`` where only what is sought tells which."""

    lies: str
    item: Item
    key: str
    code: str


class Bad(msgspec.Struct, frozen=True):
    """Something that does not belong where it lies. ``path`` is relative to the state dir, ``code`` that of
    ``verify``."""

    path: str
    code: str
    message: str

    @property
    def time(self) -> str:
        """The time in a snapshot's name, "" for any other."""
        parts = naming.snapshot_parts(self.path.rpartition("/")[2])
        return parts[0] if parts else ""


class Survey:
    """One scope as it lies there. ``stuck`` says why it must be left alone: something could not be read now, or is of a
    newer version. ``pointer`` is None where there is none, or a damaged one: then ``bad_pointer`` tells."""

    def __init__(self, store: Store, scope: str, objects: Objects) -> None:
        """Raises ``UnsafePathError`` for what others may change, ``StorageError`` if the directory cannot be listed."""
        self.store = store
        self.scope = scope
        self.objects = objects
        self.key: str | None = None
        self.items: dict[str, Item] = {}
        self.bad: list[Bad] = []
        self.stuck: list[Bad] = []
        self.pointer: Pointer | None = None
        self.bad_pointer: Bad | None = None
        self.strays: list[Stray] = []
        """Those whose own name is free: they are among ``items``."""
        self._copies: list[Item] = []
        self._lying: list[Stray] = []
        self._names: set[str] = set()
        self._read_pointer()
        for name in sorted(store.backend.list(scope)):
            self._take(name)
        self._choose_copies()
        self._find_homes()

    def _read_pointer(self) -> None:
        path = f"{self.scope}/{naming.POINTER}"
        try:
            self.pointer = self.store.backend.read(self.scope)
        except StatelineError as error:
            found = self._judged(error, path)
            if found is not None:
                self.bad_pointer = found

    def _take(self, name: str) -> None:
        path = f"{self.scope}/{name}"
        self._names.add(name)
        if naming.snapshot_parts(name) is not None:
            self._take_snapshot(name, path)
        elif name == naming.LOCK:
            if out_of_kind(self.store.backend, path):
                self.bad.append(Bad(path, "not_regular", "the lock is not a regular file"))
        elif name != naming.POINTER and not name.startswith((naming.TEMPORARY, naming.EXTENSION)):
            self.bad.append(Bad(path, "foreign_file", "nothing of this name belongs here"))

    def _take_snapshot(self, name: str, path: str) -> None:
        data = b""
        try:
            data = self.store.backend.get(path, canonical.SNAPSHOT_LIMIT)
            snapshot = self.store.parse_snapshot(self.scope, name, data)
            item = self._item(snapshot)
        except BlobMissingError:
            return
        except StatelineError as error:
            if isinstance(error, IntegrityError) and error.finding != "too_large":
                error = classify_error(error, self.scope, name, data)
            if isinstance(error, IntegrityError) and self._take_stray(name, data, error.finding):
                return
            found = self._judged(error, path)
            if found is not None:
                self.bad.append(found)
            return
        self.key = snapshot.envelope.scope
        if item.sha256 in self.items:
            self._copies.append(item)
        else:
            self.items[item.sha256] = item

    def _take_stray(self, name: str, data: bytes, code: str) -> bool:
        """Remember a snapshot of this scope that lies under another name, and seems intact."""
        if code not in ("misplaced", "altered"):
            return False
        stuck = len(self.stuck)
        try:
            envelope = read_envelope(data, name)
            own = naming.snapshot_name(envelope.created_at, canonical.sha256(data))
            snapshot = self.store.parse_snapshot(self.scope, own, data)
            item = self._item(snapshot)
        except StatelineError:
            return False
        if code == "altered" and self.stuck[stuck:]:
            # What altered bytes say of objects keeps nobody from anything.
            del self.stuck[stuck:]
            return False
        self._lying.append(Stray(name, item, envelope.scope, code))
        return True

    def _find_homes(self) -> None:
        """What lies under another name counts as if it lay under its own, if that is free; the rest is bad."""
        wanted = {item.prev_sha: item.prev for item in self.items.values()}
        if self.pointer is not None:
            wanted[self.pointer.sha256] = self.pointer.path
        for stray in sorted(self._lying, key=lambda stray: stray.item.seq, reverse=True):
            item = stray.item
            # A name may hold more of the digest than usual; who names the snapshot tells.
            home = wanted.get(item.sha256) or item.path
            fits = naming.name_fits(home, item.created_at, item.sha256)
            # Under a name of its own time it may as well have been altered, unless just these bytes are sought.
            sought = item.sha256 in self.items or item.sha256 in wanted
            code = "misplaced" if sought else stray.code
            if code == "altered" or not fits or home in self._names or item.sha256 in self.items:
                self.bad.append(Bad(f"{self.scope}/{stray.lies}", code, "its bytes are not those of its name"))
                continue
            self.key = self.key or stray.key
            item = msgspec.structs.replace(item, path=home)
            self.items[item.sha256] = item
            self.strays.append(msgspec.structs.replace(stray, item=item))
            wanted[item.prev_sha] = item.prev
        self.strays.reverse()

    def _judged(self, error: StatelineError, path: str) -> Bad | None:
        """What a refusal to read ``path`` means; None if it keeps the scope from being repaired."""
        if isinstance(error, IntegrityError):
            return Bad(path, error.finding, error.message)
        if isinstance(error, UnsafePathError):
            if out_of_kind(self.store.backend, path) is None:
                raise error
            return Bad(path, "not_regular", error.message)
        code = "newer_version" if isinstance(error, NewerVersionError) else "unreadable"
        self.stuck.append(Bad(path, code, error.message))
        return None

    def _item(self, snapshot: Snapshot) -> Item:
        """Raises ``IntegrityError`` for a snapshot that says of objects or of its origin what is not so."""
        envelope = snapshot.envelope
        lost = self._lost_objects(snapshot.path, envelope.objects)
        problem = origin_problem(self.store, envelope.origin) if envelope.origin else None
        if problem is not None and problem[0] != "missing":
            raise IntegrityError(f"the snapshot {snapshot.path}: {problem[1]}", finding=problem[0])
        event = envelope.event
        return Item(
            path=snapshot.path,
            sha256=snapshot.sha256,
            seq=envelope.seq,
            created_at=envelope.created_at,
            prev_sha=envelope.prev_sha,
            prev=envelope.prev,
            lost=lost,
            declares={MEMBER: event[MEMBER]} if MEMBER in event else {},
            origin=envelope.origin,
            origin_lost=problem is not None,
            version=envelope.version,
        )

    def _lost_objects(self, path: str, table: dict[str, Ref]) -> tuple[str, ...]:
        lost = []
        for fault in self.objects.faults(table.values()):
            if fault.ground == "lost":
                lost.append(fault.sha256)
            elif fault.ground == "lie":
                message = f"the snapshot {path} says of an object what is not so: {fault.message}"
                raise IntegrityError(message, finding="malformed")
            else:
                self.stuck.append(Bad(naming.object_path(fault.sha256), fault.code, fault.message))
        return tuple(dict.fromkeys(lost))

    def _choose_copies(self) -> None:
        """Of files with the same bytes under two names, both of which fit, the one that is named stays."""
        if not self._copies:
            return
        named = {item.prev for item in [*self.items.values(), *self._copies]}
        if self.pointer is not None:
            named.add(self.pointer.path)
        for copy in self._copies:
            kept = self.items[copy.sha256]
            if copy.path in named and kept.path not in named:
                self.items[copy.sha256], copy = copy, kept
            self.bad.append(Bad(f"{self.scope}/{copy.path}", "misplaced", "a copy of a snapshot under a second name"))
