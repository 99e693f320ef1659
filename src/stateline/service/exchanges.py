"""Recording and playback of a run: the flags of a call, and ``event.exchanges``."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from stateline.bundle.canonical import Json
from stateline.engine.event_codec import MALFORMED_HINT
from stateline.engine.record import Run
from stateline.errors import IntegrityError, RequestError, UsageError
from stateline.service.answers import restart_commands


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of a call about models; None: not set. ``on_text`` receives the text of a reply while it arrives."""

    model: str | None = None
    base_url: str | None = None
    record: str | None = None
    playback: str | None = None
    playback_mode: str | None = None
    on_text: Callable[[str], None] | None = None


class Exchanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Recording or playback of a run: ``event.exchanges``. ``dir`` is a real path, ``playback`` the mode ("" while
    recording). ``used`` are the numbers of the exchanges that the run has recorded (the newest) or played, ``stale``
    those of them that were recorded for other requests; both as ranges."""

    mode: Literal["record", "playback"]
    dir: str
    playback: Literal["", "strict", "sequential", "hybrid"] = ""
    used: list[tuple[int, int]] = []
    stale: list[tuple[int, int]] = []

    def document(self) -> dict[str, Json]:
        """Return what ``exec status`` shows: ``last`` is the highest number used, None before the first."""
        last = self.used[-1][1] if self.used else None
        return {"dir": self.dir, "playback": self.playback or None, "last": last}


Ranges = list[list[int]]
"""Numbers as ``[[first, last], ...]``, both included: ascending, and so far apart that none could be joined."""

HIGHEST = 999_999_999
"""The highest number that an exchange can have."""
MOST = 1_000_000
"""The largest number of exchanges that a run uses. Readers expand ranges, and two numbers could stand for any count."""


class Numbers:
    """A set of numbers that grows, kept as ranges: its size does not grow with the number of exchanges."""

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


class NumberRanges:
    """Ranges of the numbers in a growing list; each number is read once."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers, self._seen, self._found = numbers, 0, Numbers()

    def ranges(self) -> Json:
        for number in self._numbers[self._seen :]:
            self._found.add(number)
        self._seen = len(self._numbers)
        return self._found.ranges()


def wanted_exchanges(options: ModelOptions) -> Exchanges | None:
    """Return the recording or playback that the flags ask for; None without. Raises ``UsageError``."""
    if options.record is not None and options.playback is not None:
        raise UsageError("--record and --playback exclude each other; nothing was done", hint="give one of them")
    mode: Any = options.playback_mode
    if mode not in (None, "strict", "sequential", "hybrid"):
        raise UsageError(f"--playback-mode is {mode!r}; nothing was done", hint="give strict, sequential or hybrid")
    if mode is not None and options.playback is None:
        raise UsageError("--playback-mode needs --playback; nothing was done", hint="give --playback DIR")
    path = options.playback if options.record is None else options.record
    if path is None:
        return None
    try:
        real = os.path.realpath(path)
        real.encode()
    except ValueError:  # a NUL character, or not UTF-8
        real = ""
    if not path.strip() or not real or "\0" in real:
        raise UsageError(f"{path!r:.80} is not a valid directory name; nothing was done", hint="choose another")
    if options.record is not None:
        return Exchanges(mode="record", dir=real)
    return Exchanges(mode="playback", dir=real, playback=mode or "")


def kept_exchanges(run: Run) -> Exchanges | None:
    """Return the recording or playback of the run; None without. Raises ``IntegrityError`` if it is malformed."""
    kept = run.event.get("exchanges")
    if kept is None:
        return None
    try:
        found = msgspec.convert(kept, Exchanges)
        for ranges in (found.used, found.stale):
            Numbers.read(ranges)
        if not os.path.isabs(found.dir) or "\0" in found.dir:
            raise ValueError(f"{found.dir!r:.80} is not a real path")
        return found
    except (msgspec.ValidationError, ValueError) as error:
        raise IntegrityError(
            f"the snapshot {run.snapshot.path} does not say how its run records or plays back: {error}",
            finding="malformed",
            hint=MALFORMED_HINT,
        ) from None


def require_same_exchanges(run: Run, kept: Exchanges | None, wanted: Exchanges | None) -> None:
    """Raise ``RequestError`` if the flags contradict the recording or playback of the run."""
    if wanted is None:
        return
    same = kept is not None and (kept.mode, kept.dir) == (wanted.mode, wanted.dir)
    if same and kept is not None and wanted.playback in ("", kept.playback):
        return
    action = "neither records nor plays back"
    if kept is not None:
        action = f"records to {kept.dir}" if kept.mode == "record" else f"plays {kept.dir} back ({kept.playback})"
    another, restart = restart_commands(run)
    raise RequestError(
        f"the run {run.id} {action}, which the flags of this call contradict; nothing was changed",
        hint=f"leave out --record and --playback; `{another}` starts another run, `{restart}` restarts this one",
    )
