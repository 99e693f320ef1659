"""Check of objects: each object that a snapshot names is read once, and unreferenced ones are listed."""

from __future__ import annotations

from collections.abc import Collection

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, Ref
from stateline.bundle.objects import references
from stateline.errors import NewerVersionError, StatelineError
from stateline.store.integrity import digest_of
from stateline.store.protocol import BlobMissingError, Inspectable
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.findings import Finding, Severity


class ObjectCheck:
    """Objects of a store during a check: which were listed, which are named, and the findings.

    Digests are kept as bytes: a store may hold millions, and only these sets grow with it.
    """

    def __init__(self, store: Store, places: Inspectable | None) -> None:
        self.store = store
        self.places = places
        self.findings: list[Finding] = []
        self.intact = 0
        self._listed: set[bytes] = set()
        self._named: set[bytes] = set()
        self._checked: set[bytes] = set()
        self._checked_in: dict[str, set[bytes]] = {}
        """Claims checked in scopes that declare objects lost, by scope."""

    def list_objects(self) -> None:
        """List the objects. Must precede reading snapshots, so that objects of later saves are never called residue."""
        names = self._list(naming.OBJECTS)
        # Other backends do not list directories, so look into all 256.
        directories = [f"{number:02x}" for number in range(256)] if self.places is None else sorted(names)
        for directory in filter(naming.is_object_directory, directories):
            self._list(f"{naming.OBJECTS}/{directory}")

    def _list(self, place: str) -> list[str]:
        self._add_unsafe(place + "/")
        names: list[str] = []
        try:
            for name in self.store.backend.list(place):
                self._add_listed(place, name)
                if place == naming.OBJECTS:
                    names.append(name)
        except StatelineError as error:
            self.findings.append(Finding.of(error, None, place))
        return names

    def _add_listed(self, place: str, name: str) -> None:
        path = f"{place}/{name}"
        if naming.is_sha256(name) and naming.object_path(name) == path:
            self._listed.add(bytes.fromhex(name))
        elif name.startswith(naming.TEMPORARY):
            self.findings.append(Finding.temporary(None, path))
        elif place != naming.OBJECTS or not naming.is_object_directory(name):
            self._add("damage", "foreign_file", path, "no file of this name belongs here")

    def check(self, snapshot: Snapshot, lost: Collection[str] = ()) -> None:
        """Check the objects that a snapshot names, and those that they name in turn, each once.

        ``lost`` are digests that newer snapshots of the same scope declare lost.
        """
        if snapshot.scope not in self._checked_in and lost:
            # A loss excused here may be damage in another scope, so the claims of this scope are kept apart.
            self._checked_in[snapshot.scope] = set()
        checked = self._checked_in.get(snapshot.scope, self._checked)
        waiting = [ref for ref in snapshot.envelope.objects.values() if _add_claim(ref, checked)]
        while waiting:
            ref = waiting.pop()
            waiting += [inner for inner in self._read(ref, snapshot, lost) if _add_claim(inner, checked)]

    def _read(self, ref: Ref, snapshot: Snapshot, lost: Collection[str]) -> list[Ref]:
        """Read an object and return the refs in it. Adds a finding if it is damaged."""
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
            if self._exists(snapshot):
                named_by = f"(named by {snapshot.scope}/{snapshot.path})"
                found = Finding.of(error, owner, path)
                if found.code == "missing" and ref.sha256 in lost:
                    message = f"lost, as a repair of this scope has recorded {named_by}"
                    self._add("warning", "lost", path, message, owner)
                else:
                    self._add(found.severity, found.code, path, f"{found.message} {named_by}", owner)
            return []
        if first:
            self.intact += 1
            self._add_unsafe(path)
        return inner

    def _exists(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot still exists: its scope may be removed during the check."""
        try:
            self.store.backend.get(f"{snapshot.scope}/{snapshot.path}", canonical.SNAPSHOT_LIMIT)
        except BlobMissingError:
            return False
        except StatelineError:
            pass
        return True

    def add_unreferenced(self, *, certain: bool) -> None:
        """Add findings for listed objects that no snapshot names.

        Unless all snapshots could be read (``certain``), an unreadable one may name them: they are no residue then.
        """
        for digest in sorted(self._listed - self._named):
            sha = digest.hex()
            path = naming.object_path(sha)
            self._add_unsafe(path)
            try:
                actual = digest_of(self.store.backend, path)
            except BlobMissingError:
                continue
            except StatelineError as error:
                self.findings.append(Finding.of(error, None, path))
                continue
            if actual != sha:
                message = "its bytes do not have the digest in its name; no snapshot names it"
                self._add("damage", "altered", path, message)
            elif certain:
                message = "no snapshot names it: left by a crash or a removed scope, or a save is in progress"
                self._add("residue", "unreferenced", path, message)
            else:
                message = "no readable snapshot names it; one that could not be read may need it"
                self._add("warning", "unreferenced", path, message)

    def _add_unsafe(self, path: str) -> None:
        self.findings += unsafe_findings(self.places, path, None)

    def _add(self, severity: Severity, code: str, path: str, message: str, scope: str | None = None) -> None:
        self.findings.append(Finding(severity, code, scope, path, message))


def _add_claim(ref: Ref, checked: set[bytes]) -> bool:
    """Add a digest with its type and size to ``checked``; False if it was there already."""
    # One digest may be a value here and an artifact there; the size is part of the claim.
    kind = {NODE_TYPE: b"n", LIST_TYPE: b"l", JSON_TYPE: b"v"}.get(ref.media_type, b"a")
    claim = bytes.fromhex(ref.sha256) + kind + str(ref.size).encode()
    if claim in checked:
        return False
    checked.add(claim)
    return True


def unsafe_findings(places: Inspectable | None, path: str, scope: str | None) -> list[Finding]:
    """Return one finding if a writer would refuse the place. A trailing slash means that it should be a directory.

    Without ``places`` the backend is not on a file system.
    """
    try:
        danger = places.inspect(path) if places is not None else None
    except StatelineError:
        # A place that cannot be examined cannot be read either; reading it gives the reason.
        return []
    if danger is None:
        return []
    return [Finding("unsafe", danger.code, scope, path.rstrip("/"), f"{danger.reason}; to fix it: {danger.fix}")]
