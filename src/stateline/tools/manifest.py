"""Read a tools manifest from disk: all of it, or a typed error; never a manifest without tools."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.bundle.limits import DEFAULT, Limits
from stateline.errors import RequestError
from stateline.machine.definition.formats.reader import read
from stateline.machine.problems import printable
from stateline.machine.spec import Toolset
from stateline.process.executables import MANIFEST, program_problem
from stateline.redaction.redactor import SecretMatch
from stateline.tools.check import FILE_NAME, check_manifest
from stateline.tools.source_file import read_source_file

FindSecret = Callable[[bytes | Json], SecretMatch | None]
"""Finds the first secret in a file's bytes or a value: ``Redactor.find``."""


class Manifest(msgspec.Struct, frozen=True):
    """A manifest that was read: real path, exact bytes, and tools."""

    path: str
    data: bytes
    toolset: Toolset

    @property
    def directory(self) -> str:
        """Directory in which its programs are looked up and run."""
        return os.path.dirname(self.path)


def read_manifest(path: str, find_secret: FindSecret, limits: Limits = DEFAULT) -> Manifest:
    """Read a manifest and check it, its programs included. Relative paths count from the current directory.

    Raises as ``read_source_file``; ``RequestError`` also for a secret in any spelling; ``InvalidManifestError`` with
    all its mistakes. Nothing was run or stored then.
    """
    real, data = _read(path, limits)
    document = read(data, FILE_NAME)
    # Escapes in the file can hide a secret of the value, and the message of a mistake may quote either: so this is
    # first.
    if secret := find_secret(data) or find_secret(document.value) or find_secret(real):
        raise RequestError(
            f"the tools manifest or its path holds a secret ({secret}); nothing was run or stored",
            hint="remove it, and pass it in an environment variable that the tool's `env` names",
        )
    directory = os.path.dirname(real)
    name = f"the tools manifest {printable(path)}"
    tools = check_manifest(data, lambda argv: program_problem(argv, directory, MANIFEST), name, document)
    return Manifest(real, data, tools)


def manifest_digest(path: str, limits: Limits = DEFAULT) -> str:
    """Return the SHA-256 of a manifest's exact bytes, as ``Toolset.sha256``, without checking them. Raises
    as ``read_source_file``."""
    return canonical.sha256(_read(path, limits)[1])


def _read(path: str, limits: Limits) -> tuple[str, bytes]:
    return read_source_file(path, "tools manifest", "JSON", limits)
