"""Stateline: a content-addressed snapshot store for agent and pipeline runs, and the executor that runs on it.

These are the public names. Each is loaded when it is first used, so that ``import stateline`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateline._version import __version__

if TYPE_CHECKING:
    from stateline.bundle.envelope import Link, Pointer, Ref
    from stateline.bundle.limits import Limits
    from stateline.bundle.objects import Artifact
    from stateline.errors import (
        AmbiguousRevisionError,
        ConflictError,
        DurabilityUnknownError,
        IllegalEventError,
        IntegrityError,
        InvalidAnswerError,
        InvalidFileError,
        InvalidMachineError,
        InvalidManifestError,
        InvalidValueError,
        LockTimeoutError,
        MachineChangedError,
        NewerVersionError,
        NoOpenRequestError,
        NotFoundError,
        PlaybackMissError,
        RequestError,
        RunCancelledError,
        StatelineError,
        StorageError,
        UnsafePathError,
        UsageError,
    )
    from stateline.redaction.redactor import Redactor
    from stateline.store.scope import LATEST, Scope
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store

__all__ = [
    "LATEST",
    "AmbiguousRevisionError",
    "Artifact",
    "ConflictError",
    "DurabilityUnknownError",
    "IllegalEventError",
    "IntegrityError",
    "InvalidAnswerError",
    "InvalidFileError",
    "InvalidMachineError",
    "InvalidManifestError",
    "InvalidValueError",
    "Limits",
    "Link",
    "LockTimeoutError",
    "MachineChangedError",
    "NewerVersionError",
    "NoOpenRequestError",
    "NotFoundError",
    "PlaybackMissError",
    "Pointer",
    "Redactor",
    "Ref",
    "RequestError",
    "RunCancelledError",
    "Scope",
    "Snapshot",
    "StatelineError",
    "StorageError",
    "Store",
    "UnsafePathError",
    "UsageError",
    "__version__",
]

_MODULES = {
    "Artifact": "stateline.bundle.objects",
    "LATEST": "stateline.store.scope",
    "Limits": "stateline.bundle.limits",
    "Link": "stateline.bundle.envelope",
    "Pointer": "stateline.bundle.envelope",
    "Redactor": "stateline.redaction.redactor",
    "Ref": "stateline.bundle.envelope",
    "Scope": "stateline.store.scope",
    "Snapshot": "stateline.store.snapshot",
    "Store": "stateline.store.store",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'stateline' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES.get(name, "stateline.errors")), name)
