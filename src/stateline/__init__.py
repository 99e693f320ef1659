"""Stateline: a content-addressed snapshot store for agent and pipeline runs, and the executor that lives on it.

The public names; each is loaded when it is first used, so that ``import stateline`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateline._version import __version__

if TYPE_CHECKING:
    from stateline.bundle.envelope import Ref
    from stateline.bundle.objects import Artifact
    from stateline.redaction.redactor import Redactor
    from stateline.store.scope import Scope
    from stateline.store.snapshot import Snapshot
    from stateline.store.store import Store

__all__ = ["Artifact", "Redactor", "Ref", "Scope", "Snapshot", "Store", "__version__"]

_PLACES = {
    "Artifact": "stateline.bundle.objects",
    "Redactor": "stateline.redaction.redactor",
    "Ref": "stateline.bundle.envelope",
    "Scope": "stateline.store.store",
    "Snapshot": "stateline.store.store",
    "Store": "stateline.store.store",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'stateline' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)
