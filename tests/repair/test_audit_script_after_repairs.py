"""The shell script of docs/format.md knows declared losses, and agrees with ``verify``."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_stores import HASH, KEY, OpenStore, Publish, copies

from stateline.bundle import naming
from stateline.repair import republish
from stateline.repair.apply import repair
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

PAGE = Path(__file__).parents[2] / "docs" / "format.md"

pytestmark = [
    pytest.mark.skipif(not (shutil.which("jq") and shutil.which("sha256sum")), reason="needs jq and sha256sum"),
    pytest.mark.usefixtures("jq_memo"),
]


Audit = Callable[[Path], tuple[int, str]]


@pytest.fixture
def audit(tmp_path: Path, open_store: OpenStore) -> Audit:
    """Run the script on the scope, and require that ``verify`` agrees; return its exit code and stderr."""
    script = tmp_path / "audit.sh"
    found = re.search(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    script.write_text(found[1], encoding="utf-8")

    def run(place: Path) -> tuple[int, str]:
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


def test_the_script_walks_over_declared_losses(
    chain: list[Snapshot], place: Path, open_store: OpenStore, audit: Audit
) -> None:
    assert audit(place) == (0, "")
    for numbers, copy in zip([[0, 1], [2, 3, 5], [6]], copies(place), strict=False):
        for number in numbers:
            (copy / HASH / chain[number].path).unlink()
        assert audit(copy)[0] == 1, numbers
        assert repair(open_store(copy)).ok, numbers
        code, messages = audit(copy)
        assert code == 0, numbers
        inside = [number for number in numbers if number != 6]
        assert messages.count("lost: ") == len([n for n in inside if n + 1 not in inside]), numbers


def test_the_script_walks_over_gaps_below_gaps_and_lost_objects(
    chain: list[Snapshot],
    place: Path,
    open_store: OpenStore,
    audit: Audit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(republish, "DECLARED", 2)
    for number in (4, 1):
        (place / HASH / chain[number].path).write_bytes(b"")
    assert repair(open_store(place)).ok
    assert audit(place)[0] == 0
    (place / HASH / chain[3].path).unlink()
    shutil.rmtree(place / "objects")
    assert audit(place)[0] == 1
    assert repair(open_store(place)).ok
    assert audit(place)[0] == 0
    assert [item.seq for item in open_store(place).scope(KEY).walk()][-4:] == [6, 5, 2, 0]


def test_only_declared_losses_are_excused(
    chain: list[Snapshot], place: Path, open_store: OpenStore, audit: Audit
) -> None:
    data = (place / HASH / chain[3].path).read_bytes()
    (place / HASH / chain[3].path).unlink()
    assert repair(open_store(place)).ok
    below = place / HASH / chain[2].path
    kept = below.read_bytes()
    below.unlink()
    assert audit(place)[0] == 1
    below.write_bytes(kept)
    (place / HASH / chain[3].path).write_bytes(data)
    assert audit(place) == (0, "")
    (place / HASH / chain[3].path).write_bytes(data[:-1] + b" ")
    assert audit(place)[0] == 1


@pytest.fixture
def short(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n}) for n in range(3)]


def test_the_script_finds_snapshots_that_do_not_follow_their_parent(
    short: list[Snapshot], place: Path, store: Store, audit: Audit, publish: Publish
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
        residue = place / HASH / publish(store, KEY, head=False, **shape).path
        assert audit(place)[0] == code, shape
        residue.unlink()


MALFORMED: list[Callable[[dict[str, Any]], Any]] = [
    lambda record: record["objects"].append(1),
    lambda record: record.update(objects=None),
    lambda record: record.update(gaps={}),
    lambda record: record["gaps"].append(1),
    lambda record: record["gaps"].append({"lost": record["gaps"][0]["lost"]}),
    lambda record: record["gaps"].append({"lost": {"seq": "1", "sha256": "0" * 64}, "resumes": None}),
    lambda record: record["gaps"].append({"lost": {"seq": 1, "sha256": "0" * 64}, "resumes": {"seq": 0}}),
    lambda record: record["gaps"][0]["resumes"].update(path=None),
    lambda record: record["gaps"][0]["resumes"].update(path="x\n" + record["gaps"][0]["resumes"]["path"]),
    lambda record: record["gaps"][0]["resumes"].update(seq=-1),
    lambda record: record["gaps"][0]["lost"].update(seq=0),
]


def test_to_the_script_a_malformed_declaration_declares_nothing(
    short: list[Snapshot], place: Path, open_store: OpenStore, audit: Audit, publish: Publish
) -> None:
    for number, copy in zip([None, *range(len(MALFORMED))], copies(place), strict=False):
        gap: dict[str, Any] = {
            "lost": {"seq": 1, "sha256": short[1].sha256},
            "resumes": {"seq": 0, "path": short[0].path, "sha256": short[0].sha256},
        }
        record: dict[str, Any] = {"gaps": [gap], "objects": ["a b"], "more": "is ignored"}
        if number is not None:
            MALFORMED[number](record)
        (copy / HASH / short[1].path).unlink()
        at, head = "2027-01-01T00:00:00.000000Z", short[2]
        above = {"seq": 3, "prev_sha": head.sha256, "prev": head.path, "created_at": at}
        publish(open_store(copy), KEY, head=True, event={"type": "repaired", "repaired": record}, **above)
        assert audit(copy)[0] == (1 if number is not None else 0), number


def test_to_the_script_a_version_with_a_leading_zero_is_damage(
    short: list[Snapshot], place: Path, audit: Audit
) -> None:
    pointer = place / HASH / naming.POINTER
    good = pointer.read_bytes()
    for version in ("0", "01", "0.1", "00"):
        pointer.write_bytes(good.replace(b'"version":"1"', f'"version":"{version}"'.encode()))
        assert audit(place)[0] == 1, version
