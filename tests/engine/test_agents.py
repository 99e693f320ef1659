"""Agent stages: what a model is asked, what its replies do, and what the snapshots say of both."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from msgspec.structs import replace
from process.waiting import child_has_ended, wait_for
from scripted_model import FixedModels, Scripted, calls, says, shell, write_machine, write_tools

from stateline import Store
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.engine import step
from stateline.engine.dependencies import Dependencies
from stateline.engine.record import Run
from stateline.errors import ConflictError, DurabilityUnknownError, PlaybackMissError, StorageError, UnsafePathError
from stateline.machine.decider.run import Replied
from stateline.model.protocol import ModelCallError, ModelRequest, Reply
from stateline.process.signals import Interrupted
from stateline.redaction.redactor import Redactor
from stateline.service.execute import execute, resume
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.runs import history, status
from stateline.store.local.filesystem import Filesystem
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools are POSIX shell")

RUN = "r"
SECRET = "sesame-open-12"
END: dict[str, Any] = {"end": {}}


@pytest.fixture
def store() -> Store:
    return new_store()


def new_store() -> Store:
    return Store(MemoryBackend(), redactor=Redactor([("KEY", SECRET)]))


def agent(prompt: str = "Go.", *, more: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    """An agent stage."""
    return {"agent": {"prompt": prompt, **about}, "default_next": "end", **(more or {})}


def machine(place: Path, stage: dict[str, Any], **more: Any) -> str:
    return write_machine(place, {"think": stage, "end": END}, **more)


def play(store: Store, path: str, model: Scripted, **call: Any) -> Any:
    return execute(store, ExecuteOptions(machine=path, run=RUN, call=CallOptions(models=model, **call)))


def chain(store: Store) -> list[Snapshot]:
    return list(store.scope(f"run:{RUN}").walk())[::-1]


def types(store: Store) -> list[str]:
    return [snapshot.event["type"] for snapshot in chain(store)]


def tree(store: Store) -> Any:
    return store.resolve(store.scope(f"run:{RUN}").load().state)["tree"]


def test_an_answer_is_the_stages_output_and_leads_on(store: Store, tmp_path: Path) -> None:
    model = Scripted(says("Paris.", (12, 3)))
    done = play(store, machine(tmp_path, agent("Capital of {{ input.of }}?")), model, input={"of": "France"})
    assert (done.status, done.exit_code, done.output, done.outputs) == ("complete", 0, "Paris.", {"think": "Paris."})
    assert model.requests[0].messages == [{"role": "user", "content": "Capital of France?"}]
    replied = chain(store)[-1].event
    assert types(store) == ["started", "replied"]
    assert (replied["model"], replied["finish"], replied["usage"]) == (
        {"name": "scripted/one"},
        "stop",
        {"input": 12, "output": 3},
    )
    assert replied["request"] == model.requests[0].digest()
    assert replied["answered_by"] == "scripted-1"
    assert replied["meters"]["llm_calls"] == 1
    assert replied["meters"]["tokens"] == {"input": 12, "output": 3}


def test_what_a_model_is_asked_is_the_context_with_what_the_call_lays_over_it(store: Store, tmp_path: Path) -> None:
    context_request = ContextRequest(system="S", developer=["D"], settings={"temperature": 0.5, "seed": 7})
    prepare(store, ContextOptions(name="demo", context_request=context_request))
    model = Scripted(says("a"), says("b"), says("c"))
    stages = {name: agent(more={"default_next": way}) for name, way in (("x", "y"), ("y", "z"), ("z", "end"))}
    path = write_machine(tmp_path, {**stages, "end": END}, context="demo")
    base = model.dependencies(None)  # type: ignore[arg-type]  # it needs no run

    def dependencies(run: Run) -> Dependencies:
        return {
            "x": base,
            "y": replace(base, system="other", settings={"temperature": 1.0}),
            "z": replace(base, developer=[]),
        }.get(run.state.tree.stage, base)

    execute(store, ExecuteOptions(machine=path, run=RUN, call=CallOptions(models=FixedModels(dependencies))))
    said = [[(message["role"], message["content"]) for message in request.messages] for request in model.requests]
    assert said[0] == [("system", "S"), ("developer", "D"), ("user", "Go.")]
    assert said[1] == [("system", "other"), ("developer", "D"), ("user", "Go.")]
    assert said[2] == [("system", "S"), ("user", "Go.")]
    assert [request.settings for request in model.requests] == [
        {"temperature": 0.5, "seed": 7},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.5, "seed": 7},
    ]
    models = [snapshot.event.get("model") for snapshot in chain(store)[1:]]
    assert models == [
        {"name": "scripted/one"},
        {"name": "scripted/one", "settings": {"temperature": 1.0}},
        {"name": "scripted/one"},
    ]


def test_a_stages_timeout_schema_and_tools_are_in_the_request_and_the_key_is_its_own(
    store: Store, tmp_path: Path
) -> None:
    write_tools(tmp_path, a=shell("true"), b=shell("true"))
    schema = {"type": "object", "required": ["n"]}
    model = Scripted(says('{"n": 1}'))
    stage = agent(tools=["b"], output_schema=schema, more={"timeout": 7})
    done = play(store, machine(tmp_path, stage, tools="tools.json"), model)
    request = model.requests[0]
    assert done.output == {"n": 1}
    assert (request.timeout, request.output_schema, [tool.name for tool in request.tools]) == (7.0, schema, ["b"])
    assert request.key == chain(store)[0].event["effect"]["key"]


def test_tool_calls_are_performed_and_told_in_the_order_asked(store: Store, tmp_path: Path) -> None:
    # Each waits until all are there: they run together. They end in another order than they were asked for.
    script = (
        "touch in.%s; until [ -e in.0 ] && [ -e in.1 ] && [ -e in.2 ]; do sleep 0.01; done; sleep 0.%s; echo '\"%s\"'"
    )
    write_tools(tmp_path, **{f"t{n}": shell(script % (n, 3 - n, n)) for n in range(3)})
    model = Scripted(calls(*((f"t{n}", {"n": n}) for n in range(3)), content="Looking."), says("done"))
    path = machine(tmp_path, agent(tools=["t0", "t1", "t2"]), tools="tools.json")
    done = play(store, path, model)
    assert done.output == "done"
    told = model.requests[1].messages
    assert told[1] == {
        "role": "assistant",
        "content": "Looking.",
        "tool_calls": [{"id": f"c{n}", "name": f"t{n}", "arguments": {"n": n}} for n in range(3)],
    }
    assert told[2:] == [{"role": "tool", "tool_call_id": f"c{n}", "name": f"t{n}", "content": str(n)} for n in range(3)]
    assert types(store) == ["started", "replied", "calls_intended", *["call_ended"] * 3, "replied"]
    assert [snapshot.event["call"]["id"] for snapshot in chain(store)[3:6]] == ["c2", "c1", "c0"]


def test_a_turn_is_one_reply_with_its_tool_calls(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, a=shell("echo 1"))
    model = Scripted(calls(("a", {})), calls(("a", {}), ("a", {})), says("done"))
    path = machine(tmp_path, agent(tools=["a"]), tools="tools.json")
    codes = [(play(store, path, model, one_turn=True).exit_code, len(model.requests)) for _ in range(4)]
    assert codes == [(0, 1), (0, 2), (2, 3), (2, 3)]
    rows = history(store, RUN)
    assert [(row["turn"], row["reason"], len(row["tools"]), row["output"]) for row in rows] == [
        (0, "start", 0, None),
        (1, "replied", 1, None),
        (2, "replied", 2, None),
        (3, "complete", 0, "done"),
    ]
    told = {"id": "c0", "name": "a", "arguments": {}, "status": "done", "result": 1, "error": None, "by": "program"}
    assert rows[1]["tools"] == [told]
    assert status(store, RUN)["counters"]["max_tool_rounds"] == 2


def test_a_call_that_the_stage_does_not_allow_is_told_to_the_model_and_nothing_runs(
    store: Store, tmp_path: Path
) -> None:
    strict = {"type": "object", "required": ["q"]}
    write_tools(tmp_path, a=shell("touch ran", schema=strict), other=shell("touch ran"))
    model = Scripted(calls(("nope", {}), ("a", {"x": 1}), ("other", {})), says("sorry"))
    done = play(store, machine(tmp_path, agent(tools=["a"]), tools="tools.json"), model)
    assert done.output == "sorry"
    kinds = [message["content"]["error"]["kind"] for message in model.requests[1].messages[2:]]
    assert kinds == ["unknown_tool", "arguments", "unknown_tool"]
    assert not (tmp_path / "ran").exists()
    assert types(store) == ["started", "replied", "replied"]
    assert [tool["status"] for tool in history(store, RUN)[1]["tools"]] == ["refused"] * 3


def test_a_failed_tool_is_data_for_the_model(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, a=shell("echo broken >&2; exit 3"), b={"argv": ["./gone"]})
    (tmp_path / "gone").write_text("#!/bin/sh\n")
    (tmp_path / "gone").chmod(0o755)
    path = machine(tmp_path, agent(tools=["a", "b"]), tools="tools.json")
    model = Scripted(lambda request: (tmp_path / "gone").unlink() or calls(("a", {}), ("b", {})), says("I see."))
    assert play(store, path, model).status == "complete"
    first, second = (message["content"]["error"] for message in model.requests[1].messages[2:])
    assert first["kind"] == "exit"
    assert "broken" in first["message"]
    assert second["kind"] == "spawn"
    assert [tool["error"] for tool in history(store, RUN)[1]["tools"]] == ["exit", "spawn"]


def test_tools_get_their_keys_the_run_and_the_manifests_directory(store: Store, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    echo = "printf '\"%s %s %s\"' $STATELINE_RUN $STATELINE_IDEMPOTENCY_KEY $PWD"
    write_tools(tmp_path / "sub", a=shell(echo), b=shell(echo, repeatable=True))
    model = Scripted(calls(("a", {}), ("b", {})), says("done"))
    play(store, machine(tmp_path, agent(tools=["a", "b"]), tools="sub/tools.json"), model)
    birth = chain(store)[0].event["birth"]
    told = [message["content"] for message in model.requests[1].messages[2:]]
    assert told == [f"{RUN} {RUN}:1:{n}:{birth} {tmp_path}/sub" for n in (1, 2)]


def test_no_more_tools_run_at_once_than_the_means_allow(store: Store, tmp_path: Path) -> None:
    alone = "mkdir busy || exit 9; sleep 0.02; rmdir busy"
    write_tools(tmp_path, a=shell(alone))
    model = Scripted(calls(*[("a", {})] * 4), says("done"))
    path = machine(tmp_path, agent(tools=["a"]), tools="tools.json")
    dependencies = replace(model.dependencies(None), jobs=1)  # type: ignore[arg-type]  # it needs no run
    execute(store, ExecuteOptions(machine=path, run=RUN, call=CallOptions(models=FixedModels(dependencies))))
    assert [message["content"] for message in model.requests[1].messages[2:]] == [None] * 4


def test_a_reply_with_calls_that_cannot_be_told_apart_is_kept_with_ids_that_can(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, a=shell("cat"))
    twins = calls(("a", {"n": 1}), ("a", {"n": 2}))
    twins = replace(twins, tool_calls=[replace(call, id="same") for call in twins.tool_calls])
    model = Scripted(twins, says("done"))
    play(store, machine(tmp_path, agent(tools=["a"]), tools="tools.json"), model)
    messages = model.requests[1].messages
    assert [message["content"] for message in messages[2:]] == [{"n": 1}, {"n": 2}]
    assert len({message["tool_call_id"] for message in messages[2:]}) == 2
    assert [call["id"] for call in messages[1]["tool_calls"]] == [message["tool_call_id"] for message in messages[2:]]


def test_secrets_in_replies_arguments_and_results_are_masked_before_anything_is_decided_by_them(
    store: Store, tmp_path: Path
) -> None:
    write_tools(tmp_path, a=shell(f"cat; echo {SECRET[:7]}''{SECRET[7:]}"))
    model = Scripted(calls(("a", {"x": SECRET}), content=SECRET), says(f"It is {SECRET}."))
    done = play(store, machine(tmp_path, agent(tools=["a"]), tools="tools.json"), model)
    assert done.output == "It is [REDACTED]."
    assert SECRET not in json.dumps(model.requests[1].messages)
    assert model.requests[1].messages[2]["content"] == '{"x":"[REDACTED]"}\n[REDACTED]'
    assert [snapshot.event.get("redactions") for snapshot in chain(store)] == [None, 2, None, 1, 1]
    assert all(SECRET.encode() not in snapshot.data for snapshot in chain(store))


def test_a_secret_spelled_like_a_field_takes_no_run_apart(tmp_path: Path) -> None:
    store = Store(MemoryBackend(), redactor=Redactor([("A_KEY", "arguments"), ("B_KEY", "tool_calls")]))
    write_tools(tmp_path, a=shell("cat"))
    model = Scripted(calls(("a", {"x": "arguments"})), says("tool_calls"))
    done = play(store, machine(tmp_path, agent(tools=["a"]), tools="tools.json"), model)
    assert (done.status, done.output) == ("complete", "[REDACTED]")
    assert model.requests[1].messages[2]["content"] == {"x": "[REDACTED]"}


def test_a_reply_that_is_none_is_a_failure_and_tried_again_as_the_stage_says(tmp_path: Path) -> None:
    def check(tmp_path: Path, stage: dict[str, Any], lines: list[Any], kinds: list[str], asked: int) -> None:
        store = new_store()
        schema = {"type": "integer"} if "5" in str(lines) or kinds == ["output"] else None
        about = {"output_schema": schema} if schema else {}
        model = Scripted(*lines)
        done = play(store, machine(tmp_path, agent(more=stage, **about)), model)
        assert (done.status, done.exit_code) == (("error", 1) if kinds else ("complete", 0))
        assert [done.error["kind"]] == kinds if kinds else done.error is None
        assert len(model.requests) == asked
        assert len({request.key for request in model.requests}) == 1
        assert chain(store)[-1].event["meters"]["llm_calls"] == asked
        assert [row["turn"] for row in history(store, RUN)][-1] == 1
        assert all(len(request.messages) == 1 for request in model.requests), "what was no reply was not kept"

    for_each(
        check,
        [
            ({}, [ModelCallError("model", "no")], ["model"], 1),
            (
                {"retry": {"max_attempts": 3}},
                [ModelCallError("model", "no"), ModelCallError("timeout", "slow"), says("ok")],
                [],
                3,
            ),
            ({"retry": {"max_attempts": 2}}, [says(""), says("ok")], [], 2),
            ({"retry": {"max_attempts": 2}}, [says("x"), says("5")], [], 2),
            ({}, [says("x")], ["output"], 1),
            ({}, [says("  ")], ["reply"], 1),
        ],
        root=tmp_path,
    )


def test_a_call_that_was_never_sent_is_not_counted(store: Store, tmp_path: Path) -> None:
    model = Scripted(ModelCallError("model", "no key", sent=False))
    play(store, machine(tmp_path, agent()), model)
    assert chain(store)[-1].event["meters"]["llm_calls"] == 0


def test_a_call_that_was_stopped_before_it_was_sent_leaves_no_doubt(tmp_path: Path) -> None:
    def check(tmp_path: Path, error: Exception) -> None:
        store = new_store()

        def stopped(request: ModelRequest) -> Reply:
            raise error

        path = machine(tmp_path, agent(more={"repeatable": False, "retry": {"max_attempts": 2}}))
        model = Scripted(stopped, stopped, says("done"))
        for _ in range(2):
            with pytest.raises(type(error), match=str(error)):
                play(store, path, model)
            assert status(store, RUN)["status"] == "running"
        assert tree(store)["attempt"] == 1
        done = play(store, path, model)
        assert (done.status, done.output) == ("complete", "done")
        assert types(store) == ["started", *["intended", "unsent"] * 2, "intended", "replied"]
        last = chain(store)[-1].event
        assert (last["meters"]["llm_calls"], last["turn"]) == (1, 1)
        assert len({request.key for request in model.requests}) == 1

    for_each(
        check,
        [(error,) for error in [PlaybackMissError("no recording"), UnsafePathError("others may write there")]],
        root=tmp_path,
    )


def test_a_repeatable_call_that_was_stopped_before_it_was_sent_saves_nothing(store: Store, tmp_path: Path) -> None:
    def stopped(request: ModelRequest) -> Reply:
        raise PlaybackMissError("no recording")

    with pytest.raises(PlaybackMissError):
        play(store, machine(tmp_path, agent()), Scripted(stopped))
    assert types(store) == ["started"]


def test_that_nothing_was_sent_is_said_with_what_keeps_it_from_being_saved(store: Store, tmp_path: Path) -> None:
    put = store.backend.put

    def full(name: str, data: bytes) -> None:
        raise StorageError("the disk is full", hint="make room")

    def stopped(request: ModelRequest) -> Reply:
        store.backend.put = full  # type: ignore[method-assign]
        raise PlaybackMissError("no recording")

    path = machine(tmp_path, agent(more={"repeatable": False}))
    model = Scripted(stopped, says("done"))
    with pytest.raises(PlaybackMissError, match=r"no recording.*the disk is full"):
        play(store, path, model)
    store.backend.put = put  # type: ignore[method-assign]
    assert play(store, path, model).waiting["kind"] == "unknown_outcome"


def test_a_failed_stage_is_asked_again_with_the_same_key_once_an_operator_says_so(store: Store, tmp_path: Path) -> None:
    model = Scripted(ModelCallError("model", "no"), says("yes"))
    play(store, machine(tmp_path, agent()), model)
    done = resume(store, RUN, CallOptions(models=model), retry=True)
    assert (done.status, done.output) == ("complete", "yes")
    assert model.requests[0].key == model.requests[1].key


def test_limits_stop_a_model_that_never_ends(tmp_path: Path) -> None:
    write_tools(tmp_path, a=shell("echo 1"))
    for bounds, asked in (({"max_llm_calls": 3}, 3), ({"max_tool_rounds": 2}, 3), ({"max_tokens": 30}, 2)):
        store = Store(MemoryBackend())
        model = Scripted(*[calls(("a", {}), usage=(10, 5))] * 9)
        done = play(store, machine(tmp_path, agent(tools=["a"]), tools="tools.json", bounds=bounds), model)
        assert (done.exit_code, done.reason, done.error["bound"]) == (1, "limit", next(iter(bounds)))
        assert len(model.requests) == asked
        assert status(store, RUN)["bounds"][next(iter(bounds))]["left"] == 0


def test_calls_that_a_limit_refused_are_performed_after_it_was_raised(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, a=shell("echo x >> ran"))
    model = Scripted(calls(("a", {})), calls(("a", {})), says("done"))
    bounded = {"tools": "tools.json", "bounds": {"max_tool_rounds": 1}}
    path = machine(tmp_path, agent(tools=["a"]), **bounded)
    assert play(store, path, model).error["bound"] == "max_tool_rounds"
    machine(tmp_path, agent(tools=["a"]), **bounded | {"bounds": {"max_tool_rounds": 2}})
    execute(store, ExecuteOptions(machine=path, run=RUN, accept_change=True, call=CallOptions(models=model)))
    done = resume(store, RUN, CallOptions(models=model), retry=True)
    assert (done.status, len(model.requests), (tmp_path / "ran").read_text()) == ("complete", 3, "x\nx\n")


def test_calls_that_a_limit_refused_are_refused_to_the_model_when_the_changed_machine_lacks_their_tool(
    store: Store, tmp_path: Path
) -> None:
    write_tools(tmp_path, a=shell("echo x >> ran"))
    model = Scripted(calls(("a", {})), calls(("a", {})), says("done"))
    path = machine(tmp_path, agent(tools=["a"]), tools="tools.json", bounds={"max_tool_rounds": 1})
    assert play(store, path, model).error["bound"] == "max_tool_rounds"
    write_tools(tmp_path, b=shell("echo x >> ran"))
    machine(tmp_path, agent(tools=["b"]), tools="tools.json")
    changed = execute(store, ExecuteOptions(machine=path, run=RUN, accept_change=True, call=CallOptions(models=model)))
    assert changed.status == "error"
    done = resume(store, RUN, CallOptions(models=model), retry=True)
    assert (done.status, done.output) == ("complete", "done")
    assert model.requests[2].messages[-1]["content"]["error"]["kind"] == "unknown_tool"
    assert (tmp_path / "ran").read_text() == "x\n", "only the call of the first round was performed"


def test_a_text_is_heard_while_it_arrives(store: Store, tmp_path: Path) -> None:
    heard: list[str] = []
    model = Scripted(says("Hello."))
    dependencies = replace(model.dependencies(None), on_text=heard.append)  # type: ignore[arg-type]  # it needs no run
    execute(
        store,
        ExecuteOptions(machine=machine(tmp_path, agent()), run=RUN, call=CallOptions(models=FixedModels(dependencies))),
    )
    assert heard == ["Hello."]


def test_what_the_means_say_of_exchanges_is_in_the_event_of_each_reply(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, a=shell("echo 1"))
    model = Scripted(calls(("a", {})), ModelCallError("model", "no"), says("done"))
    path = machine(tmp_path, agent(tools=["a"], more={"retry": {"max_attempts": 2}}), tools="tools.json")
    dependencies = replace(model.dependencies(None), exchanges=lambda: {"used": len(model.requests)})  # type: ignore[arg-type]
    call = CallOptions(models=FixedModels(dependencies, {"used": 0}))
    execute(store, ExecuteOptions(machine=path, run=RUN, call=call))
    assert [(e.event["type"], e.event["exchanges"]["used"]) for e in chain(store)] == [
        ("started", 0),
        ("replied", 1),
        ("calls_intended", 1),
        ("call_ended", 1),
        ("failed", 2),
        ("replied", 3),
    ]


def test_an_error_of_the_model_itself_changes_nothing(store: Store, tmp_path: Path) -> None:
    def broken(request: ModelRequest) -> Reply:
        raise RuntimeError("a bug")

    path = machine(tmp_path, agent())
    model = Scripted(broken, says("done"))
    with pytest.raises(RuntimeError, match="a bug"):
        play(store, path, model)
    assert types(store) == ["started"]
    assert play(store, path, model).output == "done"


def test_a_prompt_that_cannot_be_rendered_can_be_mended(store: Store, tmp_path: Path) -> None:
    model = Scripted(says("done"))
    path = machine(tmp_path, agent("{{ state.gone }}"))
    failed = play(store, path, model)
    assert (failed.status, failed.error["kind"], model.requests) == ("error", "prompt", [])
    machine(tmp_path, agent("here"))
    execute(store, ExecuteOptions(machine=path, run=RUN, accept_change=True, call=CallOptions(models=model)))
    assert resume(store, RUN, CallOptions(models=model), retry=True).output == "done"
    assert model.requests[0].key


def test_the_nth_round_writes_as_much_as_the_second(tmp_path: Path) -> None:
    def check(tmp_path: Path, backend: str) -> None:
        rounds = 200
        write_tools(tmp_path, a=shell("cat", repeatable=True))
        model = Scripted(*(calls(("a", {"n": n, "pad": "x" * 50})) for n in range(rounds)), says("done"))
        path = machine(tmp_path, agent(tools=["a"]), tools="tools.json")
        store = Store(MemoryBackend()) if backend == "memory" else Store.open(tmp_path / "s", durability="fast")
        written: list[int] = []
        put = store.backend.put

        def counted(name: str, data: bytes) -> None:
            written[-1] += len(data)
            put(name, data)

        store.backend.put = counted  # type: ignore[method-assign]  # every byte but those of pointers goes this way

        def watch(run: Run, what: str) -> None:
            if what == "attempt":
                written.append(0)

        written.append(0)
        if backend == "local":
            model.lines = [*model.lines[:30], model.lines[-1]]
        assert play(store, path, model, watch=watch).status == "complete"
        per_round = written[2:-1]
        half = len(per_round) // 2
        first, last = per_round[:half], per_round[half:]
        assert sum(last) / len(last) < 1.3 * sum(first) / len(first)
        assert max(per_round) < 20_000

    for_each(check, [(backend,) for backend in ["memory", "local"]], root=tmp_path)


def test_a_reply_that_came_just_before_the_signal_is_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late:
        """The signal strikes at the end of the wait, when the reply is there."""

        def __enter__(self) -> None:
            pass

        def __exit__(self, *args: object) -> None:
            raise Interrupted(2, RUN)

    monkeypatch.setattr("stateline.engine.agent.interruptible", Late)
    model = Scripted(says("done"))
    path = machine(tmp_path, agent())
    with pytest.raises(Interrupted):
        play(store, path, model)
    assert types(store) == ["started", "replied"]
    assert play(store, path, model).output == "done"
    assert len(model.requests) == 1


def test_a_reply_is_kept_though_deciding_on_it_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(tmp_path: Path, line: Reply) -> None:
        store = new_store()
        write_tools(tmp_path, a=shell("cat"))

        def broken(*args: Any) -> Any:
            raise MemoryError("no memory left")

        model = Scripted(line, says("done"))
        path = machine(tmp_path, agent(tools=["a"]), tools="tools.json")
        with monkeypatch.context() as patched:
            advance = step.advance
            patched.setattr(
                step, "advance", lambda m, s, e, f: broken() if isinstance(e, Replied) else advance(m, s, e, f)
            )
            failed = play(store, path, model)
        assert (failed.status, failed.error["kind"]) == ("error", "internal")
        done = resume(store, RUN, CallOptions(models=model), retry=True)
        assert (done.status, done.output) == ("complete", "done")
        assert len(model.requests) == (2 if line.tool_calls else 1)

    for_each(check, [(line,) for line in [says("done"), calls(("a", {"q": 1})), calls(("nope", {}))]], root=tmp_path)


def test_a_result_that_cannot_be_saved_is_told(tmp_path: Path) -> None:
    def check(tmp_path: Path, kind: str) -> None:
        store = new_store()
        write_tools(tmp_path, a=shell("echo $$ > a; echo '\"the result\"'"), b=shell("echo $$ > b; echo 2"))
        full = [False]
        put = store.backend.put

        def refusing(name: str, data: bytes) -> None:
            if full[0] and json.dumps(kind).encode() in data:
                if kind == "call_ended":  # neither is stopped because the other cannot be saved
                    wait_until_over(tmp_path, "ab")
                raise StorageError("the disk is full", hint="make room")
            put(name, data)

        store.backend.put = refusing  # type: ignore[method-assign]
        full[0] = True
        model = Scripted(calls(("a", {}), ("b", {}), content="the reply"), says("done"))
        path = machine(tmp_path, agent(tools=["a", "b"]), tools="tools.json")
        with pytest.raises(StorageError, match="could not be saved") as caught:
            play(store, path, model)
        assert ("the reply" if kind == "replied" else "the result") in caught.value.message
        if kind == "call_ended":
            assert caught.value.message.count("could not be saved") == 2, "both results exist nowhere else"
            full[0] = False
            assert play(store, path, model).waiting["kind"] == "unknown_outcome"
            assert len(model.requests) == 1
        else:
            full[0] = False
            model.lines.insert(0, says("again"))
            assert play(store, path, model).output == "again"
            assert model.requests[0].key == model.requests[1].key

    for_each(check, [(kind,) for kind in ["replied", "call_ended"]], root=tmp_path)


def slowly(*names: str) -> dict[str, Any]:
    return {name: shell(f"echo $$ > {name}; echo '\"result of {name}\"'") for name in names}


def wait_until_over(place: Path, tools: str) -> None:
    """Wait for the end of tools that write their numbers into files: what is over by then is not stopped any more."""
    wait_for(lambda: all(child_has_ended(place / tool) for tool in tools))


class Failing:
    """Makes the save of the first results end badly, each when all tools have ended. Each way is what the store does:
    ``raises`` before anything is written, or ``late``, when the new head is there already."""

    def __init__(self, store: Store, place: Path, errors: list[Exception], tools: str = "ab") -> None:
        self.errors, self.place, self.tools = errors, place, tools
        self.backend = store.backend
        self.swap, self.put = store.backend.swap, store.backend.put
        self.ended = False
        store.backend.swap = self.swapping  # type: ignore[method-assign]
        store.backend.put = self.putting  # type: ignore[method-assign]

    def putting(self, name: str, data: bytes) -> None:
        self.ended = self.ended or b'"call_ended"' in data
        if self.ended:
            wait_until_over(self.place, self.tools)
        if self.ended and self.errors and not isinstance(self.errors[0], DurabilityUnknownError):
            raise self.errors.pop(0)
        self.put(name, data)

    def swapping(self, *args: Any) -> None:
        self.swap(*args)
        if self.ended and self.errors:
            raise self.errors.pop(0)


def test_a_result_is_kept_though_it_is_not_known_whether_the_one_before_lasts(tmp_path: Path) -> None:
    def check(tmp_path: Path, times: int) -> None:
        store = new_store()
        names = "abc"[: times + 1]
        write_tools(tmp_path, **slowly(*names))
        Failing(store, tmp_path, [DurabilityUnknownError(f"sync {n} failed") for n in range(times)], names)
        model = Scripted(calls(*((name, {}) for name in names)), says("done"))
        path = machine(tmp_path, agent(tools=list(names)), tools="tools.json")
        with pytest.raises(DurabilityUnknownError, match="sync 0 failed"):
            play(store, path, model)
        done = play(store, path, model)
        assert (done.status, done.output) == ("complete", "done")
        assert [message["content"] for message in model.requests[1].messages[2:]] == [
            f"result of {name}" for name in names
        ]

    for_each(check, [(times,) for times in [1, 2]], root=tmp_path)


def test_a_result_that_a_store_refuses_after_a_failed_sync_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "s")
    write_tools(tmp_path, **slowly("a", "b"))
    failing = Failing(store, tmp_path, [])
    sync = Filesystem.sync_directory

    def broken(fs: Filesystem, directory: Any) -> None:
        if failing.ended and (tmp_path / "s").exists() and "call_ended" in types(Store.open(tmp_path / "s")):
            raise OSError(errno.EIO, "Input/output error")
        sync(fs, directory)

    path = machine(tmp_path, agent(tools=["a", "b"]), tools="tools.json")
    with monkeypatch.context() as patched:
        patched.setattr(Filesystem, "sync_directory", broken)
        with pytest.raises(DurabilityUnknownError, match="the new head is visible") as caught:
            play(store, path, Scripted(calls(("a", {}), ("b", {}))))
    again = Store.open(tmp_path / "s")
    kept = [call["result"] for call in tree(again)["pending"] if call["status"] == "done"]
    assert len(kept) == 1
    other = {"result of a": "result of b", "result of b": "result of a"}[kept[0]]
    assert f'The result was: "{other}"' in caught.value.message
    assert play(again, path, Scripted()).waiting["kind"] == "unknown_outcome"


def test_a_result_whose_commit_is_not_there_after_all_is_kept_again(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, **slowly("a", "b"))
    failing = Failing(store, tmp_path, [DurabilityUnknownError("nobody can tell whether the head moved")])
    swap = failing.swap
    failing.swap = lambda *args: None if failing.ended and failing.errors else swap(*args)
    model = Scripted(calls(("a", {}), ("b", {})), says("done"))
    path = machine(tmp_path, agent(tools=["a", "b"]), tools="tools.json")
    with pytest.raises(DurabilityUnknownError):
        play(store, path, model)
    assert play(store, path, model).output == "done"
    assert [message["content"] for message in model.requests[1].messages[2:]] == ["result of a", "result of b"]


def test_a_result_that_a_conflict_keeps_from_being_saved_is_told(store: Store, tmp_path: Path) -> None:
    write_tools(tmp_path, **slowly("a"))
    Failing(store, tmp_path, [ConflictError("the head moved")], "a")
    model = Scripted(calls(("a", {})))
    with pytest.raises(ConflictError, match="result of a"):
        play(store, machine(tmp_path, agent(tools=["a"]), tools="tools.json"), model)


def test_a_result_that_cannot_be_saved_after_a_signal_is_told(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tools(tmp_path, **slowly("a", "b"))
    Failing(store, tmp_path, [StorageError("the disk is full", hint="make room"), StorageError("it is still full")])

    class Struck:
        def __enter__(self) -> None:
            wait_until_over(tmp_path, "ab")
            raise Interrupted(2, RUN)

        def __exit__(self, *args: object) -> None:
            pass

    monkeypatch.setattr("stateline.engine.calls.interruptible", Struck)
    model = Scripted(calls(("a", {}), ("b", {})))
    with pytest.raises(StorageError, match="signal 2") as caught:
        play(store, machine(tmp_path, agent(tools=["a", "b"]), tools="tools.json"), model)
    assert all(f"result of {name}" in caught.value.message for name in "ab")
    assert isinstance(caught.value.__cause__, Interrupted)
