"""A local backend for reading a whole store: a directory stays open while its files are read."""

from __future__ import annotations

import os
from collections.abc import Iterator

from stateline.bundle import naming
from stateline.errors import StatelineError
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory
from stateline.store.local.os_errors import storage
from stateline.store.local.permissions import path_problem
from stateline.store.protocol import Backend, PathProblem

_REMEMBERED = 1000
"""Problems of how many files are remembered until ``inspect`` asks for them; others are looked at again."""


def scan_backend(backend: Backend) -> Backend:
    """Return a backend that reads the whole of a local store faster and writes nothing; another backend as it is."""
    return ScanBackend(backend) if type(backend) is LocalBackend else backend


class ScanBackend(LocalBackend):
    """The same state dir as ``backend``, with the same handles and warnings.

    The directory that was listed last stays open, and its files are read through that handle: they are the listed ones
    even if the directory is removed and another takes its name. List again to see that one. The ``fstat`` of a read
    also gives the problem of the file that ``inspect`` returns.
    """

    def __init__(self, backend: LocalBackend) -> None:
        self.__dict__.update(backend.__dict__)
        self._place = ""
        self._open: Directory | None = None
        self._problems: dict[str, PathProblem | None] = {}

    def list(self, prefix: str) -> Iterator[str]:
        self._close()
        naming.checked_directory(prefix)
        with storage(f"list {self.path}/{prefix}"):
            try:
                with self.directories.open(prefix) as directory:
                    self._open = self.fs.open_directory(directory, ".")
                    self._open.path, self._place = directory.path, prefix
            except FileNotFoundError:
                return
            yield from self.fs.names(self._open)

    def get(self, name: str, limit: int) -> bytes:
        place, file = naming.blob_parts(name)
        try:
            if place == self._place and self._open is not None:
                data, stat = self.fs.read(self._open, file, limit)
            else:
                with self.directories.open(place) as directory:
                    data, stat = self.fs.read(directory, file, limit)
        except (OSError, StatelineError):
            # The ordinary way raises the error that fits, and finds that a removed file is gone.
            return super().get(name, limit)
        path = os.path.join(self.path, name)
        problem = path_problem(stat, path, "file")
        if problem is not None:
            self.state_dir.check_access(stat, path, "file")
        if len(self._problems) == _REMEMBERED:
            self._problems.clear()
        self._problems[name] = problem
        return data

    def inspect(self, name: str) -> PathProblem | None:
        return self._problems.pop(name) if name in self._problems else super().inspect(name)

    def _close(self) -> None:
        if self._open is not None:
            self.fs.close_directory(self._open)
        self._open = None
        self._problems.clear()
