"""States that a power loss may leave of a log of file-system calls: all legal ones, up to a limit.

The medium has for certain what was synced: the bytes of a file after a sync of the file, the names in a directory after
a sync of the directory. Of everything else any part may be there:

- **names**: any subset of the changes since the directory's last sync (POSIX promises no more), the prefixes in order
  among them (what journals do). A change is whole or not there, also a rename over another name. A rename from one
  directory to another may show the file twice, and never nowhere: journals keep to that, POSIX does not ask it.
- **bytes**: of a file that was written since its last sync the old bytes, the new ones, the new ones cut off anywhere,
  zeros, a second part without the first, or something else of the same length. That a name is on the medium says
  nothing about the bytes.

Each crash is looked at where most of it is still open: before a sync and before somebody is told something. What may be
left at an earlier moment since the last of those may be left there, too.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from random import Random

import msgspec
from stress.oracle import sha256
from stress.power.disk import Acknowledgement, Image, Named, Step, Synced, Written, apply

STALE = b'{"path":"state-2020-01-01T000000.000000Z-00000000.json","sha256":"' + b"0" * 64 + b'","version":"1"}'
"""Possible content of a reused block: data that was valid once."""


class Crash(msgspec.Struct, frozen=True):
    """A disk after a power loss, ``told`` what had been promised until then, ``coming`` what would have been next (or
    None), ``at`` the number of steps before it, ``ordered`` whether a journal could have left it."""

    image: Image
    told: tuple[Acknowledgement, ...]
    coming: Acknowledgement | None
    at: int
    ordered: bool


class _Change(msgspec.Struct):
    """A change of names that is not on the medium for certain. ``after``: the change without which it cannot be."""

    parts: tuple[tuple[int, str, int | None], ...]
    after: _Change | None = None


class Losses:
    """Walks a log over the image it began with. At most ``limit`` images for each crash, chosen by ``rng`` beyond."""

    def __init__(self, base: Image, log: list[Step], limit: int, rng: Random) -> None:
        self.log = log
        self.limit = limit
        self.rng = rng
        self._durable = {inode: dict(entries) for inode, entries in base.directories.items()}
        self._files = dict(base.files)
        self._modes = dict(base.modes)
        self._pending: list[_Change] = []
        self._dirty: dict[int, bytes] = {}
        """The newest bytes of files that were written since their last sync."""
        made = [step.parts[0][2] for step in log if isinstance(step, Named) and step.call == "mkdir"]
        self._directories = {inode for inode in made if inode is not None} | base.directories.keys()

    def crashes(self, modes: dict[int, int]) -> Iterator[Crash]:
        """All crashes, in the order of the log. ``modes`` are those of all inodes that were ever made."""
        self._modes = modes
        coming = [step for step in self.log if isinstance(step, Acknowledgement)]
        told: list[Acknowledgement] = []
        for at, step in enumerate(self.log):
            if isinstance(step, Synced | Acknowledgement):
                yield from self._here(told, coming, at)
            if isinstance(step, Acknowledgement):
                told.append(coming.pop(0))
            else:
                self._take(step)
        yield from self._here(told, coming, len(self.log))

    def _here(self, told: list[Acknowledgement], coming: list[Acknowledgement], at: int) -> Iterator[Crash]:
        for image, ordered in self.images():
            yield Crash(image, tuple(told), coming[0] if coming else None, at, ordered)

    def _take(self, step: Step) -> None:
        if isinstance(step, Named):
            first = _Change(step.parts[:1])
            inside = len({directory for directory, _, _ in step.parts}) == 1
            self._pending += [_Change(step.parts)] if inside else [first, _Change(step.parts[1:], first)]
        elif isinstance(step, Written):
            self._dirty[step.inode] = step.data
        elif isinstance(step, Synced):
            self._sync(step.inode)

    def _sync(self, inode: int) -> None:
        if inode in self._dirty:
            self._files[inode] = self._dirty.pop(inode)
        kept = [change for change in self._pending if change.parts[0][0] == inode]
        # What another change rests on is on the medium with it.
        kept = [change for change in self._pending if change in kept or any(k.after is change for k in kept)]
        for change in kept:
            self._put(self._durable, change)
        self._pending = [change for change in self._pending if change not in kept]

    @staticmethod
    def _put(directories: dict[int, dict[str, int]], change: _Change) -> None:
        for directory, name, inode in change.parts:
            # A directory of its own: images that were given away share the others.
            directories[directory] = dict(directories.get(directory, {}))
            apply(directories[directory], name, inode)

    # -- what may be left ------------------------------------------------------------------------------------------

    def images(self) -> Iterator[tuple[Image, bool]]:
        """Yield the states that may be on the medium now, and whether names are in order; at most ``limit`` images.

        Everything that names may have become gets its turn before any of it gets a second one: where much is open, a
        limit must not leave out what came last.
        """
        waiting = [(self._filled(chosen), ordered) for chosen, ordered in self._in_turn()]
        left = self.limit
        while waiting and left:
            again = []
            for filled, ordered in waiting:
                image = next(filled, None)
                if image is not None:
                    again.append((filled, ordered))
                    left -= 1
                    yield image, ordered
                if not left:
                    return
            waiting = again

    def _in_turn(self) -> list[tuple[list[_Change], bool]]:
        """The subsets: all that was changed, nothing of it, then prefixes and others in turns, both shuffled."""
        subsets = list(self._subsets())
        prefixes = [each for each in subsets if each[1]]
        others = [each for each in subsets if not each[1]]
        ends = [prefixes.pop(), *prefixes[:1]]
        prefixes = prefixes[1:]
        self.rng.shuffle(prefixes)
        self.rng.shuffle(others)
        mixed = [each for pair in itertools.zip_longest(prefixes, others) for each in pair if each is not None]
        return ends + mixed

    def _subsets(self) -> Iterator[tuple[list[_Change], bool]]:
        changes = self._pending
        for end in range(len(changes) + 1):
            yield changes[:end], True
        if 2 ** len(changes) <= self.limit:
            masks: Iterable[int] = range(2 ** len(changes))
        else:
            masks = (self.rng.getrandbits(len(changes)) for _ in range(self.limit))
        for mask in masks:
            # A prefix was there already.
            if mask & (mask + 1):
                chosen = [change for at, change in enumerate(changes) if mask >> at & 1]
                if all(change.after is None or change.after in chosen for change in chosen if change.after in changes):
                    yield chosen, False

    def _filled(self, chosen: list[_Change]) -> Iterator[Image]:
        directories = dict(self._durable)
        for change in chosen:
            self._put(directories, change)
        reached = _reached(directories)
        directories = {inode: directories.get(inode, {}) for inode in reached & self._directories}
        files = {inode: self._files.get(inode, b"") for inode in reached - directories.keys()}
        dirty = [inode for inode in self._dirty if inode in files]
        for filling in self._fillings(dirty):
            yield Image(directories, {**files, **dict(zip(dirty, filling, strict=True))}, self._modes)

    def _fillings(self, dirty: list[int]) -> Iterator[tuple[bytes, ...]]:
        choices = [contents(self._files.get(inode, b""), self._dirty[inode]) for inode in dirty]
        if math.prod(map(len, choices)) <= self.limit:
            fillings = list(itertools.product(*choices))
            self.rng.shuffle(fillings)
            yield from fillings
            return
        for _ in range(self.limit):
            # All old and all new are as likely as a mixture: one sync makes the difference between the two.
            at = self.rng.randrange(4)
            yield tuple(each[min(at, len(each) - 1)] if at < 2 else self.rng.choice(each) for each in choices)


def points(log: list[Step]) -> int:
    """At how many moments of a log a crash is looked at."""
    return 1 + sum(isinstance(step, Synced | Acknowledgement) for step in log)


def _reached(directories: dict[int, dict[str, int]]) -> set[int]:
    reached = {1}
    waiting = [1]
    while waiting:
        for inode in directories.get(waiting.pop(), {}).values():
            if inode not in reached:
                reached.add(inode)
                waiting.append(inode)
    return reached


def contents(old: bytes, new: bytes) -> list[bytes]:
    """Yield the possible contents of a file that was ``old`` at its last sync and ``new`` at the power loss; the new
    ones first, then the old ones."""
    size = len(new)
    half = size // 2
    found = [
        new,
        old,
        new[: size - 1],
        new[:half],
        new[:1],
        b"\0" * size,
        b"\0" * half + new[half:],
        new[:half] + b"\0" * (size - half),
        (STALE * (size // len(STALE) + 1))[:size],
    ]
    return list(dict.fromkeys(found))


def fingerprint(tree: dict[str, bytes], *more: object) -> bytes:
    """The same 16 bytes for the same files at the same paths, and for whatever else tells cases apart."""
    lines = sorted(f"{path}\0{sha256(data)}" for path, data in tree.items())
    return hashlib.blake2b("\n".join([*lines, repr(more)]).encode("utf-8", "surrogateescape"), digest_size=16).digest()
