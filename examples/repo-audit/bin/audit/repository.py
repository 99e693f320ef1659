"""Reads any git repository, trusting nothing in it: no hook, filter or pager runs, no symlink is followed, no network.

Contents come from git's objects and never from the work tree. So a file's content is what is staged (what the next
commit would hold); in a bare repository, or where nothing is checked out, what HEAD holds.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

from audit.task import Problem

MAX_FILES = 100_000
MAX_OBJECTS = 500_000
MAX_COMMITS = 50_000
MAX_DIFFED_COMMITS = 2_000
MAX_BLOB = 4 * 1024 * 1024  # [bytes] a larger file is not looked into
MAX_READ = 256 * 1024 * 1024  # [bytes] that one program reads of contents
"""Bounds that keep an audit of a huge repository short. What they cut off is reported, and they count things and not
seconds, so that two runs on the same repository find the same."""

FILE, EXECUTABLE, SYMLINK, SUBMODULE = "100644", "100755", "120000", "160000"

# Programs that a repository's own configuration could name are switched off; so is git's habit of fetching what a
# partial clone lacks, and of refreshing the index while reading.
OPTIONS = [
    "--no-pager",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "log.showSignature=false",
]
ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
KEPT = {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH"}


class Entry(NamedTuple):
    """A tracked file; ``mode`` as git writes it, ``size`` [bytes], -1 if the object is not here."""

    mode: str
    oid: str
    path: bytes
    size: int = -1


class Blob(NamedTuple):
    """A content somewhere in history, with one path it had; ``size`` [bytes]."""

    oid: str
    size: int
    path: bytes


class Commit(NamedTuple):
    """``time`` [s since 1970]; ``changes`` maps a path to lines added and deleted (-1: binary or not counted)."""

    oid: str
    time: int
    author: str
    subject: str
    changes: dict[bytes, tuple[int, int]]

    @property
    def day(self) -> str | None:
        """The day in UTC; None for a time that no calendar holds (git lets a commit claim any number)."""
        try:
            return datetime.fromtimestamp(self.time, tz=UTC).strftime("%Y-%m-%d")
        except (OverflowError, OSError, ValueError):
            return None


class Repository:
    """An open repository. Every method that lists is bounded and says by ``cut`` what its bound left out."""

    def __init__(self, path: str) -> None:
        """Open the repository whose top directory (or bare directory) is ``path``. Raises ``Problem``."""
        if not os.path.isabs(path):
            raise Problem(f"{path!r} is not an absolute path; give the repository's full path")
        if not os.path.isdir(path):
            raise Problem(f"{path} is not a directory; give the path of a git repository")
        self.path = path
        self.cut: dict[str, int] = {}
        facts = self.git("rev-parse", "--is-bare-repository", "--is-shallow-repository", "--absolute-git-dir")
        bare, shallow, directory = facts.decode("utf-8", "surrogateescape").rstrip("\n").split("\n", 2)
        self.bare = bare == "true"
        self.shallow = shallow == "true"
        self._must_be_top(directory)
        self.head = self._head()
        self.partial = bool(
            self._lines_or_none("config", "--get-regexp", r"^(remote\..*\.promisor|extensions\.partialclone)$")
        )
        self._local = self._local_objects() if self.partial else None

    def _must_be_top(self, directory: str) -> None:
        if self.bare or os.path.samefile(directory, self.path):
            top = directory
        else:
            top = self.git("rev-parse", "--show-toplevel").decode("utf-8", "surrogateescape").rstrip("\n")
        if not os.path.samefile(top, self.path):
            raise Problem(f"{self.path} is only a part of the repository {top}; give that path to audit all of it")

    def _head(self) -> str:
        found = self._lines_or_none("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        return found[0] if found else ""

    def _lines_or_none(self, *arguments: str) -> list[str]:
        """Lines of a command whose failure means "there is none"."""
        done = subprocess.run(self._command(arguments), env=environment(), capture_output=True, check=False)
        return done.stdout.decode("utf-8", "replace").splitlines() if done.returncode == 0 else []

    def _local_objects(self) -> set[str]:
        with self.stream("cat-file", "--batch-all-objects", "--batch-check=%(objectname)") as lines:
            return {
                line.decode()
                for line in self._bounded(lines, MAX_OBJECTS, "objects of a partial clone, only the first")
            }

    def _command(self, arguments: Iterable[str]) -> list[str]:
        return ["git", *OPTIONS, "-C", self.path, *arguments]

    def git(self, *arguments: str) -> bytes:
        """The output of a git command that prints little. Raises ``Problem`` with git's reason if it fails."""
        with self.stream(*arguments) as lines:
            return b"".join(line + b"\n" for line in lines)

    def stream(self, *arguments: str, separator: bytes = b"\n", feed: Stream | None = None) -> Stream:
        """The records of a git command, as they come. Raises ``Problem`` at the end if git failed."""
        return Stream(self, self._command(arguments), separator, feed)

    def _bounded(self, records: Iterable[bytes], limit: int, what: str) -> Iterator[bytes]:
        for count, record in enumerate(records):
            if count >= limit:
                self.cut[what] = limit
                return
            yield record

    # What is tracked

    def entries(self) -> list[Entry]:
        """Tracked files by path; of a file in conflict, our side."""
        staged = {} if self.bare else self._listed("ls-files", "--stage", "-z")
        if not staged and self.head:
            staged = self._listed("ls-tree", "-r", "-z", "HEAD")
        ordered = [staged[path] for path in sorted(staged)]
        sizes = self.sizes({entry.oid for entry in ordered if entry.mode != SUBMODULE})
        return [entry._replace(size=sizes.get(entry.oid, -1)) for entry in ordered]

    def _listed(self, *command: str) -> dict[bytes, Entry]:
        found: dict[bytes, Entry] = {}
        with self.stream(*command, separator=b"\0") as records:
            for record in self._bounded(records, MAX_FILES, "tracked files, only the first"):
                facts, path = record.split(b"\t", 1)
                words = facts.decode().split()
                # ls-files: mode oid stage; ls-tree: mode type oid. Stage 2 of a conflict is our side.
                oid = words[1] if command[0] == "ls-files" else words[2]
                if path not in found or words[2] == "2":
                    found[path] = Entry(words[0], oid, path)
        return found

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        """Sizes [bytes] of those objects that are here."""
        wanted = sorted(oid for oid in oids if self._here(oid))
        found: dict[str, int] = {}
        if not wanted:
            return found
        with Batch(self, "--batch-check=%(objectname) %(objectsize)") as batch:
            # So few at once that neither pipe can fill up while the other side waits.
            for start in range(0, len(wanted), 100):
                for line in batch.ask(wanted[start : start + 100]):
                    oid, size = line.decode().split(" ", 1)
                    if size.strip().isdigit():
                        found[oid] = int(size)
        return found

    def _here(self, oid: str) -> bool:
        return self._local is None or oid in self._local

    # Contents

    def contents(self, blobs: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes]]:
        """Contents of the blobs ``(oid, size)``, each once. Skips, and counts in ``cut``, what is too large, and what
        comes after ``MAX_READ`` bytes."""
        read = 0
        seen: set[str] = set()
        with Batch(self, "--batch") as batch:
            for oid, size in blobs:
                if oid in seen or not self._here(oid):
                    continue
                seen.add(oid)
                if size < 0 or size > MAX_BLOB or read + size > MAX_READ:
                    self.cut["contents not looked into"] = self.cut.get("contents not looked into", 0) + 1
                    continue
                read += size
                yield oid, batch.content(oid)

    # History

    def history_blobs(self) -> Iterator[Blob]:
        """Every content that a branch, a tag or any other ref leads to, newest first, each with one of its paths."""
        missing = ["--missing=allow-any"] if self.partial else []
        shape = "--batch-check=%(objecttype) %(objectname) %(objectsize) %(rest)"
        with (
            self.stream("rev-list", "--objects", "--all", *missing) as objects,
            self.stream("cat-file", shape, feed=objects) as lines,
        ):
            for line in self._bounded(lines, MAX_OBJECTS, "objects in history, only the first"):
                words = line.split(b" ", 3)
                if words[0] == b"blob":
                    yield Blob(words[1].decode(), int(words[2]), words[3] if len(words) > 3 else b"")

    def commits(self, *, changes: str = "", everywhere: bool = False) -> Iterator[Commit]:
        """Commits that HEAD leads to (or, ``everywhere``, any ref), newest first. ``changes``: "" for none,
        "names" for the paths each commit touched, "lines" for their added and deleted lines too."""
        if not self.head and not everywhere:
            return
        if changes and self.partial:
            changes = ""  # comparing needs contents that a partial clone would have to fetch
            self.cut["commits compared, only the newest"] = 0
        diff = {"": ["--no-patch"], "names": ["--name-only"], "lines": ["--numstat"]}[changes]
        limit = MAX_DIFFED_COMMITS if changes else MAX_COMMITS
        # A mark that no file name can hold on purpose, so that a name is never taken for a commit.
        mark = secrets.token_hex(16)
        shape = f"--format={mark}%H%x02%ct%x02%aE%x02%s"
        options = ["-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--encoding=UTF-8", shape]
        start = ["--all"] if everywhere else ["HEAD"]
        with self.stream("log", *options, *diff, f"--max-count={limit + 1}", *start, "--", separator=b"\0") as records:
            for count, commit in enumerate(parsed(records, mark.encode(), lines=changes == "lines")):
                if count >= limit:
                    self.cut["commits compared, only the newest" if changes else "commits, only the newest"] = limit
                    return
                yield commit


def parsed(records: Iterable[bytes], mark: bytes, *, lines: bool) -> Iterator[Commit]:
    """Commits from the records of ``git log -z`` in the shape that :meth:`Repository.commits` asks for."""
    current: Commit | None = None
    first = False
    for record in records:
        if record.startswith(mark):
            if current:
                yield current
            oid, time, author, subject = record.removeprefix(mark).decode("utf-8", "replace").split("\x02", 3)
            current = Commit(oid, int(time) if time.isdigit() else 0, author, subject, {})
            first = True
        elif current:
            # A newline precedes a commit's first change; any other one belongs to a file's name.
            change = record.removeprefix(b"\n") if first else record
            added, deleted, path = change.split(b"\t", 2) if lines else (b"", b"", change)
            current.changes[path] = (int(added) if added.isdigit() else -1, int(deleted) if deleted.isdigit() else -1)
            first = False
    if current:
        yield current


def environment() -> dict[str, str]:
    """The environment of every git command: the caller's, without what would point git at another repository."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in KEPT}
    return own | ENVIRONMENT


def is_binary(content: bytes) -> bool:
    """Apply git's rule: a NUL among the first 8,000 bytes."""
    return b"\0" in content[:8000]


class Stream:
    """The output of a running git command, cut at a separator; leaving the ``with`` ends the command."""

    process: Any  # Popen, whose pipes are always there here

    def __init__(self, repository: Repository, command: list[str], separator: bytes, feed: Stream | None) -> None:
        self.repository = repository
        self.command = command
        self.separator = separator
        self.feed = feed

    def __enter__(self) -> Stream:
        self.errors = tempfile.TemporaryFile()
        self.process = started(self.command, self.feed.process.stdout if self.feed else subprocess.DEVNULL, self.errors)
        self.output = self.process.stdout
        return self

    def __iter__(self) -> Iterator[bytes]:
        pending = b""
        # read1: what is there, without waiting for the block to be full
        while block := self.output.read1(1 << 16):
            *records, pending = (pending + block).split(self.separator)
            yield from records
        if pending:
            yield pending
        if self.feed:
            self.feed.must_have_succeeded()
        self.must_have_succeeded()

    def must_have_succeeded(self) -> None:
        if self.process.wait() != 0:
            self.errors.seek(0)
            raise failure(self.repository.path, self.command, self.errors.read().decode("utf-8", "replace"))

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()
        self.errors.close()


class Batch:
    """A running ``git cat-file`` that answers one request after another."""

    def __init__(self, repository: Repository, mode: str) -> None:
        self.command = repository._command(["cat-file", mode])
        self.path = repository.path

    def __enter__(self) -> Batch:
        self.errors = tempfile.TemporaryFile()
        self.process = started(self.command, subprocess.PIPE, self.errors)
        self.requests, self.answers = self.process.stdin, self.process.stdout
        return self

    def ask(self, oids: list[str]) -> list[bytes]:
        """One line of answer for each object."""
        self._send("".join(f"{oid}\n" for oid in oids).encode())
        lines = [self.answers.readline() for _ in oids]
        if not lines[-1]:
            raise self._failed()
        return lines

    def content(self, oid: str) -> bytes:
        """An object's content. Raises ``Problem`` if it is missing or damaged."""
        header = self.ask([oid])[0].split()
        if len(header) != 3:
            raise Problem(f"{self.path}: object {oid} is missing; `git fsck` in the repository says more")
        size = int(header[2])
        content: bytes = self.answers.read(size + 1)
        if len(content) != size + 1:
            raise self._failed()
        return content[:-1]

    def _send(self, request: bytes) -> None:
        try:
            self.requests.write(request)
            self.requests.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def _failed(self) -> Problem:
        self.process.wait()
        self.errors.seek(0)
        return failure(self.path, self.command, self.errors.read().decode("utf-8", "replace"))

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        try:
            self.requests.close()
        except BrokenPipeError:
            pass
        self.errors.close()


def started(command: list[str], stdin: IO[bytes] | int, errors: IO[bytes]) -> Any:
    try:
        return subprocess.Popen(command, env=environment(), stdin=stdin, stdout=subprocess.PIPE, stderr=errors)
    except FileNotFoundError:
        errors.close()
        raise Problem("git was not found on PATH; install it and run this again") from None


def failure(path: str, command: list[str], errors: str) -> Problem:
    """Explain a failed git command to the user of the audit."""
    if "dubious ownership" in errors:
        return Problem(
            f"{path} belongs to user id {os.stat(path).st_uid}, and you are {os.geteuid()}: git reads no repository of "
            "somebody else unless you say that you trust it. If you do: "
            f"git config --global --add safe.directory '{path}'"
        )
    if "not a git repository" in errors:
        return Problem(f"{path} is not a git repository (nor inside one); give the path of one")
    if "must be run in a work tree" in errors:
        return Problem(f"{path} is inside a repository's git directory; give the repository's top directory")
    reason = errors.strip()[-2000:] or "no reason given"
    return Problem(f"git {' '.join(command[command.index('-C') + 2 :])} failed in {path}: {reason}")
