"""Inventory of one scope's directory for a repair: every file is examined once. Only reads."""

from __future__ import annotations

import msgspec

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json
from stateline.bundle.envelope import VERSION, Link, Pointer, Ref, read_envelope
from stateline.bundle.repair_record import MEMBER
from stateline.errors import IntegrityError, NewerVersionError, StatelineError, UnsafePathError
from stateline.repair.report import Obstacle
from stateline.store.integrity import ObjectChecker, wrong_kind
from stateline.store.protocol import BlobMissingError
from stateline.store.snapshot import Snapshot, parse_snapshot
from stateline.store.store import Store
from stateline.verify.classification import classify_error, origin_problem


class IntactSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An intact snapshot, reduced to what decides where it belongs.

    ``lost`` are digests of objects that it needs and that are missing or damaged; ``declares`` is its declaration of
    losses; ``origin_lost`` means that the snapshot it was forked from is missing.
    """

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
        """``created_at`` as in a file name, where times sort."""
        return self.created_at.replace(":", "")

    def follows(self, parent: IntactSnapshot) -> bool:
        """Return whether this snapshot may be the next after ``parent``."""
        return parent.seq + 1 == self.seq and parent.created_at < self.created_at


class MisplacedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of the scope ``key`` that was found under the name ``found_as``; ``item.path`` is its own name.

    ``code`` is ``misplaced``, or ``altered`` if only a reference to it can tell which.
    """

    found_as: str
    item: IntactSnapshot
    key: str
    code: str


class DamagedFile(msgspec.Struct, frozen=True):
    """A file that does not belong at ``path`` (relative to the state dir). ``code`` is that of a finding."""

    path: str
    code: str

    @property
    def time(self) -> str:
        """The time in a snapshot's name; "" for other names."""
        parts = naming.snapshot_parts(self.path.rpartition("/")[2])
        return parts[0] if parts else ""


class ScopeInventory:
    """Content of one scope.

    ``items`` are the intact snapshots by digest, ``damaged`` the files to set aside, ``misplaced`` the snapshots whose
    own name is free (they are among ``items``). ``obstacles`` are files that could not be read now or are of a newer
    version; the scope must then be left alone. ``pointer`` is None if it is missing or damaged (``damaged_pointer``).

    Raises ``UnsafePathError`` for files that others may change, ``StorageError`` if the directory cannot be listed.
    """

    def __init__(self, store: Store, scope: str, objects: ObjectChecker) -> None:
        self.store = store
        self.scope = scope
        self.objects = objects
        self.key: str | None = None
        self.items: dict[str, IntactSnapshot] = {}
        self.damaged: list[DamagedFile] = []
        self.obstacles: list[Obstacle] = []
        self.pointer: Pointer | None = None
        self.damaged_pointer: DamagedFile | None = None
        self.misplaced: list[MisplacedSnapshot] = []
        self._copies: list[IntactSnapshot] = []
        self._candidates: list[MisplacedSnapshot] = []
        self._names: set[str] = set()
        self._read_pointer()
        for name in sorted(store.backend.list(scope)):
            self._add(name)
        self._choose_between_copies()
        self._assign_names()

    def _read_pointer(self) -> None:
        path = f"{self.scope}/{naming.POINTER}"
        try:
            self.pointer = self.store.backend.read(self.scope)
        except StatelineError as error:
            self.damaged_pointer = self._classify(error, path)

    def _add(self, name: str) -> None:
        path = f"{self.scope}/{name}"
        self._names.add(name)
        if naming.snapshot_parts(name) is not None:
            self._add_snapshot(name, path)
        elif name == naming.LOCK:
            if wrong_kind(self.store.backend, path):
                self.damaged.append(DamagedFile(path, "not_regular"))
        elif name != naming.POINTER and not name.startswith((naming.TEMPORARY, naming.EXTENSION)):
            self.damaged.append(DamagedFile(path, "foreign_file"))

    def _add_snapshot(self, name: str, path: str) -> None:
        data = b""
        try:
            data = self.store.backend.get(path, canonical.SNAPSHOT_LIMIT)
            snapshot = parse_snapshot(self.scope, name, data)
            item = self._item(snapshot)
        except BlobMissingError:
            return
        except StatelineError as error:
            if isinstance(error, IntegrityError) and error.finding != "too_large":
                error = classify_error(error, self.scope, name, data)
            if isinstance(error, IntegrityError) and self._add_misplaced(name, data, error.finding):
                return
            found = self._classify(error, path)
            if found is not None:
                self.damaged.append(found)
            return
        self.key = snapshot.envelope.scope
        if item.sha256 in self.items:
            self._copies.append(item)
        else:
            self.items[item.sha256] = item

    def _add_misplaced(self, name: str, data: bytes, code: str) -> bool:
        """Remember an apparently intact snapshot of this scope under another name; False if it is none."""
        if code not in ("misplaced", "altered"):
            return False
        before = len(self.obstacles)
        try:
            envelope = read_envelope(data, name)
            own = naming.snapshot_name(envelope.created_at, canonical.sha256(data))
            snapshot = parse_snapshot(self.scope, own, data)
            item = self._item(snapshot)
        except StatelineError:
            return False
        if code == "altered" and self.obstacles[before:]:
            # Objects that altered bytes name are not an obstacle.
            del self.obstacles[before:]
            return False
        self._candidates.append(MisplacedSnapshot(name, item, envelope.scope, code))
        return True

    def _assign_names(self) -> None:
        """Treat misplaced snapshots as if they had their own names, if these are free; the rest are damaged files."""
        wanted = {item.prev_sha: item.prev for item in self.items.values()}
        if self.pointer is not None:
            wanted[self.pointer.sha256] = self.pointer.path
        for found in sorted(self._candidates, key=lambda found: found.item.seq, reverse=True):
            item = found.item
            # A name may hold more of the digest than usual; a reference to the snapshot tells.
            name = wanted.get(item.sha256) or item.path
            fits = naming.name_fits(name, item.created_at, item.sha256)
            # Under a name with its own time it may as well have been altered, unless exactly these bytes are named.
            referenced = item.sha256 in self.items or item.sha256 in wanted
            code = "misplaced" if referenced else found.code
            if code == "altered" or not fits or name in self._names or item.sha256 in self.items:
                self.damaged.append(DamagedFile(f"{self.scope}/{found.found_as}", code))
                continue
            self.key = self.key or found.key
            item = msgspec.structs.replace(item, path=name)
            self.items[item.sha256] = item
            self.misplaced.append(msgspec.structs.replace(found, item=item))
            wanted[item.prev_sha] = item.prev
        self.misplaced.reverse()

    def _classify(self, error: StatelineError, path: str) -> DamagedFile | None:
        """Return the damage that an error at ``path`` means; None, with an obstacle added, if it prevents a repair."""
        if isinstance(error, IntegrityError):
            return DamagedFile(path, error.finding)
        if isinstance(error, UnsafePathError):
            if wrong_kind(self.store.backend, path) is None:
                raise error
            return DamagedFile(path, "not_regular")
        code = "newer_version" if isinstance(error, NewerVersionError) else "unreadable"
        self.obstacles.append(Obstacle(None, path, code, error.message))
        return None

    def _item(self, snapshot: Snapshot) -> IntactSnapshot:
        """Raises ``IntegrityError`` for a snapshot with false claims about objects or its origin."""
        envelope = snapshot.envelope
        lost = self._lost_objects(snapshot.path, envelope.objects)
        problem = origin_problem(self.store, envelope.origin) if envelope.origin else None
        if problem is not None and problem[0] != "missing":
            raise IntegrityError(f"the snapshot {snapshot.path}: {problem[1]}", finding=problem[0])
        event = envelope.event
        return IntactSnapshot(
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
            if fault.cause == "lost":
                lost.append(fault.sha256)
            elif fault.cause == "mislabelled":
                message = f"the snapshot {path} makes a false claim about an object: {fault.message}"
                raise IntegrityError(message, finding="malformed")
            else:
                self.obstacles.append(Obstacle(None, naming.object_path(fault.sha256), fault.code, fault.message))
        return tuple(dict.fromkeys(lost))

    def _choose_between_copies(self) -> None:
        """Keep, of files with the same bytes under two fitting names, the one that others refer to."""
        named = {item.prev for item in [*self.items.values(), *self._copies]}
        if self.pointer is not None:
            named.add(self.pointer.path)
        for copy in self._copies:
            kept = self.items[copy.sha256]
            if copy.path in named and kept.path not in named:
                self.items[copy.sha256], copy = copy, kept
            self.damaged.append(DamagedFile(f"{self.scope}/{copy.path}", "misplaced"))
