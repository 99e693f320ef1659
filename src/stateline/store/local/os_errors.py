"""Typed errors for what the operating system refuses, with the reason and the next step."""

from __future__ import annotations

import errno

from stateline.errors import StatelineError, StorageError, UnsafePathError
from stateline.store.local.atomic_write import SweptError
from stateline.store.protocol import PathProblem

_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space and call again"),
    errno.EDQUOT: ("your quota is used up", "free some space and call again"),
    errno.EROFS: ("the file system is read-only", "use a state dir on a writable disk (--state-dir)"),
    errno.EACCES: ("permission was denied", "check who owns the state dir, or use another (--state-dir)"),
    errno.EIO: ("the disk reported an I/O error", "check the disk; what was acknowledged before is untouched"),
}

_SWEPT = (
    "another writer removed what was being written; the lock does not hold here",
    "put the state dir on a local disk (--state-dir)",
)


class storage:
    """Context manager that turns an OSError while ``doing`` into a typed error; typed errors pass through.

    A class, since a generator costs three times as much and each save needs many.
    """

    __slots__ = ("doing",)

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # LockTimeoutError is an OSError as well, for callers that expect a TimeoutError.
        if isinstance(error, OSError) and not isinstance(error, StatelineError):
            raise storage_error(error, self.doing) from error


def storage_error(error: OSError, doing: str) -> StorageError:
    """Return the typed error for an OSError that was raised while ``doing``."""
    other = error.strerror or str(error), "check the state dir, then call again"
    reason, hint = _SWEPT if isinstance(error, SweptError) else _REASONS.get(error.errno or 0, other)
    return StorageError(f"cannot {doing}: {reason}; what was acknowledged before is untouched", hint=hint)


def unsafe(problem: PathProblem) -> UnsafePathError:
    """Return the error that a writer raises for an unsafe path."""
    return UnsafePathError(f"{problem.reason}; nothing was changed", hint=problem.fix)
