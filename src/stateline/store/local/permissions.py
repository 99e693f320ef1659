"""Permissions: paths that are unsafe to write to, and file systems to warn about.

A state dir decides what is executed and believed later, so anybody who can change it can change both. Writers refuse
unsafe paths, readers report them.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress

from stateline.store.local.filesystem import Filesystem, Stat
from stateline.store.protocol import PathProblem

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"}
)
_LINKS = 40
"""Most symlinks that a path may lead through, as in the kernel."""


def path_problem(found: Stat, path: str, kind: str) -> PathProblem | None:
    """Return why ``path``, which must be a ``kind`` ("directory" or "file"), is unsafe to write to, or None."""
    if found.kind == "symlink":
        return PathProblem("symlink", f"{path} is a symbolic link", "name the real directory")
    if found.kind != kind:
        return PathProblem("not_regular", f"{path} is not a {kind}", f"move it away, and let stateline make the {kind}")
    if found.uid != os.geteuid():
        return PathProblem(
            "foreign_owner",
            f"{path} belongs to user {found.uid}, not to you ({os.geteuid()})",
            "use another state dir (--state-dir), or run as its owner",
        )
    if found.mode & 0o077:
        return PathProblem(
            "open_mode",
            f"{path} has mode {found.mode:04o}: others may use it",
            f"chmod {'700' if kind == 'directory' else '600'} {path}",
        )
    return None


def open_parents(fs: Filesystem, path: str) -> list[PathProblem]:
    """Return the problems of directories above ``path`` in which others may replace what is there.

    Every directory in which a part of the path is looked up is checked once, including those that symlinks lead
    through. ``path`` is absolute; it need not exist. Raises OSError.
    """
    found: list[PathProblem] = []
    seen: set[str] = set()
    place, rest, links = "/", [part for part in path.split("/") if part][::-1], 0
    _note_parent(fs.stat_path(place), place, seen, found)
    # The last part is the state dir, which has stricter rules.
    while len(rest) > 1:
        part = rest.pop()
        if part in ("", ".", ".."):
            place = os.path.dirname(place) if part == ".." else place
            continue
        step = os.path.join(place, part)
        try:
            stat_of = fs.stat_path(step)
        except (FileNotFoundError, NotADirectoryError):
            break
        if stat_of.kind != "symlink":
            place = step
            _note_parent(stat_of, place, seen, found)
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = fs.read_link(step)
        rest += target.split("/")[::-1]
        place = "/" if target.startswith("/") else place
    return found


def _note_parent(stat_of: Stat, path: str, seen: set[str], found: list[PathProblem]) -> None:
    if path in seen:
        return
    seen.add(path)
    if not stat_of.mode & 0o022 or stat_of.mode & stat.S_ISVTX:
        return
    if stat_of.mode & 0o002 or not _is_private_group(stat_of.gid):
        reason = f"{path}, above the state dir, has mode {stat_of.mode:04o}: others may replace it"
        fix = f"chmod go-w {path}, or pass --trust-parent if you trust everybody who may write there"
        found.append(PathProblem("open_parent", reason, fix))


def _is_private_group(gid: int) -> bool:
    """Return True if the group is the caller's private one, without other members; False if that is not known."""
    import grp
    import pwd

    try:
        me = pwd.getpwuid(os.geteuid())
        members = set(grp.getgrgid(gid).gr_mem)
        if me.pw_gid != gid or members - {me.pw_name}:
            return False
        # The default group of all users (`users`, `staff`) lists none of them as members.
        return all(user.pw_gid != gid or user.pw_uid == me.pw_uid for user in pwd.getpwall())
    except (KeyError, OSError):
        return False


def network_warning(path: str, identity: tuple[int, int]) -> str | None:
    """Return a warning if ``path`` is on a network file system, where locks and syncs may not hold; else None.

    ``identity`` is (device, inode). Linux only.
    """
    device = identity[0]
    # File systems on a disk have a major device number; only the others are looked up.
    if sys.platform != "linux" or os.major(device) != 0:
        return None
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        number = f"{os.major(device)}:{os.minor(device)}"
        for line in mounts:
            fields = line.split()
            if fields[2] == number and (name := fields[fields.index("-") + 1]) in NETWORK:
                promises = "locks and durability are not promised there; prefer a local disk"
                return f"{path} is on a network file system ({name}): {promises}"
    return None
