"""Process groups, asked of the system: whether one has members left, and how it is told to end."""

from __future__ import annotations

import os
import sys


def signal_group(group: int, signum: int) -> None:
    """Send a signal to every member that may be signalled."""
    if sys.platform != "win32":
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):
            pass  # gone, or another user's (sudo): nothing that could be done here


def has_members(group: int) -> bool:
    """Whether the group has a member left that could be signalled. Its leader must have been reaped."""
    if sys.platform != "win32":
        import signal

        try:
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass  # orphans are ours to reap when Stateline is the first process of a container
        except ChildProcessError:
            pass
        try:
            os.killpg(group, 0)
            if not _is_dead(group):
                return True
            os.killpg(group, signal.SIGKILL)  # whoever was born while we looked
        except (ProcessLookupError, PermissionError):  # macOS refuses for a group of zombies
            pass
    return False


def _is_dead(group: int) -> bool:
    """Whether the group holds nothing but zombies. In many containers the first process reaps orphans late or never,
    and each program that left one behind would cost the whole of the time that left-overs have. Only Linux tells; False
    elsewhere."""
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
