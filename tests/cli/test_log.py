"""``stateline log``: one line a snapshot for people, with ``--patch`` what changed; it reads no more than it needs."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from command_line import LOG_LINE, USER, Cli, Task, log_summaries
from each_case import Failures

from stateline import Store
from stateline.bundle.envelope import Envelope
from stateline.store.local.backend import LocalBackend
from stateline.store.snapshot import Snapshot, publish


def make_chain(cli: Cli) -> list[Snapshot]:
    scope = Store.open(cli.state).scope("notes:x")
    return [scope.save({"n": number, "kept": True}, event={"why": f"step {number}"}) for number in range(5)]


@pytest.fixture
def chain(cli: Cli) -> list[Snapshot]:
    return make_chain(cli)


def stories(cli: Cli, *words: str) -> list[str]:
    """The log's lines without sha, number and time, oldest first."""
    result = cli("log", *words)
    assert result.code == 0, result.err
    return log_summaries(result.out.decode())[::-1]


def test_a_line_has_sha_number_time_and_reason(cli: Cli, chain: list[Snapshot]) -> None:
    lines = cli("log", "notes:x").out.decode().split("\n")[:-1]
    for line, snapshot in zip(lines, reversed(chain), strict=True):
        assert line.startswith(f"{snapshot.sha256[:12]}    {snapshot.seq}  ")
        assert LOG_LINE.sub("", line) == f'{{"why":"step {snapshot.seq}"}}'


def test_a_run_reads_like_a_story(cli: Cli, task: Task) -> None:
    flaky = task("test -e seen || { touch seen; echo 'no\nnetwork' >&2; exit 3; }; echo '{\"todos\": 2}'")
    machine = cli.machine(
        "m",
        flaky={**flaky, "retry": {"max_attempts": 2}, "default_next": "once"},
        once={"task": ["echo", "17"], "routes": [{"when": "output == 17", "to": "breaks"}]},
        breaks=task("exit 1", error_next="ask"),
        ask={"human": {"prompt": "ok?"}, "default_next": "end"},
        end={"end": {}},
    )
    cli.json("execute", machine, "--id", "r", exits=3)
    cli.json("execute", machine, "--answer", '"yes"')
    assert stories(cli, "run:r") == [
        "turn 0  run started -> flaky",
        "turn 1  flaky failed; it is retried  exit: no network",
        'turn 1  flaky -> once  {"todos":2}',
        "turn 2  once is about to run; it must not run twice",
        "turn 2  once -> breaks (routing)  17",
        "turn 3  breaks failed -> ask (error); waits for an answer  "
        "exit: ended with exit code 1 and wrote nothing to stderr",
        f"turn 4  ask answered by {USER} -> end  complete yes",
    ]


def test_a_context_and_the_starts_of_a_machine_read_like_a_story(cli: Cli, task: Task) -> None:
    cli.json("run", "--state-scope", "c", "--system", "s", "--set", "limit=3")
    cli.json("run", "--state-scope", "c", "--refine-text", "Be\nbrief")
    assert stories(cli, "context:c") == [f"derive by {USER}  limit = 3  “s”", f"refine by {USER}  “Be brief”"]
    cli.json("execute", cli.machine("m", a=task("echo 1")), "--id", "r")
    (key,) = [row["scope"] for row in cli.json("scopes")["scopes"] if row["scope"].startswith("machine:")]
    assert stories(cli, key) == ["run r started"]


def test_a_repair_shows_what_it_went_back_to_and_what_is_lost(cli: Cli) -> None:
    record = {"from": {"seq": 3, "sha256": "0" * 64}, "lost_count": 2, "gaps": [], "objects": ["1" * 64]}
    store = Store.open(cli.state)
    told = {"run:r": {**record, "set_aside_count": 4}, "run:s": "text"}
    for key, said in told.items():
        scope = store.scope(key)
        event = {"type": "repaired", "repaired": said, "turn": 1}
        # As a repair does it: in an event that is given to `save` these words are refused.
        first = Envelope(
            seq=0,
            created_at="2026-11-20T09:00:00.000000Z",
            tool_version="0.1.0",
            scope=key,
            prev_sha=None,
            prev=None,
            kind="run",
            event=event,
            state={},
        )
        with scope.locked():
            store.backend.swap(scope.hash, None, publish(scope.store.backend, first).pointer)
    assert stories(cli, "run:r") == [
        "repaired with the state of snapshot 3; 2 newer snapshots lost, 1 object lost, 4 files set aside"
    ]
    assert stories(cli, "run:s") == ['repaired {"repaired":"text","turn":1}']


def test_a_story_survives_an_event_of_any_shape(cli: Cli) -> None:
    scope = Store.open(cli.state).scope("run:r")
    events: list[dict[str, Any]] = [
        {"type": "succeeded", "transitions": 7},
        {"type": "succeeded", "transitions": [None], "turn": 1, "stage": "a"},
        {"type": ["x"], "transitions": [], "turn": {}, "stage": []},
        {"type": "derive", "settings": 3},
        {"type": "run_started"},
        {"type": "failed", "error": "text", "transitions": [], "turn": 1, "stage": "a"},
        {
            "type": "failed",
            "error": {"kind": 1, "message": 2},
            "transitions": [{"to": [], "reason": 5}],
            "turn": 1,
            "stage": 2,
        },
        {},
    ]
    for event, state in itertools.product(events, (None, [], {"tree": [], "outputs": 3}, {"tree": {"phase": []}})):
        scope.save(state, event=event)
    assert len(stories(cli, "run:r")) == 32


def test_an_output_that_lies_in_an_object_is_shown_by_size_and_not_read(cli: Cli, task: Task) -> None:
    cli.json(
        "execute", cli.machine("m", a=task("head -c 9000 /dev/zero | tr '\\0' x | sed 's/.*/\"&\"/'")), "--id", "r"
    )
    for path in Path(cli.state, "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    assert stories(cli, "run:r")[-1] == "turn 1  a  complete  (9.0 KB)"


def test_patch_shows_under_each_line_what_changed(cli: Cli, chain: list[Snapshot]) -> None:
    lines = cli("log", "-p", "-n", "2", "notes:x").out.decode().split("\n")
    assert lines[0].startswith(chain[4].sha256[:8])
    actor = f"    by {USER}@{os.uname().nodename}"
    assert lines[1:4] == [actor, "    ~ n  3 -> 4", ""]
    assert lines[4].startswith(chain[3].sha256[:8])
    assert lines[5:] == [actor, "    ~ n  2 -> 3", "", ""]
    first = cli("log", "--patch", "notes:x@0").out.decode().split("\n")
    assert first[1:] == [actor, "    + kept  true", "    + n  0", "", ""]
    Store.open(cli.state).scope("notes:x").save({"n": 4, "kept": True})
    assert (
        cli("log", "-p", "-n", "1", "notes:x").out.decode().split("\n")[2]
        == "    no difference: both have the same state"
    )


def test_each_row_gets_the_patch_that_makes_it_from_the_one_before(cli: Cli, chain: list[Snapshot]) -> None:
    plain, rows = (cli.json("log", "notes:x", *more)["snapshots"] for more in ([], ["--patch"]))
    state: Any = {}
    for row in reversed(rows):
        state = jsonpatch.apply_patch(state, row["patch"])
        assert state == cli.json("show", row["sha"])["state"]
    assert [{key: row[key] for key in row if key != "patch"} for row in rows] == plain
    assert [row["patch"] for row in cli.json("log", "-p", "-n", "1", "notes:x")["snapshots"]] == [
        [{"op": "replace", "path": "/n", "value": 4}]
    ]
    assert cli.json("log", "-p", "-n", "0", "notes:x") == {"snapshots": []}


def test_a_limited_log_reads_nothing_older_than_it_needs(cli: Cli) -> None:
    failures = Failures()
    for words, older in [([], 0), (["-p"], 1)]:
        with failures.case(words, older), cli.fresh():
            chain = make_chain(cli)
            for snapshot in chain[: 3 - older]:
                Path(cli.state, snapshot.scope, snapshot.path).unlink()
            assert len(cli.json("log", "-n", "2", *words, "notes:x")["snapshots"]) == 2
            Path(cli.state, chain[0].scope, chain[3 - older].path).unlink()
            assert cli("log", "-n", "2", *words, "notes:x").code == 5
    failures.check()


def test_what_lies_before_damage_is_shown_and_then_the_damage_reported(cli: Cli) -> None:
    failures = Failures()
    for words in [[], ["-p"]]:
        with failures.case(words), cli.fresh():
            chain = make_chain(cli)
            Path(cli.state, chain[0].scope, chain[1].path).write_bytes(b"{}")
            result = cli("log", *words, "notes:x")
            assert result.code == 5
            shown = [line[:8] for line in result.out.decode().split("\n") if line and line[0] != " "]
            assert shown == [snapshot.sha256[:8] for snapshot in reversed(chain[2:])]
            assert "error: " in result.err
            assert cli.refused("log", *words, "notes:x", exits=5)["code"] == "integrity"
    failures.check()


def test_lines_come_as_they_are_read_and_a_reader_who_leaves_ends_the_walk(
    cli: Cli, chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    end, other = os.pipe()
    read: list[str] = []
    monkeypatch.setattr(sys, "stdout", open(other, "w"))  # noqa: SIM115 (closed below)
    original = LocalBackend.get

    def watched(self: LocalBackend, name: str, limit: int) -> bytes:
        if "/state-" in name:
            if len(read) == 3:
                os.close(end)
            read.append(name)
        return original(self, name, limit)

    monkeypatch.setattr(LocalBackend, "get", watched)
    result = cli("log", "notes:x")
    with pytest.raises(BrokenPipeError):
        sys.stdout.close()
    assert (result.code, result.err) == (0, "")
    assert len(read) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no shell with pipes like these")
def test_a_closed_pipe_is_quiet(cli: Cli, chain: list[Snapshot]) -> None:
    process = cli.start("log", "-p", "notes:x")
    assert process.stdout.readline().startswith(chain[4].sha256[:8].encode())
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0


def test_the_document_of_a_long_chain_is_one_json_text(cli: Cli) -> None:
    scope = Store.open(cli.state).scope("notes:x")
    for number in range(40):
        scope.save({"n": number}, event={"text": "é" * number})
    document = json.loads(cli("log", "notes:x", "--format", "json").out)
    assert [row["event"]["text"] for row in document["snapshots"]] == ["é" * number for number in reversed(range(40))]


def test_no_name_in_an_event_acts_on_a_terminal(cli: Cli) -> None:
    evil = "\x1b[2J\x07\x9b\u202e"
    scope = Store.open(cli.state).scope("run:r")
    scope.save({}, event={"type": "derive", "settings": {evil: 1}})
    scope.save({}, event={"type": "run_started", "run": evil})
    scope.save(
        {}, event={"type": "retried", "transitions": [{"to": evil, "reason": evil}], "turn": evil, "stage": evil}
    )
    assert not set("".join(stories(cli, "run:r"))) & set(evil.replace("[2J", ""))


def test_a_change_that_a_stopped_run_accepts_leaves_it_stopped(cli: Cli, task: Task) -> None:
    cli.json("execute", cli.machine(a=task("exit 1")), "--id", "r", exits=1)
    cli.json("execute", cli.machine(a=task("exit 2")), "--accept-change", exits=1)
    assert stories(cli, "run:r")[-1].startswith(
        f"turn 1  a: the machine was replaced by {USER}; the run is still stopped  exit: "
    )
