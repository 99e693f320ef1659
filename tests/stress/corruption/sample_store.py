"""A small store of three scopes with everything in it that format 1 knows, and what each file of it is.

What a file is for is worked out here from JSON alone, not by the code that is tested.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from stateline import Artifact, Redactor, Store
from stateline.bundle.naming import scope_hash
from stateline.cli.main import run
from stateline.store.local.backend import LocalBackend

NOTES = "notes:of an embedder"
CONTEXT = "context:docs-demo"
RUN = "run:exec-damage"

ROLES = (
    *("store file", "pointer", "lock", "snapshot", "unacknowledged"),
    *("object", "unreferenced", "temporary", "removed", "set aside"),
)
"""``snapshot`` lies on a chain and ``object`` is named by one; ``unreferenced`` is an object that nothing names;
``removed`` lies in the directory of a scope that was being removed, ``set aside`` in an extension."""


class Place(msgspec.Struct, frozen=True):
    """One file: its ``path`` in the state dir, its ``role``, the hash of its ``scope`` ("" for none; of an object one
    that names it)."""

    path: str
    role: str
    scope: str


class SampleStore(msgspec.Struct, frozen=True):
    """A store to harm. ``pristine`` keeps what it was, ``elsewhere`` is a copy that links may lead to; ``keys`` maps a
    scope's hash to its key, ``chains`` to the names of its snapshots from the first to the head, over what a repair has
    declared lost. ``bare`` are the scopes that have snapshots and no pointer; they are in ``keys`` too."""

    root: Path
    pristine: Path
    elsewhere: Path
    machine: Path
    places: tuple[Place, ...]
    keys: dict[str, str]
    chains: dict[str, tuple[str, ...]]
    bare: tuple[str, ...] = ()

    def read(self, path: str) -> bytes:
        """Return the original bytes of a file."""
        return (self.pristine / path).read_bytes()

    def of(self, *roles: str) -> list[Place]:
        """The files of these roles, by path."""
        return [place for place in self.places if place.role in roles]

    def document(self, path: str) -> dict[str, Any]:
        """Return the original document of a JSON file."""
        found: dict[str, Any] = json.loads(self.read(path))
        return found

    def restore(self) -> None:
        """Make the store what it was, whatever lies there now."""
        clear(self.root)
        shutil.copytree(self.pristine, self.root, symlinks=True)


def clear(path: Path) -> None:
    """Take away whatever is there, without following it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fill(path: Path, data: bytes) -> None:
    """Write a file, anew or over what it held. Raises FileExistsError for what is no file: another harm was done there,
    and writing to a FIFO would wait for ever."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise FileExistsError(path)
    path.write_bytes(data)
    path.chmod(0o600)


def build(root: Path) -> SampleStore:
    """Make the store under ``root``, which must not exist, and a copy beside it."""
    root.mkdir(parents=True)
    state_dir, machine = root / "state dir", root / "machine.json"
    machine.write_text(json.dumps(_machine()))
    _context_and_run(state_dir, machine)
    store = Store(LocalBackend(str(state_dir)), redactor=Redactor())
    _notes(store)
    _residue(store, state_dir)
    return described(state_dir, machine)


def _machine() -> dict[str, Any]:
    shell = ["sh", "-c", """echo '{"report": "'$(printf %04200d 7)'"}'"""]
    stages: dict[str, Any] = {
        "work": {"task": shell, "default_next": "ask"},
        "ask": {"human": {"prompt": "Go on?"}, "set": {"said": "output"}, "default_next": "again"},
        "again": {"task": ["sh", "-c", "echo 2"], "repeatable": True, "default_next": "last"},
        "last": {"human": {"prompt": "Ship it?"}, "default_next": "done"},
        "done": {"end": {}},
    }
    return {"stateline": 1, "name": "damage", "state": {"said": None}, "stages": stages}


def _context_and_run(state_dir: Path, machine: Path) -> None:
    scope = ["--state-scope", "docs-demo"]
    # Large enough to become an object that the context and its successors share.
    call(state_dir, "run", *scope, "--system", "Be careful. " * 400, "--set", "limit=3")
    call(state_dir, "run", *scope, "--refine-text", "Be brief.")
    call(state_dir, "run", *scope, "--set", "limit=4")
    call(state_dir, "execute", str(machine), "--id", "exec-damage", *scope, "--no-input", exits=3)
    call(state_dir, "execute", str(machine), "--answer", '{"yes": true}', exits=3)


def call(state_dir: Path, *words: str, exits: int | None = 0) -> dict[str, Any]:
    """One command in this process; its document. Raises RuntimeError if it exits otherwise (None: any exit is fine)."""
    said, told = io.BytesIO(), io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(said)), contextlib.redirect_stderr(io.TextIOWrapper(told)):
        code = run([*words, "--state-dir", str(state_dir), "--format", "json"])
        document: dict[str, Any] = json.loads(said.getvalue())
    if exits is not None and code != exits:
        raise RuntimeError(f"{words[0]} exited with {code}: {document}")
    return document | {"code": code}


def _notes(store: Store) -> None:
    """Four snapshots: a value, a node with two values in it, an artifact, and a list that grows over several chunks."""
    scope = store.scope(NOTES)
    doc = {"body": "a" * 4094, "other": "o" * 4094, "note": "b" * 3000, "tail": "c" * 1200}
    messages = [{"role": "user", "content": f"{number}: " + "lorem ipsum " * 8} for number in range(90)]
    scope.save({"n": 0})
    scope.save({"n": 1, "big": "x" * 4200, "log": messages[:45]})
    scope.save({"n": 2, "doc": doc, "log": messages[:60], "raw": Artifact(b"raw bytes \x00\xff", "image/png")})
    scope.save({"n": 3, "doc": doc, "log": messages, "same": "x" * 4200})


def _residue(store: Store, state_dir: Path) -> None:
    """Create crash residue: a save before its pointer, temporary files, and removed scopes."""
    scope = store.scope(NOTES)
    pointer = state_dir / scope.hash / "latest.json"
    acknowledged = pointer.read_bytes()
    scope.save({"n": 4, "big": "x" * 4200})
    pointer.write_bytes(acknowledged)
    gone = [store.scope(f"notes:gone {number}").save({"big": f"{number}" * 4300}).scope for number in range(2)]
    store.backend.remove(gone[0])
    (state_dir / gone[1]).rename(state_dir / ".rm-0123456789abcdef-01234567")
    for place in (state_dir, state_dir / scope.hash, next((state_dir / "objects").iterdir())):
        (place / ".tmp-0123456789abcdef").write_bytes(b'{"half')
        (place / ".tmp-0123456789abcdef").chmod(0o600)


# -- what each file is -------------------------------------------------------------------------------------------------


def described(state_dir: Path, machine: Path) -> SampleStore:
    """Keep two copies beside the state dir, and say what each file of it is. Raises RuntimeError for a store that is
    not good."""
    pristine, elsewhere = state_dir.parent / "pristine", state_dir.parent / "elsewhere"
    shutil.copytree(state_dir, pristine)
    shutil.copytree(state_dir, elsewhere)
    past = _Past(pristine)
    for place in sorted(pristine.iterdir()):
        if len(place.name) == 64:
            past.read_scope(place)
    if any(scope_hash(key) != scope for scope, key in past.keys.items()):
        raise RuntimeError("a scope lies where it does not belong")
    files = sorted(str(path.relative_to(pristine)) for path in pristine.rglob("*") if path.is_file())
    places = tuple(_place(path, past) for path in files)
    bare = tuple(sorted(past.keys.keys() - past.chains.keys()))
    return SampleStore(state_dir, pristine, elsewhere, machine, places, past.keys, past.chains, bare)


class _Past:
    """Read an intact store: its scopes, the chains in them, and the objects that these name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keys: dict[str, str] = {}
        self.chains: dict[str, tuple[str, ...]] = {}
        self.named: dict[str, str] = {}
        """Digest of an object -> the hash of a scope that names it."""

    def read_scope(self, place: Path) -> None:
        """Walk the chain from the pointer, if there is one, then look at what lies beside it."""
        scope, lost = place.name, set[str]()
        if (place / "latest.json").exists():
            self.chains[scope] = tuple(self._chain(place, lost)[::-1])
        for snapshot in sorted(place.glob("state-*")):
            document = json.loads(snapshot.read_bytes())
            self.keys[scope] = document["scope"]
            if snapshot.name not in self.chains.get(scope, ()):
                self._name_objects(document, scope, lost)

    def _chain(self, place: Path, lost: set[str]) -> list[str]:
        """Names from the head down. ``lost`` grows by the objects that are declared lost on the way."""
        pointer = json.loads((place / "latest.json").read_bytes())
        name, sha = pointer["path"], pointer["sha256"]
        chain, gaps = [], dict[str, Any]()
        while name is not None:
            if not (place / name).exists():
                below = gaps[sha]["resumes"] or {"path": None, "sha256": None}
                name, sha = below["path"], below["sha256"]
                continue
            document = json.loads((place / name).read_bytes())
            chain.append(name)
            self._name_objects(document, place.name, lost)
            declared = document["event"].get("repaired", {})
            lost.update(declared.get("objects", []))
            for gap in declared.get("gaps", []):
                gaps.setdefault(gap["lost"]["sha256"], gap)
            name, sha = document["prev"], document["prev_sha"]
        return chain

    def _name_objects(self, document: dict[str, Any], scope: str, lost: set[str]) -> None:
        """Note the objects of a snapshot, node or chunk, and what those name in turn."""
        refs = [*document["objects"].values(), *filter(None, [document.get("before")])]
        for ref in refs:
            sha, media_type = ref["sha256"], ref["media_type"]
            file = self.root / "objects" / sha[:2] / sha
            if sha in self.named or (sha in lost and not file.exists()):
                continue
            if sha in lost:
                raise RuntimeError(f"{sha} is declared lost, and it is there")
            self.named[sha] = scope
            data = file.read_bytes()
            if media_type.startswith("application/vnd.stateline."):
                self._name_objects(json.loads(data), scope, lost)


def _place(path: str, past: _Past) -> Place:
    first, _, rest = path.partition("/")
    name = os.path.basename(path)
    for beginning, role in ((".rm-", "removed"), ("ext-", "set aside")):
        if first.startswith(beginning):
            return Place(path, role, "")
    if name.startswith(".tmp-"):
        return Place(path, "temporary", first if first in past.keys else "")
    if path == "stateline.json":
        return Place(path, "store file", "")
    if first == "objects":
        return Place(path, "object" if name in past.named else "unreferenced", past.named.get(name, ""))
    roles = {"latest.json": "pointer", "scope.lock": "lock"}
    on_chain = rest in past.chains.get(first, ())
    return Place(
        path, roles.get(rest, "snapshot" if on_chain else "unacknowledged"), first if first in past.keys else ""
    )
