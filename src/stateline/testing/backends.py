"""The contract suite for backends: every promise of ``stateline.store.protocol`` as a test. This module imports pytest.

Every backend must pass it::

    from stateline.testing.backends import BackendContract

    class TestMyBackend(BackendContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path)

        def raw_get(self, backend, name): ...       # read a blob without the code under test
        def raw_set(self, backend, name, data): ... # and write one

The two raw hooks bypass the code under test: a suite that only reads back through the backend what it wrote through the
backend cannot see a bug that both directions share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from stateline.bundle import naming
from stateline.bundle.canonical import sha256
from stateline.bundle.envelope import Pointer
from stateline.errors import ConflictError, IntegrityError, LockTimeoutError, UsageError
from stateline.store.protocol import Backend, BlobExistsError, BlobMissingError

SCOPE = naming.scope_hash("notes:contract")
OTHER = naming.scope_hash("notes:other")
BLOB = f"{SCOPE}/state-2026-11-20T092659.123456Z-1a2b3c4d.json"
LIMIT = 1 << 20
"""A limit far above every blob of this suite [bytes]."""
THREADS = 16
PATIENCE = 30.0
"""Time after which a thread counts as hung [s]."""

HOSTILE_PLACES = (
    *("", ".", "..", "../..", "/", "/etc", "objects/../..", "objects/1a/2b"),
    *(f"{SCOPE}/..", f"{SCOPE}/x", "A" * 64),
)
HOSTILE_FILES = ("", ".", "..", "a/b", "../x", "nul\0byte")


def pointer(number: int) -> Pointer:
    """Return a well-formed pointer, a different one for each number. The snapshot that it names need not exist."""
    sha = sha256(str(number).encode())
    return Pointer(naming.snapshot_name(f"2026-11-20T09:26:59.{number:06d}Z", sha), sha)


def object_name(data: bytes) -> str:
    """Return the name of ``data`` as an object."""
    return naming.object_path(sha256(data))


def at_once(work: Callable[[int], None], threads: int = THREADS) -> list[BaseException | None]:
    """Run ``work(0)`` .. ``work(threads - 1)`` in threads that start together; return what each raised, or None."""
    barrier = threading.Barrier(threads)
    raised: list[BaseException | None] = [None] * threads

    def one(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  handed to the test
            raised[number] = error

    pool = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in pool), "a thread hangs"
    return raised


class BackendContract:
    """Base class: override ``backend``, ``raw_get`` and ``raw_set``. The subclass's name must start with ``Test``."""

    @pytest.fixture
    def backend(self) -> Backend:
        """A new, empty backend."""
        raise NotImplementedError("override the fixture `backend`")

    def raw_get(self, backend: Backend, name: str) -> bytes | None:
        """Return the bytes of a blob, or None, without the code under test."""
        raise NotImplementedError("override raw_get")

    def raw_set(self, backend: Backend, name: str, data: bytes) -> None:
        """Write a blob without the code under test; ``backend.prepare()`` has been called."""
        raise NotImplementedError("override raw_set")

    def another(self, backend: Backend) -> Backend:
        """Return a second backend on the same place, opened separately. Default: the same one."""
        return backend

    def outside(self, backend: Backend) -> object:
        """Return what hostile names could reach beside the place, as a value to compare. Default: None."""
        return None

    # -- blobs -----------------------------------------------------------------------------------------------------

    def test_put_keeps_the_exact_bytes(self, backend: Backend) -> None:
        for number, data in enumerate((b"", b"{}", bytes(range(256)), b"x" * 100_000)):
            backend.put(f"{SCOPE}/blob-{number}", data)
            assert self.raw_get(backend, f"{SCOPE}/blob-{number}") == data

    def test_get_returns_the_exact_bytes(self, backend: Backend) -> None:
        backend.prepare()
        self.raw_set(backend, BLOB, bytes(range(256)))
        assert backend.get(BLOB, LIMIT) == bytes(range(256))

    def test_the_same_bytes_may_be_put_twice(self, backend: Backend) -> None:
        for name in (BLOB, object_name(b"same")):
            backend.put(name, b"same")
            backend.put(name, b"same")
            assert self.raw_get(backend, name) == b"same"

    def test_other_bytes_under_a_taken_name_are_refused(self, backend: Backend) -> None:
        for name in (BLOB, object_name(b"first")):
            backend.put(name, b"first")
            for other in (b"", b"firsu", b"first and more", b"f"):
                with pytest.raises(BlobExistsError):
                    backend.put(name, other)
                assert self.raw_get(backend, name) == b"first"

    def test_getting_a_missing_blob_raises_an_error_with_its_name(self, backend: Backend) -> None:
        names = (BLOB, object_name(b"nothing"))
        for name in names:
            with pytest.raises(BlobMissingError, match=name):
                backend.get(name, LIMIT)
        backend.prepare()
        for name in names:
            with pytest.raises(BlobMissingError):
                backend.get(name, LIMIT)

    def test_a_blob_over_the_readers_limit_is_damage(self, backend: Backend) -> None:
        backend.prepare()
        self.raw_set(backend, BLOB, b"x" * 1001)
        assert len(backend.get(BLOB, 1001)) == 1001
        with pytest.raises(IntegrityError) as caught:
            backend.get(BLOB, 1000)
        assert caught.value.finding == "too_large"

    def test_list_yields_foreign_names_too(self, backend: Backend) -> None:
        assert list(backend.list(SCOPE)) == []
        backend.put(BLOB, b"1")
        self.raw_set(backend, f"{SCOPE}/stray", b"2")
        backend.put(f"{OTHER}/state-x", b"3")
        # A backend may keep its own files there (a lock); all others must be listed.
        names = list(backend.list(SCOPE))
        assert {BLOB.partition("/")[2], "stray"} <= set(names)
        assert "state-x" not in names
        assert len(names) == len(set(names))

    def test_list_yields_objects_by_their_first_two_digits_and_no_scope(self, backend: Backend) -> None:
        name = object_name(b"data")
        place, _, base = name.rpartition("/")
        backend.put(name, b"data")
        assert list(backend.scopes()) == []
        assert list(backend.list(place)) == [base]
        assert list(backend.list("objects/" + ("00" if base[:2] != "00" else "01"))) == []

    def test_put_leaves_no_temporary_files(self, backend: Backend) -> None:
        for number in range(5):
            backend.put(f"{SCOPE}/blob-{number}", b"x" * 5000)
        assert not [name for name in backend.list(SCOPE) if name.startswith(naming.TEMPORARY)]

    def test_threads_that_put_the_same_bytes_all_succeed(self, backend: Backend) -> None:
        name = object_name(b"shared")
        assert at_once(lambda number: backend.put(name, b"shared")) == [None] * THREADS
        assert self.raw_get(backend, name) == b"shared"

    def test_one_of_several_threads_that_put_different_bytes_wins(self, backend: Backend) -> None:
        raised = at_once(lambda number: backend.put(BLOB, b"%d" % number))
        assert [type(error) for error in raised if error is not None] == [BlobExistsError] * (THREADS - 1)
        assert self.raw_get(backend, BLOB) == b"%d" % raised.index(None)

    def test_settling_changes_nothing_that_can_be_read(self, backend: Backend) -> None:
        backend.put(BLOB, b"blob")
        backend.put(object_name(b"data"), b"data")
        backend.swap(SCOPE, None, pointer(1))
        backend.settle([BLOB, object_name(b"data")])
        backend.settle(iter([BLOB]))
        backend.settle([])
        assert self.raw_get(backend, BLOB) == b"blob"
        assert (backend.get(object_name(b"data"), LIMIT), backend.read(SCOPE)) == (b"data", pointer(1))

    def test_settling_a_missing_blob_is_an_error(self, backend: Backend) -> None:
        backend.put(f"{SCOPE}/other", b"x")
        backend.put(object_name(b"other"), b"other")
        for name in (BLOB, object_name(b"nothing")):
            with pytest.raises(BlobMissingError):
                backend.settle([name])

    def test_has_compares_name_and_size(self, backend: Backend) -> None:
        name = object_name(b"object")
        assert not backend.has(name, 6)
        backend.put(name, b"object")
        assert backend.has(name, 6)
        assert not backend.has(name, 5)
        assert not backend.has(object_name(b"other"), 6)

    # -- heads -----------------------------------------------------------------------------------------------------

    def test_swap_moves_the_head(self, backend: Backend) -> None:
        assert backend.read(SCOPE) is None
        backend.swap(SCOPE, None, pointer(1))
        assert backend.read(SCOPE) == pointer(1)
        backend.swap(SCOPE, pointer(1), pointer(2))
        assert self.another(backend).read(SCOPE) == pointer(2)

    def test_a_stale_swap_changes_nothing(self, backend: Backend) -> None:
        with pytest.raises(ConflictError):
            backend.swap(SCOPE, pointer(1), pointer(2))
        assert backend.read(SCOPE) is None
        backend.swap(SCOPE, None, pointer(1))
        backend.swap(SCOPE, pointer(1), pointer(2))
        for expected in (None, pointer(1), pointer(3), Pointer(pointer(2).path, pointer(1).sha256)):
            with pytest.raises(ConflictError):
                backend.swap(SCOPE, expected, pointer(4))
        assert backend.read(SCOPE) == pointer(2)

    def test_exactly_one_of_several_threads_that_swap_at_once_wins(self, backend: Backend) -> None:
        for scope, expected in ((SCOPE, None), (OTHER, pointer(0))):
            if expected:
                backend.swap(scope, None, expected)
            swap = partial(backend.swap, scope, expected)
            raised = at_once(lambda number, swap=swap: swap(pointer(number + 1)))  # type: ignore[misc]
            assert [type(error) for error in raised if error is not None] == [ConflictError] * (THREADS - 1)
            assert backend.read(scope) == pointer(raised.index(None) + 1)

    def test_scopes_keep_separate_heads(self, backend: Backend) -> None:
        backend.swap(SCOPE, None, pointer(1))
        backend.swap(OTHER, None, pointer(2))
        backend.swap(SCOPE, pointer(1), pointer(3))
        assert (backend.read(SCOPE), backend.read(OTHER)) == (pointer(3), pointer(2))
        assert sorted(backend.scopes()) == sorted([SCOPE, OTHER])

    def test_listings_may_be_nested_and_taken_by_many_threads(self, backend: Backend) -> None:
        scopes = {naming.scope_hash(f"notes:{number}") for number in range(40)}
        for scope in scopes:
            backend.swap(scope, None, pointer(1))
        for first, _ in zip(backend.scopes(), range(3), strict=False):
            assert first in scopes
            assert set(backend.scopes()) == scopes
        assert set(backend.scopes()) == scopes

        def look(number: int) -> None:
            for _ in range(20):
                assert set(backend.scopes()) == scopes

        assert at_once(look) == [None] * THREADS

    def test_remove_removes_the_whole_scope_and_no_other(self, backend: Backend) -> None:
        for scope in (SCOPE, OTHER):
            backend.put(f"{scope}/blob", b"x")
            backend.swap(scope, None, pointer(1))
        backend.remove(SCOPE)
        assert (backend.read(SCOPE), backend.read(OTHER)) == (None, pointer(1))
        assert list(backend.scopes()) == [OTHER]
        assert self.raw_get(backend, f"{SCOPE}/blob") is None
        assert self.raw_get(backend, f"{OTHER}/blob") == b"x"

    def test_a_removed_scope_can_be_created_again(self, backend: Backend) -> None:
        backend.put(BLOB, b"old")
        backend.swap(SCOPE, None, pointer(1))
        backend.remove(SCOPE)
        backend.put(BLOB, b"new")
        backend.swap(SCOPE, None, pointer(2))
        assert (self.raw_get(backend, BLOB), backend.read(SCOPE)) == (b"new", pointer(2))

    def test_an_empty_store_has_no_scopes_and_removing_one_changes_nothing(self, backend: Backend) -> None:
        assert list(backend.scopes()) == []
        backend.remove(SCOPE)
        assert list(backend.scopes()) == []

    # -- the lock --------------------------------------------------------------------------------------------------

    def _lock_elsewhere(self, backend: Backend, scope: str, wait: float = 0.0) -> BaseException | None:
        """Take and release a lock in another thread; return what that raised."""

        def work(number: int) -> None:
            with self.another(backend).lock(scope, wait):
                pass

        return at_once(work, 1)[0]

    def test_a_lock_excludes_other_threads(self, backend: Backend) -> None:
        inside: list[int] = []
        most: list[int] = []

        def work(number: int) -> None:
            with self.another(backend).lock(SCOPE, PATIENCE):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.002)
                inside.remove(number)

        assert at_once(work, 8) == [None] * 8
        assert most == [1] * 8

    def test_a_lock_that_is_held_times_out_within_bounds(self, backend: Backend) -> None:
        with backend.lock(SCOPE, PATIENCE):
            began = time.monotonic()
            raised = self._lock_elsewhere(backend, SCOPE, 0.2)
            assert 0.19 <= time.monotonic() - began < 5
        assert isinstance(raised, LockTimeoutError)
        assert self._lock_elsewhere(backend, SCOPE) is None

    def test_a_lock_is_held_until_the_outermost_block_of_a_thread_ends(self, backend: Backend) -> None:
        with backend.lock(SCOPE, 1.0):
            with backend.lock(SCOPE, 1.0):
                backend.swap(SCOPE, None, pointer(1))
            assert isinstance(self._lock_elsewhere(backend, SCOPE), LockTimeoutError)
        assert self._lock_elsewhere(backend, SCOPE) is None

    def test_an_exception_in_the_block_releases_the_lock(self, backend: Backend) -> None:
        with pytest.raises(KeyError), backend.lock(SCOPE, 1.0):
            raise KeyError
        assert self._lock_elsewhere(backend, SCOPE) is None

    def test_a_lock_covers_one_scope_only(self, backend: Backend) -> None:
        with backend.lock(SCOPE, 1.0):
            assert self._lock_elsewhere(backend, OTHER) is None

    def test_whether_a_lock_is_held_is_found_without_disturbing_anybody(self, backend: Backend) -> None:
        assert backend.is_locked(SCOPE) in (False, None)
        with backend.lock(SCOPE, 1.0):
            assert backend.is_locked(SCOPE) in (True, None)
            assert backend.is_locked(OTHER) in (False, None)
        assert backend.is_locked(SCOPE) in (False, None)
        assert self._lock_elsewhere(backend, SCOPE) is None

    # -- hostile names ---------------------------------------------------------------------------------------------

    def test_hostile_places_are_refused_and_nothing_outside_changes(self, backend: Backend) -> None:
        backend.put(BLOB, b"x")
        before = self.outside(backend)
        calls: tuple[Callable[[str], object], ...] = (
            lambda place: backend.put(f"{place}/x", b"evil"),
            lambda place: backend.get(f"{place}/x", LIMIT),
            lambda place: backend.settle([f"{place}/x"]),
            lambda place: backend.has(f"{place}/x", 1),
            lambda place: list(backend.list(place)),
            backend.read,
            lambda place: backend.swap(place, None, pointer(1)),
            lambda place: backend.lock(place, 0.0).__enter__(),
            backend.is_locked,
            backend.remove,
        )
        for place in HOSTILE_PLACES:
            for call in calls:
                with pytest.raises(UsageError):
                    call(place)
        assert self.outside(backend) == before
        assert list(backend.scopes()) == [SCOPE]

    def test_hostile_file_names_are_refused_and_nothing_outside_changes(self, backend: Backend) -> None:
        backend.put(BLOB, b"x")
        before = self.outside(backend)
        for name in (f"{place}/{file}" for file in HOSTILE_FILES for place in (SCOPE, "objects/1a")):
            with pytest.raises(UsageError):
                backend.put(name, b"evil")
            with pytest.raises(UsageError):
                backend.get(name, LIMIT)
            with pytest.raises(UsageError):
                backend.settle([name])
        assert self.outside(backend) == before

    # -- the place -------------------------------------------------------------------------------------------------

    def test_prepare_may_be_called_again(self, backend: Backend) -> None:
        backend.prepare()
        backend.put(BLOB, b"x")
        backend.prepare()
        self.another(backend).prepare()
        assert backend.get(BLOB, LIMIT) == b"x"

    def test_a_backend_describes_its_place_and_its_durability(self, backend: Backend) -> None:
        assert backend.describe()
        assert backend.warnings == []
        assert backend.durability in ("full", "fast")
