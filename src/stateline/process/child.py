"""One child process: started, fed, drained, bounded, and ended together with its descendants.

Measured for ``/bin/echo`` (2 cores, Python 3.11): ``subprocess`` costs 3 ms to import and a child 1 ms from start to
reaping. ``os.posix_spawn`` would save the import but cannot change the directory, and ``Popen.communicate`` neither
bounds memory nor ends a group. So ``Popen`` starts the child, and the rest is done here.

No wait is longer than ``TICK``: a signal that arrives between Python's check for signals and the system call would
otherwise be noticed only when the child ends.

If Stateline itself dies of SIGKILL, nothing ends the group. The child then reads the end of its stdin and gets SIGPIPE
(EPIPE) when it writes to stdout or stderr; a child that writes nothing runs to its end. Its result is lost either way.
That is the reason for ``unknown_outcome``, and why repeatable work must bear a second run that overlaps the first.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from stateline.process.pipes import CapturedOutput, Pipes
from stateline.process.signals import interruptible

if TYPE_CHECKING:
    from subprocess import Popen
    from threading import Event

TICK = 0.1
"""Longest single wait [s]."""

LINGER = 1.0
"""Time [s] that descendants may still write or work after the child itself has exited."""

GRACE = 2.0
"""Time [s] from SIGTERM to SIGKILL, and from SIGKILL to giving up."""

ExitReason = Literal["exited", "timeout", "overflow", "stopped"]


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """End of a child. ``reason``: it ``exited``, or was ended for its ``timeout``, for an ``overflow`` of stdout, or
    because the caller ``stopped`` it.

    ``code`` is negative for a signal, and None when it is unknown; ``alive`` then tells that even SIGKILL did not help.
    """

    reason: ExitReason
    code: int | None
    alive: bool
    output: CapturedOutput


class Leader:
    """The child itself: first process of its group. ``pid`` is also the number of the group."""

    def __init__(self, process: Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.reaped = False
        self.group_gone = False
        self.code: int | None = None

    def has_exited(self) -> bool:
        """Return true if it has ended. It stays unreaped where the system allows that (not on macOS before Python
        3.13): its number, which is also the group's, cannot be reused then while the group is still to be ended."""
        if sys.platform == "darwin":
            return self.reap()
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def reap(self) -> bool:
        """Take its exit code if it has ended; return true if it has. ``Popen.poll`` would report success where the
        system discarded the code (an ignored SIGCHLD)."""
        if self.reaped:
            return True
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            self.reaped = True
        else:
            if pid:
                self.reaped = True
                self.code = os.waitstatus_to_exitcode(status)
        if self.reaped:
            self.process.returncode = self.code or 0  # or its destructor would wait for it again
        return self.reaped


def start(program: str, argv: list[str], directory: str, environment: dict[str, str]) -> Popen[bytes]:
    """Start ``program`` without a shell, in a session of its own, and with no open descriptors but its three pipes
    (above all not a lock's). It has no terminal: Ctrl-C reaches Stateline alone, which then ends the group.

    Raises ``OSError`` or ``ValueError`` if it cannot be started; nothing is left over then. Call it inside
    ``signals.shield``: an exception in the middle would lose the child.
    """
    import subprocess

    return subprocess.Popen(
        argv,
        executable=program,
        cwd=directory,
        env=environment,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def watch(
    process: Popen[bytes], document: bytes, *, timeout: float, output_limit: int, stop: Event | None = None
) -> Exit:
    """Feed ``document`` to the child, drain its output, and return when it and its group have ended.

    ``timeout`` [s], 0 for none. The group is ended (SIGTERM, then SIGKILL after ``GRACE``) on timeout, on more than
    ``output_limit`` [bytes] of stdout, and when an exception passes through; the wait can be interrupted inside a
    shield. Signals reach only the main thread: in other threads, setting ``stop`` ends the wait within ``TICK``, unless
    the child has exited by then.

    If the child has exited but its descendants still work or hold stdout or stderr open, they have ``LINGER`` to finish
    and are then ended too. Only processes in a new session (``setsid``) are left alone.
    """
    deadline = time.monotonic() + timeout if timeout else float("inf")
    leader = Leader(process)
    output = CapturedOutput(output_limit)
    pipes: Pipes | None = None
    try:
        pipes = Pipes(process, document, output)
        with interruptible():
            reason = _run(leader, pipes, output, deadline, stop)
    finally:
        _end_group(leader)
        if pipes is not None:
            pipes.close()
    return Exit(reason=reason, code=leader.code, alive=not leader.reaped, output=output)


def _run(leader: Leader, pipes: Pipes, output: CapturedOutput, deadline: float, stop: Event | None) -> ExitReason:
    """Serve the pipes until the child has exited and all writers have closed them, or a bound is reached."""
    pause = 0.0001
    exited = False
    while True:
        if output.overflowed:
            return "overflow"
        now = time.monotonic()
        if not exited and leader.has_exited():
            exited = True
            deadline = now + LINGER
        if exited and not pipes.open:
            _await_group(leader, deadline)
            return "exited"
        if now >= deadline:
            return "exited" if exited else "timeout"
        if not exited and stop is not None and stop.is_set():
            return "stopped"
        # A child that has closed its pipes is about to exit: check again soon, then less and less often.
        if not pipes.open:
            pause = min(pause * 2, TICK)
        pipes.transfer(min(TICK if pipes.open else pause, deadline - now))


def _end_group(leader: Leader) -> None:
    """End all processes of the group. Those that survive SIGKILL are given up after twice ``GRACE``."""
    ended = _group_is_gone(leader)
    try:
        if not ended:
            _signal_group(leader.pid, signal.SIGTERM)
            ended = _await_group(leader, time.monotonic() + GRACE)
    finally:  # a KeyboardInterrupt during the grace ends the grace
        if not ended:
            _signal_group(leader.pid, signal.SIGKILL)
            _await_group(leader, time.monotonic() + GRACE)


def _await_group(leader: Leader, deadline: float) -> bool:
    """Return true when the group is gone, false if something is left at ``deadline`` [monotonic s]."""
    pause = 0.0001
    while not _group_is_gone(leader):
        if time.monotonic() >= deadline:
            return False
        pause = min(pause * 2, TICK / 2)
        time.sleep(pause)
    return True


def _group_is_gone(leader: Leader) -> bool:
    """Reap the leader if it has ended; return true if no member is left that could be signalled. The answer is kept:
    afterwards the number may belong to another group."""
    if not leader.group_gone and leader.reap():
        leader.group_gone = not _has_members(leader.pid)
    return leader.group_gone


def _signal_group(group: int, signum: int) -> None:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or another user's (sudo)


def _has_members(group: int) -> bool:
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
    each program that left one behind would cost all of ``LINGER``. Known on Linux only; False elsewhere."""
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
