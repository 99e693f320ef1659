"""All errors that Stateline raises on purpose, sorted by who must act on them.

A class has an ``exit_code`` for the command line, a stable machine-readable ``code``, and the builtin exception that
fits as a second base. An instance has a ``message`` (what happened, and what was not changed) and a ``hint`` (what to
do next). The tree:

    StatelineError
    |-- UsageError               64  ValueError    malformed command line, id or input
    |-- RequestError              1                the request cannot be met
    |   |-- InvalidValueError         ValueError   a value that format 1 cannot hold (NaN, duplicate keys, too deep)
    |   |-- NotFoundError             LookupError  run, scope, revision or context not found
    |   |-- AmbiguousRevisionError    LookupError  a revision that names several snapshots
    |   |-- InvalidFileError          ValueError   a file with mistakes; ``problems`` lists all of them
    |   |   |-- InvalidMachineError                a machine file
    |   |   `-- InvalidManifestError               a tools manifest
    |   |-- MachineChangedError                    the machine file is not the one that the run began with
    |   |-- InvalidAnswerError        ValueError   an answer that does not fit what the run waits for
    |   |-- NoOpenRequestError        LookupError  an answer without a request's id, while nothing waits
    |   |-- PlaybackMissError         LookupError  no recording answers the request to a model
    |   |-- IllegalEventError                      an event at the wrong time; nothing changed
    |   `-- RunCancelledError                      the run was cancelled: it is over for good
    |-- NewerVersionError         1                written by a newer Stateline; left untouched
    |-- StorageError              1                the disk refused (full, read-only, I/O error)
    |   `-- DurabilityUnknownError                 the commit may not survive a power loss; reopen the store and check
    |-- ConflictError             4                the head moved; nothing was overwritten
    |   `-- LockTimeoutError          TimeoutError another process or thread holds the scope's lock
    |-- IntegrityError            5                missing, altered or truncated data; nothing was changed
    `-- UnsafePathError           6                permissions or ownership that a writer must not trust

``StorageError`` is not an ``OSError`` and ``UnsafePathError`` not a ``PermissionError``: the store, which handles the
system's OSErrors, would take them for a refusal of the disk.
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
        """Return the error as the object under ``error`` in ``--format json``."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(StatelineError, ValueError):
    """Malformed input: grammar of the command line, an id, ``--input`` that is not JSON or not the run's."""

    code = "usage"
    exit_code = 64


class RequestError(StatelineError):
    """A well-formed request that cannot be met."""

    code = "refused"


class InvalidValueError(RequestError, ValueError):
    """A value that format 1 cannot hold. ``where`` is a JSON Pointer to it ("" for the whole)."""

    code = "value_refused"

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message if not where else f"{message} (at {where})", hint=hint)
        self.where = where


class NotFoundError(RequestError, LookupError):
    """A run, scope, revision, object or context was not found."""

    code = "not_found"


class AmbiguousRevisionError(RequestError, LookupError):
    """A sha prefix that several snapshots share; the message lists them."""

    code = "ambiguous"


class InvalidFileError(RequestError, ValueError):
    """A file with mistakes. ``problems`` holds all of them, in file order."""

    code = "file_invalid"

    def __init__(self, message: str, problems: tuple[Any, ...] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = problems

    def document(self) -> dict[str, Any]:
        """Add all the mistakes, as ``machine check`` reports them."""
        names = ("severity", "code", "where", "message", "hint")
        problems = [{name: getattr(problem, name) for name in names} for problem in self.problems]
        return {**super().document(), "problems": problems}


class InvalidMachineError(InvalidFileError):
    """A machine file with mistakes."""

    code = "machine_invalid"


class InvalidManifestError(InvalidFileError):
    """A tools manifest with mistakes. A manifest that cannot be read at all is another ``RequestError`` or a
    ``StorageError``, never a manifest without tools."""

    code = "manifest_invalid"


class MachineChangedError(RequestError):
    """The machine file, or its tools manifest, gives another machine than the one that the run began with; the message
    shows the difference."""

    code = "machine_changed"


class InvalidAnswerError(RequestError, ValueError):
    """An answer that the run cannot take; the run still waits, and nothing was written."""

    code = "answer_refused"


class NoOpenRequestError(RequestError, LookupError):
    """An answer without the id of a request, while no request is open; nothing was written."""

    code = "no_open_request"


class PlaybackMissError(RequestError, LookupError):
    """No recording answers a request; nothing was played and nothing was sent.

    ``expected`` is the number of the exchange that was next, ``nearest`` that of the exchange which the message
    compares with the request; either may be None. ``warnings`` are about exchanges played before. ``diverged``: some of
    those answered other requests than their own, so continuing does not help.
    """

    code = "playback_miss"

    def __init__(
        self, message: str, *, expected: int | None = None, nearest: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.expected = expected
        self.nearest = nearest
        self.warnings: list[str] = []
        self.diverged = False

    def with_hint(self, hint: str, warnings: list[str]) -> PlaybackMissError:
        """Return a copy with another hint and other warnings."""
        other = PlaybackMissError(self.message, expected=self.expected, nearest=self.nearest, hint=hint)
        other.warnings, other.diverged = warnings, self.diverged
        return other

    def document(self) -> dict[str, Any]:
        """Add both numbers and the warnings."""
        more = {"expected": self.expected, "nearest": self.nearest, "warnings": self.warnings}
        return {**super().document(), **more}


class IllegalEventError(RequestError):
    """An event that is not legal in this phase. ``advance`` raises it before anything changes."""

    code = "illegal_event"


class RunCancelledError(RequestError):
    """The run was cancelled and cannot be continued; only a restart with ``--force`` begins it again."""

    code = "cancelled"


class NewerVersionError(StatelineError):
    """Data of a newer major version of the format. It was left untouched; upgrade Stateline to read it."""

    code = "newer_version"


class StorageError(StatelineError):
    """The file system refused an operation. Nothing was acknowledged; what was acknowledged before is untouched."""

    code = "storage"


class DurabilityUnknownError(StorageError):
    """A directory could not be synced, so a power loss may undo a commit that is visible now; or the head could not be
    read, so it is unknown whether it moved."""

    code = "durability_unknown"


class ConflictError(StatelineError):
    """The parent is no longer the head. The other writer's value was not overwritten."""

    code = "conflict"
    exit_code = 4


class LockTimeoutError(ConflictError, TimeoutError):
    """The scope's lock was not free within the time allowed. ``errno`` is None.

    ``holder`` names the process or thread that holds it, as far as the system tells; "" if it was held by none.
    """

    code = "locked"

    def __init__(self, message: str, *, hint: str = "", holder: str = "") -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


class IntegrityError(StatelineError):
    """Stored bytes are missing, altered or truncated. Nothing was changed or started over.

    ``finding`` is the code that ``verify`` uses for the same damage.
    """

    code = "integrity"
    exit_code = 5

    def __init__(self, message: str, *, finding: str = "altered", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.finding = finding


class UnsafePathError(StatelineError):
    """A directory or file that others may change, or of the wrong kind. A writer stops here."""

    code = "unsafe"
    exit_code = 6
