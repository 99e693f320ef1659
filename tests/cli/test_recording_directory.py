"""``--record DIR``: what keeps a directory from being recorded to is said by the call and by its dry run alike, before
anything is written or asked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures
from model_server import ModelServer, Say

from stateline.store.local.filesystem import Directory, Filesystem, Stat

AGENT = {"agent": {"prompt": "hi"}}


def open_to_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def a_file(place: Path) -> None:
    place.write_text("mine")


def below_a_file(place: Path) -> None:
    place.parent.joinpath("file").write_text("mine")
    place.symlink_to("file/below")


def a_link_among_its_files(place: Path) -> None:
    place.mkdir(mode=0o700)
    (place / "0001.json").symlink_to("nowhere")


def a_pipe_among_its_files(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.mkfifo(place / "0002.json")


def a_number_spelt_otherwise(place: Path) -> None:
    place.mkdir(mode=0o700)
    (place / "1.json").write_text("{}")


BAD: list[tuple[Callable[[Path], None], int]] = [
    (open_to_all, 6),
    (a_file, 6),
    (below_a_file, 1),
    (a_link_among_its_files, 1),
    (a_pipe_among_its_files, 1),
    (a_number_spelt_otherwise, 1),
]


def files_of(cli: Cli) -> dict[str, tuple[Any, ...]]:
    """Names, modes and bytes of all that lies in the state dir and around it."""
    return {path: (mode, data) for path, (mode, *_, data) in cli.tree().items()}


def refused_alike(cli: Cli, words: list[str], exits: int) -> str:
    """The message of a call that is refused so, with its dry run; neither changes a file."""
    before, files = cli.tree(), files_of(cli)
    planned = cli.json(*words, "--dry-run")
    assert (planned["plan"]["action"], planned["exit"]) == ("refuse", exits)
    assert cli.tree() == before
    error = cli.refused(*words, exits=exits)
    assert planned["plan"]["reason"] == f"{error['message']} ({error['hint']})"
    assert files_of(cli) == files  # a lock is taken and given back where a run is there
    return str(error["message"])


def test_a_run_is_not_begun_where_its_exchanges_cannot_be_recorded(cli: Cli) -> None:
    failures = Failures()
    for spoil, exits in BAD:
        with failures.case(spoil, exits), cli.fresh():
            spoil(cli.home / "rec")
            machine = cli.machine(a=AGENT)
            with ModelServer() as server:
                more = ["-m", "openai/m", "--base-url", server.url, "--record", str(cli.home / "rec")]
                messages = {
                    refused_alike(cli, ["run", "-p", "x", *more], exits),
                    refused_alike(cli, ["run", "--system", "S", *more], exits),
                    refused_alike(cli, ["execute", machine, "--id", "r", *more], exits),
                    refused_alike(cli, ["execute", machine, "-i", *more], exits),
                }
                assert server.count == 0
            assert len(messages) == 1
            assert not cli.state.exists()
    failures.check()


def test_a_run_that_begins_with_a_task_is_not_begun_there_either(cli: Cli, task: Task) -> None:
    open_to_all(cli.home / "rec")
    machine = cli.machine(a=task("touch ran; echo 1", default_next="b"), b=AGENT)
    with ModelServer() as server:
        refused_alike(
            cli, ["execute", machine, "-m", "openai/m", "--base-url", server.url, "--record", f"{cli.home}/rec"], 6
        )
    assert not (cli.home / "ran").exists()


def test_a_run_that_continues_finds_out_before_it_writes_that_its_directory_has_changed(cli: Cli) -> None:
    failures = Failures()
    for stage in [AGENT, {**AGENT, "repeatable": False}]:
        with failures.case(stage), cli.fresh():
            machine = cli.machine(a={**AGENT, "default_next": "b"}, b=stage)
            with ModelServer(Say("one"), Say("two")) as server:
                more = ["-m", "openai/m", "--base-url", server.url]
                cli.json("execute", machine, "-i", "--id", "r", *more, "--record", str(cli.home / "rec"))
                (cli.home / "rec").chmod(0o777)
                for words in (["execute", machine, "--id", "r", *more], ["exec", "resume", "r", *more]):
                    refused_alike(cli, words, 6)
                assert server.count == 1
                (cli.home / "rec").chmod(0o700)
                assert cli.json("exec", "resume", "r", *more)["output"] == "two"
    failures.check()


def test_an_answer_that_cannot_be_recorded_is_refused_and_the_run_still_waits(cli: Cli) -> None:
    cli.json("run", "-p", "x", "--id", "r", "--record", str(cli.home / "rec"), exits=3)
    a_file(cli.home / "rec")
    refused_alike(cli, ["exec", "resume", "r", "--answer", '{"response": "ok"}'], 6)
    (cli.home / "rec").unlink()
    assert cli.json("exec", "resume", "r", "--answer", '{"response": "ok"}')["output"] == "ok"


def test_nothing_can_be_recorded_on_a_file_system_that_takes_no_changes(cli: Cli, disk: Any) -> None:
    (disk.path / "rec").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
    for name in ("rec", "new", "deep/er"):
        words = ["run", "-p", "x", "-m", "openai/m", "--base-url", "http://127.0.0.1:9/v1"]
        said = refused_alike(cli, [*words, "--record", str(disk.path / name)], 1)
        assert "Read-only file system; nothing was sent to the model" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_one_may_not_write_to_is_refused(cli: Cli) -> None:
    (cli.home / "rec").mkdir(mode=0o500)
    for name in ("rec", "rec/new"):
        words = ["run", "-p", "x", "-m", "openai/m", "--base-url", "http://127.0.0.1:9/v1"]
        assert "Permission denied" in refused_alike(cli, [*words, "--record", str(cli.home / name)], 1)


def test_a_good_directory_is_not_made_by_looking_at_it(cli: Cli) -> None:
    before = cli.tree()
    words = ["run", "-p", "x", "-m", "openai/m", "--base-url", "http://127.0.0.1:9/v1"]
    assert cli.json(*words, "--record", str(cli.home / "a" / "b"), "--dry-run")["exit"] == 0
    assert cli.tree() == before


def test_what_lies_in_a_recording_is_looked_at_no_more_often_the_more_turns_a_call_has(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    stat = Filesystem.stat

    def noted(fs: Filesystem, directory: Directory, name: str = "") -> Stat:
        looks.append(name)
        return stat(fs, directory, name)

    monkeypatch.setattr(Filesystem, "stat", noted)
    before = {f"{number:04}.json" for number in range(1, 21)}

    def looked_at(turns: int) -> int:
        """The number of looks at earlier exchanges: by a call that begins a run, and by one with many turns."""
        stages = {f"s{at}": {**AGENT, "default_next": f"s{at + 1}"} for at in range(turns)}
        machine = cli.machine(f"m{turns}", **stages, **{f"s{turns}": {"end": {}}})
        place = cli.home / f"rec{turns}"
        place.mkdir(mode=0o700)
        for name in before:
            (place / name).write_text("{}")
        words = ["execute", machine, "--id", f"r{turns}", "-m", "openai/m", "--base-url", server.url]
        looks.clear()
        cli.json(*words, "-i", "--record", str(place))
        cli.json(*words)
        return sum(name in before for name in looks)

    with ModelServer(otherwise=Say("ok")) as server:
        few, many = looked_at(2), looked_at(7)
        assert server.count == 9
    assert 0 < few == many
