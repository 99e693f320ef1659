"""Commands of docs/format.md that an auditor runs by hand: note anchors, and give them to the script."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from stress.corruption import audit_script

from stateline.history.log import list_scopes
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("sh", "jq", "sha256sum")), reason="the script needs jq and sha256sum"
)
KEY = "notes:x"


@pytest.fixture
def chain(store: Store) -> list[Snapshot]:
    return [store.scope(KEY).save({"n": n}) for n in range(3)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "audit.sh"
    path.write_text(audit_script.script(), encoding="utf-8")
    return path


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(script), *words], capture_output=True, text=True, timeout=60, check=False)


def test_the_script_counts_the_anchors_it_found(script: Path, chain: list[Snapshot], place: Path) -> None:
    done = run(script, str(place), chain[0].scope, chain[0].sha256, chain[2].sha256)
    assert done.stdout == f"intact: 3 snapshots, head {chain[2].sha256}, anchors found: 2\n"
    assert run(script, str(place), chain[0].scope).stdout.endswith("anchors found: 0\n")


def test_missing_arguments_and_malformed_digests_are_usage_errors(
    script: Path, chain: list[Snapshot], place: Path
) -> None:
    calls: list[tuple[str, ...]] = [(), (str(place),)]
    for bad in ("", "abcd", "A" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n0"):
        calls += [(str(place), chain[0].scope, bad), (str(place), chain[0].scope, chain[0].sha256, bad)]
        calls.append((str(place), bad))
    for call in calls:
        done = run(script, *call)
        assert (done.returncode, done.stdout, done.stderr[:7]) == (64, "", "usage: "), call


def test_both_commands_of_the_page_note_each_head_after_its_scopes_hash(
    store: Store, chain: list[Snapshot], place: Path
) -> None:
    other = store.scope("notes:y").save({})
    page = audit_script.PAGE.read_text(encoding="utf-8").replace("\\|", "|")
    [filtered] = re.findall(r"`stateline scopes --format json \| jq -r '([^']*)'`", page)
    [by_hand] = re.findall(r"`(jq -r '[^']*') STATE_DIR/\*/latest\.json`", page)
    document = json.dumps(list_scopes(store).document())
    one = subprocess.run(["jq", "-r", filtered], input=document, capture_output=True, text=True, check=True)
    line = f'{by_hand} "$1"/*/latest.json'
    two = subprocess.run(["sh", "-c", line, "sh", str(place)], capture_output=True, text=True, check=True)
    expected = {f"{chain[2].scope} {chain[2].sha256}", f"{other.scope} {other.sha256}"}
    assert set(one.stdout.splitlines()) == set(two.stdout.splitlines()) == expected
