"""Every error class: the builtin it also is, its code and its exit code."""

from __future__ import annotations

import pickle

import pytest

from stateline import errors
from stateline.errors import InvalidFileError, LockTimeoutError, StatelineError, StorageError
from stateline.store.local.os_errors import storage

TABLE: list[tuple[str, type[Exception], str, int]] = [
    ("StatelineError", Exception, "error", 1),
    ("UsageError", ValueError, "usage", 64),
    ("RequestError", Exception, "refused", 1),
    ("InvalidValueError", ValueError, "value_refused", 1),
    ("NotFoundError", LookupError, "not_found", 1),
    ("AmbiguousRevisionError", LookupError, "ambiguous", 1),
    ("InvalidFileError", ValueError, "file_invalid", 1),
    ("InvalidMachineError", ValueError, "machine_invalid", 1),
    ("InvalidManifestError", ValueError, "manifest_invalid", 1),
    ("MachineChangedError", Exception, "machine_changed", 1),
    ("InvalidAnswerError", ValueError, "answer_refused", 1),
    ("NoOpenRequestError", LookupError, "no_open_request", 1),
    ("PlaybackMissError", LookupError, "playback_miss", 1),
    ("IllegalEventError", Exception, "illegal_event", 1),
    ("RunCancelledError", Exception, "cancelled", 1),
    ("NewerVersionError", Exception, "newer_version", 1),
    ("StorageError", Exception, "storage", 1),
    ("DurabilityUnknownError", Exception, "durability_unknown", 1),
    ("ConflictError", Exception, "conflict", 4),
    ("LockTimeoutError", TimeoutError, "locked", 4),
    ("IntegrityError", Exception, "integrity", 5),
    ("UnsafePathError", Exception, "unsafe", 6),
]


def classes() -> list[type[StatelineError]]:
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, StatelineError)]


def test_each_error_has_its_builtin_base_its_code_and_its_exit_code() -> None:
    def builtin(cls: type[StatelineError]) -> type:
        return next(base for base in cls.__mro__ if not issubclass(base, StatelineError))

    assert [(cls.__name__, builtin(cls), cls.code, cls.exit_code) for cls in classes()] == TABLE


def test_each_error_keeps_its_message_and_its_hint_whatever_its_builtin_base() -> None:
    failures = []
    for cls in classes():
        error = cls("what happened", hint="what to do")
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 (made here)
        for found in (error, copy):
            document = found.document()
            if (str(found), found.message, found.hint) != ("what happened", "what happened", "what to do"):
                failures.append(f"{cls.__name__}: {found!s}, {found.message}, {found.hint}")
            if {name: document[name] for name in ("code", "message", "hint")} != {
                "code": cls.code,
                "message": "what happened",
                "hint": "what to do",
            }:
                failures.append(f"{cls.__name__}: {document}")
    assert not failures, "\n".join(failures)


def test_only_a_lock_timeout_is_also_an_error_of_the_system() -> None:
    assert [cls for cls in classes() if issubclass(cls, OSError)] == [LockTimeoutError]


def test_a_lock_timeout_passes_the_store_where_a_timeout_of_the_system_becomes_a_storage_error() -> None:
    timeout = LockTimeoutError("another process holds the lock")
    with pytest.raises(LockTimeoutError) as caught, storage("lock it"):
        raise timeout
    assert caught.value is timeout
    with pytest.raises(StorageError), storage("lock it"):
        raise TimeoutError("the disk")


def test_a_file_error_lists_its_problems() -> None:
    assert InvalidFileError("mistakes").document()["problems"] == []
