"""The shell script of docs/format.md knows what a repair declared lost, and says what ``verify`` says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateline.bundle import naming
from stateline.repair import event
from stateline.repair.apply import repair
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

KEY = "notes:x"
HASH = naming.scope_hash(KEY)
PAGE = Path(__file__).parents[2] / "docs" / "format.md"

pytestmark = pytest.mark.skipif(not (shutil.which("jq") and shutil.which("sha256sum")), reason="needs jq and sha256sum")


@pytest.fixture
def says(place: Path, tmp_path: Path, open_store: Callable[..., Store]) -> Callable[[], tuple[int, str]]:
    """Runs the script on the scope, and demands that ``verify`` agrees; exit code and stderr."""
    script = tmp_path / "audit.sh"
    found = re.search(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    script.write_text(found[1], encoding="utf-8")

    def run() -> tuple[int, str]:
        words = ["sh", str(script), str(place), HASH]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode == 0) == verify(open_store(place), KEY).ok, done.stderr
        return done.returncode, done.stderr

    return run


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    scope = store.scope(KEY)
    states: list[Any] = [{"n": n} for n in range(7)]
    states[2]["big"] = "x" * 5000
    states[3]["node"] = {"body": "a" * 4094, "note": "b" * 3000, "tail": "c" * 3000}
    return [scope.save(state) for state in states]


@pytest.mark.parametrize("numbers", [[0, 1], [2, 3, 5], [6]])
def test_the_script_walks_over_what_was_declared_lost(
    chain: list[Snapshot],
    place: Path,
    open_store: Callable[..., Store],
    says: Callable[[], tuple[int, str]],
    numbers: list[int],
) -> None:
    assert says() == (0, "")
    for number in numbers:
        (place / HASH / chain[number].path).unlink()
    assert says()[0] == 1
    assert repair(open_store(place)).ok
    code, told = says()
    assert code == 0
    in_the_middle = [number for number in numbers if number != 6]
    assert told.count("lost: ") == len([n for n in in_the_middle if n + 1 not in in_the_middle])


def test_gaps_below_gaps_and_lost_objects_are_walked_over_too(
    chain: list[Snapshot],
    place: Path,
    open_store: Callable[..., Store],
    says: Callable[[], tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event, "DECLARED", 2)
    for number in (4, 1):
        (place / HASH / chain[number].path).write_bytes(b"")
    assert repair(open_store(place)).ok
    assert says()[0] == 0
    (place / HASH / chain[3].path).unlink()
    shutil.rmtree(place / "objects")
    assert says()[0] == 1
    assert repair(open_store(place)).ok
    assert says()[0] == 0
    assert [item.seq for item in open_store(place).scope(KEY).walk()][-4:] == [6, 5, 2, 0]


def test_only_what_was_declared_is_excused(
    chain: list[Snapshot], place: Path, open_store: Callable[..., Store], says: Callable[[], tuple[int, str]]
) -> None:
    data = (place / HASH / chain[3].path).read_bytes()
    (place / HASH / chain[3].path).unlink()
    assert repair(open_store(place)).ok
    below = place / HASH / chain[2].path
    kept = below.read_bytes()
    below.unlink()
    assert says()[0] == 1
    below.write_bytes(kept)
    (place / HASH / chain[3].path).write_bytes(data)
    assert says() == (0, "")
    (place / HASH / chain[3].path).write_bytes(data[:-1] + b" ")
    assert says()[0] == 1


@pytest.fixture
def short(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n}) for n in range(3)]


def test_what_names_a_parent_on_the_chain_and_does_not_follow_it_is_damage_by_hand_too(
    short: list[Snapshot], place: Path, store: Store, says: Callable[[], tuple[int, str]], publish: Callable[..., Any]
) -> None:
    parent = short[1]
    early, late = short[0].envelope.created_at, short[2].envelope.created_at
    above = {"prev_sha": parent.sha256, "prev": parent.path}
    shapes = [
        ({**above, "seq": 2, "created_at": late}, 0),
        ({**above, "seq": 9, "created_at": late}, 1),
        ({**above, "seq": 1, "created_at": late}, 1),
        ({**above, "seq": 2, "created_at": early}, 1),
        ({**above, "prev": short[0].path, "seq": 2, "created_at": late}, 1),
    ]
    for shape, code in shapes:
        loose = place / HASH / publish(store, KEY, head=False, **shape).path
        assert says()[0] == code, shape
        loose.unlink()


MALFORMED: list[Callable[[dict[str, Any]], Any]] = [
    lambda said: said["objects"].append(1),
    lambda said: said.update(objects=None),
    lambda said: said.update(gaps={}),
    lambda said: said["gaps"].append(1),
    lambda said: said["gaps"].append({"lost": said["gaps"][0]["lost"]}),
    lambda said: said["gaps"].append({"lost": {"seq": "1", "sha256": "0" * 64}, "resumes": None}),
    lambda said: said["gaps"].append({"lost": {"seq": 1, "sha256": "0" * 64}, "resumes": {"seq": 0}}),
    lambda said: said["gaps"][0]["resumes"].update(path=None),
    lambda said: said["gaps"][0]["resumes"].update(path="x\n" + said["gaps"][0]["resumes"]["path"]),
    lambda said: said["gaps"][0]["resumes"].update(seq=-1),
    lambda said: said["gaps"][0]["lost"].update(seq=0),
]


@pytest.mark.parametrize("number", [None, *range(len(MALFORMED))])
def test_a_declaration_of_another_shape_declares_nothing_by_hand_too(
    short: list[Snapshot],
    place: Path,
    store: Store,
    says: Callable[[], tuple[int, str]],
    publish: Callable[..., Any],
    number: int | None,
) -> None:
    gap: dict[str, Any] = {
        "lost": {"seq": 1, "sha256": short[1].sha256},
        "resumes": {"seq": 0, "path": short[0].path, "sha256": short[0].sha256},
    }
    said: dict[str, Any] = {"gaps": [gap], "objects": ["a b"], "more": "is let be"}
    if number is not None:
        MALFORMED[number](said)
    (place / HASH / short[1].path).unlink()
    at, head = "2027-01-01T00:00:00.000000Z", short[2]
    above = {"seq": 3, "prev_sha": head.sha256, "prev": head.path, "created_at": at}
    publish(store, KEY, head=True, event={"type": "repaired", "repaired": said}, **above)
    assert says()[0] == (1 if number is not None else 0)


@pytest.mark.parametrize("version", ["0", "01", "0.1", "00"])
def test_a_version_that_begins_with_nought_is_no_newer_one(
    short: list[Snapshot], place: Path, says: Callable[[], tuple[int, str]], version: str
) -> None:
    pointer = place / HASH / naming.POINTER
    pointer.write_bytes(pointer.read_bytes().replace(b'"version":"1"', f'"version":"{version}"'.encode()))
    assert says()[0] == 1
