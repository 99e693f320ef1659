"""The oracle that judges compare the store with: it shares nothing with it, and it misses nothing on a chain."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from each_case import for_each
from stress import oracle
from stress.oracle import Chain, ViolationError, chain_of, heads_of, keys_of, strange_in, tree_of
from stress.scenarios import SCENARIOS, Place

from stateline import Store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the seam by handles is not for Windows")

SCENARIO = "long lists"


def told(scenario: str, root: Path) -> Path:
    """A state dir after a scenario."""
    place = Place(str(root / "s"), root, lambda: None, lambda note: None)
    SCENARIOS[scenario].prepare(place)
    SCENARIOS[scenario].act(place)
    return root / "s"


def test_the_oracle_loads_no_code_of_the_store() -> None:
    code = "import sys; from stress import oracle\nsys.exit(any(name.startswith('stateline') for name in sys.modules))"
    tests = Path(oracle.__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=tests, check=False).returncode == 0


def test_the_oracle_and_the_store_read_the_same_chains(tmp_path: Path) -> None:
    def check(tmp_path: Path, scenario: str) -> None:
        state_dir = told(scenario, tmp_path)
        tree, store = tree_of(state_dir), Store.open(state_dir)
        assert strange_in(state_dir) == []
        assert keys_of(tree).keys() >= heads_of(tree).keys() != set()
        for scope in heads_of(tree):
            walked = [snapshot.sha256 for snapshot in store.scope(keys_of(tree)[scope]).walk()]
            assert [link.sha256 for link in chain_of(tree, scope)] == walked[::-1]

    for_each(check, [name for name in SCENARIOS if name != "removal"], root=tmp_path)


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _first_chunk(scope: Path) -> Path:
    chunks = [path for path in scope.parent.glob("objects/??/*") if b'"before":null' in path.read_bytes()]
    return chunks[0]


CORRUPTIONS: dict[str, Callable[[Path], object]] = {
    "is not there": lambda scope: sorted(scope.glob("state-*"))[1].unlink(),
    "is not what .* names": lambda scope: _flip(sorted(scope.glob("state-*"))[0]),
    "object .* is not there": lambda scope: _first_chunk(scope).unlink(),
    "object .* is altered": lambda scope: _flip(_first_chunk(scope)),
    "Unterminated": lambda scope: (scope / "latest.json").write_bytes((scope / "latest.json").read_bytes()[:20]),
    "is no pointer": lambda scope: (scope / "latest.json").write_text(
        json.dumps(json.loads((scope / "latest.json").read_bytes()))
    ),
}


def test_a_corrupted_chain_is_detected(tmp_path: Path) -> None:
    def check(tmp_path: Path, words: str) -> None:
        state_dir = told(SCENARIO, tmp_path)
        scope = next(
            path.parent for path in state_dir.glob("*/latest.json") if len(list(path.parent.glob("state-*"))) > 2
        )
        key = keys_of(tree_of(state_dir))[scope.name]
        assert len(Chain.read(state_dir, key).order) == len(chain_of(tree_of(state_dir), scope.name))
        CORRUPTIONS[words](scope)
        with pytest.raises(ViolationError, match=words):
            chain_of(tree_of(state_dir), scope.name)
        with pytest.raises(ViolationError):
            Chain.read(state_dir, key)

    for_each(check, CORRUPTIONS, root=tmp_path)


def test_modes_and_links_are_reported_and_links_are_not_followed(tmp_path: Path) -> None:
    state_dir = told("saves", tmp_path)
    (state_dir / "link").symlink_to(tmp_path)
    (state_dir / "stateline.json").chmod(0o644)
    assert sorted(strange_in(state_dir)) == [
        "link is neither a file nor a directory",
        "stateline.json has the mode 0644",
    ]
    assert tree_of(state_dir)["link"] == b""
