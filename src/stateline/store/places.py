"""What makes a place unsafe to write to, and what a user should know about a file system.

A state dir decides what is executed and believed later, so whoever can change it can change both. Writers refuse
such places, readers report them.
"""

from __future__ import annotations

import os
import sys

import msgspec

from stateline.store.fs import Stat

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs"}
)


class Danger(msgspec.Struct, frozen=True):
    """One reason not to trust a place: a stable ``code``, the ``reason``, and the ``fix``."""

    code: str
    reason: str
    fix: str


def danger(found: Stat, path: str, kind: str) -> Danger | None:
    """Why ``path``, which should be a ``kind`` ("directory" or "file"), must not be written to, or None.

    Where the platform has no owners (Windows) only the kind is checked.
    """
    if found.kind == "symlink":
        return Danger("symlink", f"{path} is a symbolic link", "name the real directory")
    if found.kind != kind:
        return Danger("not_regular", f"{path} is not a {kind}", f"move it away, and let stateline make the {kind}")
    if sys.platform == "win32":
        return None
    if found.uid != os.geteuid():
        return Danger(
            "foreign_owner",
            f"{path} belongs to user {found.uid}, not to you ({os.geteuid()})",
            "use a state dir of your own (--state-dir), or run as its owner",
        )
    if found.mode & 0o077:
        return Danger(
            "open_mode",
            f"{path} has mode {found.mode:04o}: others may use it",
            f"chmod {'700' if kind == 'directory' else '600'} {path}",
        )
    return None


def network_warning(path: str, identity: tuple[int, int]) -> str | None:
    """A sentence if ``path`` lies on a network file system, where locks and syncs may not hold; else None.

    ``identity`` is (device, inode). Linux only; elsewhere nothing is known and nothing is said.
    """
    device = identity[0]
    # File systems on a disk have a device number of their own; only the others are looked up.
    if sys.platform != "linux" or os.major(device) != 0:
        return None
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            number = f"{os.major(device)}:{os.minor(device)}"
            for line in mounts:
                fields = line.split()
                if fields[2] == number and (name := fields[fields.index("-") + 1]) in NETWORK:
                    return (
                        f"{path} is on a network file system ({name}): locks and durability are not promised there; "
                        "prefer a local disk"
                    )
    except (OSError, ValueError, IndexError):
        return None
    return None
