"""An answer that was taken is kept, whatever becomes of it then; and what a complete run leaves as files."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from stateline import Store
from stateline.errors import IntegrityError, StorageError
from stateline.service.execute import execute, resume
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.run_document import Outcome, write_outputs
from stateline.store.memory import MemoryBackend

ASKING = """
stateline: 1
name: asking
state: {n: %s}
stages:
  ask: {human: {prompt: "ok?"}, set: {x: "1 / state.n"}, default_next: done}
  done: {end: {}}
"""


def asking(place: Path, n: int) -> str:
    path = place / "m.yaml"
    path.write_text(ASKING % n)
    return str(path)


def test_an_answer_whose_set_fails_is_kept_and_the_run_can_be_read_and_mended(tmp_path: Path) -> None:
    store = Store(MemoryBackend())
    machine = asking(tmp_path, 0)
    waiting = execute(store, ExecuteOptions(machine=machine))
    failed = execute(store, ExecuteOptions(machine=machine, call=CallOptions(answer=True)))
    assert (waiting.status, failed.status, failed.reason) == ("waiting", "error", "set")
    (tmp_path / "m.yaml").write_text((ASKING % 1).replace("1 / state.n", "1"))
    execute(store, ExecuteOptions(machine=machine, accept_change=True))
    mended = resume(store, str(failed.run), CallOptions(), retry=True)
    assert (mended.status, mended.outputs) == ("complete", {"ask": True})


def test_a_complete_runs_outputs_are_written_as_files(tmp_path: Path) -> None:
    store = Store(MemoryBackend())
    machine = asking(tmp_path, 1)
    waiting = execute(store, ExecuteOptions(machine=machine))
    assert write_outputs(waiting, str(tmp_path / "out")) == []
    assert not (tmp_path / "out").exists()
    done = execute(store, ExecuteOptions(machine=machine, call=CallOptions(answer={"b": 1, "a": [2]})))
    for _ in range(2):
        written = write_outputs(done, str(tmp_path / "out"))
    assert sorted(Path(path).relative_to(tmp_path / "out").as_posix() for path in written) == [
        "output.json",
        "outputs/ask.json",
    ]
    assert json.loads((tmp_path / "out" / "outputs" / "ask.json").read_text()) == {"a": [2], "b": 1}
    assert sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file()) == ["ask.json", "output.json"]


def outcome(outputs: dict[str, object]) -> Outcome:
    base = Outcome(
        run="r",
        status="complete",
        stage="x",
        turn=1,
        head="",
        output=1,
        outputs={},
        reason="",
        waiting=None,
        warnings=[],
    )
    return msgspec.structs.replace(base, outputs=outputs)


def test_a_stage_by_a_hostile_name_becomes_no_file(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError):
        write_outputs(outcome({"../../x": 1}), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_destination_that_is_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(StorageError):
        write_outputs(outcome({}), str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "mine"
