"""A model that replies from a recording, without a network.

The exchange that replies depends only on the recording, the mode, the numbers used so far and the request. A caller
that stores ``used`` with its state therefore continues in any later process where it stopped, and a reply that was
played and lost before it was saved is played again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from stateline.bundle.canonical import Json
from stateline.errors import PlaybackMissError
from stateline.model.protocol import ModelRequest, Reply, TextListener
from stateline.model.recordings.exchange import MANUAL, Exchange, Mask, digest_of, file_name, no_mask, request_document
from stateline.model.recordings.recording import Recording, RecordingIndex, not_found

Mode = Literal["strict", "sequential", "hybrid"]
"""``strict``: the next exchange must have the same request. ``sequential``: the next exchange, whatever its request.
``hybrid``: the first exchange with the same request, else the next one, with a warning. "Next" is the lowest unused
number among the exchanges of the request's purpose; none is used twice. A superseded exchange is never the next: it is
played only for the same request, if no other exchange has that."""
MODES: tuple[Mode, ...] = ("strict", "sequential", "hybrid")

_NAMED = 8
_DIVERGED = (
    "exchanges were played for other requests before, so this is not the recorded conversation: restore what is "
    "missing of the recording, or record again, and play it from the beginning"
)


class Playback:
    """Replies from a recording. ``used`` are the numbers played, in order, and ``stale`` those of them that were
    recorded for another request; the caller keeps both with the run. ``warnings`` grows while it is played."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        mode: Mode = "hybrid",
        used: Iterable[int] = (),
        *,
        stale: Iterable[int] = (),
        mask: Mask = no_mask,
    ) -> None:
        """``mask`` must be the recorder's: requests are compared as they are stored. Raises ``NotFoundError`` for an
        empty recording, and as ``Recording``."""
        self._source = Recording(directory)
        if not self._source.numbers:
            raise not_found(f"{self._source.path} holds no recordings (0001.json, 0002.json ...)")
        self.mode = mode
        self.used = list(used)
        self.stale = list(stale)
        self.warnings: list[str] = []
        self._stale_warnings: list[str] = []
        self._mask = mask
        self._played = set(self.used)
        self._index = RecordingIndex(self._source, self._warn_edited)
        missing = sorted(self._played.difference(self._source.numbers))
        if missing:
            self.warnings.append(f"{_named(missing)} of {self._source.path} were played before and are missing now")

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """Return the recorded reply. A request without a model's name matches a recording of any model.

        Raises ``ModelCallError`` as it was recorded, which uses up the exchange like a reply. Raises
        :class:`PlaybackMissError` if no exchange matches, ``InvalidValueError`` for a request without a digest, and as
        ``Recording.read``; nothing was used then."""
        wanted = _Wanted(request_document(request, self._mask))
        try:
            number = self._select(request.purpose, wanted)
        except PlaybackMissError as miss:
            raise self._with_warnings(miss) from None
        exchange = self._source.read(number)
        matches = wanted.matches(exchange.digest, exchange.request["model"])
        exchange.pass_text(on_text)
        self.used.append(exchange.number)
        self._played.add(exchange.number)
        if not matches:
            self.stale.append(exchange.number)
            if self.mode == "hybrid":
                self._warn_stale(exchange, wanted)
        return exchange.outcome()

    def model(self) -> str:
        """Return the model of the first exchange that was not superseded."""
        numbers = self._source.numbers
        first = next((number for number in numbers if not self._index.is_superseded(number)), numbers[0])
        return self._index.entry(first).model

    def plays(self, purpose: str) -> bool:
        """Return whether an exchange of this purpose is left. Raises as ``Recording.read``."""
        return any(True for _ in self._unused(purpose))

    def unplayed(self, purposes: Collection[str] = ()) -> list[int]:
        """Return the unused numbers in order, without superseded ones; with ``purposes``, those of these purposes."""
        left = (number for number in self._source.numbers if number not in self._played)
        wanted = (number for number in left if not purposes or self._index.entry(number).purpose in purposes)
        return [number for number in wanted if not self._index.is_superseded(number)]

    def closing(self, purposes: Collection[str] = ()) -> list[str]:
        """Return the warnings for a complete run: exchanges (of these purposes) that were not played, and those that
        replied to another request. Raises as ``Recording.read``."""
        path, count, found = self._source.path, len(self._source.numbers), []
        if left := self.unplayed(purposes):
            found.append(f"{len(left)} of {count} recordings in {path} not played: {_named(left)}")
        if self._played == set(self.stale):  # the summary says it all
            self.warnings = [warning for warning in self.warnings if warning not in self._stale_warnings]
        return [*found, *self._stale_summary()]

    def _stale_summary(self) -> list[str]:
        if not self.stale:
            return []
        return [
            f"{len(self.stale)} of {len(self._source.numbers)} recordings in {self._source.path} played for requests "
            f"that differ from the recorded ones: {_named(self.stale)}; record them again"
        ]

    def _with_warnings(self, miss: PlaybackMissError) -> PlaybackMissError:
        """Return ``miss`` with the warnings about earlier exchanges. A diverged run gets no hint to continue."""
        if not self.stale:
            return miss.with_hint(miss.hint, list(self.warnings))
        miss.diverged = True
        return miss.with_hint(_DIVERGED, [*self.warnings, *self._stale_summary()])

    # -- selecting -------------------------------------------------------------------------------------------------

    def _select(self, purpose: str, wanted: _Wanted) -> int:
        first, superseded = None, []
        for number in self._unused(purpose):
            if self._index.is_superseded(number):
                superseded.append(number)
                continue
            if self.mode == "sequential" or self._matches(number, wanted):
                return number
            first = number if first is None else first
            if self.mode == "strict":
                break
        if self.mode != "sequential":
            match = next((number for number in superseded if self._matches(number, wanted)), None)
            if match is not None:
                return match
        if first is None:
            raise self._exhausted(purpose)
        if self.mode == "strict":
            raise self._mismatch(purpose, first, wanted)
        return first

    def _matches(self, number: int, wanted: _Wanted) -> bool:
        entry = self._index.entry(number)
        return wanted.matches(entry.digest, entry.model)

    def _unused(self, purpose: str) -> Iterator[int]:
        for number in self._source.numbers:
            if number not in self._played and self._index.entry(number).purpose == purpose:
                yield number

    def _file(self, number: int) -> str:
        return os.path.join(self._source.path, file_name(number))

    # -- messages --------------------------------------------------------------------------------------------------

    def _warn_edited(self, number: int) -> None:
        self.warnings.append(
            f"{self._file(number)}: the request was edited after it was recorded (its digest differs); it is compared "
            "as it is now"
        )

    def _warn_stale(self, exchange: Exchange, wanted: _Wanted) -> None:
        from stateline.model.recordings.playback_miss import changed_members

        changed = changed_members(exchange.request, wanted.document_for(exchange.request["model"]))
        self._stale_warnings.append(
            f"{self._file(exchange.number)} was played although it was recorded for another request "
            f"(different: {changed}); no unused recording has this request"
        )
        self.warnings.append(self._stale_warnings[-1])

    def _mismatch(self, purpose: str, expected: int, wanted: _Wanted) -> PlaybackMissError:
        from stateline.model.recordings.playback_miss import unified_diff

        same = next((number for number in self._unused(purpose) if self._matches(number, wanted)), None)
        message = f"the request is not the one recorded in {self._file(expected)}, which is next; nothing was played"
        if same is not None:
            message += f". It is the one of {self._file(same)}, out of its order"
        shown = self._source.read(expected).request
        lines = unified_diff(shown, wanted.document_for(shown["model"]), (self._file(expected), "this request"))
        return PlaybackMissError(
            "\n".join([message, *lines]),
            expected=expected,
            nearest=expected if same is None else same,
            hint="undo what changed the request; or record again, or play by --playback-mode hybrid, in a new run",
        )

    def _exhausted(self, purpose: str) -> PlaybackMissError:
        played = [number for number in self._source.numbers if not self._index.is_superseded(number)]
        count = [self._index.entry(number).purpose for number in played].count(purpose)
        if count:
            many = f"all {count} recordings" if count > 1 else "the one recording"
            return PlaybackMissError(
                f"{many} for `{purpose}` in {self._source.path} played already, and the run needs another reply; "
                "the run is unchanged",
                hint="add a recording of the missing reply to that directory, and call again",
            )
        return PlaybackMissError(
            f"{self._source.path} holds no recording for `{purpose}` among its {len(self._source.numbers)}; "
            "nothing was played",
            hint="record a run that makes this call; a context is only derived where --state-scope has none yet",
        )


class _Wanted:
    """A request to find. Without a model's name it matches exchanges of any model: a playback needs no
    configuration."""

    def __init__(self, document: dict[str, Json]) -> None:
        self._document = document
        self._digests: dict[str, str] = {}

    def document_for(self, model: str) -> dict[str, Json]:
        """Return the request as it would have been recorded with ``model``, unless it names a model. A reply that was
        given by hand is one of any model."""
        named = self._document["model"] and model != MANUAL
        return self._document if named else {**self._document, "model": model}

    def matches(self, digest: str, model: str) -> bool:
        """Return whether an exchange of ``model`` with this digest has the same request."""
        if model not in self._digests:
            self._digests[model] = digest_of(self.document_for(model))
        return self._digests[model] == digest


def _named(numbers: list[int]) -> str:
    shown = ", ".join(f"{number:04d}" for number in numbers[:_NAMED])
    return shown + (f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else "")
