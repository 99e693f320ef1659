"""The two small protocols of a backend, Blobs and Heads, and what their methods promise.

``stateline.testing.backends`` is the same contract as tests, which every backend must pass. Retry, read-only and
logging are wrappers of these protocols, never options inside a backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol, runtime_checkable

import msgspec

from stateline.bundle.envelope import Pointer
from stateline.errors import ConflictError, LockTimeoutError, StatelineError

Durability = Literal["full", "fast"]
"""Survival of what is acknowledged. ``full``: a power loss. ``fast``: the death of every process at any moment,
but a power loss may take the newest of it away or leave it torn."""
FULL: Literal["full"] = "full"
FAST: Literal["fast"] = "fast"

DAMAGE_HINT = "nothing was changed; `stateline verify` lists all damage, `stateline repair` plans a repair"


class BlobMissingError(Exception):
    """No blob has that name. ``str(error)`` is the name."""


class BlobExistsError(Exception):
    """The name is taken by other bytes, which were left as they are. ``str(error)`` is the name."""


def moved_head() -> ConflictError:
    """Return the error of a swap whose expected head is not the head."""
    return ConflictError(
        "the head moved while this change was made; the other change was kept",
        hint="load the head again and repeat the change",
    )


def lock_timeout(holder: str, wait: float, scope: str = "this scope") -> LockTimeoutError:
    """Return the error of a ``wait`` [s] for the lock of ``scope``, which ``holder`` still holds."""
    return LockTimeoutError(
        f"{holder} holds the lock of {scope}; waited {wait:g} s, nothing was changed",
        hint="call again, or wait longer with --wait SECONDS",
        holder=holder,
    )


class PathProblem(msgspec.Struct, frozen=True):
    """One reason not to trust a path: a stable ``code``, the ``reason``, and the ``fix``."""

    code: str
    reason: str
    fix: str


class Blobs(Protocol):
    """Bytes written once. Names are ``<scope hash>/<file>`` or ``objects/<2 hex>/<64 hex>``.

    Every method of both protocols raises ``UsageError`` for a name, prefix or scope that could lead anywhere else.
    """

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` under ``name``, as durable on return as the backend's ``durability`` promises.

        The same bytes under the same name are accepted, and made as durable. Raises :class:`BlobExistsError` when the
        name holds other bytes, :class:`~stateline.errors.StorageError` when the medium refuses; then nothing new is
        visible under ``name``, except after :class:`~stateline.errors.DurabilityUnknownError`.
        """

    def get(self, name: str, limit: int) -> bytes:
        """Return all bytes of ``name``. Never writes, never blocks on a FIFO.

        Raises :class:`BlobMissingError`, ``IntegrityError`` when it holds more than ``limit`` [bytes],
        ``UnsafePathError`` when it is not a regular file.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """Yield all names directly below ``prefix`` (``<scope hash>`` or ``objects/<2 hex>``), without it, in no order.

        Foreign names are included. Empty if nothing is there. Several listings may be in progress at once.
        """

    def has(self, name: str, size: int) -> bool:
        """Return True if a blob of that name and ``size`` [bytes] exists. Cheap: its bytes are not read."""

    def settle(self, names: Iterable[str]) -> None:
        """Make the blobs ``names`` and the heads of their scopes survive a power loss, whichever process wrote them.

        The caller has read them. A backend that is always durable does nothing. Raises :class:`BlobMissingError`,
        ``StorageError``.
        """


class Heads(Protocol):
    """One pointer per scope, and the lock that covers a turn. ``scope`` is always a scope's hash."""

    def read(self, scope: str) -> Pointer | None:
        """Return the head, or None. Raises ``IntegrityError`` for a pointer that cannot be parsed. Never writes."""

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        """Make ``new`` the head if ``expected`` still is; as durable on return as ``durability`` promises.

        Raises ``ConflictError`` otherwise; ``DurabilityUnknownError`` when ``new`` is the head and may not stay it, or
        when it is not known whether it is.
        """

    def lock(self, scope: str, wait: float) -> AbstractContextManager[None]:
        """Hold the scope's lock. Raises ``LockTimeoutError`` after ``wait`` [s]. A dead process holds no lock."""

    def is_locked(self, scope: str) -> bool | None:
        """Return True if a process or thread holds the scope's lock; None if that cannot be tested.

        Never writes, never waits, and makes no :meth:`lock` fail, even one that does not wait.
        """

    def scopes(self) -> Iterator[str]:
        """Yield the hashes of all scopes that have a directory, in no order."""

    def remove(self, scope: str) -> None:
        """Remove the whole scope. After a crash it exists completely or not at all."""


class Backend(Blobs, Heads, Protocol):
    """Both protocols, and what users must know about the place."""

    durability: Durability
    """The promise of ``put`` and ``swap`` on return. Recorded in every snapshot's ``event``."""
    warnings: list[str]
    """Warnings for the user about this place (a network file system ...)."""

    def prepare(self) -> None:
        """Make the store ready for writing: create it if it is absent, refuse it if it is unsafe. Idempotent.

        Raises ``UnsafePathError``, ``NewerVersionError``, ``IntegrityError`` or ``StorageError``, without changes.
        """

    def require_writable(self) -> None:
        """Raise what :meth:`prepare` would raise, as far as reading can tell; change nothing. Afterwards reading
        raises what it would raise for a writer."""

    def describe(self) -> str:
        """Return where this is, for messages."""


@runtime_checkable
class Inspectable(Protocol):
    """Extra methods of a backend on a file system, for ``verify``. Optional. They never write, and they work where the
    other protocols stop: at a store file that is damaged or of a newer version."""

    def top_names(self) -> Iterator[str]:
        """Yield all names in the state dir itself, foreign ones included."""

    def inspect(self, name: str) -> PathProblem | None:
        """Return why a writer would refuse a file or directory; None if it would not, or if it does not exist.

        ``name`` is relative to the state dir, "" for the state dir itself, which is not opened; a trailing slash means
        that it must be a directory.
        """

    def digest(self, name: str, limit: int) -> str:
        """Return the SHA-256 of a blob's bytes in hex, in bounded memory. Raises as ``Blobs.get``."""

    def parent_problems(self) -> tuple[PathProblem, ...]:
        """Return why a writer would refuse directories above the state dir: others may replace what is in them."""

    def check_store_file(self) -> StatelineError | None:
        """Return the problem of ``stateline.json``: ``NotFoundError`` if it does not exist, another error that reading
        it raises, or None. Afterwards this backend reads the rest regardless of the result."""
