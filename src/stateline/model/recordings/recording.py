"""Recordings: a directory with one exchange per file, and a model that keeps there what another one answers.

``0001.json``, ``0002.json`` ... ``9999.json``, ``10000.json``: the order is that of the numbers. What a file holds is
``exchange``'s business, and which one answers a request is ``playback``'s.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress

import msgspec

from stateline.bundle.canonical import Json
from stateline.errors import RequestError, StatelineError, StorageError, UnsafePathError, UsageError
from stateline.model.protocol import Judge, Model, ModelCallError, ModelRequest, Reply, TextListener
from stateline.model.recordings.exchange import (
    LIMIT,
    MEND,
    VERSION,
    Exchange,
    Mask,
    as_it_is,
    digest_of,
    failure_in,
    file_name,
    kept_request,
    parse_exchange,
    render,
    reply_of,
)
from stateline.model.recordings.nearby import no_directory
from stateline.process.signals import shield
from stateline.store.local import atomic_write, permissions
from stateline.store.local.filesystem import Directory, Filesystem, FileTooLargeError, NotRegularFileError, Stat

HIGHEST = 999_999_999
"""The highest number that an exchange can have."""

_NUMBERED = re.compile(r"([0-9]+)\.json")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_LOOKED_AT = 32
"""How many of the newest exchanges are looked at for the answer to a call that was made before."""


# -- reading -----------------------------------------------------------------------------------------------------------


class Recordings:
    """The exchanges in a directory, each read when it is asked for. ``numbers`` are in the order of playing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises ``NotFoundError`` where there is no such directory, naming recordings near it; ``RequestError`` for a file
        with a number that is not spelt as :func:`file_name` does, ``StorageError`` for what cannot be looked at."""
        self.path = os.fspath(path)
        self._fs = Filesystem()
        try:
            self._directory = self._fs.open_root(os.path.realpath(_checked_path(self.path)))
            self.numbers = _numbers(self._fs, self._directory, self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise no_directory(self.path) from None
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def read(self, number: int) -> Exchange:
        """One exchange. Raises ``RequestError`` that names the file and what is wrong with it, ``NewerVersionError``, or
        ``StorageError``. Symlinks are not followed, and nothing is waited for."""
        name = file_name(number)
        where = os.path.join(self.path, name)
        try:
            data, _ = self._fs.read(self._directory, name, LIMIT)
        except FileNotFoundError:
            raise RequestError(f"{where} is not there any more", hint="put it back, or record it anew") from None
        except (NotRegularFileError, FileTooLargeError) as error:
            raise RequestError(f"{where}: {error.strerror}; it was not read", hint=MEND) from None
        except OSError as error:
            raise _unreadable(where, error) from None
        return parse_exchange(number, data, where)


def read_exchanges(directory: str | os.PathLike[str]) -> list[Exchange]:
    """All exchanges of a directory by number, none if it holds none; other files are ignored. Raises as
    :class:`Recordings`."""
    recordings = Recordings(directory)
    return [recordings.read(number) for number in recordings.numbers]


def _numbers(fs: Filesystem, directory: Directory, path: str) -> list[int]:
    found = []
    for name in fs.names(directory):
        spelt = _NUMBERED.fullmatch(name)
        if spelt is None:
            continue
        # So many digits are no number that anything was recorded under, and could be as many as a name has letters.
        number = int(spelt[1]) if len(spelt[1]) < 19 else 0
        if name != file_name(number) or not 1 <= number <= HIGHEST:
            raise RequestError(
                f"{os.path.join(path, name)[:300]} is not named like an exchange; nothing was read or written",
                hint="name it by its place in the order, 0001.json ... 10000.json, or by more than digits",
            )
        found.append(number)
    return sorted(found)


def _checked_path(path: str) -> str:
    if not path or "\0" in path:
        raise UsageError(f"{path!r:.80} is no directory's name", hint="name a directory")
    return path


def _unreadable(path: str, error: OSError) -> StorageError:
    return StorageError(f"cannot read {path}: {error.strerror}; nothing was changed", hint="make it readable")


# -- recording ---------------------------------------------------------------------------------------------------------


class Recorder:
    """A model that asks another one and keeps each exchange in a directory, secrets masked, before it returns.

    What stands in the way of recording is found before anything is sent, and raised: a directory that others may
    write to, a request that cannot be kept. After the call a reply is never lost: if it cannot be kept, it is returned
    all the same and ``warnings`` says so. A failure of the model is kept as a reply is: the run went on by it.

    What is returned or raised is what is kept, so a playback goes on exactly as this run did. ``used`` are the numbers
    recorded so far, for the caller to keep with the run. A caller that hands them in gets back what was recorded and
    then lost by a crash: a turn's call with the key and the digest of a recent exchange that is not in ``used`` ends as
    that one did, and is not paid for again. Without them every call is sent, and so is what derives or refines a
    context: its key is not one that no other store uses.
    """

    def __init__(
        self,
        model: Model,
        directory: str | os.PathLike[str],
        mask: Mask = as_it_is,
        used: Iterable[int] | None = None,
    ) -> None:
        """Touches nothing; the directory is made when the first request comes."""
        self.path = os.fspath(directory)
        self.used = list(used or ())
        self.warnings: list[str] = []
        self._model = model
        self._mask = mask
        self._resumes = used is not None
        self._seen: set[int] = set()
        self._fs = Filesystem()

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """As the model's. Raises also ``InvalidValueError``, ``UnsafePathError``, ``RequestError`` and ``StorageError``, all of
        them before anything is sent."""
        return self._exchange(request, on_text, _useful).outcome()

    def reply_judged(self, request: ModelRequest, judge: Judge) -> Reply:
        """As :meth:`reply`; what ``judge`` says of the reply is kept with it."""
        return self._exchange(request, None, judge).outcome()

    def recall(self, request: ModelRequest) -> Model | None:
        """What answers this very call as it was recorded, by a process that died before the run knew of it. Touches
        nothing. Raises as :func:`check_place`, and ``InvalidValueError``."""
        path = os.path.abspath(_checked_path(self.path))
        try:
            if not self._resumes or not _is_there(self._fs, path):
                return None
            directory = self._fs.open_root(path)
        except OSError as error:
            raise _refused(self.path, error) from None
        try:
            numbers = _free_numbers(self._fs, directory, self.path, self._seen)
            found = self._before(directory, numbers, self._document(request))
        finally:
            self._fs.close_directory(directory)
        return None if found is None else _Recalled(found, self.used)

    def _document(self, request: ModelRequest) -> dict[str, Json]:
        """What a file says of a request."""
        asked = kept_request(request, self._mask)
        document = {"version": VERSION, "purpose": request.purpose, "digest": digest_of(asked), "request": asked}
        return {**document, "key": self._mask(request.key)} if request.key else document

    def _exchange(self, request: ModelRequest, on_text: TextListener | None, judge: Judge) -> Exchange:
        document = self._document(request)
        # What is too large or too deep to be read again is refused now, and not when it was paid for.
        parse_exchange(1, render({**document, "reply": {}}), "the request")
        directory = self._opened()
        try:
            numbers = _free_numbers(self._fs, directory, self.path, self._seen)
            self._seen.update(numbers)
            before = self._before(directory, numbers, document)
            if before is not None:
                _tell(before, on_text)
                self.used.append(before.number)
                return before
            came = _came(self._model, request, on_text)
            with shield():
                return self._kept(directory, numbers, document, (came, judge))
        finally:
            self._fs.close_directory(directory)

    def _opened(self) -> Directory:
        """The directory, made if it is not there, and safe to write to."""
        path = os.path.abspath(_checked_path(self.path))
        try:
            if not _is_there(self._fs, path):
                _make(self._fs, path)
            directory = self._fs.open_root(path)
        except OSError as error:
            raise _refused(self.path, error) from None
        try:
            # What was opened, whatever has happened to the path since.
            _require_safe(self._fs.stat(directory), path)
        except BaseException:
            self._fs.close_directory(directory)
            raise
        return directory

    def _before(self, directory: Directory, numbers: list[int], document: dict[str, Json]) -> Exchange | None:
        """The exchange of this very call, if it was recorded by a process that died before the run knew of it."""
        if not self._resumes or "key" not in document or document["purpose"] != "turn":
            return None
        for number in reversed(numbers[-_LOOKED_AT:]):
            # What cannot be read is somebody else's to mend.
            with suppress(StatelineError, OSError):
                data, _ = self._fs.read(directory, file_name(number), LIMIT)
                found = parse_exchange(number, data, "")
                same = (found.key, found.digest) == (document["key"], document["digest"])
                if same and not found.edited and number not in self.used:
                    return found
        return None

    def _kept(
        self,
        directory: Directory,
        numbers: list[int],
        document: dict[str, Json],
        heard: tuple[Reply | ModelCallError, Judge],
    ) -> Exchange:
        """What came, as it was kept; as it is if it could not be."""
        came, judge = heard
        try:
            data = self._rendered(document, came, judge)
            # What is written can be read.
            kept = parse_exchange(1, data, "the exchange")
            number = _publish(self._fs, directory, data, numbers[-1] + 1 if numbers else 1)
        except (StatelineError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            what = "a failure of the model" if isinstance(came, ModelCallError) else "a reply"
            self._warn(f"{what} could not be recorded in {self.path} ({reason}); it is used, and is missing there")
            return _unkept(document, came)
        self.used.append(number)
        try:
            self._fs.sync_directory(directory)
        except OSError as error:
            name = os.path.join(self.path, file_name(number))
            self._warn(f"{name} is recorded, but may not survive a power loss: {error.strerror}")
        return kept

    def _rendered(self, document: dict[str, Json], came: Reply | ModelCallError, judge: Judge) -> bytes:
        """The bytes of the file for what came, with the judge's word of what is kept of it."""
        if isinstance(came, ModelCallError):
            error = msgspec.to_builtins(failure_in(came))
            return render({**document, "error": {name: self._mask(value) for name, value in error.items()}})
        said = {name: self._mask(value) for name, value in reply_of(came).items()}
        data = render({**document, "reply": said})
        refused = judge(parse_exchange(1, data, "the exchange").outcome())
        return render({**document, "reply": said, "refused": self._mask(refused)}) if refused else data

    def _warn(self, text: str) -> None:
        self.warnings.append(text)


class _Recalled:
    """A model that answers one call, as it was recorded, and notes that it is used."""

    def __init__(self, exchange: Exchange, used: list[int]) -> None:
        self._exchange = exchange
        self._used = used

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """What was recorded. Raises ``ModelCallError`` as the call did."""
        _tell(self._exchange, on_text)
        self._used.append(self._exchange.number)
        return self._exchange.outcome()


def _tell(exchange: Exchange, on_text: TextListener | None) -> None:
    """Let be heard what an exchange holds of a text."""
    if on_text is not None and exchange.reply is not None and exchange.reply.content:
        on_text(exchange.reply.content)


def _useful(reply: Reply) -> str:
    """The judge of those who take every reply."""
    return ""


def _came(model: Model, request: ModelRequest, on_text: TextListener | None) -> Reply | ModelCallError:
    """What came of a call."""
    try:
        return model.reply(request, on_text)
    except ModelCallError as failed:
        return failed


def _unkept(document: dict[str, Json], came: Reply | ModelCallError) -> Exchange:
    """What came, as an exchange that is in no directory."""
    reply, error = (None, failure_in(came)) if isinstance(came, ModelCallError) else (came, None)
    named = {name: document[name] for name in ("purpose", "digest", "request")}
    return Exchange(number=0, **named, reply=reply, error=error)


def check_place(directory: str | os.PathLike[str], *, files: bool = True) -> None:
    """Raise what a recorder would: ``UnsafePathError`` for what the directory is or who may write to it, ``StorageError``
    if it cannot be looked at, made or written to, ``RequestError`` for what lies in it under an exchange's name and is
    none (with ``files``: all of them are looked at). Changes nothing; one that is not there yet is good."""
    path = os.path.abspath(_checked_path(os.fspath(directory)))
    fs = Filesystem()
    try:
        if not _is_there(fs, path) or not files:
            return
        opened = fs.open_root(path)
    except OSError as error:
        raise _refused(path, error) from None
    try:
        _free_numbers(fs, opened, path)
    finally:
        fs.close_directory(opened)


def _is_there(fs: Filesystem, path: str) -> bool:
    """Whether the directory is there, safe and open to changes; else it can be made. Raises ``UnsafePathError`` and
    ``OSError``."""
    try:
        _require_safe(fs.stat_path(path), path)
    except FileNotFoundError:
        _require_changes(fs, _missing(fs, path)[1])
        return False
    _require_changes(fs, path)
    return True


def _require_changes(fs: Filesystem, path: str) -> None:
    """Raise ``OSError`` for a directory that nothing can be put into."""
    if not fs.may_change(path):
        number = errno.EROFS if fs.is_read_only(path) else errno.EACCES
        raise OSError(number, os.strerror(number), path)


def _free_numbers(fs: Filesystem, directory: Directory, path: str, known: Collection[int] = ()) -> list[int]:
    """The numbers that are used, where one is left. Raises ``RequestError`` where none is, and for what no playback
    would read, a number spelt otherwise or no regular file; ``known`` are numbers that need no second look."""
    try:
        numbers = _numbers(fs, directory, path)
        for number in numbers:
            if number not in known:
                _require_file(fs, directory, os.path.join(path, file_name(number)))
    except OSError as error:
        raise _refused(path, error) from None
    if numbers and numbers[-1] == HIGHEST:
        raise RequestError(f"{path} holds the last number, {HIGHEST}", hint="record to another directory")
    return numbers


def _require_file(fs: Filesystem, directory: Directory, where: str) -> None:
    with suppress(FileNotFoundError):  # taken out meanwhile
        if fs.stat(directory, os.path.basename(where)).kind != "file":
            raise RequestError(f"{where}: not a regular file; nothing was recorded or sent to the model", hint=MEND)


def _require_safe(found: Stat, path: str) -> None:
    danger = permissions.path_problem(found, path, "directory")
    if danger is None or (danger.code == "open_mode" and not found.mode & 0o022):
        return  # others may see the names of the files, which are closed to them
    fix = f"chmod go-w {path}" if danger.code == "open_mode" else "name a directory of your own"
    raise UnsafePathError(
        f"{danger.reason}; nothing was recorded or sent to the model", hint=f"{fix}, or record elsewhere"
    )


def _refused(path: str, error: OSError) -> StorageError:
    return StorageError(
        f"cannot record to {path}: {error.strerror}; nothing was sent to the model",
        hint="choose another directory with --record",
    )


def _make(fs: Filesystem, path: str) -> None:
    """Make the directory and what is missing above it, 0700 each, for good."""
    for made in reversed(_missing(fs, path)[0]):
        with suppress(FileExistsError):
            fs.make_root(made)
        parent = fs.open_parent(made)
        try:
            # Others' directories may not let themselves be synced; that is no reason not to record.
            with suppress(OSError):
                fs.sync_directory(parent)
        finally:
            fs.close_directory(parent)


def _missing(fs: Filesystem, path: str) -> tuple[list[str], str]:
    """The directory and those above it that are not there, the lowest first; and the lowest one that is."""
    missing: list[str] = []
    while True:
        try:
            fs.stat_path(path)
            return missing, path
        except FileNotFoundError:
            missing.append(path)
            path = os.path.dirname(path)


def _publish(fs: Filesystem, directory: Directory, data: bytes, number: int) -> int:
    """Put the file under ``number`` or the next one that is free, whoever else records there; that number. The
    directory is not synced yet."""
    temporary = atomic_write.write_temporary(fs, directory, data, durable=True)
    try:
        while True:
            try:
                # The name appears at once and whole, and never replaces anything.
                fs.link(directory, temporary, directory, file_name(number))
                return number
            except FileExistsError:
                number += 1
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return _create(fs, directory, number, data)
    finally:
        atomic_write.discard(fs, directory, temporary)


def _create(fs: Filesystem, directory: Directory, number: int, data: bytes) -> int:
    """The same where there are no hard links (FAT, some network mounts): only there a crash may leave half a file."""
    while True:
        try:
            fd = fs.create(directory, file_name(number))
            break
        except FileExistsError:
            number += 1
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[fs.write(fd, rest) :]
            fs.sync_file(fd)
        finally:
            fs.close_file(fd)
    except BaseException:
        with suppress(OSError):
            fs.unlink(directory, file_name(number))
        raise
    return number
