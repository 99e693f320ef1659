"""A model that answers from recordings, with no network.

Which exchange answers is a function of the recordings, the mode, the numbers used so far and the request. So a caller
that keeps ``used`` with what it saves goes on in any later process exactly where it stood; and a reply that was played
and lost before it was saved is played again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from stateline.bundle.canonical import Json
from stateline.errors import PlaybackMissError, UsageError
from stateline.model.protocol import ModelRequest, Reply, TextListener
from stateline.model.recordings.exchange import Exchange, Mask, as_it_is, digest_of, file_name, kept_request
from stateline.model.recordings.nearby import no_recordings
from stateline.model.recordings.recording import Recordings
from stateline.model.recordings.recording_index import Lineup, Listed, Source

Mode = Literal["strict", "sequential", "hybrid"]
"""``strict``: the next exchange must be of this very request. ``sequential``: the next one, whatever it was recorded
for. ``hybrid``: the first of this very request, else the next one, with a warning. "Next" is the lowest number that was
not used, among the exchanges of the request's purpose; none is ever used twice. One that led nowhere, and that others
were recorded after, is never the next: it is played only for its very request, if no other is of that."""
MODES: tuple[Mode, ...] = ("strict", "sequential", "hybrid")

_NAMED = 8
_ASTRAY = (
    "what was played before was recorded for other requests, so this is not the conversation that was recorded: put "
    "back what is missing of the recording, or record anew, and play it from the beginning"
)


class Playback:
    """Answers from recordings. ``used`` are the numbers played, in order, and ``stale`` those of them that were
    recorded for another request: the caller keeps both with the run. ``warnings`` grows with what should be on_text.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Iterable[Exchange],
        mode: Mode = "hybrid",
        used: Iterable[int] = (),
        *,
        stale: Iterable[int] = (),
        mask: Mask = as_it_is,
    ) -> None:
        """``mask`` as for the recorder: requests are compared as they are kept. Raises ``NotFoundError`` where there is
        nothing to play, ``UsageError`` for an unknown mode, and as ``Recordings``."""
        if mode not in MODES:
            raise UsageError(f"there is no playback mode {mode!r:.40}", hint=f"choose one of {', '.join(MODES)}")
        self._source: Source = Recordings(source) if isinstance(source, str | os.PathLike) else Listed(source)
        if not self._source.numbers:
            raise no_recordings(self._source.path)
        self.mode = mode
        self.used = list(used)
        self.stale = list(stale)
        self.warnings: list[str] = []
        self._told_stale: list[str] = []
        self._differs = ""
        self._mask = mask
        self._spent = set(self.used)
        self._lineup = Lineup(self._source, self._tell_edited)
        gone = sorted(self._spent.difference(self._source.numbers))
        if gone:
            self.warnings.append(f"{_named(gone)} of {self._source.path} were played before and are not there any more")

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """The recorded reply; a request that names no model stands for one of whichever model was recorded.

        Raises ``ModelCallError`` as it was recorded, which uses the exchange up as a reply does; :class:`PlaybackMissError` if
        none answers, as ``Recordings.read`` for a file that cannot be played, and ``InvalidValueError`` for a request that
        has no digest; then nothing was used."""
        wanted = _Wanted(kept_request(request, self._mask))
        try:
            number = self._choice(request.purpose, wanted)
        except PlaybackMissError as miss:
            raise self._told(miss) from None
        exchange = self._source.read(number)
        fits = wanted.fits(exchange.digest, exchange.request["model"])
        if on_text is not None and exchange.reply is not None and exchange.reply.content:
            on_text(exchange.reply.content)
        self.used.append(exchange.number)
        self._spent.add(exchange.number)
        if not fits:
            self.stale.append(exchange.number)
            if self.mode == "hybrid":
                self._tell_stale(exchange, wanted)
        return exchange.outcome()

    def model(self) -> str:
        """The name of the model that was recorded first, of those whose exchanges led somewhere."""
        numbers = self._source.numbers
        first = next((number for number in numbers if not self._lineup.nowhere(number)), numbers[0])
        return self._lineup.head(first).model

    def unplayed(self, purposes: Collection[str] = ()) -> list[int]:
        """The numbers that were never used, in order; with ``purposes``, those of these purposes only. Those that led
        nowhere are none of them."""
        left = (number for number in self._source.numbers if number not in self._spent)
        wanted = (number for number in left if not purposes or self._lineup.head(number).purpose in purposes)
        return [number for number in wanted if not self._lineup.nowhere(number)]

    def closing(self, purposes: Collection[str] = ()) -> list[str]:
        """What to warn of when the run is complete: recordings (of these purposes) that were not played, and those
        that answered another request than their own. A file that cannot be read is as in :meth:`reply`."""
        where, count, found = self._source.path, len(self._source.numbers), []
        if left := self.unplayed(purposes):
            found.append(f"{len(left)} of {count} recordings in {where} not played: {_named(left)}")
        if self.stale and self._spent == set(self.stale):  # what follows says it all
            self.warnings = [warning for warning in self.warnings if warning not in self._told_stale]
        return [*found, *self._unfit()]

    def _unfit(self) -> list[str]:
        """One sentence about all that answered another request than their own, if any did."""
        if not self.stale:
            return []
        return [
            f"{len(self.stale)} of {len(self._source.numbers)} recordings in {self._source.path} played for requests "
            f"that differ from the recorded ones: {_named(self.stale)}; record them anew{self._differs}"
        ]

    def _told(self, miss: PlaybackMissError) -> PlaybackMissError:
        """``miss`` with what is to be known of what was played before; whoever is diverged is not sent on."""
        if not self.stale:
            return miss.with_hint(miss.hint, list(self.warnings))
        miss.diverged = True
        return miss.with_hint(_ASTRAY, [*self.warnings, *self._unfit()])

    # -- choosing --------------------------------------------------------------------------------------------------

    def _choice(self, purpose: str, wanted: _Wanted) -> int:
        first, nowhere = None, []
        for number in self._left(purpose):
            if self._lineup.nowhere(number):
                nowhere.append(number)
                continue
            if self.mode == "sequential" or self._fits(number, wanted):
                return number
            first = number if first is None else first
            if self.mode == "strict":
                break
        if self.mode != "sequential" and (fitting := [number for number in nowhere if self._fits(number, wanted)]):
            return fitting[0]
        if first is None:
            raise self._exhausted(purpose)
        if self.mode == "strict":
            raise self._missed(purpose, first, wanted)
        return first

    def _fits(self, number: int, wanted: _Wanted) -> bool:
        head = self._lineup.head(number)
        return wanted.fits(head.digest, head.model)

    def _left(self, purpose: str) -> Iterator[int]:
        """The unused numbers of a purpose, in order; files are read as far as they are asked for."""
        for number in self._source.numbers:
            if number not in self._spent and self._lineup.head(number).purpose == purpose:
                yield number

    def _file(self, number: int) -> str:
        return os.path.join(self._source.path, file_name(number))

    # -- telling ---------------------------------------------------------------------------------------------------

    def _tell_edited(self, number: int) -> None:
        self.warnings.append(
            f"{self._file(number)}: the request was edited since it was recorded (its digest is another); it is "
            "compared as it is now"
        )

    def _tell_stale(self, exchange: Exchange, wanted: _Wanted) -> None:
        from stateline.model.recordings import playback_miss

        asked = wanted.of(exchange.request["model"])
        differs = playback_miss.members(exchange.request, asked)
        self._differs = self._differs or f" ({exchange.number:04d} is different in: {differs})"
        self._told_stale.append(
            f"{self._file(exchange.number)} was played although it was recorded for another request "
            f"(different: {differs}); no unused recording is of this one"
        )
        self.warnings.append(self._told_stale[-1])

    def _missed(self, purpose: str, expected: int, wanted: _Wanted) -> PlaybackMissError:
        from stateline.model.recordings import playback_miss

        # In a conversation each request holds the ones before it: those beside the expected one are the likeliest.
        likeliest = sorted(self._left(purpose), key=lambda number: (abs(number - expected), number))
        candidates = ((number, self._source.read(number).request) for number in likeliest)
        same = next((number for number in likeliest if self._fits(number, wanted)), None)
        nearest = same if same is not None else playback_miss.nearest(wanted.document, candidates, otherwise=expected)
        said = f"the request is not the one recorded in {self._file(expected)}, which is next; nothing was played"
        if same is not None:
            said += f". It is the one of {self._file(same)}, out of its order"
        elif nearest != expected:
            said += f". The nearest recording is {self._file(nearest)}"
        shown = self._source.read(nearest if same is None else expected)
        asked = wanted.of(shown.request["model"])
        lines = playback_miss.unified(shown.request, asked, (self._file(shown.number), "this request"))
        return PlaybackMissError(
            "\n".join([said, *lines]),
            expected=expected,
            nearest=nearest,
            hint="undo what changed the request; or record anew, or play by --playback-mode hybrid, in a new run",
        )

    def _exhausted(self, purpose: str) -> PlaybackMissError:
        played = [number for number in self._source.numbers if not self._lineup.nowhere(number)]
        count = [self._lineup.head(number).purpose for number in played].count(purpose)
        if count:
            many = f"all {count} recordings" if count > 1 else "the one recording"
            return PlaybackMissError(
                f"{many} for `{purpose}` in {self._source.path} played already, and another reply is asked for; "
                "the run is as it was",
                hint="put a recording of the reply that is missing into that directory, and call again",
            )
        return PlaybackMissError(
            f"{self._source.path} holds no recording for `{purpose}` among its {len(self._source.numbers)}; "
            "nothing was played",
            hint="record a run that makes this call; a context is only derived where --state-scope has none yet",
        )


class _Wanted:
    """A request that a recording is looked for. Without a model's name it stands for one of any model: a recording
    needs none to be configured."""

    def __init__(self, document: dict[str, Json]) -> None:
        self.document = document
        self._digests: dict[str, str] = {}

    def of(self, model: str) -> dict[str, Json]:
        """The request as it would have been recorded with ``model``, unless it names one itself."""
        return self.document if self.document["model"] else {**self.document, "model": model}

    def fits(self, digest: str, model: str) -> bool:
        """Whether an exchange of ``model`` with this digest is of this very request."""
        if model not in self._digests:
            self._digests[model] = digest_of(self.of(model))
        return self._digests[model] == digest


def _named(numbers: list[int]) -> str:
    shown = ", ".join(f"{number:04d}" for number in numbers[:_NAMED])
    return shown + (f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else "")
