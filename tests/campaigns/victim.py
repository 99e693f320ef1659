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
from stateline.store.local import LocalBackend

NOTES = "notes:of an embedder"
CONTEXT = "context:docs-demo"
RUN = "run:exec-damage"

ROLES = (
    *("store file", "pointer", "lock", "snapshot", "unacknowledged"),
    *("object", "unreferenced", "temporary", "removed"),
)
"""``snapshot`` lies on a chain and ``object`` is named by one; ``unreferenced`` is an object that nothing names;
``removed`` lies in the directory of a scope that was being removed."""


class Place(msgspec.Struct, frozen=True):
    """One file: its ``path`` in the state dir, its ``role``, the hash of its ``scope`` ("" for none; of an object one
    that names it)."""

    path: str
    role: str
    scope: str


class Victim(msgspec.Struct, frozen=True):
    """A store to harm. ``pristine`` keeps what it was, ``elsewhere`` is a copy that links may lead to; ``keys`` maps a
    scope's hash to its key, ``chains`` to the names of its snapshots from the first to the head."""

    root: Path
    pristine: Path
    elsewhere: Path
    machine: Path
    places: tuple[Place, ...]
    keys: dict[str, str]
    chains: dict[str, tuple[str, ...]]

    def read(self, path: str) -> bytes:
        """What a file held before any harm."""
        return (self.pristine / path).read_bytes()

    def of(self, *roles: str) -> list[Place]:
        """The files of these roles, by path."""
        return [place for place in self.places if place.role in roles]

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


def build(root: Path) -> Victim:
    """Make the store under ``root``, which must not exist, and a copy beside it."""
    root.mkdir(parents=True)
    state_dir, pristine, machine = root / "state dir", root / "pristine", root / "machine.json"
    machine.write_text(json.dumps(_machine()))
    _context_and_run(state_dir, machine)
    store = Store(LocalBackend(str(state_dir)), redactor=Redactor())
    _notes(store)
    _residue(store, state_dir)
    shutil.copytree(state_dir, pristine)
    shutil.copytree(state_dir, root / "elsewhere")
    return _described(state_dir, pristine, machine)


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
    call(state_dir, "execute", str(machine), "--input", '{"yes": true}', exits=3)


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
    """What crashes leave: a save before its pointer, temporary files, and removed scopes."""
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


def _described(state_dir: Path, pristine: Path, machine: Path) -> Victim:
    chains: dict[str, tuple[str, ...]] = {}
    keys: dict[str, str] = {}
    named: dict[str, str] = {}
    for pointer in sorted(pristine.glob("*/latest.json")):
        scope, name, chain = pointer.parent.name, json.loads(pointer.read_bytes())["path"], []
        if scope.startswith("."):
            continue
        while name is not None:
            document = json.loads((pointer.parent / name).read_bytes())
            keys[scope] = document["scope"]
            chain.append(name)
            _name_objects(pristine, document, scope, named)
            name = document["prev"]
        chains[scope] = tuple(chain[::-1])
        for loose in sorted(pointer.parent.glob("state-*")):
            _name_objects(pristine, json.loads(loose.read_bytes()), scope, named)
    if {scope_hash(key) for key in keys.values()} != set(keys):
        raise RuntimeError("a scope lies where it does not belong")
    files = sorted(str(path.relative_to(pristine)) for path in pristine.rglob("*") if path.is_file())
    places = tuple(_place(path, chains, named) for path in files)
    return Victim(state_dir, pristine, pristine.parent / "elsewhere", machine, places, keys, chains)


def _name_objects(root: Path, document: dict[str, Any], scope: str, named: dict[str, str]) -> None:
    """Note the objects of a snapshot, node or chunk, and what those name in turn."""
    refs = [*document["objects"].values(), *filter(None, [document.get("before")])]
    for ref in refs:
        sha, media_type = ref["sha256"], ref["media_type"]
        new = sha not in named
        named.setdefault(sha, scope)
        if new and media_type.startswith("application/vnd.stateline."):
            data = (root / "objects" / sha[:2] / sha).read_bytes()
            _name_objects(root, json.loads(data), scope, named)


def _place(path: str, chains: dict[str, tuple[str, ...]], named: dict[str, str]) -> Place:
    first, _, rest = path.partition("/")
    name = os.path.basename(path)
    if first.startswith(".rm-"):
        return Place(path, "removed", "")
    if name.startswith(".tmp-"):
        return Place(path, "temporary", first if first in chains else "")
    if path == "stateline.json":
        return Place(path, "store file", "")
    if first == "objects":
        return Place(path, "object" if name in named else "unreferenced", named.get(name, ""))
    roles = {"latest.json": "pointer", "scope.lock": "lock"}
    return Place(path, roles.get(rest, "snapshot" if rest in chains[first] else "unacknowledged"), first)
