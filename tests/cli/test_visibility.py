"""Nothing that happened is hidden: failures, models and people in ``exec list``, ``status`` and ``history``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from command_line import Cli, Task
from each_case import Failures
from model_server import ModelServer, Say

END: dict[str, Any] = {"end": {}}
SECRET = "sk-proj-" + "a1B2c3D4" * 5
CONTEXT = json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}})


@contextmanager
def model(cli: Cli, *script: Say) -> Iterator[list[str]]:
    """The flags that name a model which replies by ``script``."""
    cli.monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    with ModelServer(*script) as server:
        yield ["-m", "openai/x", "--base-url", server.url]


def row(cli: Cli, run: str) -> dict[str, Any]:
    """The row of a run in ``exec list``."""
    (found,) = [row for row in cli.json("exec", "list")["runs"] if row["run"] == run]
    return dict(found)


def head(cli: Cli, run: str) -> dict[str, Any]:
    """The event of a run's newest snapshot."""
    return dict(cli.json("log", f"run:{run}", "-n", "1")["snapshots"][0]["event"])


def test_list_counts_failures_that_were_handled_and_that_were_not(cli: Cli, task: Task) -> None:
    retried = task("[ $(wc -l < ran) -ge 2 ] && echo 1 || { echo x >> ran; exit 3; }", retry={"max_attempts": 3})
    (cli.home / "ran").write_text("")
    cli.json("execute", cli.machine("retried", a=retried), "--id", "retried")
    handled = cli.machine("handled", a=task("exit 3", error_next="b"), b=task("echo 1"))
    cli.json("execute", handled, "--id", "handled")
    cli.json("execute", cli.machine("broken", a=task("exit 3")), "--id", "broken", exits=1)
    cli.json("exec", "resume", "broken", "--retry", exits=1)
    cli.json("execute", cli.machine("fine", a=task("echo 1")), "--id", "fine")
    found = {row["run"]: row["failures"] for row in cli.json("exec", "list")["runs"]}
    assert found == {"retried": 2, "handled": 1, "broken": 2, "fine": 0}


def test_an_accepted_change_of_a_failed_run_is_no_failure(cli: Cli, task: Task) -> None:
    cli.json("execute", cli.machine(a=task("exit 3")), "--id", "r", exits=1)
    cli.json("execute", cli.machine(a=task("exit 4")), "--id", "r", "--accept-change", exits=1)
    assert row(cli, "r")["failures"] == 1


def test_list_has_the_model_labels_and_the_start_of_a_prompt(cli: Cli, task: Task) -> None:
    cli.json("execute", cli.machine(a=task("echo 1")), "--id", "m", "--label", "team=a", "--label", "n=1")
    with model(cli, Say(CONTEXT), Say("Yes.")) as flags:
        cli.json("run", "-p", f"What\n is {{{{ this }}}} {SECRET} " + "x" * 100, "--id", "p", *flags)
    machine, prompt = row(cli, "m"), row(cli, "p")
    assert (machine["model"], machine["prompt"], machine["labels"]) == (None, None, {"team": "a", "n": "1"})
    assert (prompt["model"], prompt["labels"]) == ("openai/x", {})
    assert prompt["prompt"].startswith("What is {{ this }} [REDACTED] xxx")
    assert len(prompt["prompt"]) == 60


def test_large_labels_are_listed(cli: Cli, task: Task) -> None:
    cli.json("execute", cli.machine(a=task("echo 1")), "--id", "r", "--label", "k=" + "v" * 9000)
    assert row(cli, "r")["labels"] == {"k": "v" * 9000}


def test_the_model_is_that_of_the_last_call_and_null_for_a_caller(cli: Cli) -> None:
    path = cli.machine(a={"agent": {"prompt": "Go."}, "default_next": "b"}, b={"agent": {"prompt": "On."}})
    cli.json("execute", path, "--id", "r", exits=3)
    cli.json("exec", "resume", "r", "--answer", '{"response": "Mine."}', "-i", exits=3)
    assert row(cli, "r")["model"] is None
    with model(cli, Say("Yes.")) as flags:
        cli.json("exec", "resume", "r", *flags)
    assert row(cli, "r")["model"] == "openai/x"


@pytest.fixture
def old(cli: Cli, task: Task) -> Cli:
    """A run whose snapshots lack the members that older versions did not write."""
    from stateline import Store

    cli.json("execute", cli.machine(a=task("exit 3")), "--id", "old", exits=1)
    scope = Store.open(cli.state).scope("run:old")
    head = scope.load()
    event = {name: value for name, value in head.event.items() if name not in ("prompt", "model_used")}
    event["meters"] = {name: event["meters"][name] for name in ("active", "llm_calls")}
    scope.save(head.state, kind="run", event=event, masked=True)
    return cli


def test_a_run_of_an_older_version_is_listed(old: Cli) -> None:
    found = row(old, "old")
    assert (found["failures"], found["model"], found["prompt"]) == (0, None, None)


RETRIED = "[ $(wc -l < ran) -ge 2 ] && echo 1 || { echo x >> ran; echo why >&2; exit 3; }"


def test_a_handled_failure_is_a_warning_of_the_call_in_which_it_happened(cli: Cli, task: Task) -> None:
    (cli.home / "ran").write_text("")
    stages = {"a": task(RETRIED, retry={"max_attempts": 3}, default_next="b"), "b": task("exit 4", error_next="c")}
    path = cli.machine(**stages, c={"human": {"prompt": "Go?"}, "default_next": "d"}, d=task("echo 1"))
    warnings = cli.json("execute", path, "--id", "r", exits=3)["warnings"]
    assert [("'a' failed (exit)" in text, "'b' failed (exit)" in text) for text in warnings] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert "why" in warnings[0]
    assert "retried" in warnings[1]
    assert "'c'" in warnings[2]
    assert cli.json("exec", "resume", "r", "--answer", "1")["warnings"] == []


def test_the_failure_that_stops_a_run_is_its_outcome_and_no_warning(cli: Cli, task: Task) -> None:
    document = cli.json("execute", cli.machine(a=task("exit 3", retry={"max_attempts": 2})), exits=1)
    assert (document["error"]["kind"], len(document["warnings"])) == ("exit", 1)


def test_a_failure_on_the_way_into_the_first_stage_is_a_warning(cli: Cli, task: Task) -> None:
    first = {"agent": {"prompt": "{{ input.nothing }}"}, "error_next": "b"}
    path = cli.machine(a=first, b=task("echo 1"))
    for words in (["--id", "r"], ["--id", "r", "--force"]):
        (warning,) = cli.json("execute", path, "--input", "{}", *words)["warnings"]
        assert "'a' failed (prompt)" in warning


def test_a_failure_of_a_retry_that_is_handled_is_a_warning(cli: Cli, task: Task) -> None:
    first = task("echo 1", routes=[{"when": "state.nothing", "to": "b"}])
    path = cli.machine(a=first, b=task("echo 2"))
    cli.json("execute", path, "--id", "r", exits=1)
    cli.machine(a={**first, "error_next": "b"}, b=task("echo 2"))
    cli.json("execute", path, "--id", "r", "--accept-change", exits=1)
    for words, exits in ((["--retry", "-i"], 0), ([], 0)):
        warnings = cli.json("exec", "resume", "r", *words, exits=exits)["warnings"]
        assert ["'a' failed (condition)" in text for text in warnings] == [True] * bool(words)


def test_many_handled_failures_are_summed_up(cli: Cli, task: Task) -> None:
    path = cli.machine(a=task("exit 3", retry={"max_attempts": 16}))
    warnings = cli.json("execute", path, "--id", "r", exits=1)["warnings"]
    assert len(warnings) == 11
    assert "5 more" in warnings[0]
    assert row(cli, "r")["failures"] == 16


def test_handled_failures_are_in_the_history(cli: Cli, task: Task) -> None:
    (cli.home / "ran").write_text("")
    path = cli.machine(
        a=task(RETRIED, retry={"max_attempts": 3}, default_next="b"), b=task("exit 4", error_next="c"), c=END
    )
    cli.json("execute", path, "--id", "r")
    rows = cli.json("exec", "history", "r")["history"]
    assert [(row["stage"], row["error"] and row["error"]["kind"]) for row in rows[1:]] == [
        ("a", "exit"),
        ("a", "exit"),
        ("a", None),
        ("b", "exit"),
    ]


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def refused(cli: Cli, run: str) -> list[Any]:
    return [row["refused"] for row in cli.json("exec", "history", run)["history"] if row["refused"]]


def test_a_reply_that_the_stage_cannot_use_is_kept_masked_with_the_failed_attempt(cli: Cli) -> None:
    stage = {"agent": {"prompt": "Go.", "output_schema": SCHEMA}, "retry": {"max_attempts": 2}}
    with model(cli, Say(f"No: {SECRET}"), Say('{"n": 1}')) as flags:
        cli.json("execute", cli.machine(a=stage), "--id", "r", *flags)
    assert refused(cli, "r") == [{"content": "No: [REDACTED]", "tool_calls": []}]
    shown = cli("exec", "history", "r").out.decode()
    assert "refused reply: No: [REDACTED]" in shown
    assert SECRET.encode() not in b"".join(row[4] for row in cli.tree().values() if row[4])


def test_an_incomplete_or_malformed_reply_is_kept_as_far_as_it_arrived(cli: Cli) -> None:
    from each_case import Failures

    failures = Failures()
    broken = {"id": "call_1", "name": "f", "arguments": '{"q": '}
    table = [
        (Say("Half of an", finish="length"), {"content": "Half of an", "tool_calls": []}),
        (Say("So", calls=[("f", '{"q": ')]), {"content": "So", "tool_calls": [broken]}),
        (Say("x" * 70_000, finish="length"), {"content": "x" * 65_536, "tool_calls": [], "cut": True}),
        (Say("", finish="stop"), None),
    ]
    for recorded in (False, True):
        for said, expected in table:
            with failures.case(recorded, str(said)[:40]), cli.fresh(), model(cli, said) as flags:
                path = cli.machine(a={"agent": {"prompt": "Go."}, "error_next": "b"}, b=END)
                flags += ["--record", str(cli.home / "recording")] if recorded else []
                cli.json("execute", path, "--id", "r", *flags)
                assert refused(cli, "r") == [expected] * (expected is not None)
                if recorded:
                    cli.json("execute", path, "--id", "p", "--playback", str(cli.home / "recording"))
                    assert refused(cli, "p") == refused(cli, "r")
    failures.check()


def test_a_refused_reply_fits_a_lowered_limit_of_snapshots(cli: Cli) -> None:
    cli.monkeypatch.setenv("STATELINE_MAX_SNAPSHOT", "20000")
    with model(cli, Say("é" * 60_000, finish="length")) as flags:
        cli.json("execute", cli.machine(a={"agent": {"prompt": "Go."}}), "--id", "r", *flags, exits=1)
    (kept,) = refused(cli, "r")
    assert (kept["content"], kept["cut"]) == ("é" * 2500, True)


def test_a_refused_reply_is_not_in_the_state(cli: Cli) -> None:
    stage = {"agent": {"prompt": "Go.", "output_schema": SCHEMA}}
    with model(cli, Say("Useless words.")) as flags:
        cli.json("execute", cli.machine(a=stage), "--id", "r", *flags, exits=1)
    assert "Useless words." not in json.dumps(cli.json("show", "run:r", "--resolve")["state"])
    assert head(cli, "r")["refused"]["content"] == "Useless words."


def rows(cli: Cli, run: str) -> list[dict[str, Any]]:
    return list(cli.json("exec", "history", run)["history"])


def test_an_answer_is_a_row_of_the_person_who_gave_it(cli: Cli, task: Task) -> None:
    path = cli.machine(a={"human": {"prompt": "Go?"}, "default_next": "b"}, b=task("echo 1"))
    cli.json("execute", path, "--id", "r", exits=3)
    cli.json("exec", "resume", "r", "--answer", '"yes"', "--actor", "Ada")
    _, answer, output = rows(cli, "r")
    assert (answer["by"], answer["actor"]["name"], answer["output"]) == ("person", "Ada", "yes")
    assert (output["by"], output["output"]) == ("program", 1)
    shown = cli("exec", "history", "r").out.decode()
    assert "a  (default)  answered by Ada\n      answer: yes\n" in shown


def test_a_reply_in_a_models_place_is_a_row_of_its_caller(cli: Cli) -> None:
    cli.json("execute", cli.machine(a={"agent": {"prompt": "Go."}}), "--id", "r", exits=3)
    cli.json("exec", "resume", "r", "--answer", '{"response": "Mine."}', "--actor", "bot")
    last = rows(cli, "r")[-1]
    assert (last["by"], last["actor"]["name"], last["output"]) == ("caller", "bot", "Mine.")
    assert "(complete)  in the model's place by bot" in cli("exec", "history", "r").out.decode()


def test_the_result_of_a_lost_effect_is_a_row_of_the_person_who_gave_it(cli: Cli, task: Task) -> None:
    from stateline import Store

    path = cli.machine(a=task("echo 1", repeatable=False))
    cli.json("execute", path, "--id", "r")
    scope = Store.open(cli.state).scope("run:r")
    started = next(past for past in scope.walk() if past.event["type"] == "intended")
    with scope.locked():
        scope.store.backend.swap(scope.hash, scope.load().pointer, started.pointer)
    cli.json("exec", "resume", "r", exits=3)
    cli.json("exec", "resume", "r", "--answer", '"given"')
    last = rows(cli, "r")[-1]
    assert (last["by"], last["output"]) == ("person", "given")


def test_retries_accepted_changes_and_cancellations_are_rows(cli: Cli, task: Task) -> None:
    cli.json("execute", cli.machine(a=task("exit 3")), "--id", "r", exits=1)
    cli.json("execute", cli.machine(a=task("exit 4")), "--id", "r", "--accept-change", "--actor", "Ada", exits=1)
    cli.json("exec", "resume", "r", "--retry", exits=1)
    cli.json("exec", "cancel", "r")
    found = rows(cli, "r")
    assert [(row["reason"], row["by"]) for row in found] == [
        ("start", None),
        ("failed", "program"),
        ("replaced", "operator"),
        ("retried", "operator"),
        ("failed", "program"),
        ("cancelled", "operator"),
    ]
    assert found[2]["details"].keys() == {"from", "to"}
    assert found[2]["error"] is None
    assert "(machine replaced)  by Ada" in cli("exec", "history", "r").out.decode()


def test_a_repair_is_a_row(cli: Cli, task: Task) -> None:
    path = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    cli.json("execute", path, "--id", "r")
    place = cli.json("log", "run:r")["snapshots"][0]["path"]
    next(cli.state.glob(f"*/{place.rpartition('/')[2]}")).unlink()
    cli.json("repair", "--apply", "--actor", "Ada")
    repair = rows(cli, "r")[-1]
    assert (repair["reason"], repair["by"], repair["actor"]["name"]) == ("repaired", "operator", "Ada")
    assert repair["details"]["lost_count"] == 1


def test_the_context_that_a_run_derived_or_refined_is_in_its_history_and_an_older_one_is_not(cli: Cli) -> None:
    words = ["run", "--state-scope", "demo", "--system", "S"]
    cli.json(*words, "-p", "Go.", "--id", "first", exits=3)
    cli.json(*words, "-p", "Go.", "--id", "second", exits=3)
    cli.json(*words, "-p", "Go.", "--refine-text", "Be brief.", "--set", "seed=1", "--id", "third", exits=3)
    with model(cli, Say(CONTEXT), Say("Yes.")) as flags:
        cli.json("run", "--state-scope", "new", "-p", "Go.", "--id", "asked", *flags)
    found = {
        run: [(row["reason"], row["text"], row["details"]["seq"]) for row in rows(cli, run) if row["stage"] is None]
        for run in ("first", "second", "third", "asked")
    }
    assert (found["first"], found["second"]) == ([], [])
    assert (found["third"], found["asked"]) == ([("refine", "Be brief.", 1)], [("derive", None, 0)])
    assert rows(cli, "third")[0]["details"]["settings"] == {"seed": 1}
    shown = cli("exec", "history", "third").out.decode()
    assert "context:demo  (refine)" in shown
    assert "Be brief." in shown


def test_a_refused_derivation_is_in_the_history_of_the_run_that_followed(cli: Cli) -> None:
    words = ["run", "--state-scope", "demo", "-p", "Go.", "--id", "r"]
    with model(cli, Say(f"No JSON: {SECRET}"), Say(CONTEXT), Say("Yes.")) as flags:
        cli.json(*words, *flags, exits=1)
        cli.json(*words, *flags)
    attempt, derived, *_ = rows(cli, "r")
    assert (attempt["reason"], attempt["refused"]["content"]) == ("refused", "No JSON: [REDACTED]")
    assert "refused" in attempt["error"]["message"]
    assert (derived["reason"], derived["refused"], derived["error"]) == ("derive", None, None)
    assert "refused reply: No JSON" in cli("exec", "history", "r").out.decode()


def test_the_history_of_an_older_version_is_shown(old: Cli) -> None:
    assert [row["by"] for row in rows(old, "old")][-1] == "program"
    assert old("exec", "history", "old").code == 0


def test_status_shows_model_tokens_duration_mode_labels_and_who_acted_last(cli: Cli) -> None:
    path = cli.machine(a={"agent": {"prompt": "Go."}, "default_next": "b"}, b={"human": {"prompt": "Fine?"}})
    recording = str(cli.home / "rec")
    with model(cli, Say("Yes.", usage=(1200, 34))) as flags:
        cli.json("execute", path, "--id", "r", "--label", "team=a", "--record", recording, *flags, exits=3)
    document = cli.json("exec", "status", "r")
    assert (document["model"], document["labels"], document["mode"]) == ("openai/x", {"team": "a"}, "record")
    counters = document["counters"]
    assert (counters["turns"], counters["model_calls"], counters["tokens"]) == (1, 1, 1234)
    assert counters["seconds"] == counters["timeout"] > 0
    assert document["exchanges"] == {"dir": recording, "playback": None, "last": 1}
    shown = " ".join(cli("exec", "status", "r").out.decode().split())
    for part in ("openai/x", "team=a", "record to", "exchange 1", "1 turn, 1 model call, 1,234 tokens", "last actor:"):
        assert part in shown, part
    cli.json("execute", path, "--id", "p", "--playback", recording, exits=3)
    assert cli.json("exec", "status", "p")["exchanges"] == {"dir": recording, "playback": "hybrid", "last": 1}
    assert "playback (hybrid) of" in cli("exec", "status", "p").out.decode()


def test_the_status_of_an_older_version_is_shown(old: Cli) -> None:
    assert old.json("exec", "status", "old")["exchanges"] is None
    assert "1 turn, 0 model calls, 0 tokens" in old("exec", "status", "old").out.decode()


def test_each_call_ends_with_a_line_of_totals(cli: Cli, task: Task) -> None:
    path = cli.machine(a=task("echo 1", default_next="b"), b=task("echo 2"))
    for words, turns in ((["execute", path, "-i", "--id", "r"], "1 turn,"), (["exec", "resume", "r"], "2 turns,")):
        (line,) = cli(*words).err.splitlines()
        assert line.startswith(f"{turns} 0 model calls, 0 tokens, ")
        assert line.endswith(" s")
    document = cli.json("execute", path, "--id", "r")
    assert (document["counters"]["turns"], document["context"]) == (2, None)
    assert cli("execute", path, "--id", "r", "-q").err == ""


def test_text_says_what_can_be_looked_up(cli: Cli, task: Task) -> None:
    """Table of small promises of the text."""
    cli.json("run", "-p", "Go.", "--id", "h", "--record", str(cli.home / "tape"), exits=3)
    cli.json("exec", "resume", "h", "--answer", '"x"')
    cli.json("run", "-p", "Go.", "--id", "played", "--playback", str(cli.home / "tape"))
    cli.json("execute", cli.machine(a=task("echo why >&2; exit 3")), "--id", "f", exits=1)
    failures = Failures()
    for words, has, lacks in [
        (["exec", "list"], "no model: Go.", "manual"),
        (["diff", "run:h", "run:played"], "+++ run:played", "manual"),
        (["run", "-p", "Go.", "--no-transcript"], "waiting", "head:"),
        (["log", "-p", "run:f"], '{"message": "why"', '{"hint"'),
        (["log", "--help"], "0 done · 1 error ·", "turn"),
        (["execute", "--help"], "0 done, or advanced by one turn", ""),
        (["diff", "run:f", "run:h"], "-> context:", "context:" + "0" * 64),
    ]:
        with failures.case(*words):
            text = cli(*words).out.decode()
            assert has in text, text
            assert not lacks or lacks not in text, text
    failures.check()


def test_the_totals_say_what_was_restored(cli: Cli) -> None:
    words = ["run", "--state-scope", "docs-demo"]
    assert cli(*words, "--system", "S").err == "context docs-demo derived at 0, no model call\n"
    assert cli(*words).err == "context docs-demo restored at 0, no model call\n"
    assert cli(*words, "--set", "seed=1").err == "context docs-demo refined at 1, no model call\n"
    with model(cli, Say("Yes."), Say("Yes.")) as flags:
        context, used = cli(*words, "-p", "Go.", *flags, "--id", "r").err.splitlines()[-2:]
        assert context == "context docs-demo restored at 1, no model call"
        assert used.startswith("1 turn, 1 model call, 10 tokens, ")
        document = cli.json(*words, "-p", "Go.", *flags)
    assert {name: document["context"][name] for name in ("scope", "seq", "action", "model_calls")} == {
        "scope": "context:docs-demo",
        "seq": 1,
        "action": "restore",
        "model_calls": 0,
    }
    cli.json("show", document["context"]["head"])
    with model(cli, Say(CONTEXT)) as flags:
        derived = cli("run", "--state-scope", "new", *flags).err.splitlines()
        assert derived == ["context new derived at 0, 1 model call, 10 tokens"]


def test_the_totals_fit_80_columns(cli: Cli) -> None:
    for scope in (["--state-scope", "n" * 64], []):
        for words in (["--system", "S"], ["-p", "Go."]):
            lines = cli("run", *scope, *words).err.splitlines()
            assert max(len(line) for line in lines) <= 80, lines
