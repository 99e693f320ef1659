"""A seam that fails: its n-th call, before it does anything or after it did, once or from then on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec
from stress.scenarios import CHANGING

from stateline.store.local.filesystem import Directory, Filesystem

CLOSING = ("close_file", "close_lock")
"""These always close: after an error of ``close`` the descriptor is gone."""
INFALLIBLE = ("close_directory",)
"""Promised never to fail; only an interrupt may come there."""
OPENING = {"create": "close_file", "open_lock": "close_lock"}
"""Calls that return a descriptor, and their closing calls: a caller that gets an error has no descriptor."""
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "ENFILE", "EINTR", "EACCES", "ENOMEM")
INTERRUPTS: dict[str, type[BaseException]] = {"KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError}
"""Exceptions that Python itself raises between two steps."""

Mode = Literal["before", "after", "short", "short and full"]
Reach = Literal["once", "method", "changing"]


class Fault(msgspec.Struct, frozen=True):
    """The call number ``at`` (from 1) fails with ``error``, the name of an errno or of an exception.

    ``mode``: ``before`` it does anything; ``after`` it did; ``short``, a write that takes half of what it is given and
    says so (no error); ``short and full``, the same, and the next write fails. ``reach``: ``once``, or from then on all
    calls of the same ``method``, or all that are ``changing`` something.
    """

    at: int
    error: str
    mode: Mode = "before"
    reach: Reach = "once"

    def raised(self) -> BaseException:
        """Return the exception to raise."""
        kind = INTERRUPTS.get(self.error)
        if kind is not None:
            return kind("injected")
        number = getattr(errno, self.error)
        return OSError(number, os.strerror(number))


class Script:
    """The calls of one scenario, whatever seams it opens: counted, written down and made to fail.

    ``calls`` are the names of all so far, ``struck`` of those that failed. Nothing fails when there is no ``fault``, or
    after :meth:`end`.
    """

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.calls: list[str] = []
        self.struck: list[str] = []
        self.changed = 0
        self._armed = True
        self._full = False

    def end(self) -> None:
        """From now on nothing fails, and nothing is counted."""
        self._armed = False

    def strikes(self, method: str) -> Mode | None:
        """Count a call; how it fails, or None if it does not."""
        if not self._armed:
            return None
        self.calls.append(method)
        self.changed += method in CHANGING
        fault, here = self.fault, len(self.calls)
        if fault is None or here < fault.at:
            return None
        first = self.calls[fault.at - 1]
        if fault.mode == "short and full":
            return self._short(method, here == fault.at, once=fault.reach == "once")
        if here > fault.at and not self._reached(fault, first, method):
            return None
        if method in INFALLIBLE and fault.error not in INTERRUPTS:
            return None
        self.struck.append(method)
        return "after" if method in (*CLOSING, *INFALLIBLE) else fault.mode

    @staticmethod
    def _reached(fault: Fault, first: str, method: str) -> bool:
        if fault.reach == "method":
            return method == first
        return fault.reach == "changing" and method in (*CHANGING, "close_file")

    def _short(self, method: str, first: bool, *, once: bool) -> Mode | None:
        if first:
            self._full = True
            return "short"
        if method != "write" or not self._full:
            return None
        self._full = not once
        self.struck.append(method)
        return "before"


class Failing(Filesystem):
    """The seam of one store, failing as the script says. ``sick`` tells of syncs of what was there that failed: after
    such a one nothing more may be written through this store. ``doomed`` are new files whose sync failed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.sick: list[str] = []
        self.doomed: set[int] = set()
        self.again: list[str] = []
        self._there: set[int] = set()

    def perform(self, method: str, do: Callable[..., Any], *args: Any) -> Any:
        """One call of the seam."""
        how = self.script.strikes(method)
        if method == "sync_file" and args[0] in self.doomed:
            self.again.append("a file was synced again although a sync of it had failed")
        if how is None:
            return self._noted(method, do(*args), *args)
        fault = self.script.fault
        assert fault is not None
        if how == "short":
            fd, data = args
            return do(fd, memoryview(data)[: max(1, len(data) // 2)])
        if method in ("sync_file", "sync_directory") and fault.error not in INTERRUPTS:
            self._failed_sync(method, args[0])
        if how == "after":
            found = do(*args)
            if method in OPENING:
                with suppress(OSError):
                    os.close(found)
        raise fault.raised()

    def _noted(self, method: str, found: Any, *args: Any) -> Any:
        if method == "create":
            self._there.discard(found)
            self.doomed.discard(found)
        elif method == "open_to_sync":
            self._there.add(found)
        elif method == "close_file":
            self._there.discard(args[0])
            self.doomed.discard(args[0])
        return found

    def _failed_sync(self, method: str, what: Any) -> None:
        if method == "sync_directory":
            self.sick.append(what.path)
        elif what in self._there:
            self.sick.append("a file that was there")
        else:
            self.doomed.add(what)

    def names(self, directory: Directory) -> Iterator[str]:
        """Before: the listing fails at its first name; after: in its middle."""
        how = self.script.strikes("names")
        fault = self.script.fault
        if how is None or fault is None:
            yield from super().names(directory)
            return
        found = list(super().names(directory))
        if how == "after":
            yield from found[: len(found) // 2]
        raise fault.raised()


def _failing(method: str) -> Callable[..., Any]:
    whole = getattr(Filesystem, method)

    def call(self: Failing, *args: Any) -> Any:
        return self.perform(method, lambda *given: whole(self, *given), *args)

    return call


for _method, _value in list(vars(Filesystem).items()):
    if callable(_value) and not _method.startswith("_") and _method != "names":
        setattr(Failing, _method, _failing(_method))


def faults(calls: list[str], errors: tuple[str, ...] = ERRORS) -> Iterator[Fault]:
    """Every way in which a scenario with these calls can meet one of ``errors``."""
    for at, method in enumerate(calls, start=1):
        for error in errors:
            if method in INFALLIBLE and error not in INTERRUPTS:
                continue
            yield Fault(at, error)
            if method in CHANGING or method == "names":
                yield Fault(at, error, "after")
            if error in INTERRUPTS:
                continue
            yield Fault(at, error, "before", "method")
            if method in CHANGING:
                yield Fault(at, error, "before", "changing")
        if method == "write" and "ENOSPC" in errors:
            yield Fault(at, "ENOSPC", "short")
            yield Fault(at, "ENOSPC", "short", "method")
            yield Fault(at, "ENOSPC", "short and full")
            yield Fault(at, "ENOSPC", "short and full", "method")
