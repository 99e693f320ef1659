"""One child process: fed, drained, bounded, and ended together with everything it started.

Measured for ``/bin/echo`` (2 cores, Python 3.11): ``subprocess`` costs 3 ms to import and a child 1 ms from start to
reaping. ``os.posix_spawn`` would save the import but cannot change the directory, and ``Popen.communicate`` neither
bounds memory nor ends a group. So ``Popen`` starts the child, and the rest is done here.

Every wait has an end (``TICK``): a signal that arrives between Python's look at it and the system call would
otherwise be noticed only when the child ends.

If Stateline itself dies of SIGKILL, nobody ends the group. The child then finds its stdin at its end and gets SIGPIPE
(EPIPE) when it writes to stdout or stderr; if it writes nothing it runs to its end. Its result is lost either way: that
is what ``unknown_outcome`` is about, and why what is repeatable must bear a second run that overlaps the first.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from stateline.process.groups import has_members, signal_group
from stateline.process.pipes import PolledPipes, ThreadedPipes, Written
from stateline.process.signals import interruptible

if TYPE_CHECKING:
    from subprocess import Popen
    from threading import Event

TICK = 0.1
"""The longest single wait [s]."""

LINGER = 1.0
"""How long [s] what a child leaves behind may still write or work after the child itself has exited."""

GRACE = 2.0
"""From SIGTERM to SIGKILL, and from there to giving up [s]."""

How = Literal["exited", "timeout", "overflow", "stopped"]


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended: ``exited`` by itself, or ended here for its ``timeout``, for its ``overflow`` of stdout, or
    because it was to be ``stopped``.

    ``code`` is negative for a signal, and None when it could not be learnt: ``alive`` then says whether that is
    because not even SIGKILL helped. ``written`` holds stdout and the end of stderr.
    """

    how: How
    code: int | None
    alive: bool
    written: Written


class Leader:
    """The child itself, the first process of its group. ``pid`` is the group's number as well."""

    def __init__(self, process: Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.reaped = False
        self.group_gone = False
        self.code: int | None = None

    def has_exited(self) -> bool:
        """Whether it has ended. Leaves it unreaped where the system can (macOS cannot before Python 3.13): its number,
        which is also the group's, is then not given to a stranger while the group is still to be ended."""
        if sys.platform == "win32" or sys.platform == "darwin":
            return self.reap()
        else:
            try:
                return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            except ChildProcessError:
                return True

    def reap(self) -> bool:
        """Take its exit code if it has ended, and say whether it has. ``Popen`` is not asked for it because it reports
        success when the system threw the code away (an ignored SIGCHLD does that)."""
        if self.reaped:
            return True
        if sys.platform == "win32":
            self.code = self.process.poll()
            self.reaped = self.code is not None
            return self.reaped
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
    """Start ``program`` without a shell, in a session of its own, with no descriptor but its three pipes (above all
    not a lock's). It has no terminal: Ctrl-C reaches Stateline alone, which then ends the group.

    Raises ``OSError`` or ``ValueError`` if it cannot be started; nothing is left over then. To be called inside
    ``interrupts.shield``: an exception in the middle would lose the child.
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
        start_new_session=True,  # Windows has no such thing and ignores it
        creationflags=0x200 if sys.platform == "win32" else 0,  # CREATE_NEW_PROCESS_GROUP
    )


def watch(
    process: Popen[bytes], document: bytes, *, timeout: float, output_limit: int, stop: Event | None = None
) -> Exit:
    """Feed ``document`` to the child, drain what it writes, and return when it and its group have ended.

    ``timeout`` [s], 0 for none. The group is ended (SIGTERM, then SIGKILL after ``GRACE``) on timeout, on more than
    ``output_limit`` [bytes] of stdout, and when an exception passes through; the wait can be interrupted although a
    shield is up. Signals strike in the main thread only: in any other, a wait is ended by setting ``stop``, which is
    noticed within ``TICK``. A child that has exited by then is not stopped any more.

    When the child has exited but something it started holds stdout or stderr open or still works, that has ``LINGER``
    to finish and is then ended as well: a child whose outcome is known does nothing more. Only what made a session of
    its own (``setsid``) is left alone.
    """
    deadline = time.monotonic() + timeout if timeout else float("inf")
    leader = Leader(process)
    written = Written(output_limit)
    pipes: PolledPipes | ThreadedPipes | None = None
    try:
        pipes = _pipes(process, document, written)
        with interruptible():
            how = _run(leader, pipes, written, deadline, stop)
    finally:
        _end_group(leader)
        if pipes is not None:
            pipes.close()
    return Exit(how=how, code=leader.code, alive=not leader.reaped, written=written)


def _pipes(process: Popen[bytes], document: bytes, written: Written) -> PolledPipes | ThreadedPipes:
    return (ThreadedPipes if sys.platform == "win32" else PolledPipes)(process, document, written)


def _run(
    leader: Leader, pipes: PolledPipes | ThreadedPipes, written: Written, deadline: float, stop: Event | None
) -> How:
    """Turn the pipes until the child has exited and all it started has let go of them, or a bound is reached."""
    pause = 0.0001
    exited = False
    while True:
        if written.overflowed:
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
        # With its pipes at their end a child is all but gone: look again soon, then ever less often.
        if not pipes.open:
            pause = min(pause * 2, TICK)
        pipes.turn(min(TICK if pipes.open else pause, deadline - now))


def _end_group(leader: Leader) -> None:
    """Leave nothing of the group. Bounded: after twice ``GRACE`` what even SIGKILL cannot end is given up."""
    if sys.platform == "win32":
        if not leader.reap():
            leader.process.terminate()
            _await_group(leader, time.monotonic() + GRACE)
        return
    import signal

    ended = _group_is_gone(leader)
    try:
        if not ended:
            signal_group(leader.pid, signal.SIGTERM)
            ended = _await_group(leader, time.monotonic() + GRACE)
    finally:  # a KeyboardInterrupt during the grace ends the grace
        if not ended:
            signal_group(leader.pid, signal.SIGKILL)
            _await_group(leader, time.monotonic() + GRACE)


def _await_group(leader: Leader, deadline: float) -> bool:
    """Wait until the group is gone. False if something is left at ``deadline`` [monotonic s]."""
    pause = 0.0001
    while not _group_is_gone(leader):
        if time.monotonic() >= deadline:
            return False
        pause = min(pause * 2, TICK / 2)
        time.sleep(pause)
    return True


def _group_is_gone(leader: Leader) -> bool:
    """Reap the leader if it has ended, and say whether the group has no member left that could be signalled. Once it
    is gone nobody is asked again: the number may be a stranger's by then."""
    if leader.group_gone or not leader.reap():
        return leader.group_gone
    leader.group_gone = sys.platform == "win32" or not has_members(leader.pid)
    return leader.group_gone
