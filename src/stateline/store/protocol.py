"""The two small protocols a backend fulfils, and what their words promise.

``stateline.testing.backends`` is the contract in code: a new backend passes it or is not a backend. Retry, read-only
and logging are wrappers of these protocols, never options inside a backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol, runtime_checkable

from stateline.bundle.envelope import Pointer
from stateline.errors import StatelineError
from stateline.store.local.permissions import Danger

Durability = Literal["full", "fast"]
"""What a backend promises of what it acknowledged: ``full``, it survives a power loss; ``fast``, it survives the death
of every process at any moment, and a power loss may take the newest of it away or leave it torn."""
FULL: Literal["full"] = "full"
FAST: Literal["fast"] = "fast"


class BlobMissingError(Exception):
    """No blob of that name. ``str(error)`` is the name."""


class BlobExistsError(Exception):
    """The name is taken by other bytes; they were left as they are. ``str(error)`` is the name."""


class Blobs(Protocol):
    """Bytes written once. Names are ``<scope hash>/<file>`` or ``objects/<2 hex>/<64 hex>``.

    Every method of both protocols raises ``UsageError`` for a name, prefix or scope that could lead anywhere else.
    """

    def put(self, name: str, data: bytes) -> None:
        """Keep ``data`` under ``name``. On return it is as durable as the backend's ``durability`` says.

        The same bytes under the same name are fine (and as durable on return, whoever put them). Raises
        :class:`BlobExistsError` when the name holds other bytes, :class:`~stateline.errors.StorageError` when the medium
        refuses; then nothing is visible under ``name`` that was not there before, but for the one case that has a type
        of its own, :class:`~stateline.errors.DurabilityUnknownError`.
        """

    def get(self, name: str, limit: int) -> bytes:
        """The bytes of ``name``, whole. Raises :class:`BlobMissingError`; ``IntegrityError`` when it holds more than
        ``limit`` [bytes], ``UnsafePathError`` when it is not a regular file. Never writes, never blocks on a FIFO."""

    def list(self, prefix: str) -> Iterator[str]:
        """Names directly below ``prefix`` (``<scope hash>`` or ``objects/<2 hex>``), without it, in no order.
        Whatever lies there is listed, ours or not. Nothing there: an empty iterator. Several listings may be under
        way at once."""

    def has(self, name: str, size: int) -> bool:
        """Whether a blob of that name and ``size`` [bytes] is there. Cheap: its bytes are not looked at."""

    def settle(self, names: Iterable[str]) -> None:
        """Make durable what a ``fast`` writer put: on return the blobs ``names``, and the heads of the scopes they lie
        in, survive a power loss, whoever put them. The caller has read them. A backend that is always durable has
        nothing to do.

        Raises :class:`BlobMissingError`, ``StorageError``.
        """


class Heads(Protocol):
    """One pointer a scope, and the lock that covers a turn. ``scope`` is always a scope's hash."""

    def read(self, scope: str) -> Pointer | None:
        """The head, or None. Raises ``IntegrityError`` for a pointer that cannot be read as one. Never writes."""

    def swap(self, scope: str, expected: Pointer | None, new: Pointer) -> None:
        """Make ``new`` the head if ``expected`` still is; on return as durable as the backend's ``durability`` says.
        Raises ``ConflictError`` otherwise, ``DurabilityUnknownError`` when ``new`` is the head and may not stay it,
        or when nobody can tell whether it is.

        There is no default implementation: a backend that cannot compare and swap is none.
        """

    def lock(self, scope: str, wait: float) -> AbstractContextManager[None]:
        """Hold the scope alone. Raises ``LockTimeoutError`` after ``wait`` [s]. A dead holder holds nothing."""

    def scopes(self) -> Iterator[str]:
        """Hashes of all scopes that have a place, in no order."""

    def remove(self, scope: str) -> None:
        """Take the whole scope away: after a crash it is wholly there or wholly gone."""


class Backend(Blobs, Heads, Protocol):
    """Both protocols, and a place for people to be told about."""

    durability: Durability
    """What ``put`` and ``swap`` promise on return. It stands in every snapshot's ``event``."""
    warnings: list[str]
    """What a user should know about this place (a network file system ...)."""

    def prepare(self) -> None:
        """Make the store ready for writing: create it if it is absent, refuse it if it is unsafe. Idempotent.

        Raises ``UnsafePathError``, ``NewerVersionError``, ``IntegrityError`` or ``StorageError``; nothing is changed then.
        """

    def require_writable(self) -> None:
        """Raise what :meth:`prepare` would raise, as far as reading can tell; change nothing. From then on reading
        raises what it would raise for a writer."""

    def describe(self) -> str:
        """Where this is, for messages."""


@runtime_checkable
class Places(Protocol):
    """What a backend on a file system can say besides, for ``verify``. Optional; nothing here writes, and each goes on
    where the other protocols stop: at a store file that is damaged or of a newer version."""

    def top(self) -> Iterator[str]:
        """All names in the state dir itself, ours or not."""

    def look(self, name: str) -> Danger | None:
        """Why a writer would refuse a file or directory; None if it would not, or if it is not there.

        ``name`` is relative to the state dir, "" for itself, which is not opened for that; a trailing slash means that
        it should be a directory.
        """

    def digest(self, name: str, limit: int) -> str:
        """The SHA-256 of a blob's bytes in hex; they are never held together, however many. Raises as ``Blobs.get``."""

    def above(self) -> tuple[Danger, ...]:
        """Why a writer would refuse what is above the state dir: directories in which others may put something else in
        its place."""

    def examine(self) -> StatelineError | None:
        """What is wrong with ``stateline.json``: None, ``NotFoundError`` if it is not there, or the error that reading
        raises. Afterwards this backend reads what lies here whatever the answer was."""
