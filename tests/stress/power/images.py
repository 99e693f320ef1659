"""File systems in a file, whose power can be cut at any moment: made, mounted, stopped, replayed and checked.

There are two ways to cut it. ``shutdown`` stops the file system: what it did not hand to its disk is lost. ``disk``
stops the disk under it: the image lies in an outer file system, which is stopped, so that what the inner one wrote
without asking for a flush is lost as well, as in the cache of a drive. Only root can do either, on Linux.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from stress.oracle import ViolationError

FLUSH, LOG, NOTHING = 0, 1, 2
"""Data flushed before the power loss: everything, the journal, nothing."""
_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
"""``_IOR('X', 125, __u32)``: EXT4_IOC_SHUTDOWN, and XFS_IOC_GOINGDOWN."""
_MIB = 1 << 20
_SIZES = {"ext4": 64 * _MIB, "xfs": 300 * _MIB, "btrfs": 128 * _MIB}
"""[bytes]; those of xfs and btrfs are near the smallest that they take."""
_FORCE = {"ext4": ("-q", "-F"), "xfs": ("-q", "-f"), "btrfs": ("-q", "-f")}
_CHECKS = {
    "ext4": ("e2fsck", "-f", "-n"),
    "xfs": ("xfs_repair", "-n"),
    "btrfs": ("btrfs", "check", "--readonly"),
}
_BUSY = 10.0
"""[s] for which a mount may stay busy after its last user died."""


class Unavailable(Exception):
    """Such a file system cannot be had here, and why."""


class Kind(msgspec.Struct, frozen=True):
    """A sort of file system: its name, how it is mounted and made, and how its power is cut."""

    system: str
    options: str = ""
    made: tuple[str, ...] = ()
    way: str = "shutdown"

    @property
    def name(self) -> str:
        """In words, for people and as a key."""
        words = [self.system, self.options, " ".join(self.made), "disk" if self.way == "disk" else ""]
        return " ".join(word for word in words if word)


KINDS = (
    Kind("ext4", "data=ordered"),
    Kind("ext4", "data=writeback"),
    Kind("ext4", "data=journal"),
    Kind("ext4", "nodelalloc"),
    Kind("ext4", made=("-b", "1024")),
    Kind("xfs"),
    Kind("xfs", made=("-b", "size=1024")),
    Kind("ext4", way="disk"),
    Kind("xfs", way="disk"),
    Kind("btrfs", way="disk"),
)


def power_off(path: str, flag: int) -> None:
    """Stop the file system mounted at ``path``: from now on it refuses what would touch its disk. Raises OSError."""
    # Not everywhere, and this module can be imported everywhere, to say why nothing can be mounted.
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", flag))
    finally:
        os.close(fd)


def settle(path: str) -> None:
    """Write all that the file system at ``path`` holds to its disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            raise OSError(ctypes.get_errno(), "cannot be synced", path)
    finally:
        os.close(fd)


class Image:
    """A file system of one kind below ``root``, mounted at ``path`` while it has power. The power switch is ``switch``:
    :func:`power_off` is called on it."""

    def __init__(self, root: Path, kind: Kind) -> None:
        self.kind = kind
        self.path = root / "mount"
        self._outer = root / "outer"
        self._lower = root / "disk.img"
        nested = kind.way == "disk"
        self._file = self._outer / "disk.img" if nested else root / "disk.img"
        self.switch = self._outer if nested else self.path
        self._mounted: list[Path] = []

    def make(self) -> None:
        """Make it, and mount it. Raises :class:`Unavailable`."""
        missing = unavailable(self.kind)
        if missing:
            raise Unavailable(missing)
        for place in (self.path, self._outer):
            place.mkdir(parents=True)
        size = _SIZES[self.kind.system]
        if self.kind.way == "disk":
            _sparse(self._lower, size + size // 4)
            _run("mkfs.ext4", *_FORCE["ext4"], str(self._lower))
            self._mount(self._lower, self._outer, "")
        _sparse(self._file, size)
        _run(f"mkfs.{self.kind.system}", *_FORCE[self.kind.system], *self.kind.made, str(self._file))
        self._mount(self._file, self.path, self.kind.options)
        self.path.chmod(0o700)
        self.settle()

    def settle(self) -> None:
        """Bring all that was written up to now to the disk, and have it flush."""
        settle(str(self.path))
        settle(str(self.switch))

    def replay(self) -> None:
        """Give it power again: take down what is stopped, mount, and so have the journal replayed. Raises
        ``ViolationError`` for a file system that cannot be mounted any more."""
        self.detach()
        try:
            if self.kind.way == "disk":
                self._mount(self._lower, self._outer, "")
            self._mount(self._file, self.path, self.kind.options)
        except Unavailable as error:
            raise ViolationError(f"after the power came back: {error}") from None

    def check(self) -> str:
        """Run the file system's own check on the unmounted image, then mount it. Return its complaint, or ""."""
        self._unmount(self.path)
        words = _CHECKS[self.kind.system]
        done = subprocess.run([*words, str(self._file)], capture_output=True, check=False)
        self._mount(self._file, self.path, self.kind.options)
        return "" if done.returncode == 0 else (done.stdout + done.stderr).decode(errors="replace")[-1000:]

    def detach(self) -> None:
        """Unmount all there is; the loop devices go with their mounts. Raises RuntimeError if something stays busy,
        after having it unmounted as soon as its users are gone."""
        busy: list[str] = []
        while self._mounted:
            try:
                self._unmount(self._mounted[-1])
            except RuntimeError as error:
                busy.append(str(error))
        if busy:
            raise RuntimeError("; ".join(busy))

    def _mount(self, file: Path, place: Path, options: str) -> None:
        # Noted first: an interrupt may come while mount is at work.
        self._mounted.append(place)
        try:
            _run("mount", "-o", ",".join(["loop", "noatime", *filter(None, [options])]), str(file), str(place))
        except Unavailable:
            self._mounted.remove(place)
            raise

    def _unmount(self, place: Path) -> None:
        until = time.monotonic() + _BUSY
        while _is_mounted(place):
            done = subprocess.run(["umount", str(place)], capture_output=True, check=False)
            if done.returncode and time.monotonic() > until:
                subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)
                self._mounted.remove(place)
                raise RuntimeError(f"{place} stays busy: {done.stderr.decode(errors='replace')}")
            if done.returncode:
                gc.collect()
                time.sleep(0.05)
        self._mounted.remove(place)


@contextmanager
def powered(root: Path, kind: Kind) -> Iterator[Image]:
    """A new file system below ``root``, which must not exist; unmounted and detached afterwards, whatever happens.
    Raises :class:`Unavailable`."""
    image = Image(root, kind)
    try:
        image.make()
        yield image
    except BaseException as error:
        let_go(error)
        raise
    finally:
        image.detach()


def unavailable(kind: Kind) -> str:
    """Why such a file system cannot be had here, as far as that shows without trying; "" if nothing is in the way."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root can mount file systems, on Linux"
    systems = {kind.system, "ext4"} if kind.way == "disk" else {kind.system}
    for program in ("mount", "umount", *(f"mkfs.{system}" for system in sorted(systems))):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return ""


def checkable(kind: Kind) -> bool:
    """Return whether the program is installed that checks such a file system."""
    return shutil.which(_CHECKS[kind.system][0]) is not None


def let_go(error: BaseException | None) -> None:
    """Stores that the frames of an error hold keep directories open, and so the mount busy."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _is_mounted(place: Path) -> bool:
    """Read the kernel's mount table: a stopped file system may refuse other queries."""
    # Blanks are written as octal numbers there.
    wanted = str(place).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split()[4] == wanted for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _sparse(path: Path, size: int) -> None:
    with path.open("xb") as file:
        file.truncate(size)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()[:200]
        raise Unavailable(f"`{' '.join(words)}` exits with {done.returncode}: {told}")
