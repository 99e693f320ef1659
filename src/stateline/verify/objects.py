"""Objects: each that a snapshot names is read once, and what nobody names is told apart."""

from __future__ import annotations

from collections.abc import Collection

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, Ref
from stateline.bundle.objects import references
from stateline.errors import NewerVersionError, StatelineError
from stateline.store.integrity import digest_of
from stateline.store.protocol import BlobMissingError, Places
from stateline.store.store import Snapshot, Store
from stateline.verify.findings import Finding, Severity


class Inventory:
    """The objects of a store while it is checked: what was listed, what is named, what was found."""

    def __init__(self, store: Store, places: Places | None) -> None:
        self.store = store
        self.places = places
        self.findings: list[Finding] = []
        self.intact = 0
        self._listed: set[bytes] = set()
        # Digests as bytes: a store may hold millions, and a set of these is all that grows with it.
        self._named: set[bytes] = set()
        self._done: set[bytes] = set()
        self._excusing: dict[str, set[bytes]] = {}
        self._reached = self._done
        self._lost: Collection[str] = ()

    def take_stock(self) -> None:
        """List the objects. Before any snapshot is read: what is written afterwards is nobody's leftover."""
        names = self._list(naming.OBJECTS)
        # Only a place of directories tells which of the 256 there are.
        shelves = [f"{number:02x}" for number in range(256)] if self.places is None else sorted(names)
        for shelf in filter(naming.is_shelf, shelves):
            self._list(f"{naming.OBJECTS}/{shelf}")

    def _list(self, place: str) -> list[str]:
        """List a directory, and take note of what lies in it; the names."""
        self._look(place + "/")
        names: list[str] = []
        try:
            for name in self.store.backend.list(place):
                self._stock(place, name)
                if place == naming.OBJECTS:
                    names.append(name)
        except StatelineError as error:
            self.findings.append(Finding.of(error, None, place))
        return names

    def _stock(self, place: str, name: str) -> None:
        path = f"{place}/{name}"
        if naming.is_sha256(name) and naming.object_path(name) == path:
            self._listed.add(bytes.fromhex(name))
        elif name.startswith(naming.TEMPORARY):
            self._found(
                "residue", "temporary", path, "a file that was being written; safe to remove when nobody writes"
            )
        elif place != naming.OBJECTS or not naming.is_shelf(name):
            self._found("damage", "foreign_file", path, "nothing of this name belongs here")

    def check(self, snapshot: Snapshot, lost: Collection[str] = ()) -> None:
        """Check the objects that a snapshot names, and those that they name in turn; each once. Of those in ``lost``
        (digests), newer snapshots of its scope say that they are not there any more."""
        if snapshot.scope not in self._excusing and lost:
            # What is excused here may be damage in another scope, so this one is looked through by itself.
            self._excusing[snapshot.scope] = set()
        self._reached = self._excusing.get(snapshot.scope, self._done)
        self._lost = lost
        waiting = [ref for ref in snapshot.envelope.objects.values() if self._is_new(ref)]
        while waiting:
            ref = waiting.pop()
            waiting += [inner for inner in self._read(ref, snapshot) if self._is_new(inner)]

    def _is_new(self, ref: Ref) -> bool:
        """Whether this digest was not yet read as this type. Remembers that it will be."""
        digest = bytes.fromhex(ref.sha256)
        # One digest may be a value here and an artifact there; the size is part of what is claimed.
        kind = {NODE_TYPE: b"n", LIST_TYPE: b"l", JSON_TYPE: b"v"}.get(ref.media_type, b"a")
        claim = digest + kind + str(ref.size).encode()
        if claim in self._reached:
            return False
        self._reached.add(claim)
        return True

    def _read(self, ref: Ref, snapshot: Snapshot) -> list[Ref]:
        """The refs in an object, which is read; what is wrong with it becomes a finding."""
        path = naming.object_path(ref.sha256)
        owner = snapshot.envelope.scope
        digest = bytes.fromhex(ref.sha256)
        first = digest not in self._named
        self._named.add(digest)
        try:
            inner = references(self.store.get(ref), ref)
        except NewerVersionError as error:
            self.findings.append(Finding.of(error, owner, path))
            return []
        except StatelineError as error:
            if self._is_there(snapshot):
                found = Finding.of(error, owner, path)
                if found.code == "missing" and ref.sha256 in self._lost:
                    by = f"{snapshot.scope}/{snapshot.path}"
                    message = f"lost, as a repair of this scope has recorded (named by {by})"
                    self._found("warning", "lost", path, message, owner)
                    return []
                message = f"{found.message} (named by {snapshot.scope}/{snapshot.path})"
                self._found(found.severity, found.code, path, message, owner)
            return []
        if first:
            self.intact += 1
            self._look(path)
        return inner

    def _is_there(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot that names an object still exists: a scope may be removed while it is checked."""
        try:
            self.store.backend.get(f"{snapshot.scope}/{snapshot.path}", canonical.SNAPSHOT_LIMIT)
        except BlobMissingError:
            return False
        except StatelineError:
            pass
        return True

    def leftovers(self, *, certain: bool) -> None:
        """Findings for the listed objects that no snapshot named. ``certain``: all snapshots could be read; else the
        unreadable ones may name them, and nobody should take them for residue."""
        for digest in sorted(self._listed - self._named):
            sha = digest.hex()
            path = naming.object_path(sha)
            self._look(path)
            try:
                found = digest_of(self.store.backend, path)
            except BlobMissingError:
                continue
            except StatelineError as error:
                self.findings.append(Finding.of(error, None, path))
                continue
            if found != sha:
                self._found("damage", "altered", path, "its bytes are not those of its name; no snapshot names it")
            elif certain:
                message = "no snapshot names it: left by a crash or a removed scope, or a save is under way"
                self._found("residue", "unreferenced", path, message)
            else:
                message = "no snapshot that could be read names it; one that could not may need it"
                self._found("warning", "unreferenced", path, message)

    def _look(self, path: str) -> None:
        if self.places is not None:
            self.findings += unsafe(self.places, path, None)

    def _found(self, severity: Severity, code: str, path: str, message: str, scope: str | None = None) -> None:
        self.findings.append(Finding(severity, code, scope, path, message))


def unsafe(places: Places, path: str, scope: str | None) -> list[Finding]:
    """One finding if the place is one that a writer would refuse. A trailing slash: it should be a directory."""
    try:
        found = places.look(path)
    except StatelineError:
        # What cannot be looked at cannot be read either; reading it tells why.
        return []
    if found is None:
        return []
    return [Finding("unsafe", found.code, scope, path.rstrip("/"), f"{found.reason}; to mend it: {found.fix}")]
