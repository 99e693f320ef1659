"""Races: another process saves between the read of a head and the lock on it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dry_runs import plan_execute
from msgspec.structs import replace

from stateline import Store
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.engine.record import run_scope
from stateline.errors import ConflictError, InvalidAnswerError, NoOpenRequestError, UsageError
from stateline.service import create_run as beginnings
from stateline.service import execute as service
from stateline.service import run as prompted
from stateline.service.execute import execute, resume
from stateline.service.options import CallOptions, ExecuteOptions
from stateline.service.repair import _carried
from stateline.service.run import RunOptions
from stateline.service.run import run as run_prompt
from stateline.service.runs import clean
from stateline.store.memory import MemoryBackend


class Raced(MemoryBackend):
    """A backend on which ``other`` is done once, just before the next lock is taken, or that of the scope ``at``; not
    before one that is held already."""

    other: Callable[[], Any] | None = None
    at: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[str] = Counter()

    @contextmanager
    def lock(self, scope: str, wait: float) -> Iterator[None]:
        if self.other is not None and self.at in (None, scope) and not self.held[scope]:
            other, self.other = self.other, None
            other()
        with super().lock(scope, wait):
            self.held[scope] += 1
            try:
                yield
            finally:
                self.held[scope] -= 1


@pytest.fixture
def backend() -> Raced:
    return Raced()


@pytest.fixture
def store(backend: Raced) -> Store:
    return Store(backend)


def context(text: str = "", system: str | None = None, parent: str | None = None) -> ContextOptions:
    return ContextOptions(
        name="demo", context_request=ContextRequest(system=system, refine=text or None), parent=parent
    )


def machine(tmp_path: Path, **stages: Any) -> str:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"stateline": 1, "name": "m", "stages": stages}))
    return str(path)


def other_machine(tmp_path: Path, **stages: Any) -> str:
    (tmp_path / "other").mkdir()
    return machine(tmp_path / "other", **stages)


def events(store: Store, run: str) -> list[str]:
    return [snapshot.event["type"] for snapshot in store.scope(f"run:{run}").walk()][::-1]


ASK = {"human": {"prompt": "?"}, "default_next": "done"}
ECHO = {"task": ["sh", "-c", "echo x >> ran; echo 1"], "repeatable": True}
END: dict[str, Any] = {"end": {}}


def test_the_second_of_two_derivations_restores(store: Store, backend: Raced) -> None:
    backend.other = lambda: prepare(store, context(system="first"))
    second = prepare(store, context(system="second"))
    head = store.scope("context:demo").load()
    assert (second.action, second.head.seq, head.seq) == ("restore", 0, 0)
    assert head.envelope.state["prompts"]["system"] == "first"
    assert head.envelope.state["refinements"] == {"count": 0, "last": None}
    assert "--system" in second.warnings[0]


def test_the_second_of_two_refinements_refines_the_new_head(store: Store, backend: Raced) -> None:
    prepare(store, context(system="S"))
    backend.other = lambda: prepare(store, context("first"))
    prepare(store, context("second"))
    head = store.scope("context:demo").load()
    assert head.envelope.state["prompts"]["developer"] == ["first", "second"]
    assert head.envelope.state["refinements"]["count"] == head.seq == 2


def test_a_required_head_that_moves_before_the_lock_is_a_conflict(store: Store, backend: Raced) -> None:
    head = prepare(store, context(system="S")).head.sha256
    backend.other = lambda: prepare(store, context("first"))
    with pytest.raises(ConflictError):
        prepare(store, context("second", parent=head))
    assert store.scope("context:demo").load().seq == 1


def test_a_bare_answer_is_not_taken_for_the_next_question(store: Store, backend: Raced, tmp_path: Path) -> None:
    asks = machine(tmp_path, a=ASK | {"default_next": "b"}, b=ASK, done=END)
    options = ExecuteOptions(machine=asks, run="r1")
    execute(store, options)
    backend.other = lambda: resume(store, "r1", CallOptions(answer="one"))
    with pytest.raises(ConflictError, match="advanced while"):
        resume(store, "r1", CallOptions(answer="another one"))
    assert resume(store, "r1", CallOptions()).outputs == {"a": "one"}


def test_the_same_named_answer_at_once_gives_the_same_document(store: Store, backend: Raced, tmp_path: Path) -> None:
    asks = machine(tmp_path, a=ASK | {"default_next": "b"}, b=ASK, done=END)
    request = execute(store, ExecuteOptions(machine=asks, run="r1")).waiting["requestId"]
    call = CallOptions(answer={"requestId": request, "answer": "one"}, one_turn=True)
    documents = []
    backend.other = lambda: documents.append(resume(store, "r1", call).document())
    documents.append(resume(store, "r1", call).document())
    assert documents[0] == documents[1]
    assert events(store, "r1") == ["started", "answered"]


def test_an_answer_to_a_request_that_was_answered_meanwhile_is_refused(
    store: Store, backend: Raced, tmp_path: Path
) -> None:
    asks = machine(tmp_path, a=ASK | {"default_next": "b"}, b=ASK | {"default_next": "c"}, c=ASK, done=END)
    request = execute(store, ExecuteOptions(machine=asks, run="r1")).waiting["requestId"]

    def quicker() -> None:
        resume(store, "r1", CallOptions(answer=1))
        resume(store, "r1", CallOptions(answer=2))

    backend.other = quicker
    with pytest.raises(InvalidAnswerError):
        resume(store, "r1", CallOptions(answer={"requestId": request, "answer": 3}))
    assert resume(store, "r1", CallOptions()).outputs == {"a": 1, "b": 2}


def test_a_run_that_another_process_started_is_continued(store: Store, backend: Raced, tmp_path: Path) -> None:
    options = ExecuteOptions(
        machine=machine(tmp_path, a=ECHO | {"default_next": "b"}, b=ECHO), call=CallOptions(one_turn=True)
    )
    others = []
    backend.other = lambda: others.append(execute(store, options))
    mine = execute(store, options)
    assert mine.run == others[0].run
    assert (others[0].status, mine.status) == ("advanced", "complete")
    assert (tmp_path / "ran").read_text() == "x\nx\n"


def test_a_turn_that_another_process_performed_is_not_repeated(store: Store, backend: Raced, tmp_path: Path) -> None:
    options = ExecuteOptions(
        machine=machine(tmp_path, a=ECHO | {"default_next": "b"}, b=ECHO), call=CallOptions(one_turn=True)
    )
    execute(store, options)
    backend.other = lambda: execute(store, options)
    assert execute(store, options).exit_code == 2
    assert (tmp_path / "ran").read_text() == "x\nx\n"


def test_a_change_is_accepted_once(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a=ASK, done=END)
    execute(store, ExecuteOptions(machine=path, run="r1"))
    Path(path).write_text(Path(path).read_text().replace('"stages"', '"bounds": {"timeout": 99}, "stages"'))
    options = ExecuteOptions(machine=path, run="r1", accept_change=True)
    backend.other = lambda: execute(store, options)
    execute(store, options)
    assert events(store, "r1") == ["started", "replaced"]


def test_clean_keeps_a_run_that_was_restarted_meanwhile(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a=ASK, done=END)
    execute(store, ExecuteOptions(machine=path, run="r1"))
    resume(store, "r1", CallOptions(answer=1))
    backend.other = lambda: execute(store, ExecuteOptions(machine=path, run="r1", force=True))
    result = clean(store, unfinished=False, older_than=0)
    assert result.removed == []
    assert "started again" in result.kept["r1"]
    assert resume(store, "r1", CallOptions()).status == "waiting"


def test_another_input_of_a_call_that_lost_the_race_to_start_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ExecuteOptions(machine=machine(tmp_path, a=ASK, done=END), run="r1")
    execute(store, options)
    find = service._find
    found = iter([None])
    monkeypatch.setattr(service, "_find", lambda *words: next(found, find(*words)))
    with pytest.raises(UsageError, match="another input"):
        execute(store, ExecuteOptions(machine=options.machine, run="r1", call=CallOptions(input="yes")))
    assert events(store, "r1") == ["started"]


def test_standard_input_is_not_read_by_a_call_that_lost_the_race_to_start(
    store: Store, backend: Raced, tmp_path: Path
) -> None:
    def unread() -> bytes:
        raise AssertionError("standard input was read")

    options = ExecuteOptions(machine=machine(tmp_path, a=ASK, done=END), call=CallOptions(stdin=unread))
    backend.other = lambda: execute(store, options)
    assert execute(store, options).status == "waiting"
    assert (
        len(store.scope(f"run:{execute(store, replace(options, call=CallOptions())).run}").load().event["transitions"])
        == 1
    )


def test_a_retry_clears_only_the_failure_that_was_seen(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a={"task": ["sh", "-c", "echo x >> ran; false"], "repeatable": True})
    execute(store, ExecuteOptions(machine=path, run="r1"))
    backend.other = lambda: resume(store, "r1", CallOptions(), retry=True)
    with pytest.raises(ConflictError, match="advanced while") as caught:
        resume(store, "r1", CallOptions(), retry=True)
    assert caught.value.exit_code == 4
    assert (tmp_path / "ran").read_text() == "x\nx\n"


def test_clean_keeps_a_run_that_advanced_since_it_was_listed(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a=ASK | {"default_next": "b"}, b=ASK, done=END)
    execute(store, ExecuteOptions(machine=path, run="r1"))
    backend.other = lambda: resume(store, "r1", CallOptions(answer=1))
    result = clean(store, unfinished=True, older_than=0)
    assert (result.removed, list(result.kept)) == ([], ["r1"])
    assert resume(store, "r1", CallOptions()).outputs == {"a": 1}


def test_a_named_answer_with_another_value_at_once_is_refused(store: Store, backend: Raced, tmp_path: Path) -> None:
    asks = machine(tmp_path, a=ASK | {"default_next": "b"}, b=ASK, done=END)
    request = execute(store, ExecuteOptions(machine=asks, run="r1")).waiting["requestId"]
    backend.other = lambda: resume(store, "r1", CallOptions(answer={"requestId": request, "answer": "one"}))
    with pytest.raises(InvalidAnswerError, match="answered before"):
        resume(store, "r1", CallOptions(answer={"requestId": request, "answer": "another"}))
    assert events(store, "r1") == ["started", "answered"]


def prompt_of(text: str, run: str | None = "r1", **more: Any) -> RunOptions:
    return RunOptions(prompt=text, run=run, context="demo", **more)


@pytest.mark.parametrize("stages", [{"a": ECHO}, {"a": ASK, "done": END}], ids=["complete", "waiting"])
@pytest.mark.parametrize("accept", [False, True])
def test_a_run_that_another_machine_file_started_meanwhile_is_a_conflict(
    store: Store, backend: Raced, tmp_path: Path, stages: dict[str, Any], accept: bool
) -> None:
    mine = machine(tmp_path, a=ECHO | {"default_next": "b"}, b=ECHO)
    theirs = other_machine(tmp_path, **stages)
    backend.at = run_scope(store, "r1").hash
    backend.other = lambda: execute(store, ExecuteOptions(machine=theirs, run="r1"))
    with pytest.raises(ConflictError, match="another process"):
        execute(store, ExecuteOptions(machine=mine, run="r1", accept_change=accept))
    assert events(store, "r1") == (["started", "succeeded"] if "done" not in stages else ["started"])
    assert not (tmp_path / "ran").exists()


def test_a_run_that_the_same_machine_file_started_meanwhile_is_continued(
    store: Store, backend: Raced, tmp_path: Path
) -> None:
    options = ExecuteOptions(machine=machine(tmp_path, a=ECHO), run="r1")
    backend.other = lambda: execute(store, options)
    assert execute(store, options).status == "complete"
    assert events(store, "r1") == ["started", "succeeded"]


@pytest.mark.parametrize("by", ["run", "execute"])
def test_a_prompt_for_a_run_that_was_started_meanwhile_is_a_conflict(
    store: Store, backend: Raced, tmp_path: Path, by: str
) -> None:
    prepare(store, context(system="S"))
    theirs = ExecuteOptions(machine=machine(tmp_path, a=ASK, done=END), run="r1")
    backend.at = run_scope(store, "r1").hash
    backend.other = lambda: run_prompt(store, prompt_of("first")) if by == "run" else execute(store, theirs)
    with pytest.raises(ConflictError, match="another process"):
        run_prompt(store, prompt_of("second"))
    assert events(store, "r1").count("started") == 1
    assert store.scope("run:r1").load().event["machine"]["name"] == ("run" if by == "run" else "m")


def test_force_restarts_a_run_that_was_started_meanwhile(store: Store, backend: Raced) -> None:
    prepare(store, context(system="S"))
    backend.at = run_scope(store, "r1").hash
    backend.other = lambda: run_prompt(store, prompt_of("first"))
    assert run_prompt(store, prompt_of("second", force=True)).waiting["prompt"] == "second"
    assert events(store, "r1").count("started") == 2


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("by", ["run", "execute"])
def test_a_generated_id_that_was_taken_meanwhile_is_replaced(
    store: Store, backend: Raced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, force: bool
) -> None:
    prepare(store, context(system="S"))
    theirs = ExecuteOptions(machine=machine(tmp_path, a=ASK, done=END), run="taken")
    mine = other_machine(tmp_path, a=ASK, done=END)
    names = iter(["taken", "free"])
    for module in (beginnings, prompted):
        monkeypatch.setattr(module, "new_id", lambda _: next(names), raising=False)
    backend.at = run_scope(store, "taken").hash
    backend.other = lambda: execute(store, theirs)
    if by == "run":
        found = run_prompt(store, prompt_of("mine", run=None, force=force))
    else:
        found = execute(store, ExecuteOptions(machine=mine, force=force))
    assert found.run == "free"
    assert events(store, "taken") == ["started"]


def begun_anew(store: Store, path: str) -> Callable[[], Any]:
    return lambda: execute(store, ExecuteOptions(machine=path, run="r1", force=True, call=CallOptions(one_turn=True)))


def test_a_run_that_was_restarted_meanwhile_is_not_continued(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a=ECHO | {"default_next": "b"}, b=ECHO)
    options = ExecuteOptions(machine=path, run="r1", call=CallOptions(one_turn=True))
    for call in (lambda: resume(store, "r1", CallOptions()), lambda: execute(store, options)):
        execute(store, ExecuteOptions(machine=path, run="r1", force=True, call=CallOptions(one_turn=True)))
        backend.other = begun_anew(store, path)
        with pytest.raises(ConflictError, match="restarted") as caught:
            call()
        assert caught.value.exit_code == 4
        assert events(store, "r1")[-2:] == ["started", "succeeded"]


def test_a_call_stops_when_another_process_restarts_its_run(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a=ECHO | {"default_next": "b"}, b=ECHO)

    def between_turns(run: Any, what: str) -> None:
        backend.other = backend.other if run.event["turn"] else begun_anew(store, path)

    with pytest.raises(ConflictError, match="restarted"):
        execute(store, ExecuteOptions(machine=path, run="r1", call=CallOptions(watch=between_turns)))
    assert events(store, "r1") == ["started", "succeeded", "started", "succeeded"]


def test_a_retry_does_not_continue_a_restarted_run(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a={"task": ["sh", "-c", "echo x >> ran; false"], "repeatable": True})
    execute(store, ExecuteOptions(machine=path, run="r1"))
    backend.other = begun_anew(store, path)
    with pytest.raises(ConflictError, match="restarted"):
        resume(store, "r1", CallOptions(), retry=True)
    assert (tmp_path / "ran").read_text() == "x\nx\n"


def test_a_change_is_not_accepted_for_a_restarted_run(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a=ASK, done=END)
    execute(store, ExecuteOptions(machine=path, run="r1"))
    Path(path).write_text(Path(path).read_text().replace('"stages"', '"bounds": {"timeout": 99}, "stages"'))
    backend.other = begun_anew(store, path)
    with pytest.raises(ConflictError, match="restarted"):
        execute(store, ExecuteOptions(machine=path, run="r1", accept_change=True))
    assert events(store, "r1") == ["started", "started"]


def test_a_run_that_was_repaired_meanwhile_is_continued(store: Store, backend: Raced, tmp_path: Path) -> None:
    path = machine(tmp_path, a=ECHO | {"default_next": "b"}, b=ECHO)
    execute(store, ExecuteOptions(machine=path, run="r1", call=CallOptions(one_turn=True)))

    def repaired() -> None:
        scope = run_scope(store, "r1")
        head = scope.load()
        event = {"type": "repair", **_carried(head, False)}
        assert event["birth"] != head.event["birth"]
        scope.save(head.state, kind="run", event=event, parent=head, masked=True)

    backend.other = repaired
    assert resume(store, "r1", CallOptions()).status == "complete"


def test_an_answer_to_the_request_of_another_run_starts_no_run(store: Store, tmp_path: Path) -> None:
    prepare(store, context(system="S"))
    asks = machine(tmp_path, a=ASK, done=END)
    request = execute(store, ExecuteOptions(machine=asks, run="r1")).waiting["requestId"]
    for named in (request, "nobody:1:1:abcd"):
        call = CallOptions(answer={"requestId": named, "answer": "yes"})
        for run, force in (("r2", False), ("r2", True), (None, True)):
            options = ExecuteOptions(machine=asks, run=run, force=force, call=call)
            with pytest.raises(NoOpenRequestError, match="nothing was changed"):
                execute(store, options)
            assert plan_execute(store, options).action == "refuse"
            with pytest.raises(NoOpenRequestError, match="nothing was changed"):
                run_prompt(store, prompt_of("x", run=run, force=force, call=call))
    assert len(list(store.backend.scopes())) == len({"context:demo", "run:r1", "machine"})
    assert events(store, "r1") == ["started"]
