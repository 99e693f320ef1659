"""What is known of the exchanges of a recording without their texts, and which of them led nowhere.

An exchange led nowhere if nothing came of it and others were recorded after it: a run that was given up when its model
had failed, or a context that was not saved. Whoever recorded it began anew until it worked, and wants that played.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from stateline.errors import RequestError
from stateline.model.recordings.exchange import Exchange


class Source(Protocol):
    """Where exchanges come from: the sorted ``numbers``, and a ``path`` for messages."""

    path: str
    numbers: list[int]

    def read(self, number: int) -> Exchange:
        """One exchange. Raises as ``Recordings.read``."""
        ...


class Listed:
    """Exchanges that the caller has read already."""

    path = "the recording"

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        """Raises ``RequestError`` where two have the same number."""
        self._by_number: dict[int, Exchange] = {}
        for exchange in exchanges:
            if exchange.number in self._by_number:
                raise RequestError(f"two exchanges have the number {exchange.number}", hint="number them anew")
            self._by_number[exchange.number] = exchange
        self.numbers = sorted(self._by_number)

    def read(self, number: int) -> Exchange:
        """One exchange."""
        return self._by_number[number]


class Head(msgspec.Struct, frozen=True):
    """What is kept of an exchange. ``failed``: nobody could use what came."""

    purpose: str
    digest: str
    model: str
    key: str
    failed: bool

    @property
    def run(self) -> tuple[str, str]:
        """What the keys of one run have in common: its id, and the draw of its beginning."""
        parts = self.key.split(":")
        return parts[0], parts[-1]


class Lineup:
    """The exchanges of a source in their order; each is read when it is first asked for, and only once. ``edited``
    hears the number of one whose request was changed since it was recorded."""

    def __init__(self, source: Source, edited: Callable[[int], None]) -> None:
        self.numbers = source.numbers
        self._source = source
        self._edited = edited
        self._heads: dict[int, Head] = {}
        self._nowhere: dict[int, bool] = {}

    def head(self, number: int) -> Head:
        """Raises as ``Source.read``."""
        if number not in self._heads:
            exchange = self._source.read(number)
            self._heads[number] = Head(
                exchange.purpose,
                exchange.digest,
                exchange.request["model"],
                exchange.key,
                failed=exchange.error is not None or bool(exchange.refused),
            )
            if exchange.edited:
                self._edited(number)
        return self._heads[number]

    def nowhere(self, number: int) -> bool:
        """Whether it led nowhere. Raises as ``Source.read``."""
        if number not in self._nowhere:
            head = self.head(number)
            judge = self._turn_led_nowhere if head.purpose == "turn" else self._context_led_nowhere
            self._nowhere[number] = judge(number, head)
        return self._nowhere[number]

    def _turn_led_nowhere(self, number: int, head: Head) -> bool:
        if not head.failed or not head.key:  # written by hand, it is meant
            return False
        turns = [later for later in self._after(number) if later.purpose == "turn"]
        return bool(turns) and all(later.run != head.run for later in turns)

    def _context_led_nowhere(self, number: int, head: Head) -> bool:
        if head.failed:
            return any(later.purpose == head.purpose for later in self._after(number))
        following = next(iter(self._after(number)), None)
        # Asked for again at once: whoever recorded it died before the context was saved.
        return bool(head.key) and following is not None and _same_call(head, following)

    def _after(self, number: int) -> Iterable[Head]:
        return (self.head(later) for later in self.numbers[bisect_right(self.numbers, number) :])


def _same_call(one: Head, other: Head) -> bool:
    return (one.purpose, one.digest, one.key) == (other.purpose, other.digest, other.key)
