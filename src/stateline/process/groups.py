"""Process groups: signal all members, and find out if any are left."""

from __future__ import annotations

import os
import signal


def signal_group(group: int, signum: int) -> None:
    """Send a signal to every member that may be signalled."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or another user's (sudo)


def has_members(group: int) -> bool:
    """Return true if a member is left that could be signalled. The leader must have been reaped."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass  # orphans are Stateline's to reap when it is the first process of a container
    except ChildProcessError:
        pass
    try:
        os.killpg(group, 0)
        if not _has_only_zombies(group):
            return True
        os.killpg(group, signal.SIGKILL)  # children forked since the last check
    except (ProcessLookupError, PermissionError):  # macOS refuses for a group of zombies
        pass
    return False


def _has_only_zombies(group: int) -> bool:
    """Return true if all members are zombies. In many containers the first process reaps orphans late or never, and
    each program that left one behind would cost all of ``child.LINGER``. Known on Linux only; False elsewhere."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return False
    zombies = 0
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, _parent, its_group = stat.read().rpartition(b")")[2].split()[:3]
        except (OSError, ValueError):  # gone in the meantime, or not Linux
            continue
        if int(its_group) == group:
            if state not in (b"Z", b"X"):
                return False
            zombies += 1
    return zombies > 0
