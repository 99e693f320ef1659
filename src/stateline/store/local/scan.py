"""A local store as somebody reads it who reads all of it: a directory stays open while its files are read, and what a
writer would refuse is told by the same look at an open file that gave its size."""

from __future__ import annotations

import os
from collections.abc import Iterator

from stateline.bundle import naming
from stateline.errors import StatelineError
from stateline.store.local.backend import LocalBackend
from stateline.store.local.filesystem import Directory
from stateline.store.local.os_errors import storage
from stateline.store.local.permissions import Danger, danger
from stateline.store.store import Store

_KEPT = 1000
"""How many files' looks are kept until somebody asks; for others the file is looked at again."""


def reading_all(store: Store) -> Store:
    """The same store, quicker for whoever reads all of it and writes nothing; ``store`` itself if it is not local."""
    backend = store.backend
    return Store(Reading(backend), redactor=store.redactor) if type(backend) is LocalBackend else store


class Reading(LocalBackend):
    """The same state dir as ``backend``, with the same handles and warnings.

    The directory that was listed last stays open, and its files are read through that handle: they are those that were
    listed, even if the directory is removed meanwhile and another takes its name. To see that one, list again.
    """

    def __init__(self, backend: LocalBackend) -> None:
        self.__dict__.update(backend.__dict__)
        self._place = ""
        self._open: Directory | None = None
        self._seen: dict[str, Danger | None] = {}

    def list(self, prefix: str) -> Iterator[str]:
        self._let_go()
        naming.checked_place(prefix)
        with storage(f"list {self.path}/{prefix}"):
            try:
                with self._directory(prefix) as directory:
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
                with self._directory(place) as directory:
                    data, stat = self.fs.read(directory, file, limit)
        except (OSError, StatelineError):
            # There it becomes the error that it is; what was removed is not there either.
            return super().get(name, limit)
        found = danger(stat, file, "file")
        if found is not None:
            path = os.path.join(self.path, name)
            found = danger(stat, path, "file")
            self.state_dir.apply_losses(stat, path, "file")
        if len(self._seen) == _KEPT:
            self._seen.clear()
        self._seen[name] = found
        return data

    def look(self, name: str) -> Danger | None:
        return self._seen.pop(name) if name in self._seen else super().look(name)

    def _let_go(self) -> None:
        if self._open is not None:
            self.fs.close_directory(self._open)
        self._open = None
        self._seen.clear()
