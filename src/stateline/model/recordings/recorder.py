"""A model that passes requests to another model and records each exchange."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from stateline.bundle.canonical import Json
from stateline.errors import StatelineError
from stateline.model.protocol import Judge, Model, ModelCallError, ModelRequest, Reply, TextListener
from stateline.model.recordings.exchange import (
    LIMIT,
    VERSION,
    Exchange,
    FailureRecord,
    Mask,
    digest_of,
    file_name,
    no_mask,
    parse_exchange,
    render,
    reply_document,
    request_document,
)
from stateline.model.recordings.record_directory import (
    cannot_record,
    is_present,
    open_directory,
    publish,
    used_numbers,
)
from stateline.model.recordings.recording import checked_path
from stateline.process.signals import shield
from stateline.store.local.filesystem import Directory, Filesystem

_RECENT = 32
"""Number of the newest exchanges that are searched for the outcome of a repeated call."""


class Recorder:
    """Records each exchange of ``model`` in a directory, secrets masked, before it returns.

    What prevents recording is raised before anything is sent: a directory that others may write to, a request that
    cannot be stored. After the call a reply is never lost: if it cannot be stored, it is returned anyway, and
    ``warnings`` reports it. Failures of the model are recorded like replies. The result is what was recorded, masks
    included, so that a playback continues exactly as this run does.

    ``used`` are the numbers recorded so far; the caller keeps them with the run. With them the recorder recognizes a
    call that was recorded before a crash: a turn's call with the key and the digest of a recent exchange that is not in
    ``used`` returns that exchange and is not paid for again. Calls that derive or refine a context are always sent,
    because another store may use the same key.
    """

    def __init__(
        self,
        model: Model,
        directory: str | os.PathLike[str],
        mask: Mask = no_mask,
        used: Iterable[int] | None = None,
    ) -> None:
        """Accesses no files; the first request creates the directory."""
        self.path = os.fspath(directory)
        self.used = list(used or ())
        self.warnings: list[str] = []
        self._model = model
        self._mask = mask
        self._resumes = used is not None
        self._checked: set[int] = set()
        self._fs = Filesystem()

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """Return the model's reply. Raises also ``InvalidValueError``, ``UnsafePathError``, ``RequestError`` and
        ``StorageError``, all of them before anything is sent."""
        return self._exchange(request, on_text, lambda reply: "").outcome()

    def reply_judged(self, request: ModelRequest, judge: Judge) -> Reply:
        """Do the same as :meth:`reply`, and record the verdict of ``judge`` with the reply."""
        return self._exchange(request, None, judge).outcome()

    def keep(self, request: ModelRequest, reply: Reply) -> Reply:
        """Record a reply that the caller gives, and return it as it was recorded: the earlier one, if a process that
        crashed recorded it for this request. Raises as :meth:`reply`."""
        return self._exchange(request, None, lambda _: "", model=_Given(reply)).outcome()

    def recall(self, request: ModelRequest) -> Model | None:
        """Return a model that replies to this call as it was recorded by a process that crashed before it saved the
        run; None if it was not recorded. Reads only. Raises as ``check_directory``, and ``InvalidValueError``."""
        path = os.path.abspath(checked_path(self.path))
        try:
            if not self._resumes or not is_present(self._fs, path):
                return None
            directory = self._fs.open_root(path)
        except OSError as error:
            raise cannot_record(self.path, error) from None
        try:
            numbers = used_numbers(self._fs, directory, self.path, self._checked)
            found = self._recorded_before(directory, numbers, self._document(request))
        finally:
            self._fs.close_directory(directory)
        return None if found is None else _Recalled(found, self.used)

    def _document(self, request: ModelRequest) -> dict[str, Json]:
        """Return the members of the file that describe the request."""
        masked = request_document(request, self._mask)
        document = {"version": VERSION, "purpose": request.purpose, "digest": digest_of(masked), "request": masked}
        return {**document, "key": self._mask(request.key)} if request.key else document

    def _exchange(
        self, request: ModelRequest, on_text: TextListener | None, judge: Judge, *, model: Model | None = None
    ) -> Exchange:
        document = self._document(request)
        # Refuse what is too large or too deep to be read again before it is paid for.
        parse_exchange(1, render({**document, "reply": {}}), "the request")
        directory = open_directory(self._fs, self.path)
        try:
            numbers = used_numbers(self._fs, directory, self.path, self._checked)
            self._checked.update(numbers)
            before = self._recorded_before(directory, numbers, document)
            if before is not None:
                before.pass_text(on_text)
                self.used.append(before.number)
                return before
            outcome = _call(model or self._model, request, on_text)
            with shield():
                return self._save(directory, numbers, document, (outcome, judge))
        finally:
            self._fs.close_directory(directory)

    def _recorded_before(self, directory: Directory, numbers: list[int], document: dict[str, Json]) -> Exchange | None:
        """Return the exchange of this call that was recorded by a process that crashed before it saved the run."""
        if not self._resumes or "key" not in document or document["purpose"] not in ("turn", "answer"):
            return None
        for number in reversed(numbers[-_RECENT:]):
            # Files that cannot be read do not matter here.
            with suppress(StatelineError, OSError):
                data, _ = self._fs.read(directory, file_name(number), LIMIT)
                found = parse_exchange(number, data, "")
                same = (found.key, found.digest) == (document["key"], document["digest"])
                if same and not found.edited and number not in self.used:
                    return found
        return None

    def _save(
        self,
        directory: Directory,
        numbers: list[int],
        document: dict[str, Json],
        result: tuple[Reply | ModelCallError, Judge],
    ) -> Exchange:
        """Record the outcome and return it as it was recorded, or unchanged if that failed."""
        outcome, judge = result
        try:
            data = self._rendered(document, outcome, judge)
            # What is written must be readable.
            saved = parse_exchange(1, data, "the exchange")
            number = publish(self._fs, directory, data, numbers[-1] + 1 if numbers else 1)
        except (StatelineError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            what = "a failure of the model" if isinstance(outcome, ModelCallError) else "a reply"
            self.warnings.append(
                f"{what} could not be recorded in {self.path} ({reason}); it is used, and is missing there"
            )
            return _unrecorded(document, outcome)
        self.used.append(number)
        try:
            self._fs.sync_directory(directory)
        except OSError as error:
            name = os.path.join(self.path, file_name(number))
            self.warnings.append(f"{name} is recorded, but may not survive a power loss: {error.strerror}")
        return saved

    def _rendered(self, document: dict[str, Json], outcome: Reply | ModelCallError, judge: Judge) -> bytes:
        """Return the bytes of the file. The judge sees the reply as it is recorded."""
        if isinstance(outcome, ModelCallError):
            error = msgspec.to_builtins(FailureRecord.of(outcome))
            return render({**document, "error": {name: self._mask(value) for name, value in error.items()}})
        reply = {name: self._mask(value) for name, value in reply_document(outcome).items()}
        data = render({**document, "reply": reply})
        refused = judge(parse_exchange(1, data, "the exchange").outcome())
        return render({**document, "reply": reply, "refused": self._mask(refused)}) if refused else data


class _Given(msgspec.Struct, frozen=True):
    given: Reply

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        return self.given


class _Recalled:
    def __init__(self, exchange: Exchange, used: list[int]) -> None:
        self._exchange = exchange
        self._used = used

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """Return the recorded reply, or raise as the call did, and mark the exchange as used."""
        self._exchange.pass_text(on_text)
        self._used.append(self._exchange.number)
        return self._exchange.outcome()


def _call(model: Model, request: ModelRequest, on_text: TextListener | None) -> Reply | ModelCallError:
    try:
        return model.reply(request, on_text)
    except ModelCallError as error:
        return error


def _unrecorded(document: dict[str, Json], outcome: Reply | ModelCallError) -> Exchange:
    named = {name: document[name] for name in ("purpose", "digest", "request")}
    if isinstance(outcome, ModelCallError):
        return Exchange(number=0, **named, error=FailureRecord.of(outcome))
    return Exchange(number=0, **named, reply=outcome)
