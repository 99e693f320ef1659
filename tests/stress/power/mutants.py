"""Commit protocols that are wrong, each in one place: a model of power losses that passes one of them proves nothing.

Each is the real store with one step left out, put earlier or done otherwise. Hardly anything but a power loss shows it.
A new one is a function that patches the store, and a line in ``MUTANTS`` with the scenario that must find it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import msgspec
from stress.power.disk import ModelFs, Written
from stress.scenarios import Note, Witness, WitnessedQuarantine

from stateline.bundle import naming
from stateline.bundle.envelope import Pointer
from stateline.engine import calls, loop, record, step
from stateline.machine.decider.run import Intended
from stateline.repair import quarantine
from stateline.repair.quarantine import LocalQuarantine
from stateline.store import objects, scope
from stateline.store.local import atomic_write, directories, lock
from stateline.store.local.backend import LocalBackend
from stateline.store.local.directories import Directories
from stateline.store.local.filesystem import Directory
from stateline.store.local.lock import HeldLock
from stateline.store.local.state_dir import StateDir
from stateline.store.scope import Scope
from stateline.store.store import Store


class Mutant(msgspec.Struct, frozen=True):
    """``break_it`` breaks the protocol for a block; ``scenario`` is the scenario that must show it."""

    name: str
    scenario: str
    break_it: Callable[[], AbstractContextManager[Any]]


def _nothing(*words: Any, **options: Any) -> None:
    """Replacement behaviour of a mutant."""


def _no_file_sync() -> AbstractContextManager[Any]:
    return mock.patch.object(ModelFs, "sync_file", _nothing)


def _no_directory_sync() -> AbstractContextManager[Any]:
    return mock.patch.object(ModelFs, "sync_directory", _nothing)


def _unsynced(end: str) -> AbstractContextManager[Any]:
    """A directory is not synced after a step whose words end so."""
    sync = Directories.sync

    def others(directories: Directories, directory: Directory, visible: str) -> None:
        if not visible.endswith(end):
            sync(directories, directory, visible)

    return mock.patch.object(Directories, "sync", others)


def _unsynced_snapshot_name() -> AbstractContextManager[Any]:
    """The directory is not synced between the snapshot's name and the pointer."""
    return _unsynced(" is there")


def _unsynced_pointer_bytes() -> AbstractContextManager[Any]:
    write = HeldLock.write
    return mock.patch.object(HeldLock, "write", lambda held, data, durable: write(held, data, durable=False))


def _unsynced_pointer_name() -> AbstractContextManager[Any]:
    """The save is acknowledged when the pointer is visible, not when it is durable."""
    return _unsynced("the new head is visible")


def _acknowledged_early() -> AbstractContextManager[Any]:
    def early(witness: Witness, scope: str, expected: Pointer | None, new: Pointer) -> None:
        witness._listener(Note("head", scope, new.path, new.sha256, witness.durability))
        LocalBackend.swap(witness, scope, expected, new)

    return mock.patch.object(Witness, "swap", early)


@contextmanager
def _pointer_first() -> Iterator[None]:
    """The pointer is moved before its snapshot is there."""
    put, swap = Witness.put, Witness.swap
    waiting: dict[str, bytes] = {}

    def later(witness: Witness, name: str, data: bytes) -> None:
        if name.startswith(naming.OBJECTS):
            put(witness, name, data)
        else:
            waiting[name] = data

    def first(witness: Witness, scope: str, expected: Pointer | None, new: Pointer) -> None:
        with mock.patch.object(witness, "_listener", _nothing):
            swap(witness, scope, expected, new)
        for name in list(waiting):
            put(witness, name, waiting.pop(name))
        witness._listener(Note("head", scope, new.path, new.sha256, witness.durability))

    with mock.patch.object(Witness, "put", later), mock.patch.object(Witness, "swap", first):
        yield


def _pointer_in_place() -> AbstractContextManager[Any]:
    """The pointer's file is written over."""
    rename = ModelFs.rename

    def over(fs: ModelFs, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        if target != naming.POINTER or target not in fs._entries(target_dir):
            rename(fs, source_dir, source, target_dir, target)
            return
        inode = fs._at(target_dir, target)
        fs.image.files[inode] = fs.image.files[fs._at(source_dir, source)]
        fs._record(Written(inode, fs.image.files[inode]))
        fs.unlink(source_dir, source)
        fs.sync_file(fs._descriptor(inode))

    return mock.patch.object(ModelFs, "rename", over)


def _pointer_removed_first() -> AbstractContextManager[Any]:
    """The old pointer is removed before the new one gets its name, as where renaming over a file does not work."""
    rename = ModelFs.rename

    def removed(fs: ModelFs, source_dir: Directory, source: str, target_dir: Directory, target: str) -> None:
        if target == naming.POINTER and target in fs._entries(target_dir):
            fs.unlink(target_dir, target)
        rename(fs, source_dir, source, target_dir, target)

    return mock.patch.object(ModelFs, "rename", removed)


def _objects_last() -> AbstractContextManager[Any]:
    """The objects are put when the snapshot that names them is the head."""
    put_parts, save = Store._put_parts, Scope.save
    waiting: list[Any] = []

    def later(opened: Store, parts: Any, known: Any) -> None:
        waiting.append((opened, parts, known))

    def then(scope: Scope, *words: Any, **options: Any) -> Any:
        saved = save(scope, *words, **options)
        while waiting:
            put_parts(*waiting.pop())
        return saved

    return _both(mock.patch.object(Store, "_put_parts", later), mock.patch.object(Scope, "save", then))


def _unsynced_objects() -> AbstractContextManager[Any]:
    """Objects are put as ``fast`` does it, whatever the store promises."""
    put = LocalBackend.put

    def fast(backend: LocalBackend, name: str, data: bytes) -> None:
        promised = backend.durability
        backend.durability = "fast" if name.startswith(naming.OBJECTS) else promised
        try:
            put(backend, name, data)
        finally:
            backend.durability = promised

    return mock.patch.object(LocalBackend, "put", fast)


def _unsynced_new_directories() -> AbstractContextManager[Any]:
    """A scope's and an object's directory are made, and their own names are not synced."""

    def durable(backend: Directories, parent: Directory, name: str) -> Directory:
        try:
            directory = backend.fs.open_directory(parent, name)
        except FileNotFoundError:
            backend.fs.make_directory(parent, name)
            directory = backend.fs.open_directory(parent, name)
        directory.durable = True
        return directory

    return mock.patch.object(Directories, "_open_or_make", durable)


def _unsynced_state_dir() -> AbstractContextManager[Any]:
    """The state dir's own name is not synced."""
    return mock.patch.object(StateDir, "_sync_parent", _nothing)


@contextmanager
def _reused_temporary_name() -> Iterator[None]:
    """A temporary file has always the same name, and one that is there is opened and cut to nothing."""
    create = ModelFs.create

    def again(fs: ModelFs, directory: Directory, name: str) -> int:
        if not name.startswith(naming.TEMPORARY) or name == naming.HELD:
            return create(fs, directory, name)
        name = ".tmp-same"
        if name not in fs._entries(directory):
            return create(fs, directory, name)
        inode = fs._at(directory, name)
        fs.image.files[inode] = b""
        fs._record(Written(inode, b""))
        return fs._descriptor(inode)

    def write_temporary(fs: Any, directory: Directory, data: bytes, *, durable: bool) -> str:
        fd = fs.create(directory, ".tmp-same")
        fs.write(fd, memoryview(data))
        if durable:
            fs.sync_file(fd)
        fs.close_file(fd)
        return ".tmp-same"

    with (
        mock.patch.object(ModelFs, "create", again),
        # Nothing is swept: then the name is still there when it is used again.
        mock.patch.object(HeldLock, "mark", _nothing),
        mock.patch.object(atomic_write, "write_temporary", write_temporary),
        mock.patch.object(lock, "write_temporary", write_temporary),
    ):
        yield


def _open_to_others() -> AbstractContextManager[Any]:
    create = ModelFs.create

    def wide(fs: ModelFs, directory: Directory, name: str) -> int:
        fd = create(fs, directory, name)
        if name == naming.HELD:
            fs.image.modes[fs._at(directory, name)] = 0o644
        return fd

    return mock.patch.object(ModelFs, "create", wide)


def _nothing_settled() -> AbstractContextManager[Any]:
    """A ``full`` save rests on ``fast`` ones as they are."""
    return mock.patch.object(scope, "sync_past", _nothing)


def _found_object_trusted() -> AbstractContextManager[Any]:
    """An object that is there with the same bytes is not synced again, whoever put it."""
    put = LocalBackend.put

    def trusting(backend: LocalBackend, name: str, data: bytes) -> None:
        if not (name.startswith(naming.OBJECTS) and backend.has(name, len(data))):
            put(backend, name, data)

    return mock.patch.object(LocalBackend, "put", trusting)


def _removed_file_by_file() -> AbstractContextManager[Any]:
    """A scope is removed by deleting what is in it."""

    def remove(backend: LocalBackend, scope: str) -> None:
        root = backend.state_dir.require()
        directory = backend.fs.open_directory(root, scope)
        for name in sorted(backend.fs.names(directory), reverse=True):
            backend.fs.unlink(directory, name)
        backend.fs.remove_directory(root, scope)
        backend.fs.sync_directory(root)

    return mock.patch.object(LocalBackend, "remove", remove)


def _unsynced_removal() -> AbstractContextManager[Any]:
    """A scope that was removed comes back."""
    return _unsynced("the scope is removed")


def _litter_left() -> AbstractContextManager[Any]:
    """Leave the temporary files of a dead writer."""
    return _both(
        mock.patch.object(lock, "sweep", _nothing),
        mock.patch.object(directories, "sweep", _nothing),
    )


def _repair_unsynced() -> AbstractContextManager[Any]:
    """A repair moves the pointer and does not wait for the disk."""
    replace = LocalQuarantine._replace

    def quick(mender: LocalQuarantine, directory: Directory, name: str, data: bytes) -> None:
        with mock.patch.object(mender.fs, "sync_directory", _nothing):
            replace(mender, directory, name, data)

    return mock.patch.object(LocalQuarantine, "_replace", quick)


def _repair_forgets() -> AbstractContextManager[Any]:
    """A repair moves the pointer before its own snapshot is durable."""

    def first(mender: WitnessedQuarantine, scope: str, new: Pointer) -> str | None:
        return LocalQuarantine.replace_pointer(mender, scope, new)

    unsynced = mock.patch.object(Directories, "sync", _nothing)
    return _both(unsynced, mock.patch.object(quarantine.LocalQuarantine, "_keep", _nothing))


def _effect_first() -> AbstractContextManager[Any]:
    """An effect that must not be repeated starts before its intent is saved."""

    def attempt(run: Any, watch: Any, dependencies: Any, **_: Any) -> Any:
        outcome = loop._perform(run)
        if not run.machine.stages[run.state.tree.stage].repeatable:
            run = step.apply(run, Intended(), dependencies)
        return step.apply(run, outcome.event, dependencies)

    return mock.patch.object(loop, "_attempt", attempt)


def _tool_first() -> AbstractContextManager[Any]:
    """A tool that must not be called twice starts before its intent is saved."""
    apply = calls.apply

    def late(run: Any, event: Any, dependencies: Any) -> Any:
        for call in run.state.tree.pending:
            if call["id"] in event.ids:
                calls._tool_run(run, call)
        return apply(run, event, dependencies)

    return mock.patch.object(calls, "apply", late)


def _append_unsettled() -> AbstractContextManager[Any]:
    """A list that was put ``fast`` is appended to as it is."""
    append = Store.append

    def unsynced(opened: Store, ref: Any, items: Any) -> Any:
        with mock.patch.object(objects, "sync_objects", _nothing):
            return append(opened, ref, items)

    return mock.patch.object(Store, "append", unsynced)


def _reference_unsettled() -> AbstractContextManager[Any]:
    """Trust the objects that a state references."""
    require = Store._require

    def unsynced(opened: Store, refs: Any) -> None:
        with mock.patch.object(objects, "sync_objects", _nothing):
            require(opened, refs)

    return mock.patch.object(Store, "_require", unsynced)


def _context_unsettled() -> AbstractContextManager[Any]:
    """The context of a run is taken as it is."""
    return mock.patch.object(record, "make_durable", _nothing)


def _pointer_unsettled() -> AbstractContextManager[Any]:
    """Settling syncs all but the pointer."""
    sync = StateDir.sync_file

    def other(state_dir: StateDir, directory: Directory, name: str) -> None:
        if name != naming.POINTER:
            sync(state_dir, directory, name)

    return mock.patch.object(StateDir, "sync_file", other)


def _anothers_directory_trusted() -> AbstractContextManager[Any]:
    """A directory that is there is taken for durable."""
    return mock.patch.object(Directories, "_in_use", return_value=True)


def _anothers_state_dir_trusted() -> AbstractContextManager[Any]:
    """A state dir that is there is taken for durable."""
    return mock.patch.object(StateDir, "_sync_above", _nothing)


def _unmarked_early() -> AbstractContextManager[Any]:
    """The mark goes before the pointer has its name."""
    write = HeldLock.write

    def unmarking(held: HeldLock, data: bytes, *, durable: bool) -> str:
        name = write(held, data, durable=durable)
        held._fs.unlink(held.directory, naming.HELD)
        held._marked = False
        return name

    return mock.patch.object(HeldLock, "write", unmarking)


def _set_aside_for_good() -> AbstractContextManager[Any]:
    """Delete files that are in a repair's way."""

    def unlinked(mender: LocalQuarantine, root: Directory, path: str) -> str:
        place, _, base = path.rpartition("/")
        with mender._open(root, place) as source, mender._aside(root):
            mender.fs.unlink(source, base)
            mender.fs.sync_directory(source)
            return mender._free_name(path)

    return mock.patch.object(LocalQuarantine, "_set_aside", unlinked)


def _set_aside_unsynced() -> AbstractContextManager[Any]:
    """A repair does not wait for what it sets aside."""
    set_aside = LocalQuarantine._set_aside

    def quick(mender: LocalQuarantine, root: Directory, path: str) -> str:
        with mock.patch.object(mender.fs, "sync_directory", _nothing):
            return set_aside(mender, root, path)

    return mock.patch.object(LocalQuarantine, "_set_aside", quick)


def _aside_unsynced() -> AbstractContextManager[Any]:
    """The directory for what is set aside is made, and its own name is not synced."""
    aside = LocalQuarantine._aside

    @contextmanager
    def unsynced(mender: LocalQuarantine, root: Directory) -> Iterator[Directory]:
        if mender.aside is None:
            mender.fs.make_directory(root, mender._name)
            mender.aside = mender._name
        with aside(mender, root) as directory:
            yield directory

    return mock.patch.object(LocalQuarantine, "_aside", unsynced)


def _no_old_pointer_kept() -> AbstractContextManager[Any]:
    """A repair writes the new pointer over the damaged one and keeps nothing of it."""
    return mock.patch.object(LocalQuarantine, "_keep", _nothing)


@contextmanager
def _both(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    first, second = patches
    with first, second:
        yield


MUTANTS = [
    Mutant("no file is synced", "saves", _no_file_sync),
    Mutant("no directory is synced", "saves", _no_directory_sync),
    Mutant("the snapshot's name is not synced before the pointer", "saves", _unsynced_snapshot_name),
    Mutant("the pointer's bytes are not synced", "saves", _unsynced_pointer_bytes),
    Mutant("the pointer's name is not synced", "saves", _unsynced_pointer_name),
    Mutant("acknowledged before the pointer moves", "saves", _acknowledged_early),
    Mutant("the pointer moves before the snapshot is there", "saves", _pointer_first),
    Mutant("the pointer is written in place", "saves", _pointer_in_place),
    Mutant("the old pointer is removed first", "saves", _pointer_removed_first),
    Mutant("objects come after the snapshot", "large values", _objects_last),
    Mutant("objects are not synced", "large values", _unsynced_objects),
    Mutant("new directories are not synced in their parents", "first save", _unsynced_new_directories),
    Mutant("the state dir's name is not synced", "first save", _unsynced_state_dir),
    Mutant("a temporary name is used again", "saves", _reused_temporary_name),
    Mutant("files are open to others", "first save", _open_to_others),
    Mutant("full rests on fast as it is", "settle", _nothing_settled),
    Mutant("a found object is trusted", "settle", _found_object_trusted),
    Mutant("a scope is removed file by file", "removal", _removed_file_by_file),
    Mutant("a removal is not synced", "removal", _unsynced_removal),
    Mutant("litter is never swept", "take over", _litter_left),
    Mutant("a repair does not sync the pointer", "repair", _repair_unsynced),
    Mutant("a repair's snapshot is not synced", "repair", _repair_forgets),
    Mutant("an effect starts before its intent is saved", "turn", _effect_first),
    Mutant("a tool starts before its intent is saved", "conversation", _tool_first),
    Mutant("a list that was put fast is appended to as it is", "fast parts", _append_unsettled),
    Mutant("a named value that was put fast is taken as it is", "fast parts", _reference_unsettled),
    Mutant("a context that was saved fast is taken as it is", "fast context", _context_unsettled),
    Mutant("settling leaves the pointer out", "fast context", _pointer_unsettled),
    Mutant("another's directory is taken for durable", "by another", _anothers_directory_trusted),
    Mutant("another's state dir is taken for durable", "made root", _anothers_state_dir_trusted),
    Mutant("the mark goes before the pointer has its name", "saves", _unmarked_early),
    Mutant("what is set aside is deleted", "rotten", _set_aside_for_good),
    Mutant("setting aside is not synced", "rotten", _set_aside_unsynced),
    Mutant("the directory for what is set aside is not synced", "rotten", _aside_unsynced),
    Mutant("a repair keeps no damaged pointer", "repair", _no_old_pointer_kept),
]
