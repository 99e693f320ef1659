"""Legal states after a power loss in the model, and equivalence of its disk with a real one."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stress.power.disk import ROOT, Image, ModelFs, Step
from stress.power.losses import Losses, contents

from stateline.store.local.filesystem import Filesystem

PLACE = "/a place"


def in_order(*trees: dict[str, bytes]) -> list[dict[str, bytes]]:
    """Trees in an order of their own."""
    return sorted(trees, key=lambda tree: sorted(tree.items()))


class Desk:
    """A disk with one directory that is durable, and what may be left of what is done there."""

    def __init__(self) -> None:
        self.image = Image.empty(PLACE)
        self.log: list[Step] = []
        self.base = self.image.copy()
        self.fs = ModelFs(self.image, self.log)
        self.here = self.fs.open_root(PLACE)

    def write(self, name: str, data: bytes, *, sync: bool) -> None:
        fd = self.fs.create(self.here, name)
        self.fs.write(fd, data)
        if sync:
            self.fs.sync_file(fd)
        self.fs.close_file(fd)

    def left(self, limit: int = 10_000) -> list[dict[str, bytes]]:
        """Every tree that a power loss may leave at the end, each once."""
        losses = Losses(self.base, self.log, limit, Random(1))
        crashes = [crash for crash in losses.crashes(self.image.modes) if crash.at == len(self.log)]
        found = {repr(sorted(tree.items())): tree for tree in (crash.image.tree(PLACE) for crash in crashes)}
        for tree in found.values():
            del tree[""]
        return in_order(*found.values())


def test_a_name_that_was_not_synced_may_be_missing_although_its_file_was_synced() -> None:
    desk = Desk()
    desk.write("a", b"12", sync=True)
    assert desk.left() == in_order({}, {"a": b"12"})


def test_a_synced_name_may_lead_to_anything_while_its_file_was_not_synced() -> None:
    desk = Desk()
    desk.write("a", b"1234", sync=False)
    desk.fs.sync_directory(desk.here)
    left = {tree["a"] for tree in desk.left()}
    assert left == set(contents(b"", b"1234"))
    assert {b"", b"1", b"12", b"123", b"1234", b"\0\0\0\0", b"\0\x0034", b"12\0\0"} < left


def test_what_was_synced_is_there() -> None:
    desk = Desk()
    desk.write("a", b"12", sync=True)
    desk.fs.sync_directory(desk.here)
    assert desk.left() == in_order({"a": b"12"})


def test_names_may_be_left_in_any_subset() -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.write(name, b"", sync=True)
    assert sorted("".join(tree) for tree in desk.left()) == ["", "a", "ab", "abc", "ac", "b", "bc", "c"]


def test_a_journal_leaves_names_in_order() -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.write(name, b"", sync=True)
    losses = Losses(desk.base, desk.log, 100, Random(1))
    ordered = {"".join(sorted(crash.image.tree(PLACE))) for crash in losses.crashes(desk.image.modes) if crash.ordered}
    assert ordered == {"", "a", "ab", "abc"}


def test_renaming_over_a_name_leaves_the_old_file_or_the_new_one() -> None:
    desk = Desk()
    desk.write("head", b"old", sync=True)
    desk.write("new", b"new", sync=True)
    desk.fs.sync_directory(desk.here)
    desk.fs.rename(desk.here, "new", desk.here, "head")
    assert desk.left() == in_order({"head": b"old", "new": b"new"}, {"head": b"new"})


def test_a_file_that_moves_to_another_directory_may_be_seen_twice_and_never_nowhere() -> None:
    desk = Desk()
    desk.fs.make_directory(desk.here, "d")
    desk.write("a", b"1", sync=True)
    desk.fs.sync_directory(desk.here)
    desk.fs.rename(desk.here, "a", desk.fs.open_directory(desk.here, "d"), "b")
    assert desk.left() == in_order(
        {"d/": b"", "a": b"1"}, {"d/": b"", "a": b"1", "d/b": b"1"}, {"d/": b"", "d/b": b"1"}
    )


def test_syncing_where_a_file_came_from_keeps_where_it_went() -> None:
    desk = Desk()
    desk.fs.make_directory(desk.here, "d")
    desk.write("a", b"1", sync=True)
    desk.fs.sync_directory(desk.here)
    desk.fs.rename(desk.here, "a", desk.fs.open_directory(desk.here, "d"), "b")
    desk.fs.sync_directory(desk.here)
    assert desk.left() == in_order({"d/": b"", "d/b": b"1"})


def test_what_lies_in_a_directory_goes_with_its_name() -> None:
    desk = Desk()
    desk.fs.make_directory(desk.here, "d")
    inside = desk.fs.open_directory(desk.here, "d")
    fd = desk.fs.create(inside, "a")
    desk.fs.sync_file(fd)
    desk.fs.sync_directory(inside)
    assert desk.left() == in_order({}, {"d/": b"", "d/a": b""})


def test_a_removed_file_may_come_back() -> None:
    desk = Desk()
    desk.write("a", b"1", sync=True)
    desk.fs.sync_directory(desk.here)
    desk.fs.unlink(desk.here, "a")
    assert desk.left() == in_order({"a": b"1"}, {})


def test_beyond_the_limit_all_prefixes_are_still_there() -> None:
    desk = Desk()
    for number in range(20):
        desk.write(f"{number:02}", b"", sync=True)
    left = {"".join(sorted(tree)) for tree in desk.left(limit=60)}
    assert {"".join(f"{number:02}" for number in range(end)) for end in range(21)} < left
    assert len(left) <= 60


def test_beyond_the_limit_what_came_last_is_there_and_bytes_are_not_all_new() -> None:
    desk = Desk()
    for number in range(20):
        desk.write(f"{number:02}", b"1234", sync=False)
    left = desk.left(limit=200)
    assert dict.fromkeys(map("{:02}".format, range(20)), b"1234") in left
    assert any(len(tree) == 19 for tree in left)
    assert any(set(tree.values()) & {b"", b"\0\0\0\0"} for tree in left)
    assert any(sorted(tree) != sorted(map("{:02}".format, range(len(tree)))) for tree in left), "out of order"


def test_an_image_is_not_changed_by_what_comes_after_it() -> None:
    desk = Desk()
    for name in ("a", "b"):
        desk.write(name, b"1", sync=True)
        desk.fs.sync_directory(desk.here)
    losses = Losses(desk.base, desk.log, 100, Random(1))
    kept = [(crash.image, crash.image.tree(PLACE)) for crash in losses.crashes(desk.image.modes)]
    assert all(image.tree(PLACE) == tree for image, tree in kept)


# -- the model's disk against a real one -------------------------------------------------------------------------------

NAMES = st.sampled_from(("a", "b", "d", "d/a"))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("create", "unlink", "mkdir", "rmdir", "read", "stat", "names", "open")), NAMES),
        st.tuples(st.sampled_from(("link", "rename")), NAMES, NAMES),
    ),
    max_size=25,
)


def _place(fs: Filesystem, root: Any, name: str) -> tuple[Any, str]:
    above, _, base = name.rpartition("/")
    return (fs.open_directory(root, above) if above else root), base


def _do(fs: Filesystem, root: Any, call: tuple[str, ...]) -> Any:
    """Return the result of a call, or the name of its error."""
    what, *names = call
    try:
        directory, name = _place(fs, root, names[0])
        if what == "create":
            fd = fs.create(directory, name)
            fs.write(fd, name.encode() * 3)
            fs.sync_file(fd)
            return fs.close_file(fd)
        if what in ("link", "rename"):
            return getattr(fs, what)(directory, name, *_place(fs, root, names[1]))
        if what == "read":
            return fs.read(directory, name, 100)[0]
        if what == "stat":
            found = fs.stat(directory, name)
            return found.kind, found.mode, found.size if found.kind == "file" else 0, found.uid
        if what == "names":
            return sorted(fs.names(fs.open_directory(directory, name)))
        if what == "open":
            fs.close_directory(fs.open_directory(directory, name))
            return None
        calls = {"unlink": fs.unlink, "mkdir": fs.make_directory, "rmdir": fs.remove_directory}
        return calls[what](directory, name)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


@given(calls=CALLS)
def test_the_simulated_disk_answers_like_a_real_one(tmp_path_factory: pytest.TempPathFactory, calls: list[Any]) -> None:
    real, model = Filesystem(), ModelFs(Image.empty(PLACE))
    place = tmp_path_factory.mktemp("real")
    real_root, model_root = real.open_root(str(place)), model.open_root(PLACE)
    for call in calls:
        # A directory is only ever renamed to a name that is free, and never linked: the store does nothing else.
        if call[0] in ("link", "rename") and any((place / name).is_dir() for name in call[1:]):
            continue
        assert _do(real, real_root, call) == _do(model, model_root, call), call
    tree = model.image.tree(PLACE)
    del tree[""]
    assert tree == _tree(place)


def _tree(place: Path) -> dict[str, bytes]:
    found = [(path, str(path.relative_to(place))) for path in place.rglob("*")]
    return {f"{name}/" if path.is_dir() else name: b"" if path.is_dir() else path.read_bytes() for path, name in found}


def test_the_model_knows_its_root() -> None:
    assert Image.empty("/").find("/") == ROOT
