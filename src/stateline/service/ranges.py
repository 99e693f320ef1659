"""Sets of exchange numbers as ranges, so that their size does not grow with the number of exchanges. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from stateline.errors import RequestError

Ranges = list[list[int]]
"""Numbers as ``[[first, last], ...]``, both included: ascending, and so far apart that none could be joined."""

HIGHEST = 999_999_999
"""The highest number that an exchange can have."""
MOST = 1_000_000
"""So many exchanges a run uses at most. Who reads ranges counts them out, and two numbers could stand for all."""


class Numbers:
    """A set of numbers that grows. To add one beside those that are there takes no more room."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._ranges: Ranges = []
        self._count = 0
        for number in numbers:
            self.add(number)

    @classmethod
    def read(cls, ranges: Iterable[Iterable[int]]) -> Numbers:
        """Return the numbers in ``ranges``. Raises ``ValueError`` for malformed :data:`Ranges`, more than :data:`MOST`
        numbers, or numbers outside 1 to :data:`HIGHEST`."""
        found, before = cls(), -1
        for first, last in ranges:
            if not before + 1 < first <= last <= HIGHEST or first < 1:
                raise ValueError(f"the range [{first},{last}] is out of order or out of bounds")
            found._ranges.append([first, last])
            found._count += last - first + 1
            before = last
        if found._count > MOST:
            raise ValueError(f"{found._count} numbers, of at most {MOST}")
        return found

    def add(self, number: int) -> None:
        """Add a number, if it is not there. Raises ``RequestError`` for one more than :data:`MOST`."""
        at = bisect_right(self._ranges, number, key=lambda one: one[0])
        before = self._ranges[at - 1] if at else None
        if before is not None and number <= before[1]:
            return
        if self._count == MOST:
            raise RequestError(
                f"the run has used {MOST} exchanges, the largest number; nothing was changed",
                hint="begin another run",
            )
        self._count += 1
        after = self._ranges[at] if at < len(self._ranges) else None
        if before is not None and before[1] == number - 1:
            before[1] = number
            if after is not None and after[0] == number + 1:
                before[1] = after[1]
                del self._ranges[at]
        elif after is not None and after[0] == number + 1:
            after[0] = number
        else:
            self._ranges.insert(at, [number, number])

    def ranges(self) -> Ranges:
        """Return the ranges as an event has them."""
        return [list(one) for one in self._ranges]

    def __iter__(self) -> Iterator[int]:
        for first, last in self._ranges:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return self._count
