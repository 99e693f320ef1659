"""SIGINT, SIGTERM and SIGHUP during a turn: at once where that is safe, a moment later where it is not.

A turn is a chain of steps that must not be cut in two (a child is created and remembered, a result is saved) with
long waits between them. So the engine works inside :func:`shield`, where a signal is only remembered, and opens the
shield for its waits alone with :func:`interruptible`. Nothing that is finished can then be lost between its end and
its save::

    with Signals():
        with shield():
            outcome = run_task(call)  # opens the shield while it waits for the task
            save(outcome)             # a signal that comes now is raised after this line

SIGHUP belongs to the set because a task has a session of its own: the terminal that goes away takes Stateline with it
and would leave the task running.
"""

from __future__ import annotations

import _thread
from types import FrameType, TracebackType
from typing import Any, Self

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupted(BaseException):
    """A signal asked the process to stop. Not an ``Exception``, so that no ``except Exception`` swallows it. ``run`` is
    the run that was under way, if one was."""

    def __init__(self, signum: int, run: str | None = None) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum
        self.run = run

    @property
    def exit_code(self) -> int:
        """What a shell reports for a process that died of this signal: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.signum


class Signals:
    """Context manager: inside it the signals raise :class:`Interrupted` in the main thread, once.

    After the first :class:`Interrupted` further signals change nothing until the block is left, so that an impatient
    second Ctrl-C does not cut the clean-up short. On leaving, the handlers found on entry are back. A signal that was
    ignored on entry (``nohup``) stays ignored, and so does one whose handler is not Python's to restore. An ignored
    SIGCHLD is made normal for the time of the block: the kernel would throw the tasks' exit codes away.

    In any other thread than the main one, and inside another ``Signals``, it does nothing: the outer one serves.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._pending = 0
        self._raised = False
        self._thread = 0
        self.run: str | None = None
        """The run that is under way, for whoever is told of the signal."""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if _installed is None and _in_main_thread():
            try:
                self._install()
                self._depth = 0
                self._raise_pending()
            except BaseException:  # nobody calls __exit__ for a block that was never entered
                self._uninstall()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if _installed is self:
            self._uninstall()
            self._depth = 0
            self._raise_pending()

    def shield(self) -> _Shield:
        """The same as the module's :func:`shield`."""
        return shield()

    def _takes(self, handler: Any) -> bool:
        import signal

        return handler is not None and handler is not signal.SIG_IGN

    def _strike(self, signum: int) -> None:
        raise Interrupted(signum, self.run)

    def _install(self) -> None:
        """Put the handlers in place, with the shield up."""
        global _installed
        import signal

        self._thread = _thread.get_ident()
        self._depth = 1
        _installed = self
        for name in _NAMES:
            signum = getattr(signal, name, None)  # Windows has no SIGHUP
            if signum is not None and self._takes(signal.getsignal(signum)):
                self._previous[signum] = signal.signal(signum, self._on_signal)
        child = getattr(signal, "SIGCHLD", None)
        if child is not None and signal.getsignal(child) is signal.SIG_IGN:
            self._previous[child] = signal.signal(child, signal.SIG_DFL)

    def _uninstall(self) -> None:
        global _installed
        import signal

        self._depth = 1  # a signal between two of these lines is raised after the last
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        _installed = None

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._pending = self._pending or signum
        self._raise_pending()

    def _raise_pending(self) -> None:
        """Raise the signal that was remembered, unless one has been raised already or a shield is up."""
        if self._pending and not self._raised and not self._depth:
            self._raised = True
            self._strike(self._pending)

    def _open(self) -> None:
        """Let signals through, and raise what was remembered; also what has been raised before, because whoever waits
        again has swallowed it (an exception raised in ``__del__`` never arrives)."""
        if self._pending:
            self._raised = True
            self._strike(self._pending)
        self._depth = 0
        self._raise_pending()

    def _guards_this_thread(self) -> bool:
        """Whether signals can strike here: Python runs handlers in the main thread only."""
        return _thread.get_ident() == self._thread


class _Postponed(Signals):
    """What a shield uses when no ``Signals`` is in force, so that the KeyboardInterrupt of a plain Ctrl-C does not
    lose a child or a result either: handlers written in Python are called later, as often as signals come."""

    def _takes(self, handler: Any) -> bool:
        return callable(handler)

    def _strike(self, signum: int) -> None:
        self._pending = 0
        self._raised = False
        self._previous[signum](signum, None)


class _Shield:
    """Sets the depth for a block and puts the old one back. It restores rather than counts, so that an exception
    raised while another block is being entered cannot leave the count wrong."""

    def __init__(self, *, up: bool) -> None:
        self._up = up
        self._signals: Signals | None = None
        self._owned = False
        self._before = 0

    def __enter__(self) -> None:
        signals = _installed
        if signals is None:
            if self._up and _in_main_thread():
                self._own()
        elif signals._guards_this_thread():
            self._before = signals._depth
            self._signals = signals
            if self._up:
                signals._depth = self._before + 1
            else:
                signals._open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        signals = self._signals
        if signals is None:
            return
        if self._owned:
            signals._uninstall()
        signals._depth = self._before
        signals._raise_pending()

    def _own(self) -> None:
        self._signals = _Postponed()
        self._owned = True
        try:
            self._signals._install()
        except BaseException:  # a handler not yet replaced has raised
            self._signals._uninstall()
            raise


_installed: Signals | None = None


def shield() -> _Shield:
    """A block in which a signal is remembered; leaving the outermost one raises it, even over another exception.

    Without ``Signals`` in force that holds for signals with a Python handler (SIGINT, as a rule), which is called then.
    In another thread than the main one the block is an ordinary one: no signal strikes there.
    """
    return _Shield(up=True)


def interruptible() -> _Shield:
    """A block in which signals are raised at once, although a shield is up around it. For waits only.

    A signal remembered until now is raised on entry. One that comes after the block is remembered again.
    """
    return _Shield(up=False)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
