"""Calls that answer in place of a model: the request, the forms of an answer, and refused answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from dry_runs import plan_execute
from each_case import for_each
from scripted_model import Scripted, calls, says, shell, write_machine, write_tools

from stateline import Store
from stateline.bundle import canonical
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.errors import ConflictError, InvalidAnswerError
from stateline.redaction.redactor import Redactor
from stateline.service.execute import execute, resume
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.runs import history, status
from stateline.store.memory import MemoryBackend

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools are POSIX shell")

RUN = "r"
SECRET = "sesame-open-12"
END: dict[str, Any] = {"end": {}}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.fixture
def store() -> Store:
    return new_store()


def new_store() -> Store:
    return Store(MemoryBackend(), redactor=Redactor([("KEY", SECRET)]))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return new_path(tmp_path)


def new_path(tmp_path: Path) -> str:
    write_tools(tmp_path, search=shell("echo x >> ran; cat", schema=SCHEMA))
    agent = {"prompt": "Find {{ input }}.", "tools": ["search"]}
    stages = {"think": {"agent": agent, "default_next": "end"}, "end": END}
    return write_machine(tmp_path, stages, tools="tools.json")


def begin(store: Store, path: str, **options: Any) -> Any:
    return execute(store, ExecuteOptions(machine=path, run=RUN, call=CallOptions(input="it"), **options))


def answer(store: Store, value: Any, **call: Any) -> Any:
    return resume(store, RUN, CallOptions(answer=value, **call))


def events(store: Store) -> list[str]:
    return [snapshot.event["type"] for snapshot in store.scope(f"run:{RUN}").walk()][::-1]


def test_the_request_holds_everything_that_a_model_would_receive(store: Store, path: str) -> None:
    prepare(store, ContextOptions(name="demo", context_request=ContextRequest(system="S", developer=["D"])))
    waits = begin(store, path, context="demo")
    assert (waits.status, waits.exit_code, waits.stage) == ("waiting", 3, "think")
    request = store.scope(f"run:{RUN}").load().event["waiting"]["requestId"]
    assert waits.waiting == {
        "type": "llm_request",
        "requestId": request,
        "stage": "think",
        "prompt": "Find it.",
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "developer", "content": "D"},
            {"role": "user", "content": "Find it."},
        ],
        "tools": [{"name": "search", "description": "Does search.", "parameters": SCHEMA}],
        "output_schema": None,
    }
    assert status(store, RUN)["interrupts"] == [waits.waiting]
    assert resume(store, RUN, CallOptions()).waiting == waits.waiting, "the request is stable"
    assert events(store) == ["started"]


def test_every_form_of_an_answer_is_accepted(tmp_path: Path) -> None:
    def check(place: Path, said: Any) -> None:
        store = new_store()
        path = new_path(place)
        waits = begin(store, path)
        if isinstance(said, dict):
            said["requestId"] = waits.waiting["requestId"]
        done = answer(store, said)
        assert (done.status, done.output) == ("complete", "Here.")
        assert store.scope(f"run:{RUN}").load().event["meters"]["llm_calls"] == 1

    for_each(
        check,
        [
            (said,)
            for said in [
                "Here.",
                {"response": "Here."},
                {"response": "Here.", "tools": []},
                {"type": "llm_response", "response": {"content": [{"type": "text", "text": "Here."}]}},
            ]
        ],
        root=tmp_path,
    )


def test_the_tools_that_an_answer_calls_belong_to_its_turn(store: Store, path: str, tmp_path: Path) -> None:
    begin(store, path)
    waits = answer(store, {"response": "", "tools": [{"name": "search", "params": {"q": "x"}}]}, one_turn=True)
    assert (waits.exit_code, waits.turn, waits.reason) == (3, 1, "llm_request")
    assert waits.waiting["messages"][-1]["content"] == {"q": "x"}
    assert (tmp_path / "ran").read_text() == "x\n"
    assert events(store) == ["started", "answered", "calls_intended", "call_ended"]
    done = answer(store, "done", one_turn=True)
    assert (done.exit_code, done.turn) == (2, 2)
    assert [row["output"] for row in history(store, RUN)] == [None, None, "done"]


def test_a_repeated_answer_counts_once_and_returns_the_same_document(tmp_path: Path) -> None:
    def check(tmp_path: Path, one_turn: bool) -> None:
        store = new_store()
        path = new_path(tmp_path)
        waits = begin(store, path)
        call = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}
        said = {"type": "llm_response", "requestId": waits.waiting["requestId"], "response": {"content": [call]}}
        first = answer(store, said, one_turn=one_turn)
        second = answer(store, said, one_turn=one_turn)
        assert second.document() == first.document()
        assert (tmp_path / "ran").read_text() == "x\n"
        assert store.scope(f"run:{RUN}").load().event["meters"]["llm_calls"] == 1
        with pytest.raises(InvalidAnswerError, match="answered before, and differently"):
            answer(store, {**said, "response": "something else"})

    for_each(check, [(one_turn,) for one_turn in [True, False]], root=tmp_path)


def forms(text: str, request: str) -> list[Any]:
    """One answer in each form that is accepted."""
    block = {"type": "text", "text": text}
    return [
        {"type": "llm_response", "requestId": request, "response": {"content": [block], "stop_reason": "end_turn"}},
        {"requestId": request, "response": {"content": text}},
        {"requestId": request, "response": text},
        {"requestId": request, "response": text, "tools": []},
        {"requestId": request, "answer": text},
        {"requestId": request, "answer": {"response": text}},
    ]


def test_a_repeated_answer_is_recognized_in_every_form(tmp_path: Path) -> None:
    def check(place: Path, first: int) -> None:
        store = new_store()
        path = new_path(place)
        request = begin(store, path).waiting["requestId"]
        taken = answer(store, forms("done", request)[first])
        head = store.scope(f"run:{RUN}").head()
        for again in forms("done", request):
            assert answer(store, again).document() == taken.document()
        for other in forms("Done", request):
            with pytest.raises(InvalidAnswerError, match="answered before, and differently"):
                answer(store, other)
        assert store.scope(f"run:{RUN}").head() == head

    for_each(check, [(first,) for first in range(6)], root=tmp_path)


def test_tool_calls_are_equal_in_both_forms_unless_arguments_differ(store: Store, path: str, tmp_path: Path) -> None:
    request = begin(store, path).waiting["requestId"]
    use = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}
    answer(store, {"requestId": request, "response": {"content": [use]}})
    answer(store, {"requestId": request, "tools": [{"name": "search", "params": {"q": "x"}}]})
    assert (tmp_path / "ran").read_text() == "x\n"
    for params in ({"q": "y"}, {}):
        with pytest.raises(InvalidAnswerError, match="differently"):
            answer(store, {"requestId": request, "tools": [{"name": "search", "params": params}]})
    for broken in ({"requestId": request, "tools": 5}, {"requestId": request, "response": 5}):
        with pytest.raises(InvalidAnswerError, match="differently"):
            answer(store, broken)


def test_an_answer_of_an_older_version_is_recognized_in_its_original_form(store: Store, path: str) -> None:
    said = {"requestId": begin(store, path).waiting["requestId"], "response": "done"}
    taken = answer(store, said)
    scope = store.scope(f"run:{RUN}")
    head = scope.load()
    old = {"requestId": said["requestId"], "sha256": canonical.sha256(canonical.encode(said))}
    assert head.event["answered"] != old
    event = {name: value for name, value in head.event.items() if name not in ("durability", "store_id")}
    scope.save(head.state, kind="run", event={**event, "answered": old}, parent=head)
    assert answer(store, said).output == taken.output
    with pytest.raises(InvalidAnswerError, match="differently"):
        answer(store, {**said, "response": "Done"})


def test_a_human_answer_is_never_parsed_as_a_model_reply(store: Store, tmp_path: Path) -> None:
    machine = tmp_path / "ask.json"
    machine.write_text(json.dumps({"stateline": 1, "name": "ask", "stages": {"a": {"human": {"prompt": "?"}}}}))
    waits = execute(store, ExecuteOptions(machine=str(machine), run=RUN))
    request = waits.waiting["requestId"]
    assert answer(store, {"requestId": request, "answer": "done"}).output == "done"
    assert answer(store, {"requestId": request, "answer": "done"}).output == "done"
    for other in ({"requestId": request, "answer": {"response": "done"}}, {"requestId": request, "response": "done"}):
        with pytest.raises(InvalidAnswerError, match="differently"):
            answer(store, other)


def test_an_answer_that_names_a_request_goes_to_its_run(store: Store, path: str) -> None:
    said = {"response": "Here.", "requestId": begin(store, path).waiting["requestId"]}
    first = execute(store, ExecuteOptions(machine=path, call=CallOptions(answer=said)))
    second = execute(store, ExecuteOptions(machine=path, call=CallOptions(answer=said)))
    assert first.document() == second.document()
    assert first.run == RUN
    with pytest.raises(InvalidAnswerError, match="no run here"):
        execute(
            store, ExecuteOptions(machine=path, call=CallOptions(answer={**said, "requestId": "gone:0:0:12345678"}))
        )


def test_a_refused_answer_changes_nothing_and_the_run_still_waits(tmp_path: Path) -> None:
    def check(place: Path, said: Any, why: str) -> None:
        store = new_store()
        path = new_path(place)
        waits = begin(store, path)
        with pytest.raises(InvalidAnswerError, match=why) as caught:
            answer(store, said)
        assert caught.value.exit_code == 1
        assert events(store) == ["started"]
        assert resume(store, RUN, CallOptions()).document() == waits.document()
        assert answer(store, "Here.").status == "complete"

    for_each(
        check,
        [
            ("", "empty"),
            ({"response": "", "tools": [{"name": "find", "params": {"q": "x"}}]}, "no tool"),
            ({"response": "", "tools": [{"name": "search", "params": {"q": 5}}]}, "schema"),
            ({"response": "x", "requestId": "r:7:0:12345678"}, "not for the one that is open"),
            ({"requestId": "r:7:0:12345678", "answer": "x"}, "not for the one that is open"),
            ({"response": {"content": [{"type": "image"}]}}, "neither text nor tool_use"),
            (5, "neither text nor an object"),
            ({"answer": "x"}, "unknown key"),
            ({"action": "continue"}, "unknown key"),
        ],
        root=tmp_path,
    )


def test_an_answer_that_breaks_the_output_schema_is_refused(store: Store, tmp_path: Path) -> None:
    agent = {"prompt": "n?", "output_schema": {"type": "integer"}}
    path = write_machine(tmp_path, {"think": {"agent": agent}})
    execute(store, ExecuteOptions(machine=path, run=RUN))
    for wrong in ("five", '"5"'):
        with pytest.raises(InvalidAnswerError, match=r"output_schema|one JSON document"):
            answer(store, wrong)
    assert answer(store, "5").output == 5


def test_a_refused_answer_is_masked_in_the_error(store: Store, path: str) -> None:
    begin(store, path)
    with pytest.raises(InvalidAnswerError) as caught:
        answer(store, {"response": "", "tools": [{"name": "search", "params": {"q": [SECRET]}}]})
    assert SECRET not in caught.value.message + caught.value.hint
    done = answer(store, f"It is {SECRET}.")
    assert done.output == "It is [REDACTED]."
    assert any("masked" in warning for warning in done.warnings)


def test_input_format_text_is_never_parsed_as_json(store: Store, path: str) -> None:
    begin(store, path)
    call = CallOptions(stdin=lambda: b'{"response": "no"}\n', input_format="text")
    assert resume(store, RUN, call).output == '{"response": "no"}'


def test_a_model_answers_the_open_request_and_standard_input_is_not_read(store: Store, path: str) -> None:
    def unread() -> bytes:
        raise AssertionError("standard input was read")

    request = begin(store, path).waiting["requestId"]
    model = Scripted(calls(("search", {"q": "x"})), says("done"))
    options = ExecuteOptions(machine=path, run=RUN, call=CallOptions(models=model, stdin=unread))
    plan = plan_execute(store, options)
    assert (plan.action, plan.exit) == ("advance", 0)
    assert plan.effects == [{"type": "model", "stage": "think", "model": "scripted/one", "repeatable": True}]
    assert execute(store, options).output == "done"
    assert model.requests[0].key == request


def test_without_a_model_the_run_waits_for_the_next_call(store: Store, path: str) -> None:
    model = Scripted(calls(("search", {"q": "x"})), says("never said"))
    first = execute(
        store, ExecuteOptions(machine=path, run=RUN, call=CallOptions(input="it", models=model, one_turn=True))
    )
    assert (first.status, first.exit_code) == ("advanced", 0)
    key = store.scope(f"run:{RUN}").load().event["effect"]["key"]
    waits = resume(store, RUN, CallOptions())
    assert (waits.status, waits.waiting["requestId"]) == ("waiting", key)
    assert events(store)[-1] == "asked"
    assert answer(store, "mine").output == "mine"


def test_a_lost_model_call_that_is_not_repeatable_is_reported_first(store: Store, tmp_path: Path) -> None:
    path = write_machine(tmp_path, {"think": {"agent": {"prompt": "?"}, "repeatable": False}})
    execute(store, ExecuteOptions(machine=path, run=RUN))
    model = Scripted(says("done"))
    assert resume(store, RUN, CallOptions(models=model)).output == "done"
    assert events(store) == ["started", "intended", "replied"]


def test_a_late_answer_is_a_conflict(store: Store, path: str) -> None:
    begin(store, path)
    answer(store, {"response": "", "tools": [{"name": "search", "params": {"q": "x"}}]})
    head = store.scope(f"run:{RUN}").load()
    parent = store.scope(f"run:{RUN}").parent(head)
    assert parent is not None
    with pytest.raises(ConflictError):
        answer(store, "late", parent=parent.sha256)
    assert store.scope(f"run:{RUN}").load().sha256 == head.sha256


def test_a_plan_has_the_exit_code_of_the_real_call(tmp_path: Path) -> None:
    def check(place: Path, one_turn: bool, modelled: bool, said: Any) -> None:
        path = new_path(place)
        for begun in (False, True):
            store = Store(MemoryBackend())
            if begun:
                begin(store, path)
            elif said is not None:
                continue
            model = Scripted(says("done"))
            words: dict[str, Any] = {"models": model} if modelled else {}
            if said is not None:
                words["answer"] = said
            options = ExecuteOptions(machine=path, run=RUN, call=CallOptions(one_turn=one_turn, **words))
            heads = json.dumps([head.sha256 for head in store.heads()])
            plan = plan_execute(store, options)
            assert json.dumps([head.sha256 for head in store.heads()]) == heads
            assert model.requests == []
            done = execute(store, options)
            assert done.exit_code in [plan.exit]
            assert plan.exit == done.exit_code

    for_each(
        check,
        [
            (one_turn, modelled, said)
            for one_turn in [True, False]
            for modelled in [True, False]
            for said in [None, "Here.", {"response": "", "tools": [{"name": "search", "params": {"q": "x"}}]}]
        ],
        root=tmp_path,
    )
