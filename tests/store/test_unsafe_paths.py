"""Paths that others may change: refused by writers, reported by readers and `verify`. As root and as a user."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import pytest
from each_case import each

from stateline import Artifact, Store
from stateline.bundle import naming
from stateline.errors import StorageError, UnsafePathError
from stateline.store.local import permissions
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Filesystem, Stat
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
BIG = "x" * 5000
NOBODY = 65534
LOADED = (filelock, grp, pwd)
"""Loaded before a test becomes another user, who may not read where they lie."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def store_on(path: Path, *, trust: bool = False, fs: Filesystem | None = None) -> Store:
    return Store(LocalBackend(str(path), fs, trust_parent=trust))


def tree(path: Path) -> list[tuple[str, int]]:
    # A directory's time changes when a lock is taken in it.
    return sorted((str(found), found.is_dir() or found.lstat().st_mtime_ns) for found in path.rglob("*"))


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Become nobody, if the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the ordinary user's, below one that all may write to and that is sticky."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


def path_below(path: Path, *modes: int) -> Path:
    """A state dir's path below one directory for each mode."""
    for number, mode in enumerate(modes):
        path = path / f"level{number}"
        path.mkdir()
        path.chmod(mode)
    return path / "s"


# -- above the state dir -----------------------------------------------------------------------------------------------


@each("modes", [(0o777,), (0o757, 0o755), (0o702, 0o700, 0o700), (0o2777, 0o700)])
@each("there", [True, False])
def test_a_parent_that_all_may_write_to_is_refused_by_writers_only(
    tmp_path: Path, modes: tuple[int, ...], there: bool
) -> None:
    root = path_below(tmp_path, *modes)
    if there:
        store_on(root, trust=True).scope(KEY).save(1)
    before = tree(tmp_path)
    store = store_on(root)
    for write in (lambda: store.scope(KEY).save(2), lambda: store.put(Artifact(b"x")), store.backend.require_writable):
        with pytest.raises(UnsafePathError) as caught:
            write()
        assert str(tmp_path / "level0") in caught.value.message
        assert "--trust-parent" in caught.value.hint
    assert tree(tmp_path) == before
    reader = store_on(root)
    head = reader.scope(KEY).head()
    assert (head is not None) == there
    assert any("level0" in warning for warning in reader.warnings) == there
    found = [finding for finding in verify(reader).findings if finding.code == "open_parent"]
    assert [finding.severity for finding in found] == ["unsafe"]
    assert str(tmp_path / "level0") in found[0].message
    trusting = store_on(root, trust=True)
    assert trusting.scope(KEY).save(3).seq == (1 if there else 0)
    assert trusting.warnings == []
    assert verify(trusting).findings == ()


@each("modes", [(0o1777,), (0o1777, 0o755), (0o755,), (0o700,), (0o711,), (0o1770,)])
def test_a_sticky_or_closed_parent_is_accepted(tmp_path: Path, modes: tuple[int, ...]) -> None:
    root = path_below(tmp_path, *modes)
    store = store_on(root)
    assert store.scope(KEY).save(1).seq == 0
    assert store.warnings == []
    assert verify(store).findings == ()


def test_parents_on_both_sides_of_a_symlink_are_checked(tmp_path: Path) -> None:
    for name, link_mode, target_mode in (("a", 0o777, 0o700), ("b", 0o700, 0o777), ("c", 0o700, 0o700)):
        there, here = tmp_path / name / "there", tmp_path / name / "here"
        (there / "deep").mkdir(parents=True)
        here.mkdir()
        (here / "link").symlink_to("../there/./deep")
        here.chmod(link_mode)
        there.chmod(target_mode)
        store = store_on(here / "link" / "s")
        if name == "c":
            assert store.scope(KEY).save(1).seq == 0
            continue
        with pytest.raises(UnsafePathError, match="here" if name == "a" else "there"):
            store.scope(KEY).save(1)
        assert not (there / "deep" / "s").exists()


def test_a_circle_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageError):
        store_on(tmp_path / "a" / "s").scope(KEY).save(1)


class User:
    """One line of the list of users."""

    def __init__(self, name: str, uid: int, gid: int) -> None:
        self.pw_name, self.pw_uid, self.pw_gid = name, uid, gid


@each(
    "members, others, mine, safe",
    [
        ([], [], True, True),
        (["me"], [], True, True),
        (["me", "you"], [], True, False),
        ([], [User("you", 77_777, 4242)], True, False),
        ([], [User("you", 77_777, 1)], True, True),
        ([], [], False, False),
    ],
)
def test_only_a_private_group_may_write_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[str], others: list[User], mine: bool, safe: bool
) -> None:
    root = path_below(tmp_path, 0o770)
    group = root.parent.stat().st_gid
    me = User("me", os.geteuid(), group if mine else group + 1)
    for user in others:
        user.pw_gid = group if user.pw_gid == 4242 else user.pw_gid + group
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    monkeypatch.setattr(pwd, "getpwall", lambda: [me, *others])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: type("Group", (), {"gr_mem": members}))
    if safe:
        assert store_on(root).scope(KEY).save(1).seq == 0
    else:
        with pytest.raises(UnsafePathError, match="level0"):
            store_on(root).scope(KEY).save(1)


def test_an_unknown_group_is_not_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UnsafePathError):
        store_on(path_below(tmp_path, 0o770)).scope(KEY).save(1)


def test_each_parent_costs_one_stat_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Filesystem):
        def __init__(self) -> None:
            self.looked: list[str] = []

        def stat_path(self, path: str) -> Stat:
            if path != str(root):
                self.looked.append(path)
            return super().stat_path(path)

    def asked(gid: int) -> bool:
        raise AssertionError("users and groups are asked for only where a group may write")

    monkeypatch.setattr(permissions, "_is_private_group", asked)
    root = tmp_path.resolve() / "s"
    root.mkdir(mode=0o700)
    fs = Counting()
    scope = store_on(root, fs=fs).scope(KEY)
    for number in range(3):
        scope.save(number)
    assert fs.looked == [str(path) for path in reversed(root.parents)]
    fs.looked.clear()
    store_on(root, trust=True, fs=fs).scope(KEY).save(4)
    assert fs.looked == []


# -- what a writer opens -----------------------------------------------------------------------------------------------


def path_of(root: Path, which: str, head: Any) -> Path:
    sha = head.envelope.objects["/big"].sha256
    return {
        "snapshot": root / HASH / head.path,
        "pointer": root / HASH / naming.POINTER,
        "lock": root / HASH / naming.LOCK,
        "store file": root / naming.STORE_FILE,
        "scope": root / HASH,
        "state dir": root,
        "objects": root / naming.OBJECTS,
        "shelf": root / naming.OBJECTS / sha[:2],
        "object": root / naming.object_path(sha),
    }[which]


SAME = ("snapshot", "pointer", "store file", "scope", "state dir", "lock")
OBJECTS = ("objects", "shelf", "object")


@each("how", ["mode", "owner"])
@each("which", SAME + OBJECTS)
def test_a_writer_refuses_any_open_path_and_a_reader_warns(tmp_path: Path, which: str, how: str) -> None:
    root = tmp_path / "s"
    head = store_on(root).scope(KEY).save({"big": BIG})
    path = path_of(root, which, head)
    if how == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file to another user")
        os.chown(path, 12345, -1)
    else:
        path.chmod(path.stat().st_mode | 0o050)
    before = tree(root)
    writer = store_on(root)
    scope, parent = (writer.scope(KEY), head) if which in SAME else (writer.scope("notes:other"), None)
    with pytest.raises(UnsafePathError) as caught:
        scope.save({"big": BIG}, parent=parent)
    assert str(path) in caught.value.message
    assert caught.value.hint
    if which in SAME:
        assert tree(root) == before
    if which != "lock":  # which readers never open
        reader = store_on(root)
        reader.resolve(reader.scope(KEY).load().state)
        assert [str(path) in warning for warning in reader.warnings] == [True]
    found = [finding for finding in verify(store_on(root)).findings if finding.severity == "unsafe"]
    where = "" if which == "state dir" else str(path.relative_to(root))
    code = "open_mode" if how == "mode" else "foreign_owner"
    assert (code, where) in [(finding.code, finding.path) for finding in found]


@each("which", ["scope", "snapshot", "pointer", "state dir"])
def test_a_dry_run_sees_what_the_writer_will_refuse(tmp_path: Path, which: str) -> None:
    root = tmp_path / "s"
    head = store_on(root).scope(KEY).save({"big": BIG})
    path_of(root, which, head).chmod(0o755)
    store = store_on(root)
    if which != "state dir":
        store.backend.require_writable()
    with pytest.raises(UnsafePathError):
        store.backend.require_writable() if which == "state dir" else store.scope(KEY).head()


def test_a_symlink_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ref = store_on(root).put(Artifact(b"raw"))
    path = root / naming.object_path(ref.sha256)
    path.rename(tmp_path / "aside")
    path.symlink_to(tmp_path / "aside")
    with pytest.raises(UnsafePathError, match="not a regular file"):
        store_on(root).put(Artifact(b"raw"))


def as_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def as_file(path: Path) -> None:
    path.write_text("mine")


def as_link(path: Path) -> None:
    real = path.with_name("real")
    store_on(real).scope(KEY).save(1)
    path.symlink_to(real)


def as_loop(path: Path) -> None:
    path.symlink_to(path)


@each("make, code", [(as_fifo, "not_regular"), (as_file, "not_regular"), (as_link, "symlink"), (as_loop, "symlink")])
def test_a_state_dir_that_is_not_a_directory_is_a_finding(
    tmp_path: Path, make: Callable[[Path], None], code: str
) -> None:
    make(tmp_path / "s")
    before = tree(tmp_path)
    for key in (None, KEY):
        report = verify(store_on(tmp_path / "s"), key)
        assert [(found.severity, found.code) for found in report.findings] == [("damage", code)]
        assert not report.ok, "nothing was checked"
        assert str(tmp_path / "s") in report.findings[0].message
        assert (report.scopes, report.snapshots) == (0, 0)
    with pytest.raises(UnsafePathError):
        store_on(tmp_path / "s").scope(KEY).save(1)
    assert tree(tmp_path) == before


# -- as an ordinary user -----------------------------------------------------------------------------------------------


@each("below", ["sub/s", "s"])
@each("linked", [False, True])
def test_a_state_dir_below_a_file_is_refused(tmp_path: Path, below: str, linked: bool) -> None:
    above = tmp_path / "file"
    if linked:
        (tmp_path / "target").write_bytes(b"")
        above.symlink_to(tmp_path / "target")
    else:
        above.write_bytes(b"")
    backend = LocalBackend(str(above / below))
    for act in (backend.require_writable, backend.prepare, lambda: list(backend.scopes())):
        with pytest.raises(UnsafePathError):
            act()


def test_an_ordinary_user_saves_and_verifies_below_a_sticky_directory(home: Path) -> None:
    with ordinary_user():
        store = store_on(home / "s")
        store.scope(KEY).save({"big": BIG})
        assert store.scope(KEY).save({"n": 2}).seq == 1
        assert verify(store).findings == ()
        assert store.warnings == []
        assert stat.S_IMODE((home / "s").stat().st_mode) == 0o700


@as_root
def test_an_ordinary_user_reads_roots_store_with_a_warning_and_does_not_write_to_it(home: Path) -> None:
    head = store_on(home / "s").scope(KEY).save({"big": BIG})
    for path in [home / "s", *(home / "s").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    with ordinary_user():
        reader = store_on(home / "s")
        assert reader.scope(KEY).load() == head
        assert any("belongs to user 0" in warning for warning in reader.warnings)
        assert verify(reader).ok
        with pytest.raises(UnsafePathError, match="belongs to user 0"):
            reader.scope(KEY).save(2)


@as_root
def test_root_does_not_write_into_an_ordinary_users_store(home: Path) -> None:
    with ordinary_user():
        store_on(home / "s").scope(KEY).save(1)
    with pytest.raises(UnsafePathError, match=f"belongs to user {NOBODY}"):
        store_on(home / "s").scope(KEY).save(2)
    assert store_on(home / "s").scope(KEY).load().state == 1


def test_missing_write_permission_is_reported_to_an_ordinary_user(home: Path) -> None:
    with ordinary_user():
        (home / "closed").mkdir(mode=0o500)
        with pytest.raises(StorageError, match="permission was denied"):
            store_on(home / "closed" / "s").scope(KEY).save(1)
        assert os.listdir(home / "closed") == []
        store_on(home / "s").scope(KEY).save(1)
        (home / "s").chmod(0o500)
        assert store_on(home / "s").scope(KEY).load().state == 1
        with pytest.raises(StorageError, match="permission was denied"):
            store_on(home / "s").scope("notes:new").save(1)
        (home / "s").chmod(0o700)
