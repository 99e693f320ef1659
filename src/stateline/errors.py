"""Every error Stateline raises on purpose, sorted by who must act on it.

A class carries the exit code of the command line (``exit_code``), a stable machine-readable name (``code``) and,
per instance, a ``hint``: what to do next. The message says what happened and what was left untouched.
The tree:

    StatelineError
    |-- UsageError               64  the command line, an id or an input is malformed
    |-- RequestError              1  what was asked for cannot be had
    |   |-- InvalidValueError             a value that format 1 cannot hold (NaN, duplicate keys, too deep, too large)
    |   |-- NotFoundError                 no such run, scope, revision or context
    |   |-- AmbiguousRevisionError        a revision names several snapshots
    |   |-- InvalidFileError              a file has mistakes; ``problems`` lists all of them
    |   |   |-- InvalidMachineError           a machine file
    |   |   `-- InvalidManifestError          a tools manifest
    |   |-- MachineChangedError           the machine file is not the one the run began with
    |   |-- InvalidAnswerError            an answer does not fit what the run waits for
    |   |-- PlaybackMissError             no recording answers what a model is asked
    |   `-- IllegalEventError             an event at the wrong time; nothing changed
    |-- NewerVersionError              1  written by a newer Stateline; left untouched
    |-- StorageError              1  the disk refused (full, read-only, I/O error); nothing was acknowledged
    |   `-- DurabilityUnknownError        the commit may or may not survive a power loss; reopen and look
    |-- ConflictError             4  the head moved; nothing was written over it
    |   `-- LockTimeoutError              somebody else holds the scope's lock
    |-- IntegrityError            5  missing, altered or truncated; nothing was changed
    `-- UnsafePathError               6  permissions or ownership that a writer must not trust
"""

from __future__ import annotations

from typing import Any, ClassVar


class StatelineError(Exception):
    """Base of all errors raised on purpose. ``str(error)`` is the message without the hint."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def document(self) -> dict[str, Any]:
        """The error as the object under ``error`` in ``--format json``."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(StatelineError):
    """The caller's words are malformed: grammar of the command line, an id, ``--input`` that is not JSON."""

    code = "usage"
    exit_code = 64


class RequestError(StatelineError):
    """The request is well formed and cannot be met as things are."""

    code = "refused"


class InvalidValueError(RequestError):
    """A value that format 1 cannot hold. ``where`` is a JSON Pointer to it ("" for the whole)."""

    code = "value_refused"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message if not where else f"{message} (at {where})", hint=hint)
        self.where = where


class NotFoundError(RequestError):
    """No such run, scope, revision, object or context."""

    code = "not_found"


class AmbiguousRevisionError(RequestError):
    """A sha prefix that several snapshots share; the message lists them."""

    code = "ambiguous"


class InvalidFileError(RequestError):
    """A file with mistakes. ``problems`` holds all of them, in file order."""

    code = "file_invalid"

    def __init__(self, message: str, problems: tuple[Any, ...] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = problems

    def document(self) -> dict[str, Any]:
        """With all the mistakes, as ``machine check`` gives them."""
        names = ("severity", "code", "where", "message", "hint")
        problems = [{name: getattr(problem, name) for name in names} for problem in self.problems]
        return {**super().document(), "problems": problems}


class InvalidMachineError(InvalidFileError):
    """A machine file with mistakes."""

    code = "machine_invalid"


class InvalidManifestError(InvalidFileError):
    """A tools manifest with mistakes. A manifest that cannot be read at all is a ``RequestError`` of another kind or a
    ``StorageError``; neither is ever taken for a manifest without tools."""

    code = "manifest_invalid"


class MachineChangedError(RequestError):
    """The machine file's bytes are not those the run began with; the message holds both hashes."""

    code = "machine_changed"


class InvalidAnswerError(RequestError):
    """An answer that the run cannot take; the run still waits and nothing was written."""

    code = "answer_refused"


class PlaybackMissError(RequestError):
    """No recording answers a request; nothing was played and nothing was sent. ``expected`` is the number of the
    exchange that was next, ``nearest`` of the one that the message compares the request with; None for none.
    ``warnings`` tell what is to be known of those played before; ``diverged``: some of them answered other requests than
    their own, so to go on helps nobody."""

    code = "playback_miss"

    def __init__(
        self, message: str, *, expected: int | None = None, nearest: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.expected = expected
        self.nearest = nearest
        self.warnings: list[str] = []
        self.diverged = False

    def telling(self, hint: str, warnings: list[str]) -> PlaybackMissError:
        """The same with another hint and other warnings."""
        other = PlaybackMissError(self.message, expected=self.expected, nearest=self.nearest, hint=hint)
        other.warnings, other.diverged = warnings, self.diverged
        return other

    def document(self) -> dict[str, Any]:
        """With both numbers and the warnings."""
        more = {"expected": self.expected, "nearest": self.nearest, "warnings": self.warnings}
        return {**super().document(), **more}


class IllegalEventError(RequestError):
    """An event that is not legal in this phase. ``advance`` raised it before anything changed."""

    code = "illegal_event"


class NewerVersionError(StatelineError):
    """Data of a newer major version of the format. It was not touched; upgrade to read it."""

    code = "newer_version"


class StorageError(StatelineError):
    """The file system refused an operation. What was acknowledged before is untouched."""

    code = "storage"


class DurabilityUnknownError(StorageError):
    """A directory could not be synced: the commit is visible now, a power loss may undo it. Or whether the head moved
    is not known, since that could not be looked at."""

    code = "durability_unknown"


class ConflictError(StatelineError):
    """The parent is no longer the head. The writer's value was not stored over the other's."""

    code = "conflict"
    exit_code = 4


class LockTimeoutError(ConflictError):
    """The scope's lock was not free within the time allowed."""

    code = "locked"


class IntegrityError(StatelineError):
    """Stored bytes are missing, altered or truncated. Nothing was changed, nothing was started afresh.

    ``finding`` is the code that ``verify`` uses for the same damage.
    """

    code = "integrity"
    exit_code = 5

    def __init__(self, message: str, *, finding: str = "altered", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.finding = finding


class UnsafePathError(StatelineError):
    """A directory or file that others may change, or that is not what it must be. A writer stops here."""

    code = "unsafe"
    exit_code = 6
