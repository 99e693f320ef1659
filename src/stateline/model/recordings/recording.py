"""Read a recording: a directory with one exchange per file.

``0001.json``, ``0002.json`` ... ``9999.json``, ``10000.json``: played in the order of the numbers. Other files are
ignored.

An exchange is superseded if its outcome was unusable and others were recorded after it: a run that was given up after a
failure of the model, or a context that was not saved. The user tried again until it worked, and a playback skips it.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable

import msgspec

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


class IndexEntry(msgspec.Struct, frozen=True):
    """An exchange without its texts. ``failed``: the call failed, or the caller could not use the reply."""

    purpose: str
    digest: str
    model: str
    key: str
    failed: bool

    @property
    def run(self) -> tuple[str, str]:
        """The common parts of all keys of one run: its id, and the nonce of its beginning."""
        parts = self.key.split(":")
        return parts[0], parts[-1]


class RecordingIndex:
    """The exchanges of a recording in their order, each read once. ``on_edited`` receives the number of each exchange
    whose request was edited after the recording."""

    def __init__(self, source: Recording, on_edited: Callable[[int], None]) -> None:
        self.numbers = source.numbers
        self._source = source
        self._on_edited = on_edited
        self._entries: dict[int, IndexEntry] = {}
        self._superseded: dict[int, bool] = {}

    def entry(self, number: int) -> IndexEntry:
        """Return one entry. Raises as ``Recording.read``."""
        if number not in self._entries:
            exchange = self._source.read(number)
            self._entries[number] = IndexEntry(
                exchange.purpose,
                exchange.digest,
                exchange.request["model"],
                exchange.key,
                failed=exchange.error is not None or bool(exchange.refused),
            )
            if exchange.edited:
                self._on_edited(number)
        return self._entries[number]

    def is_superseded(self, number: int) -> bool:
        """Return whether the exchange was superseded. Raises as ``Recording.read``."""
        if number not in self._superseded:
            entry = self.entry(number)
            decide = self._is_turn_superseded if entry.purpose == "turn" else self._is_context_superseded
            self._superseded[number] = decide(number, entry)
        return self._superseded[number]

    def _is_turn_superseded(self, number: int, entry: IndexEntry) -> bool:
        if not entry.failed or not entry.key:  # without a key it was written by hand, on purpose
            return False
        turns = [later for later in self._after(number) if later.purpose == "turn"]
        return bool(turns) and all(later.run != entry.run for later in turns)

    def _is_context_superseded(self, number: int, entry: IndexEntry) -> bool:
        if entry.failed:
            return any(later.purpose == entry.purpose for later in self._after(number))
        following = next(iter(self._after(number)), None)
        # A call that is repeated at once: the process crashed before the context was saved.
        return bool(entry.key) and following is not None and _is_same_call(entry, following)

    def _after(self, number: int) -> Iterable[IndexEntry]:
        return (self.entry(later) for later in self.numbers[bisect_right(self.numbers, number) :])


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


def _is_same_call(one: IndexEntry, other: IndexEntry) -> bool:
    return (one.purpose, one.digest, one.key) == (other.purpose, other.digest, other.key)
