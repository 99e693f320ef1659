"""The version, in one place: the build, ``--version`` and every snapshot's ``tool_version`` read it here."""

from __future__ import annotations

__version__ = "0.1.0"
