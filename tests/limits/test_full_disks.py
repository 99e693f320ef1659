"""A full disk under a run and a repair, and a limit on the size of files: nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from stress.corruption.sample_store import call

from stateline import Store
from stateline.bundle import naming
from stateline.verify.checker import verify

PAGE = 4096


def machine(root: Path) -> str:
    """A machine whose first task may not be repeated, and says so in ``ran`` when it is."""
    task = ["sh", "-c", f"echo ran >> '{root}/ran'; echo '\"'$(printf %05000d 7)'\"'"]
    stages = {"work": {"task": task, "default_next": "ask"}, "ask": {"human": {"prompt": "Go on?"}}}
    path = root / "machine.json"
    path.write_text(json.dumps({"stateline": 1, "name": "full", "stages": stages}))
    return str(path)


def shas(state_dir: Path) -> dict[str, str]:
    """The head of each scope by key."""
    if not (state_dir / naming.STORE_FILE).exists():
        return {}
    return {head.envelope.scope: head.sha256 for head in Store.open(state_dir).heads()}


def chain_of(state_dir: Path, key: str) -> list[str]:
    return [snapshot.sha256 for snapshot in Store.open(state_dir).scope(key).walk()]


def refused(outcome: dict[str, Any]) -> None:
    assert outcome["code"] == 1, outcome
    assert outcome["error"]["code"] == "storage", outcome
    assert "full" in outcome["error"]["message"], outcome
    assert "free some space" in outcome["error"]["hint"], outcome


def test_a_run_on_a_full_disk_stops_and_continues_when_there_is_space(disk: Any, tmp_path: Path) -> None:
    path = machine(tmp_path)
    seen = set()
    for pages in range(0, 30, 2):
        state = disk.path / f"s{pages}"
        disk.leave(pages * PAGE)
        outcome = call(state, "execute", path, "--id", "r", "--no-input", exits=None)
        seen.add(outcome["code"])
        if outcome["code"] != 3:
            refused(outcome)
        before = shas(state)
        assert len(list(disk.path.rglob(f"{naming.TEMPORARY}*"))) == 0
        (disk.path / "ballast").unlink()
        if state.exists() and before:
            assert {found.severity for found in verify(Store.open(state)).findings} <= {"residue"}
        again = call(state, "execute", path, "--id", "r", "--no-input", exits=3)
        # What was started and is not known to have ended is not run again unasked.
        assert again["waiting"]["type"] in ("human", "interrupt")
        for key, sha in before.items():
            assert sha in chain_of(state, key), "what was acknowledged is on the chain"
        ran = (tmp_path / "ran").read_text().count("ran")
        assert ran == 1, "the task ran once"
        (tmp_path / "ran").unlink()
        shutil.rmtree(state)
    assert seen == {1, 3}


def test_a_repair_on_a_full_disk_stops_and_is_finished_when_there_is_space(disk: Any, tmp_path: Path) -> None:
    good = tmp_path / "good"
    store = Store.open(good)
    chain = [store.scope("notes:x").save({"n": number, "big": f"{number}" * 5000}) for number in range(4)]
    codes = []
    for pages in range(8):
        state = disk.path / "s"
        shutil.copytree(good, state)
        (state / chain[3].scope / chain[3].path).write_bytes(b"{")
        (state / chain[1].scope / chain[1].path).unlink()
        disk.leave(pages * PAGE)
        outcome = call(state, "repair", "--apply", exits=None)
        codes.append(outcome["code"])
        assert outcome["code"] in (0, 1, 5), outcome
        assert "internal" not in json.dumps(outcome)
        (disk.path / "ballast").unlink()
        call(state, "repair", "--apply", exits=0)
        assert call(state, "repair", "--apply")["actions"] == []
        head = Store.open(state).scope("notes:x").load()
        assert Store.open(state).resolve(head.state) == {"n": 2, "big": "2" * 5000}
        assert list(state.glob(f"ext-*/*{chain[3].path}")), "what was set aside is there"
        shutil.rmtree(state)
    assert codes[0] != 0
    assert codes[-1] == 0


def _limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


def test_a_limit_on_the_size_of_files_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    path = machine(tmp_path)
    state = tmp_path / "state dir"
    store = Store.open(state)
    head = store.scope("notes:x").save({"n": 0})
    words = ["execute", path, "--no-input", "--id", "r", "--state-dir", str(state), "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "stateline", *words],
        capture_output=True,
        preexec_fn=_limited,
        timeout=60,
        check=False,
    )
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["error"]["code"] == "storage"
    assert store.scope("notes:x").load() == head
    assert not list(state.rglob(f"{naming.TEMPORARY}*"))
    assert verify(store).ok
    call(state, "execute", path, "--id", "r", "--no-input", exits=3)
