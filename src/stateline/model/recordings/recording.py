"""Read a recording: a directory with one exchange per file.

``0001.json``, ``0002.json`` ... ``9999.json``, ``10000.json``: played in the order of the numbers. Other files are
ignored.
"""

from __future__ import annotations

import os
import re

from stateline.errors import NotFoundError, RequestError, StorageError, UsageError
from stateline.model.recordings.exchange import INVALID_FILE_HINT, LIMIT, Exchange, file_name, parse_exchange
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, NotRegularFileError

HIGHEST = 999_999_999
"""Highest number of an exchange."""

_numbered = re.compile(r"([0-9]+)\.json")


class Recording:
    """The exchanges in a directory, each read when it is needed. ``numbers`` are in the order of playback."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises ``NotFoundError`` if there is no such directory, ``RequestError`` for a malformed number,
        ``StorageError`` if the directory cannot be read."""
        self.path = os.fspath(path)
        self._fs = Filesystem()
        try:
            self._directory = self._fs.open_root(os.path.realpath(checked_path(self.path)))
            self.numbers = exchange_numbers(self._fs, self._directory, self.path)
        except (FileNotFoundError, NotADirectoryError):
            problem = "is not a directory" if os.path.lexists(self.path) else "does not exist"
            raise not_found(f"{self.path} {problem}, so there is nothing to play back") from None
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def read(self, number: int) -> Exchange:
        """Return one exchange. Raises ``RequestError`` that names the file and its mistake, ``NewerVersionError``, or
        ``StorageError``. Follows no symlinks, and never blocks."""
        name = file_name(number)
        path = os.path.join(self.path, name)
        try:
            data, _ = self._fs.read(self._directory, name, LIMIT)
        except FileNotFoundError:
            raise RequestError(f"{path} does not exist any more", hint="restore it, or record again") from None
        except (NotRegularFileError, FileTooLargeError) as error:
            raise RequestError(f"{path}: {error.strerror}; it was not read", hint=INVALID_FILE_HINT) from None
        except OSError as error:
            raise _unreadable(path, error) from None
        return parse_exchange(number, data, path)


def exchange_numbers(fs: Filesystem, directory: Directory, path: str) -> list[int]:
    """Return the sorted numbers of the exchanges in ``directory``. Raises ``RequestError`` for a file whose number is
    not written as :func:`file_name` writes it."""
    found = []
    for name in fs.names(directory):
        match = _numbered.fullmatch(name)
        if match is None:
            continue
        number = int(match[1]) if len(match[1]) < 19 else 0
        if name != file_name(number) or not 1 <= number <= HIGHEST:
            raise RequestError(
                f"{os.path.join(path, name)[:300]} is not named like an exchange; nothing was read or written",
                hint="name it by its place in the order, 0001.json ... 10000.json, or by more than digits",
            )
        found.append(number)
    return sorted(found)


def checked_path(path: str) -> str:
    """Return ``path``. Raises ``UsageError`` if it cannot be the name of a directory."""
    if not path or "\0" in path:
        raise UsageError(f"{path!r:.80} is not the name of a directory", hint="name a directory")
    return path


def not_found(message: str) -> NotFoundError:
    """Return the error for a directory without a recording."""
    return NotFoundError(message, hint="name a directory that `--record` has written to")


def _unreadable(path: str, error: OSError) -> StorageError:
    return StorageError(f"cannot read {path}: {error.strerror}; nothing was changed", hint="make it readable")
