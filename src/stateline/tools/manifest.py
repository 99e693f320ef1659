"""Read a tools manifest from disk: all of it, or a typed error; never a manifest without tools."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import NotFoundError, RequestError, StorageError
from stateline.machine.problems import printable
from stateline.machine.spec import Toolset
from stateline.process.executables import MANIFEST, program_problem
from stateline.redaction.redactor import SecretMatch
from stateline.tools.check import parse_manifest, toolset

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


def read_manifest(path: str, find_secret: FindSecret) -> Manifest:
    """Read a manifest and check it, its programs included. Relative paths count from the current directory.

    Raises ``NotFoundError``; ``StorageError`` if it cannot be read; ``RequestError`` if it is not a regular file (a
    FIFO is not waited for), is larger than 16 MiB, or holds a secret in any spelling; ``InvalidManifestError`` with all
    its mistakes. Nothing was run or stored then.
    """
    real = _real(path)
    data = _read(path, real)
    document = parse_manifest(data)
    # Escapes in the file can hide a secret of the value, and the message of a mistake may quote either: so this is
    # first.
    if secret := find_secret(data) or find_secret(document.value) or find_secret(real):
        raise RequestError(
            f"the tools manifest or its path holds a secret ({secret}); nothing was run or stored",
            hint="remove it, and pass it in an environment variable that the tool's `env` names",
        )
    directory = os.path.dirname(real)
    name = f"the tools manifest {printable(path)}"
    tools = toolset(document, data, lambda argv: program_problem(argv, directory, MANIFEST), name)
    return Manifest(real, data, tools)


def manifest_digest(path: str) -> str:
    """Return the SHA-256 of a manifest's exact bytes, as ``Toolset.sha256``, without checking them. Raises
    ``NotFoundError``, ``StorageError`` or ``RequestError`` if it cannot be read."""
    return canonical.sha256(_read(path, _real(path)))


def _real(path: str) -> str:
    try:
        real = os.path.realpath(path)
        real.encode()
    except UnicodeEncodeError:
        message = f"the path {path!r} is not UTF-8, so no run could record it; nothing was stored"
        raise RequestError(message, hint="rename it") from None
    except (OSError, ValueError):  # NUL
        raise NotFoundError(f"there is no tools manifest {path!r}", hint="check the path") from None
    return real


def _read(path: str, real: str) -> bytes:
    """Return the exact bytes of a regular file."""
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise RequestError(f"{path!r} is not a regular file", hint="name a tools manifest (JSON)")
        with os.fdopen(fd, "rb") as file:
            data = file.read(canonical.TEXT_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise NotFoundError(f"there is no tools manifest {path!r}", hint="check the path") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"cannot read the tools manifest {path!r}: {reason}", hint="check the path") from None
    if len(data) > canonical.TEXT_LIMIT:
        raise RequestError(f"{path!r} is larger than {canonical.TEXT_LIMIT} bytes", hint="is it a tools manifest?")
    return data
