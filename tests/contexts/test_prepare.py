"""Contexts prepared with a model: number of calls, and what is saved. A real server on loopback counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from dry_runs import plan_context
from each_case import each
from model_server import ModelServer, Say

from stateline import Store
from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Pointer
from stateline.contexts.by_model import derivation
from stateline.contexts.context import LIMIT, MODEL_TIMEOUT, ContextRequest
from stateline.contexts.plan import ContextOptions, context_scope
from stateline.contexts.prepare import Prepared, prepare
from stateline.errors import (
    ConflictError,
    IntegrityError,
    LockTimeoutError,
    NewerVersionError,
    RequestError,
    UnsafePathError,
)
from stateline.model.protocol import Model
from stateline.model.providers.selection import choose, open_model
from stateline.redaction.redactor import Redactor
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.store.scope import WAIT
from stateline.store.timestamps import next_timestamp
from stateline.verify.checker import verify

SECRET = "sesame-open-12"
TASK = "Summarize the repository in at most five sentences."


def says(system: str = "Be brief.", *developer: str, **settings: Any) -> Say:
    """A reply that is a context."""
    return Say(json.dumps({"prompts": {"system": system, "developer": list(developer)}, "settings": settings}))


def opened(server: ModelServer) -> Model:
    """The model behind the server, through the provider's SDK."""
    choice = choose("openai/m", server.url, environ={})
    assert choice is not None
    return open_model(choice, environ={})


def options(server: ModelServer | None = None, **context_request: Any) -> ContextOptions:
    given = {
        name: context_request.pop(name) for name in ("name", "parent", "wait", "on_call") if name in context_request
    }
    said = {"name": "demo", **given, "model": opened(server) if server else None}
    return ContextOptions(
        **said, context_request=ContextRequest(**{"model": "openai/m" if server else "", **context_request})
    )


def chain(store: Store, key: str = "context:demo") -> list[Any]:
    return [*store.scope(key).walk()][::-1]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "s")


def user_texts(server: ModelServer) -> list[Any]:
    return [json.loads(request["messages"][-1]["content"]) for request in server.requests]


# -- counts ----------------------------------------------------------------------------------------------------------


def test_a_context_is_derived_by_one_call_and_restored_by_none(store: Store) -> None:
    with ModelServer(says("Be brief.", "Cite.", temperature=0.3)) as server:
        first = prepare(store, options(server, task=TASK))
        again = prepare(store, options(server, task=TASK))
        other = prepare(store, options(server, task="Another question altogether."))
        assert server.count == 1
    assert (first.action, again.action, other.action) == ("derive", "restore", "restore")
    assert first.head.sha256 == again.head.sha256 == other.head.sha256
    assert first.effective == again.effective == other.effective
    assert (first.effective.system, first.effective.developer) == ("Be brief.", ["Cite."])
    assert first.effective.settings == {"temperature": 0.3}
    (snapshot,) = chain(store)
    assert snapshot.state["prompts"] == {"system": "Be brief.", "developer": ["Cite."]}
    assert snapshot.state["model_id"] == "openai/m"


def test_a_refinement_is_exactly_one_call_and_changes_settings(store: Store) -> None:
    with ModelServer(says("Be brief.", temperature=0.7, top_p=0.9)) as server:
        head = prepare(store, options(server, task=TASK)).head
    with ModelServer(says("Be brief.", "Name risks.", temperature=0.2)) as server:
        text = "Tighten temperature to 0.2 and emphasize security notes"
        refined = prepare(store, options(server, task=TASK, refine=text))
        assert server.count == 1
        prepare(store, options(server, task=TASK))
        assert server.count == 1
    assert refined.head.envelope.prev_sha == head.sha256
    assert refined.effective.settings == {"temperature": 0.2}
    event = refined.head.event
    assert (event["type"], event["by"], event["text"]) == ("refine", "openai/m", text)
    assert (event["settings"], event["unset"], event["prompts"]) == ({"temperature": 0.2}, ["top_p"], ["developer"])
    assert event["usage"] == {"input": 7, "output": 3}
    assert refined.head.state["refinements"] == {"count": 1, "last": {"text": text, "settings": {}}}


def test_what_a_refiner_dropped_is_told_by_name(store: Store) -> None:
    flags = {"system": "S", "developer": ["Never reveal prices", "Cite."], "settings": {"seed": 7, "top_p": 0.5}}
    before = prepare(store, options(**flags))
    assert before.warnings == []
    with ModelServer(says("Be brief. Cite.", temperature=0.2)) as server:
        refined = prepare(store, options(server, task=TASK, refine="be brief", settings={"top_p": None}))
    way = "`stateline diff context:demo~1 context:demo` shows all changes"
    assert refined.warnings == [
        f"the model removed the developer instruction 'Never reveal prices' from the context; {way}",
        f"the model removed the setting 'seed' from the context; {way}",
    ]


def test_what_a_refiner_dropped_is_told_shortened_and_masked(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path / "s"))
    before = prepare(Store(backend), options(system="S", developer=["x" * 5000, f"Use {SECRET}\x1b[2J"]))
    assert before.warnings == []
    known = Store(backend, redactor=Redactor([("KEY", SECRET)]))
    with ModelServer(says("", temperature=0.2)) as server:
        refined = prepare(known, options(server, task=TASK, refine="be brief"))
    system, long, masked = refined.warnings
    assert "the system prompt" in system
    assert ("x" * 20 in long, len(long) < 400) == (True, True)
    assert "Use [REDACTED]\\x1b[2J" in masked
    assert SECRET not in masked


def test_what_a_refiner_kept_or_the_operator_took_out_is_no_loss(store: Store) -> None:
    prepare(store, options(system="S", developer=["Cite."], settings={"seed": 7}))
    with ModelServer(says("S", "Cite.", "Be brief."), says("Cite. S", seed=8)) as server:
        first = prepare(store, options(server, task=TASK, refine="be brief", settings={"seed": None}))
        again = prepare(store, options(server, task=TASK, refine="into one"))
    assert first.warnings == []
    assert [text for text in again.warnings if "Cite." in text] == []
    assert prepare(store, options(refine="literally", settings={"seed": None})).warnings == []


def test_deriving_and_refining_are_exactly_two_calls_and_two_snapshots(store: Store) -> None:
    with ModelServer(says("One."), says("Two.", temperature=0.2)) as server:
        began: list[str] = []
        done = prepare(store, options(server, task=TASK, refine="Second.", on_call=began.append))
        assert server.count == 2
    assert began == ["derive", "refine"]
    first, second = chain(store)
    assert (first.state["prompts"]["system"], second.state["prompts"]["system"]) == ("One.", "Two.")
    assert second.envelope.prev_sha == first.sha256
    assert done.head.sha256 == second.sha256
    shown = json.loads(server.requests[1]["messages"][0]["content"].split("\n\n")[1])
    assert shown["context"]["prompts"]["system"] == "One."


def test_settings_alone_are_no_words_to_understand(store: Store) -> None:
    with ModelServer(says("S", temperature=0.7)) as server:
        prepare(store, options(server, task=TASK))
        done = prepare(store, options(server, settings={"temperature": 0.2}))
        assert server.count == 1
    assert (done.action, done.head.event["by"]) == ("refine", "literal")
    assert done.head.state["settings"] == {"temperature": 0.2}


def test_without_a_task_a_context_is_derived_for_work_in_general(store: Store) -> None:
    with ModelServer(says("S")) as server:
        assert prepare(store, options(server)).action == "derive"
        assert user_texts(server)[0]["task"] is None


def test_without_a_model_nobody_is_asked_and_a_task_stores_nothing_of_itself(store: Store, tmp_path: Path) -> None:
    done = prepare(store, options(task=TASK, refine="Cite.", settings={"limit": 3}))
    assert done.effective.developer == ["Cite."]
    held = b"".join(path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file())
    assert TASK.encode() not in held
    assert [snapshot.event["by"] for snapshot in chain(store)] == ["literal"] * 2


# -- flags of this call --------------------------------------------------------------------------------------------


@each("modelled", [False, True])
def test_flags_over_a_restored_context_hold_for_this_call_only(store: Store, modelled: bool) -> None:
    with ModelServer(says("S", "A", temperature=0.7)) as server:
        head = prepare(store, options(server, task=TASK)).head
    with ModelServer() as server:
        asked = server if modelled else None
        flags = {"system": "T", "developer": ["A", "B"], "settings": {"temperature": 0.1, "seed": 1}}
        done = prepare(store, options(asked, task=TASK, **flags))
        assert server.count == 0
    assert (done.action, done.warnings, done.head.sha256) == ("restore", [], head.sha256)
    assert done.effective.system == "T"
    assert done.effective.developer == ["A", "B"]
    assert done.effective.settings == {"temperature": 0.1, "seed": 1}
    assert prepare(store, options(task=TASK)).effective.system == "S"


def test_flags_beside_a_refinement_hold_for_this_call_but_settings_join_it(store: Store) -> None:
    with ModelServer(says("S"), says("S2", "R", temperature=0.9)) as server:
        prepare(store, options(server, task=TASK))
        flags = {"system": "T", "developer": ["D"], "settings": {"temperature": 0.1}}
        done = prepare(store, options(server, task=TASK, refine="Refine.", **flags))
    assert done.head.state["prompts"] == {"system": "S2", "developer": ["R"]}
    assert done.head.state["settings"] == {"temperature": 0.1}
    assert (done.effective.system, done.effective.developer) == ("T", ["R", "D"])


def test_what_was_derived_under_flags_is_what_the_call_uses(store: Store) -> None:
    with ModelServer(says("M", "M1", temperature=0.9, top_p=0.5)) as server:
        flags = {"system": "S", "developer": ["D"], "settings": {"temperature": 0.1}}
        done = prepare(store, options(server, task=TASK, **flags))
        again = prepare(store, options(server, task=TASK, **flags))
    assert done.head.state["prompts"] == {"system": "S", "developer": ["D", "M1"]}
    assert done.head.state["settings"] == {"temperature": 0.1, "top_p": 0.5}
    assert done.effective == again.effective
    assert done.effective.developer == ["D", "M1"]


# -- what is refused -----------------------------------------------------------------------------------------------


@each(
    "said",
    [
        Say("I would rather answer: it is a store."),
        Say('{"prompts": {"system": "S", "developer": []}'),
        says("S", model="other"),
        Say('{"prompts": {"system": "S", "developer": []}, "settings": {}}', finish="length"),
        Say("", finish="stop"),
        Say("no such model", status=404),
        Say("no", status=401),
        Say(body=b"<html>busy</html>"),
        says("x" * LIMIT),
        says(TASK),
    ],
)
def test_a_reply_that_is_no_context_derives_nothing(tmp_path: Path, said: Say) -> None:
    store = Store.open(tmp_path / "s")
    with ModelServer(said) as server:
        with pytest.raises(RequestError) as caught:
            prepare(store, options(server, task=TASK))
        assert caught.value.exit_code == 1
        assert caught.value.hint
        head = store.scope("context:demo").head()
        assert head is None or (head.state, head.event["type"]) == (None, "refused")
        server.script.append(says("S"))
        assert prepare(store, options(server, task=TASK)).action == "derive"


def test_a_refinement_that_fails_leaves_what_was_derived_before_it(store: Store) -> None:
    with ModelServer(says("One."), Say("Sorry?"), says("Two.")) as server:
        with pytest.raises(RequestError, match="not refined"):
            prepare(store, options(server, task=TASK, refine="R"))
        derived, refused = chain(store)
        assert (derived.event["type"], refused.event["type"]) == ("derive", "refused")
        assert refused.state == derived.state
        prepare(store, options(server, task=TASK, refine="R"))
        assert server.count == 3
    assert [snapshot.event["type"] for snapshot in chain(store)] == ["derive", "refused", "refine"]


def test_what_no_context_has_room_for_is_refused_without_a_call(store: Store) -> None:
    with ModelServer(says("S")) as server:
        for flags in ({"system": "x" * LIMIT}, {"settings": {"x": "y" * LIMIT}}):
            with pytest.raises(RequestError, match=str(LIMIT)):
                prepare(store, options(server, task=TASK, **flags))
        prepare(store, options(server, task=TASK))
        with pytest.raises(RequestError, match=str(LIMIT)):
            prepare(store, options(server, task=TASK, refine="x" * LIMIT))
        assert server.count == 1


def test_a_hundred_refinements_stay_bounded() -> None:
    store = Store(MemoryBackend())
    texts = [f"Number {number}: {'be careful ' * 300}" for number in range(101)]
    replies = [says("Be careful.", text, temperature=0.2) for text in texts]
    with ModelServer(says("Be careful."), *replies) as server:
        asked = opened(server)
        for text in texts:
            context_request = ContextRequest(model="openai/m", task=TASK, refine=text)
            prepare(store, ContextOptions(name="demo", context_request=context_request, model=asked))
    snapshots = chain(store)
    sizes = [len(canonical.encode(store.resolve(snapshot.state))) for snapshot in snapshots]
    assert len(snapshots) == 102
    assert max(sizes) < 16_000
    assert server.count == 102
    assert snapshots[-1].state["refinements"]["count"] == 101


def test_literal_refinements_are_refused_at_the_bound_and_all_before_are_kept() -> None:
    store = Store(MemoryBackend())
    prepare(store, options(system="S"))
    refinements = (options(refine=f"{number}: {'careful ' * 500}") for number in range(100))
    with pytest.raises(RequestError, match=str(LIMIT)) as caught:
        deque((prepare(store, refinement) for refinement in refinements), maxlen=0)
    assert "--state-scope" in caught.value.hint
    snapshots = chain(store)
    assert 40 < len(snapshots) < 100
    state = store.resolve(snapshots[-1].state)
    assert len(canonical.encode({name: value for name, value in state.items() if name != "refinements"})) <= LIMIT


# -- several at once, and interruptions ------------------------------------------------------------------------------


class Raced(MemoryBackend):
    """A backend on which ``other`` is done once, just before the next lock is taken."""

    other: Callable[[], Any] | None = None

    def lock(self, scope: str, wait: float) -> AbstractContextManager[None]:
        if self.other is not None:
            other, self.other = self.other, None
            other()
        return super().lock(scope, wait)


def test_whoever_comes_second_to_derive_restores_and_pays_nothing() -> None:
    backend = Raced()
    store = Store(backend)
    with ModelServer(says("first"), says("second")) as server:
        backend.other = lambda: prepare(store, options(server, task=TASK))
        second = prepare(store, options(server, task=TASK))
        assert server.count == 1
    assert (second.action, second.effective.system) == ("restore", "first")


def test_of_two_refiners_at_once_the_second_waits_and_refines_the_new_head(tmp_path: Path) -> None:
    prepare(Store.open(tmp_path / "s"), options(system="S"))
    held = threading.Event()
    done: list[Prepared] = []
    with ModelServer(Say(says("first").text, until=held), says("second")) as server:

        def refine(text: str) -> None:
            done.append(prepare(Store.open(tmp_path / "s"), options(server, task=TASK, refine=text, wait=60)))

        first = threading.Thread(target=refine, args=("One.",))
        first.start()
        server.wait(1)
        second = threading.Thread(target=refine, args=("Two.",))
        second.start()
        time.sleep(0.3)
        assert server.count == 1
        held.set()
        first.join()
        second.join()
        assert server.count == 2
        shown = server.requests[1]["messages"][0]["content"].split("\n\n")[1]
        assert json.loads(shown)["context"]["prompts"]["system"] == "first"
    store = Store.open(tmp_path / "s")
    assert [snapshot.event["text"] for snapshot in chain(store)] == [None, "One.", "Two."]
    assert chain(store)[-1].state["refinements"]["count"] == 2
    assert not verify(store).findings


class Patient(MemoryBackend):
    """Notes how long whoever wants the lock would wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def lock(self, scope: str, wait: float) -> AbstractContextManager[None]:
        self.waits.append(wait)
        return super().lock(scope, wait)


def test_a_contexts_lock_is_waited_for_as_long_as_a_model_may_take_unless_the_caller_says_otherwise() -> None:
    backend = Patient()
    store = Store(backend)
    prepare(store, options(system="S"))
    prepare(store, options(refine="R"))
    prepare(store, options(refine="R", wait=3))
    prepare(store, options(refine="R", wait=0))
    waits = [wait for wait in backend.waits if wait != WAIT]  # each save takes the lock again
    assert waits == [MODEL_TIMEOUT + WAIT, MODEL_TIMEOUT + WAIT, 3, 0]
    assert derivation(ContextRequest()).timeout == MODEL_TIMEOUT


def test_whoever_may_not_wait_gets_a_conflict_while_a_model_is_asked(tmp_path: Path) -> None:
    held = threading.Event()
    with ModelServer(Say(says("first").text, until=held)) as server:
        first = threading.Thread(target=prepare, args=(Store.open(tmp_path / "s"), options(server, task=TASK)))
        first.start()
        server.wait(1)
        with pytest.raises(LockTimeoutError) as caught:
            prepare(Store.open(tmp_path / "s"), options(server, task=TASK, wait=0.1))
        assert caught.value.exit_code == 4
        held.set()
        first.join()
        assert server.count == 1


def test_a_demanded_head_that_moved_is_a_conflict_before_anything_is_paid() -> None:
    backend = Raced()
    store = Store(backend)
    with ModelServer(says("S"), says("first")) as server:
        head = prepare(store, options(server, task=TASK)).head.sha256
        backend.other = lambda: prepare(store, options(server, task=TASK, refine="One."))
        with pytest.raises(ConflictError) as caught:
            prepare(store, options(server, task=TASK, refine="Two.", parent=head))
        assert caught.value.exit_code == 4
        assert server.count == 2
    assert store.scope("context:demo").load().seq == 1


CHILD = """
import sys
from stateline import Store
from stateline.model.providers.selection import choose, open_model
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
_, place, url, refine = sys.argv
model = open_model(choose("openai/m", url, environ={}), environ={})
context_request = ContextRequest(model="openai/m", task="A task.", refine=refine or None)
prepare(Store.open(place), ContextOptions(name="demo", context_request=context_request, model=model))
"""


def child(place: Path, server: ModelServer, refine: str = "") -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", CHILD, str(place), server.url, refine]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_kill_between_derivation_and_refinement_pays_for_the_refinement_only(tmp_path: Path) -> None:
    with ModelServer(says("One."), Say("never", until=threading.Event()), says("Two.")) as server:
        first = child(tmp_path / "s", server, "R")
        server.wait(2)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        store = Store.open(tmp_path / "s")
        assert [snapshot.event["type"] for snapshot in chain(store)] == ["derive"]
        second = child(tmp_path / "s", server, "R")
        assert (second.wait(60), second.communicate()[1]) == (0, b"")
        assert server.count == 3
    assert [snapshot.state["prompts"]["system"] for snapshot in chain(store)] == ["One.", "Two."]
    # Nothing of the call that was cut off is known here: its successor is another call to a server that keeps keys.
    assert len({headers["idempotency-key"] for headers in server.headers}) == 3
    assert verify(store).ok


@each("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_model_is_asked_saves_nothing_and_frees_the_lock(tmp_path: Path, signum: int) -> None:
    with ModelServer(Say("never", until=threading.Event()), says("S")) as server:
        process = child(tmp_path / "s", server)
        server.wait(1)
        process.send_signal(signum)
        _, talk = process.communicate(timeout=60)
        assert b"Interrupted" in talk
        store = Store.open(tmp_path / "s")
        assert store.scope("context:demo").head() is None
        assert prepare(store, options(server, task=TASK, wait=0)).action == "derive"


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_secrets_are_masked_in_what_is_asked_and_in_what_is_kept(tmp_path: Path) -> None:
    secret = "abcdef-123456-secret"
    store = Store.open(tmp_path / "s", redactor=Redactor([("KEY", secret)]))
    with ModelServer(says(f"Use {secret}.", f"Never say {secret}.")) as server:
        done = prepare(store, options(server, task=f"Log in with {secret}", developer=[f"It is {secret}"]))
        asked = json.dumps(server.requests)
    assert secret not in asked
    assert done.effective.system == "Use [REDACTED]."
    assert done.effective.developer == ["It is [REDACTED]", "Never say [REDACTED]."]
    assert done.head.event["redactions"] == 3
    assert prepare(store, options(task=TASK)).effective == done.effective
    held = b"".join(path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file())
    assert secret.encode() not in held


def test_an_error_that_quotes_a_reply_shows_no_secret(tmp_path: Path) -> None:
    secret = "abcdef-123456-secret"
    store = Store.open(tmp_path / "s", redactor=Redactor([("KEY", secret)]))
    content = json.dumps({"prompts": {"system": "S", "developer": secret}, "settings": {secret: 1}})
    with ModelServer(Say(content), Say(f"bad key {secret}", status=400)) as server:
        for _ in range(2):
            with pytest.raises(RequestError) as caught:
                prepare(store, options(server, task=TASK))
            assert secret not in caught.value.message + caught.value.hint
            assert "[REDACTED]" in caught.value.message


def test_the_event_of_a_model_names_the_request_and_holds_no_body(store: Store) -> None:
    with ModelServer(says("Be brief indeed.", "Cite every source.")) as server:
        done = prepare(store, options(server, task=TASK))
    event = done.head.event
    assert event.keys() == {
        "type", "by", "text", "settings", "unset", "prompts", "usage", "request", "started_at", "durability", "actor"
    }  # fmt: skip
    assert len(event["request"]) == 64
    text = json.dumps(event)
    assert "Be brief" not in text
    assert "Cite" not in text
    assert TASK not in text
    assert done.head.state["context"] == done.head.state["custom"] == {}


def test_a_context_altered_on_disk_is_damage_and_nobody_is_asked(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    with ModelServer(says("S1"), says("S2")) as server:
        head = prepare(store, options(server, task=TASK)).head
        path = tmp_path / "s" / store.scope("context:demo").hash / head.path
        os.chmod(path, 0o600)
        path.write_bytes(path.read_bytes().replace(b'"S1"', b'"S9"'))
        with pytest.raises(IntegrityError):
            prepare(Store.open(tmp_path / "s"), options(server, task=TASK, refine="R"))
        assert server.count == 1


def test_where_nothing_can_be_saved_nobody_is_asked(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with ModelServer(says("S"), says("S2")) as server:
        prepare(Store.open(place), options(server, task=TASK))
        place.chmod(0o777)
        with pytest.raises(UnsafePathError):
            prepare(Store.open(place), options(server, task=TASK, refine="R"))
        place.chmod(0o700)
        scope = Store.open(place).scope("context:demo")
        head = scope.load()
        newer = canonical.decode(head.data) | {"version": "1.9", "seq": 1, "prev": head.path, "prev_sha": head.sha256}
        newer["created_at"] = next_timestamp(time.time_ns(), head.envelope.created_at)
        data = canonical.encode(newer, depth=canonical.FILE_DEPTH)
        path = naming.snapshot_name(newer["created_at"], canonical.sha256(data))
        for name, text in ((path, data), ("latest.json", Pointer(path, canonical.sha256(data)).encode())):
            (place / scope.hash / name).write_bytes(text)
            (place / scope.hash / name).chmod(0o600)
        with pytest.raises(NewerVersionError):
            prepare(Store.open(place), options(server, task=TASK, refine="R"))
        assert server.count == 1


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_is_asked_and_asks_nobody(store: Store, tmp_path: Path) -> None:
    def planned(server: ModelServer, **context_request: Any) -> Any:
        document: Any = plan_context(store, options(server, **context_request)).document()
        return document["plan"]["action"], document["plan"]["effects"], document["exit"]

    def model(purpose: str) -> dict[str, str]:
        return {"type": "model", "purpose": purpose, "model": "openai/m"}

    derived, refined = ({"type": "snapshot", "event": kind} for kind in ("derive", "refine"))
    with ModelServer(says("S"), says("S")) as server:
        assert planned(server, task=TASK) == ("derive", [model("derive"), derived], 0)
        both = [model("derive"), derived, model("refine"), refined]
        assert planned(server, task=TASK, refine="R") == ("refine", both, 0)
        assert planned(server, task=TASK, system="x" * LIMIT) == ("refuse", [], 1)
        assert (server.count, (tmp_path / "s").exists()) == (0, False)
        prepare(store, options(server, task=TASK))
        assert planned(server, task=TASK, settings={"a": 1}) == ("restore", [], 0)
        assert planned(server, settings={"a": 1}) == ("refine", [refined], 0)
        assert planned(server, task=TASK, refine="R") == ("refine", [model("refine"), refined], 0)
        assert server.count == 1


@each("there", [False, True])
@each("modelled", [False, True])
def test_what_a_plan_says_is_what_the_call_then_does(there: bool, modelled: bool) -> None:
    with ModelServer(otherwise=says("S", temperature=0.2)) as server:
        asked = server if modelled else None
        for flags in range(16):
            store = Store(MemoryBackend())
            if there:
                prepare(store, options(system="Before."))
            values = {"task": TASK, "refine": "R", "settings": {"a": 1}, "system": "T"}
            context_request = {name: value for bit, (name, value) in enumerate(values.items()) if flags & 1 << bit}
            plan = plan_context(store, options(asked, **context_request))
            before, length = server.count, len(chain(store)) if there else 0
            done = prepare(store, options(asked, **context_request))
            assert plan.action == done.action
            assert [effect["event"] for effect in plan.effects if effect["type"] == "snapshot"] == [
                snapshot.event["type"] for snapshot in chain(store)[length:]
            ]
            assert len([effect for effect in plan.effects if effect["type"] == "model"]) == server.count - before
            assert plan.warnings == done.warnings


def test_the_default_context_is_named_by_model_url_and_toolset(store: Store) -> None:
    triples = [("m", "", ""), ("m", "u", ""), ("m", "", "t"), ("", "m", ""), ('m","', "", ""), ("m", '","t', "")]
    keys = {
        context_scope(
            store, ContextOptions(context_request=ContextRequest(model=model, base_url=url, toolset=tools))
        ).key
        for model, url, tools in triples
    }
    assert len(keys) == len(triples)
