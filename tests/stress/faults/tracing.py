"""Comparison of the system calls that strace saw with those the seam recorded, one to one.

:func:`compare` takes both and raises :class:`Differs` at the first call that is in the one and not in the other. What
each method of the seam is in system calls is written in the table at the end of this module.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

Json = Any

TRACED = "%file,%desc,sync"
"""Traced calls: every call that names a file or a descriptor, and the one that needs neither."""
CWD = -100
"""The descriptor that stands for the current directory."""
READING = frozenset(
    ("stat", "fstat", "readlink", "getdents64", "lseek", "fcntl", "read", "statfs", "access", "close", "flock")
)
"""Calls that change nothing of what is on the disk (a lock goes with its holder)."""


class Differs(AssertionError):
    """The trace shows something else than was recorded."""


class Call(msgspec.Struct, frozen=True):
    """A system call: its name as :data:`_NAMES` unites them, its arguments (descriptors and numbers as integers, paths
    as strings, flags as sets), what it gave (a number, or the name of an errno), and all paths that it is about."""

    name: str
    args: tuple[Any, ...]
    result: int | str
    paths: tuple[str, ...]
    thread: int
    line: str

    def concerns(self, base: str) -> bool:
        """Return whether it is about ``base`` or something below it."""
        return any(path == base or path.startswith(base + "/") for path in self.paths)

    @property
    def changes(self) -> bool:
        """Return whether it can change what is on the disk."""
        if self.name == "open":
            return bool(self.args[2] & {"O_CREAT", "O_TRUNC", "O_WRONLY", "O_RDWR", "O_APPEND", "O_TMPFILE"})
        return self.name not in READING


def strace(trace: Path, *options: str) -> list[str]:
    """The words that trace a command into the file ``trace``. Skips the test where that is not possible."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([program, "-f", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace cannot trace here: {probe.stderr.decode('utf-8', 'replace')[:100]}")
    return [program, "-f", "--seccomp-bpf", "-qq", "-y", "-s", "0", "-o", str(trace), "-e", f"trace={TRACED}", *options]


# -- reading what strace writes ----------------------------------------------------------------------------------------

_LINE = re.compile(r"(?P<name>\w+)\((?P<args>.*)\) += (?P<result>-?\d+|0x[0-9a-f]+|\?)(?P<rest>.*)", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|<(?:[^>\\]|\\.)*>|[{\[(]|[}\])]|, |.', re.DOTALL)
_FD = re.compile(r"(?P<fd>-?\d+|AT_FDCWD)(?:<(?P<path>(?:[^>\\]|\\.)*)>)?(?:\(deleted\))?")
_NAMES = {
    "openat": "open",
    "mkdirat": "mkdir",
    "linkat": "link",
    "renameat": "rename",
    "renameat2": "rename",
    "unlinkat": "unlink",
    "rmdir": "unlink",
    "faccessat": "access",
    "faccessat2": "access",
    "fchmodat": "chmod",
    "readlinkat": "readlink",
    "lstat": "stat",
    "newfstatat": "stat",
}
_RELATIVE = ("open", "mkdir", "unlink", "readlink", "access", "chmod", "stat")
"""Calls that take a descriptor before the path, in their newer form."""


def read_trace(text: str) -> list[Call]:
    """All calls that came back, in the order in which they did."""
    calls = []
    begun: dict[str, str] = {}
    for line in text.splitlines():
        thread, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[thread] = rest.removesuffix("<unfinished ...>")
            continue
        resumed = re.match(r"<\.\.\. \w+ resumed>", rest)
        if resumed:
            rest = begun.pop(thread) + rest[resumed.end() :]
        found = _LINE.fullmatch(rest)
        if found:
            calls.append(_call(int(thread), found, rest))
    return calls


def _split(text: str) -> list[str]:
    """Arguments, cut at the commas that are in no string, path or structure."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "{[(") - (token in "}])")
        if token == ", " and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    # Where a call was interrupted by another thread's, a space is left behind.
    return [part.strip() for part in parts]


def _call(thread: int, found: re.Match[str], line: str) -> Call:
    paths: list[str] = []
    raw = _split(found["args"])
    args = [_value(part, paths) for part in raw]
    result: int | str = int(found["result"], 0) if found["result"] != "?" else "?"
    failed = re.match(r" (E\w+) \(", found["rest"])
    if failed:
        result = failed[1]
    opened = re.match(r"<((?:[^>\\]|\\.)*)>", found["rest"])
    if opened:
        paths.append(opened[1])
    # A name is relative to the descriptor before it.
    for at, value in enumerate(args[1:], 1):
        if isinstance(value, str) and raw[at].startswith('"') and not value.startswith("/"):
            above = _FD.fullmatch(raw[at - 1])
            if above and above["path"]:
                paths.append(f"{above['path']}/{value}")
        elif isinstance(value, str) and raw[at].startswith('"'):
            paths.append(value)
    if args and isinstance(args[0], str) and raw[0].startswith('"'):
        paths.append(args[0])
    name, united = _united(found["name"], args)
    return Call(name, united, result, tuple(paths), thread, line)


def _value(part: str, paths: list[str]) -> Any:
    if part.startswith('"'):
        # What strace left out of a string is shown by dots behind it.
        return part.removesuffix("...")[1:-1]
    descriptor = _FD.fullmatch(part)
    if descriptor:
        if descriptor["path"]:
            paths.append(descriptor["path"])
        fd = descriptor["fd"]
        if len(fd) > 1 and fd.startswith("0"):
            return int(fd, 8)
        return CWD if fd == "AT_FDCWD" else int(fd)
    if re.fullmatch(r"[A-Z][A-Z0-9_]*(\|[A-Z0-9_]+)*", part):
        return frozenset(part.split("|"))
    return part


def _united(name: str, args: list[Any]) -> tuple[str, tuple[Any, ...]]:
    """One name and one order of arguments for calls that differ by the age of the C library only."""
    if name == "fstat" or (name == "newfstatat" and args[1] == "" and args[3] == {"AT_EMPTY_PATH"}):
        return "fstat", (args[0],)
    if name in ("stat", "newfstatat") and args[-1] != {"AT_SYMLINK_NOFOLLOW"}:
        return "stat that follows", tuple(args)
    united = _NAMES.get(name, name)
    if united in ("link", "rename") and len(args) == 2:
        args = [CWD, args[0], CWD, args[1]]
    elif united in _RELATIVE and not isinstance(args[0], int):
        args = [CWD, *args]
    if name == "rmdir":
        args.append(frozenset({"AT_REMOVEDIR"}))
    if united in ("link", "rename", "unlink") and args[-1] == 0:
        # No flags.
        args.pop()
    return united, tuple(args[:2] if united in ("stat", "readlink") else args)


# -- what was recorded -------------------------------------------------------------------------------------------------


class Operation(msgspec.Struct):
    """One call of the seam: what it was given, what it gave or raised, and the system calls made meanwhile."""

    call: str
    args: list[Json]
    result: Json = None
    raised: str | None = None
    seen: list[Call] = msgspec.field(default_factory=list)

    def __str__(self) -> str:
        seen = "".join(f"\n    {call.line}" for call in self.seen)
        return f"{self.call}{tuple(self.args)} = {self.raised or self.result}{seen or ' (no system call)'}"


class Comparison(msgspec.Struct):
    """Both laid side by side. ``operations`` in their order; ``calls`` counts the system calls on the place by name,
    ``outside`` those of them that no operation made; ``foreign`` the lines of other threads and processes."""

    operations: list[Operation]
    calls: Counter[str]
    outside: Counter[str]
    foreign: Counter[str]


def compare(trace: str, recorded: str, base: str, side: str) -> Comparison:
    """Demand that the calls of the traced process on ``base``, the directory in which the state dir is made, are those
    of the recorded operations. ``side`` is the path of the file that these were written to.

    Raises :class:`Differs`.
    """
    lines = [json.loads(line) for line in recorded.splitlines()]
    scenario = _Story(base)
    at = 0
    for call in read_trace(trace):
        if call.name == "write" and side in call.paths:
            scenario.line(lines[at], call.thread)
            at += 1
        else:
            scenario.see(call)
    _require(at == len(lines), f"{len(lines)} lines were recorded, the trace shows {at}")
    _require(scenario.inside is None, f"{scenario.inside} never ended")
    return Comparison(scenario.operations, scenario.calls, scenario.outside, scenario.foreign)


class _Story:
    def __init__(self, base: str) -> None:
        self.base = base
        self.operations: list[Operation] = []
        self.calls: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()
        self.foreign: Counter[str] = Counter()
        self.inside: Operation | None = None
        self.thread = 0
        self.directories: set[int] = set()
        self.locks: set[int] = set()

    def line(self, line: dict[str, Json], thread: int) -> None:
        """A line that the seam wrote: an operation begins or ends."""
        if "call" in line:
            _require(self.inside is None, f"{line} began inside {self.inside}")
            self.inside, self.thread = Operation(line["call"], line["args"]), thread
            return
        operation = self.inside
        assert operation is not None
        assert self.thread == thread
        operation.result, operation.raised = line.get("result"), line.get("raised")
        _match(operation)
        self._remember(operation)
        self.operations.append(operation)
        self.inside = None

    def _remember(self, operation: Operation) -> None:
        """Which descriptors are directories' and locks', for what is done with them outside the seam."""
        if operation.raised:
            return
        if operation.call in ("open_root", "open_parent", "open_directory"):
            self.directories.add(operation.result["fd"])
        elif operation.call == "open_lock":
            self.locks.add(operation.result)
        elif operation.call == "close_directory":
            self.directories.discard(operation.args[0]["fd"])
        elif operation.call == "close_lock":
            self.locks.discard(operation.args[0])

    def see(self, call: Call) -> None:
        concerned = call.concerns(self.base)
        if concerned:
            self.calls[call.name] += 1
        if self.inside is not None and call.thread == self.thread:
            # What is above the place counts as well: the seam looks at every directory there.
            above = any(path == "/" or self.base.startswith(path.rstrip("/") + "/") for path in call.paths)
            if concerned or above:
                self.inside.seen.append(call)
            return
        if not concerned:
            return
        self.outside[call.name] += 1
        if self.operations and call.thread != self.thread:
            # A child between fork and exec has its parent's descriptors; it closes them at most.
            self.foreign[call.name] += 1
            _require(call.name == "close", f"another process did {call.line}")
        elif call.name == "flock":
            _require(call.args[0] in self.locks, f"no open lock: {call.line}")
        else:
            mine = call.name == "close" and call.args[0] in self.directories
            _require(mine, f"outside the seam: {call.line}")
            self.directories.discard(call.args[0])


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Differs(what)


# -- what each method of the seam is -----------------------------------------------------------------------------------

_FILE = frozenset(("O_RDONLY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"))
_CREATE = frozenset(("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_CLOEXEC"))
_LOCK = frozenset(("O_RDWR", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"))
_DIRECTORY = frozenset(("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))

_Wanted = tuple[Any, ...]
"""A call's name and arguments."""


def _match(operation: Operation) -> None:
    """Demand that the calls seen are those of the operation. Raises :class:`Differs`."""
    seen = [(call.name, *call.args) for call in operation.seen]
    if operation.call in _SINGLE:
        _require(seen == [_SINGLE[operation.call](operation.args)], f"not one to one: {operation}")
        call = operation.seen[0]
        if operation.raised:
            _require(call.result == operation.raised, f"the system gave another error: {operation}")
        else:
            _require(call.result == _number(operation), f"the system gave something else: {operation}")
    else:
        _require(_SEVERAL[operation.call](operation, seen), f"not one to one: {operation}")


def _number(operation: Operation) -> int:
    """Return the result of an operation's only system call: a descriptor, a number of bytes, or 0."""
    result = operation.result
    if isinstance(result, dict):
        return int(result.get("fd", 0))
    if operation.call == "read_link":
        return len(result)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _stat(args: list[Json]) -> _Wanted:
    directory, name = args[0], (args[1:] or [""])[0]
    return ("stat", directory["fd"], name) if name else ("fstat", directory["fd"])


_SINGLE = {
    "open_root": lambda a: ("open", CWD, a[0], _DIRECTORY),
    "open_parent": lambda a: ("open", CWD, f"{a[0]}/..", _DIRECTORY),
    "open_directory": lambda a: ("open", a[0]["fd"], a[1], _DIRECTORY),
    "close_directory": lambda a: ("close", a[0]["fd"]),
    "stat": _stat,
    "stat_path": lambda a: ("stat", CWD, a[0]),
    "stat_file": lambda a: ("fstat", a[0]),
    "read_link": lambda a: ("readlink", CWD, a[0]),
    "write": lambda a: ("write", a[0], "", a[1]["bytes"]),
    "sync_file": lambda a: ("fsync", a[0]),
    "close_file": lambda a: ("close", a[0]),
    "close_lock": lambda a: ("close", a[0]),
    "link": lambda a: ("link", a[0]["fd"], a[1], a[2]["fd"], a[3]),
    "rename": lambda a: ("rename", a[0]["fd"], a[1], a[2]["fd"], a[3]),
    "unlink": lambda a: ("unlink", a[0]["fd"], a[1]),
    "remove_directory": lambda a: ("unlink", a[0]["fd"], a[1], frozenset({"AT_REMOVEDIR"})),
    "open_file": lambda a: ("open", a[0]["fd"], a[1], _FILE),
    "open_to_sync": lambda a: ("open", a[0]["fd"], a[1], _FILE),
}
"""Methods that are one system call, whose result is theirs."""


def _made(operation: Operation, seen: list[_Wanted], mkdir: _Wanted) -> bool:
    """A directory: made, and looked at; given its mode where the umask took some of it."""
    if operation.raised:
        return seen == [mkdir] and operation.seen[0].result == operation.raised
    return seen[:2] == [mkdir, ("stat", *mkdir[1:3])] and [call[0] for call in seen[2:]] in ([], ["chmod"])


def _make_root(operation: Operation, seen: list[_Wanted]) -> bool:
    return _made(operation, seen, ("mkdir", CWD, operation.args[0], 0o700))


def _make_directory(operation: Operation, seen: list[_Wanted]) -> bool:
    return _made(operation, seen, ("mkdir", operation.args[0]["fd"], operation.args[1], 0o700))


def _sync_directory(operation: Operation, seen: list[_Wanted]) -> bool:
    """A directory: synced, and looked at, which a file system that has shut down refuses."""
    fd = operation.args[0]["fd"]
    wanted = [("fsync", fd), ("fstat", fd)]
    failed = [call.result for call in operation.seen if call.result != 0]
    if operation.raised:
        return seen in (wanted[:1], wanted) and failed == [operation.raised] == [operation.seen[-1].result]
    return seen == wanted and not failed


def _create(operation: Operation, seen: list[_Wanted]) -> bool:
    """A new file: made, and looked at; given its mode where the umask took some of it."""
    opening = ("open", operation.args[0]["fd"], operation.args[1], _CREATE, 0o600)
    if operation.raised:
        return seen == [opening] and operation.seen[0].result == operation.raised
    fd = operation.result
    wanted = [opening, ("fstat", fd), ("fchmod", fd, 0o600)]
    return seen in (wanted[:2], wanted) and operation.seen[0].result == fd


def _open_lock(operation: Operation, seen: list[_Wanted]) -> bool:
    """The file of a lock: opened, or else made and given its mode."""
    opening = ("open", operation.args[0]["fd"], operation.args[1], _LOCK)
    if seen[:1] != [opening]:
        return False
    first, fd = operation.seen[0].result, operation.result
    if first != "ENOENT":
        return len(seen) == 1 and first == (operation.raised or fd)
    making = ("open", operation.args[0]["fd"], operation.args[1], _LOCK | {"O_CREAT"}, 0o600)
    if operation.raised:
        return seen[1:] == [making] and operation.seen[1].result == operation.raised
    return seen[1:] == [making, ("fchmod", fd, 0o600)] and operation.seen[1].result == fd


def _read(operation: Operation, seen: list[_Wanted]) -> bool:
    """A file: opened, looked at, read to its end in as many pieces as the system gives, closed."""
    opening = ("open", operation.args[0]["fd"], operation.args[1], _FILE)
    if seen[:1] != [opening]:
        return False
    fd = operation.seen[0].result
    if not isinstance(fd, int):
        return len(seen) == 1 and operation.raised == fd
    if len(seen) < 3 or seen[1] != ("fstat", fd) or seen[-1] != ("close", fd):
        return False
    pieces = operation.seen[2:-1]
    if not all(call.name == "read" and call.args[0] == fd for call in pieces):
        return False
    size = operation.result[1]["size"] if operation.result else None
    return size is None or sum(call.result for call in pieces if isinstance(call.result, int)) == size


_LISTING = (
    # A descriptor of its own, and one more for Python's iterator; entries until there are none; both closed.
    r"open fcntl fstat fcntl (fcntl )?(getdents64 )+lseek close close "
)


def _names(operation: Operation, seen: list[_Wanted]) -> bool:
    """One step through a listing. What the steps are together is what :data:`_LISTING` says."""
    first = [call for call in operation.seen if call.name == "open"]
    below = operation.args[0]["fd"]
    if any((call.name, *call.args) != ("open", below, ".", _DIRECTORY) for call in first):
        return False
    words = "".join(f"{call[0]} " for call in seen)
    whole = re.fullmatch(_LISTING, words) is not None
    begun = re.fullmatch(r"open fcntl fstat fcntl (fcntl )?(getdents64 )+", words) is not None
    going_on = re.fullmatch(r"(getdents64 )*(lseek close close )?", words) is not None
    return whole or begun or going_on


def _asked(name: str) -> Any:
    def asked(operation: Operation, seen: list[_Wanted]) -> bool:
        return len(seen) == 1 and seen[0][0] == name and operation.args[0] in operation.seen[0].paths

    return asked


_SEVERAL = {
    "make_root": _make_root,
    "make_directory": _make_directory,
    "sync_directory": _sync_directory,
    "create": _create,
    "open_lock": _open_lock,
    "read": _read,
    "digest": _read,
    "names": _names,
    "is_read_only": _asked("statfs"),
    "may_change": _asked("access"),
}
"""Methods that are more than one, or whose result is not that of the call."""
