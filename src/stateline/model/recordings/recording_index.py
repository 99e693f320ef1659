"""Index of a recording without the texts, and which of its exchanges were superseded.

An exchange is superseded if its outcome was unusable and others were recorded after it: a run that was given up after a
failure of the model, or a context that was not saved. The user tried again until it worked, and a playback skips it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

import msgspec

from stateline.model.recordings.recording import Recording


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
    """The exchanges of a recording in their order; each is read once, when it is needed. ``on_edited`` receives the number
    of each exchange whose request was edited after the recording."""

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


def _is_same_call(one: IndexEntry, other: IndexEntry) -> bool:
    return (one.purpose, one.digest, one.key) == (other.purpose, other.digest, other.key)
