"""SIGINT, SIGTERM and SIGHUP during a turn: raised at once where that is safe, else a moment later.

A turn is a chain of steps that must not be cut in two (a child is created and registered, a result is saved) with
long waits between them. So the engine works inside :func:`shield`, where signals are only recorded, and allows them
during waits with :func:`interruptible`. Finished work is then never lost between its end and its save::

    with Signals():
        with shield():
            outcome = run_task(call)  # opens the shield while it waits for the task
            save(outcome)             # a signal that comes now is raised after this line

SIGHUP is included because a task runs in another session, where it would outlive a terminal that closes.
"""

from __future__ import annotations

import _thread
from types import FrameType, TracebackType
from typing import Any, Self

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupted(BaseException):
    """A signal asked the process to stop. Not an ``Exception``, so that no ``except Exception`` catches it. ``run`` is
    the id of the run in progress, if any."""

    def __init__(self, signum: int, run: str | None = None) -> None:
        super().__init__(f"interrupted by signal {signum}")
        self.signum = signum
        self.run = run

    @property
    def exit_code(self) -> int:
        """Exit code that a shell reports for a process killed by this signal: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.signum


class Signals:
    """Context manager: inside it the signals raise :class:`Interrupted` in the main thread, once.

    After the first :class:`Interrupted` further signals are ignored until the block ends, so that a second Ctrl-C does
    not cut the clean-up short. On exit the previous handlers are restored. A signal that was ignored on entry
    (``nohup``) stays ignored, and so does one whose handler Python cannot restore. An ignored SIGCHLD gets its default
    action for the block: the kernel would discard the tasks' exit codes.

    In other threads than the main one, and inside another ``Signals``, it does nothing.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._pending = 0
        self._raised = False
        self._thread = 0
        self.run: str | None = None
        """Id of the run in progress, for :class:`Interrupted`."""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if _installed is None and _in_main_thread():
            try:
                self._install()
                self._depth = 0
                self._raise_pending()
            except BaseException:  # __exit__ is not called for a block that was not entered
                self._uninstall()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if _installed is self:
            self._uninstall()
            self._depth = 0
            self._raise_pending()

    def _replaces(self, handler: Any) -> bool:
        import signal

        return handler is not None and handler is not signal.SIG_IGN

    def _deliver(self, signum: int) -> None:
        raise Interrupted(signum, self.run)

    def _install(self) -> None:
        global _installed
        import signal

        self._thread = _thread.get_ident()
        self._depth = 1
        _installed = self
        for name in _NAMES:
            signum = getattr(signal, name)
            if self._replaces(signal.getsignal(signum)):
                self._previous[signum] = signal.signal(signum, self._on_signal)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

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
        if self._pending and not self._raised and not self._depth:
            self._raised = True
            self._deliver(self._pending)

    def _unshield(self) -> None:
        """Allow signals, and raise the recorded one, even if it was raised before: a caller that waits again did not
        get it (an exception raised in ``__del__`` never arrives)."""
        if self._pending:
            self._raised = True
            self._deliver(self._pending)
        self._depth = 0
        self._raise_pending()


class _Deferred(Signals):
    """Handlers of a shield without a ``Signals`` around it, so that the KeyboardInterrupt of a plain Ctrl-C does not
    lose a child or a result either: handlers written in Python are called later, once per signal."""

    def _replaces(self, handler: Any) -> bool:
        return callable(handler)

    def _deliver(self, signum: int) -> None:
        self._pending = 0
        self._raised = False
        self._previous[signum](signum, None)


class _Shield:
    """Sets the depth of shields for a block and restores the old one. It does not count, so that an exception raised
    while another block is being entered cannot leave the count wrong."""

    def __init__(self, *, active: bool) -> None:
        self._active = active
        self._signals: Signals | None = None
        self._owned = False
        self._before = 0

    def __enter__(self) -> None:
        signals = _installed
        if signals is None:
            if self._active and _in_main_thread():
                self._signals = deferred = _Deferred()
                self._owned = True
                try:
                    deferred._install()
                except BaseException:  # a handler not yet replaced has raised
                    deferred._uninstall()
                    raise
        elif _thread.get_ident() == signals._thread:
            self._before = signals._depth
            self._signals = signals
            if self._active:
                signals._depth = self._before + 1
            else:
                signals._unshield()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        signals = self._signals
        if signals is None:
            return
        if self._owned:
            signals._uninstall()
        signals._depth = self._before
        signals._raise_pending()


_installed: Signals | None = None


def shield() -> _Shield:
    """Return a block in which signals are recorded; leaving the outermost one raises the first, even over an exception.

    Without an active ``Signals`` that holds for signals with a Python handler (usually SIGINT), which is then called.
    In other threads than the main one the block does nothing: signals are not delivered there.
    """
    return _Shield(active=True)


def interruptible() -> _Shield:
    """Return a block, inside a shield, in which signals are raised at once. For waits only.

    A signal recorded before is raised on entry. One that comes after the block is recorded again.
    """
    return _Shield(active=False)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
