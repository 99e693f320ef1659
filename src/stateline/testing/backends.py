"""The contract suite for backends: every promise of ``stateline.store.protocol`` as a test. This module imports pytest.

A backend of your own passes it or is not a backend::

    from stateline.testing.backends import BackendContract

    class TestMyBackend(BackendContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path)

        def raw_get(self, backend, name): ...       # read a blob without the code under test
        def raw_set(self, backend, name, data): ... # and write one

The two raw hooks go round the code under test: a suite that only reads back through the backend what it wrote through
the backend cannot see a bug that both directions share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
"""How long a thread may take before the suite calls it hung [s]."""

HOSTILE_PLACES = (
    "",
    ".",
    "..",
    "../..",
    "/",
    "/etc",
    "objects/../..",
    f"{SCOPE}/..",
    f"{SCOPE}/x",
    "objects/1a/2b",
    "A" * 64,
)
HOSTILE_FILES = ("", ".", "..", "a/b", "../x", "nul\0byte")


def pointer(number: int) -> Pointer:
    """A well-formed pointer, a different one for each number; what it names need not exist for a backend."""
    sha = sha256(str(number).encode())
    return Pointer(naming.snapshot_name(f"2026-11-20T09:26:59.{number:06d}Z", sha), sha)


def object_name(data: bytes) -> str:
    """The name under which ``data`` is kept as an object."""
    return naming.object_path(sha256(data))


def at_once(work: Callable[[int], None], threads: int = THREADS) -> list[BaseException | None]:
    """Run ``work(0)`` .. ``work(threads - 1)`` in threads that start together; what each raised, or None."""
    barrier = threading.Barrier(threads)
    raised: list[BaseException | None] = [None] * threads

    def one(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  handed to the test, which looks at it
            raised[number] = error

    pool = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in pool), "a thread hangs"
    return raised


class BackendContract:
    """Subclass it, override ``backend``, ``raw_get`` and ``raw_set``; the name must start with ``Test``."""

    @pytest.fixture
    def backend(self) -> Backend:
        """A new, empty backend."""
        raise NotImplementedError("override the fixture `backend`")

    def raw_get(self, backend: Backend, name: str) -> bytes | None:
        """The bytes of a blob, or None, without the code under test."""
        raise NotImplementedError("override raw_get")

    def raw_set(self, backend: Backend, name: str, data: bytes) -> None:
        """Make or replace a blob without the code under test; ``backend.prepare()`` has been called."""
        raise NotImplementedError("override raw_set")

    def another(self, backend: Backend) -> Backend:
        """A second backend on the same place, as another part of a program would open it. Default: the same one."""
        return backend

    def outside(self, backend: Backend) -> object:
        """What hostile names could reach beside the place, as a value to compare. Default: nothing to look at."""
        return None

    # -- blobs -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("data", [b"", b"{}", bytes(range(256)), b"x" * 100_000])
    def test_put_keeps_the_exact_bytes(self, backend: Backend, data: bytes) -> None:
        backend.put(BLOB, data)
        assert self.raw_get(backend, BLOB) == data

    def test_get_gives_the_exact_bytes(self, backend: Backend) -> None:
        backend.prepare()
        self.raw_set(backend, BLOB, bytes(range(256)))
        assert backend.get(BLOB, LIMIT) == bytes(range(256))

    def test_an_object_has_a_place_of_its_own(self, backend: Backend) -> None:
        backend.put(object_name(b"data"), b"data")
        assert self.raw_get(backend, object_name(b"data")) == b"data"
        assert SCOPE not in set(backend.scopes())

    @pytest.mark.parametrize("name", [BLOB, object_name(b"same")])
    def test_the_same_bytes_may_be_put_twice(self, backend: Backend, name: str) -> None:
        backend.put(name, b"same")
        backend.put(name, b"same")
        assert self.raw_get(backend, name) == b"same"

    @pytest.mark.parametrize("name", [BLOB, object_name(b"first")])
    @pytest.mark.parametrize("other", [b"", b"firsu", b"first and more", b"f"])
    def test_other_bytes_under_a_taken_name_are_refused(self, backend: Backend, name: str, other: bytes) -> None:
        backend.put(name, b"first")
        with pytest.raises(BlobExistsError):
            backend.put(name, other)
        assert self.raw_get(backend, name) == b"first"

    @pytest.mark.parametrize("name", [BLOB, object_name(b"nothing")])
    def test_a_missing_blob_is_said_to_be_missing(self, backend: Backend, name: str) -> None:
        with pytest.raises(BlobMissingError, match=name):
            backend.get(name, LIMIT)
        backend.prepare()
        with pytest.raises(BlobMissingError):
            backend.get(name, LIMIT)

    def test_a_blob_over_the_readers_limit_is_damage(self, backend: Backend) -> None:
        backend.prepare()
        self.raw_set(backend, BLOB, b"x" * 1001)
        assert len(backend.get(BLOB, 1001)) == 1001
        with pytest.raises(IntegrityError) as caught:
            backend.get(BLOB, 1000)
        assert caught.value.finding == "too_large"

    def test_list_names_what_lies_there_whosoever_it_is(self, backend: Backend) -> None:
        assert list(backend.list(SCOPE)) == []
        backend.put(BLOB, b"1")
        self.raw_set(backend, f"{SCOPE}/stray", b"2")
        backend.put(f"{OTHER}/state-x", b"3")
        # A backend may keep files of its own there (a lock); the others' must all be named.
        names = list(backend.list(SCOPE))
        assert {BLOB.partition("/")[2], "stray"} <= set(names)
        assert "state-x" not in names
        assert len(names) == len(set(names))

    def test_list_names_objects_by_their_first_two_digits(self, backend: Backend) -> None:
        name = object_name(b"data")
        place, _, base = name.rpartition("/")
        backend.put(name, b"data")
        assert list(backend.list(place)) == [base]
        assert list(backend.list("objects/" + ("00" if base[:2] != "00" else "01"))) == []

    def test_nothing_half_written_lies_about_after_a_put(self, backend: Backend) -> None:
        for number in range(5):
            backend.put(f"{SCOPE}/blob-{number}", b"x" * 5000)
        assert not [name for name in backend.list(SCOPE) if name.startswith(naming.TEMPORARY)]

    def test_threads_that_put_the_same_bytes_all_succeed(self, backend: Backend) -> None:
        name = object_name(b"shared")
        assert at_once(lambda number: backend.put(name, b"shared")) == [None] * THREADS
        assert self.raw_get(backend, name) == b"shared"

    def test_of_threads_that_put_other_bytes_one_wins(self, backend: Backend) -> None:
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

    @pytest.mark.parametrize("name", [BLOB, object_name(b"nothing")])
    def test_what_is_not_there_cannot_be_settled(self, backend: Backend, name: str) -> None:
        backend.put(f"{SCOPE}/other", b"x")
        backend.put(object_name(b"other"), b"other")
        with pytest.raises(BlobMissingError):
            backend.settle([name])

    def test_what_is_there_is_known_by_its_name_and_size(self, backend: Backend) -> None:
        name = object_name(b"object")
        assert not backend.has(name, 6)
        backend.put(name, b"object")
        assert backend.has(name, 6)
        assert not backend.has(name, 5)
        assert not backend.has(object_name(b"other"), 6)

    def test_a_backend_says_how_durable_it_is(self, backend: Backend) -> None:
        assert backend.durability in ("full", "fast")

    # -- heads -----------------------------------------------------------------------------------------------------

    def test_a_scope_has_no_head_at_first(self, backend: Backend) -> None:
        assert backend.read(SCOPE) is None

    def test_swap_moves_the_head(self, backend: Backend) -> None:
        backend.swap(SCOPE, None, pointer(1))
        assert backend.read(SCOPE) == pointer(1)
        backend.swap(SCOPE, pointer(1), pointer(2))
        assert self.another(backend).read(SCOPE) == pointer(2)

    def test_a_stale_swap_changes_nothing(self, backend: Backend) -> None:
        backend.swap(SCOPE, None, pointer(1))
        backend.swap(SCOPE, pointer(1), pointer(2))
        for expected in (None, pointer(1), pointer(3), Pointer(pointer(2).path, pointer(1).sha256)):
            with pytest.raises(ConflictError):
                backend.swap(SCOPE, expected, pointer(4))
        assert backend.read(SCOPE) == pointer(2)

    def test_a_swap_that_expects_a_head_where_there_is_none_is_a_conflict(self, backend: Backend) -> None:
        with pytest.raises(ConflictError):
            backend.swap(SCOPE, pointer(1), pointer(2))
        assert backend.read(SCOPE) is None

    @pytest.mark.parametrize("first", [None, 0])
    def test_of_threads_that_swap_at_once_exactly_one_wins(self, backend: Backend, first: int | None) -> None:
        expected = None if first is None else pointer(first)
        if expected:
            backend.swap(SCOPE, None, expected)
        raised = at_once(lambda number: backend.swap(SCOPE, expected, pointer(number + 1)))
        assert [type(error) for error in raised if error is not None] == [ConflictError] * (THREADS - 1)
        assert backend.read(SCOPE) == pointer(raised.index(None) + 1)

    def test_scopes_keep_separate_heads(self, backend: Backend) -> None:
        backend.swap(SCOPE, None, pointer(1))
        backend.swap(OTHER, None, pointer(2))
        backend.swap(SCOPE, pointer(1), pointer(3))
        assert (backend.read(SCOPE), backend.read(OTHER)) == (pointer(3), pointer(2))
        assert sorted(backend.scopes()) == sorted([SCOPE, OTHER])

    def test_no_scope_is_listed_in_an_empty_store(self, backend: Backend) -> None:
        assert list(backend.scopes()) == []

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

    def test_remove_takes_the_whole_scope_and_no_other(self, backend: Backend) -> None:
        for scope in (SCOPE, OTHER):
            backend.put(f"{scope}/blob", b"x")
            backend.swap(scope, None, pointer(1))
        backend.remove(SCOPE)
        assert (backend.read(SCOPE), backend.read(OTHER)) == (None, pointer(1))
        assert list(backend.scopes()) == [OTHER]
        assert self.raw_get(backend, f"{SCOPE}/blob") is None
        assert self.raw_get(backend, f"{OTHER}/blob") == b"x"

    def test_a_removed_scope_can_be_made_anew(self, backend: Backend) -> None:
        backend.put(BLOB, b"old")
        backend.swap(SCOPE, None, pointer(1))
        backend.remove(SCOPE)
        backend.put(BLOB, b"new")
        backend.swap(SCOPE, None, pointer(2))
        assert (self.raw_get(backend, BLOB), backend.read(SCOPE)) == (b"new", pointer(2))

    def test_removing_what_is_not_there_is_no_error(self, backend: Backend) -> None:
        backend.remove(SCOPE)
        assert list(backend.scopes()) == []

    # -- the lock --------------------------------------------------------------------------------------------------

    def test_a_lock_shuts_other_threads_out(self, backend: Backend) -> None:
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
        took: list[float] = []

        def waiter(number: int) -> None:
            began = time.monotonic()
            try:
                with self.another(backend).lock(SCOPE, 0.2):
                    pass
            finally:
                took.append(time.monotonic() - began)

        with backend.lock(SCOPE, PATIENCE):
            (raised,) = at_once(waiter, 1)
        assert isinstance(raised, LockTimeoutError)
        assert 0.19 <= took[0] < 5
        assert at_once(waiter, 1) == [None]

    def test_a_wait_of_zero_does_not_wait(self, backend: Backend) -> None:
        def waiter(number: int) -> None:
            with self.another(backend).lock(SCOPE, 0.0):
                pass

        with backend.lock(SCOPE, 0.0):
            assert isinstance(at_once(waiter, 1)[0], LockTimeoutError)

    def test_a_lock_is_held_until_the_last_of_one_threads_blocks_ends(self, backend: Backend) -> None:
        def waiter(number: int) -> None:
            with self.another(backend).lock(SCOPE, 0.0):
                pass

        with backend.lock(SCOPE, 1.0):
            with backend.lock(SCOPE, 1.0):
                backend.swap(SCOPE, None, pointer(1))
            assert isinstance(at_once(waiter, 1)[0], LockTimeoutError)
        assert at_once(waiter, 1) == [None]

    def test_an_exception_inside_lets_go_of_the_lock(self, backend: Backend) -> None:
        def waiter(number: int) -> None:
            with self.another(backend).lock(SCOPE, 0.0):
                pass

        with pytest.raises(KeyError), backend.lock(SCOPE, 1.0):
            raise KeyError
        assert at_once(waiter, 1) == [None]

    def test_a_lock_covers_one_scope_only(self, backend: Backend) -> None:
        def waiter(number: int) -> None:
            with self.another(backend).lock(OTHER, 0.5):
                pass

        with backend.lock(SCOPE, 1.0):
            assert at_once(waiter, 1) == [None]

    # -- hostile names ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("place", HOSTILE_PLACES, ids=ascii)
    def test_a_hostile_place_is_refused_and_nothing_outside_changes(self, backend: Backend, place: str) -> None:
        backend.put(BLOB, b"x")
        before = self.outside(backend)
        calls: tuple[Callable[[], object], ...] = (
            lambda: backend.put(f"{place}/x", b"evil"),
            lambda: backend.get(f"{place}/x", LIMIT),
            lambda: backend.settle([f"{place}/x"]),
            lambda: backend.has(f"{place}/x", 1),
            lambda: list(backend.list(place)),
            lambda: backend.read(place),
            lambda: backend.swap(place, None, pointer(1)),
            lambda: backend.lock(place, 0.0).__enter__(),
            lambda: backend.remove(place),
        )
        for call in calls:
            with pytest.raises(UsageError):
                call()
        assert self.outside(backend) == before
        assert list(backend.scopes()) == [SCOPE]

    @pytest.mark.parametrize("file", HOSTILE_FILES, ids=ascii)
    def test_a_hostile_file_name_is_refused_and_nothing_outside_changes(self, backend: Backend, file: str) -> None:
        backend.put(BLOB, b"x")
        before = self.outside(backend)
        for name in (f"{SCOPE}/{file}", f"objects/1a/{file}"):
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

    def test_a_backend_says_where_it_is(self, backend: Backend) -> None:
        assert backend.describe()
        assert backend.warnings == []
