"""The context of a run: its content in ``state``, its place in ``event``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import each
from model_server import ModelServer, Say

from stateline import Artifact, Redactor, Store
from stateline.bundle import canonical
from stateline.bundle.envelope import LIST_TYPE
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.engine.record import load_run, read_context
from stateline.errors import IntegrityError
from stateline.service.exchanges import ModelOptions
from stateline.service.execute import resume
from stateline.service.model_setup import Models
from stateline.service.options import CallOptions
from stateline.service.repair import apply_repair
from stateline.service.run import RunOptions, run
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot
from stateline.verify.checker import verify

DERIVED = json.dumps({"prompts": {"system": "Be brief.", "developer": ["Cite."]}, "settings": {"temperature": 0.3}})
CALLS = [("look", {"q": "a" * 5000}), ("look", {"q": "b"})]
PROMPT = "Say how it is."
SECOND = 1_000_000_000


def clock(start: float, step: float) -> Callable[[], int]:
    """A clock that begins at ``start`` [s] and goes on by ``step`` [s] at each look."""
    looks = itertools.count()
    return lambda: int((start + next(looks) * step) * SECOND)


def local(place: Path, at: Callable[[], int]) -> Store:
    place.mkdir(mode=0o700, exist_ok=True)
    return Store(LocalBackend(str(place)), redactor=Redactor(), clock=at)


@pytest.fixture
def tools(tmp_path: Path) -> str:
    tool = {"name": "look", "description": "Look.", "schema": {"type": "object"}, "argv": ["cat"]}
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [tool]}))
    return str(tmp_path / "tools.json")


@pytest.fixture
def recording(tmp_path: Path, tools: str) -> str:
    """A derivation, a refinement, a round of two calls and an answer, recorded from a server."""
    place = str(tmp_path / "recording")
    script = [Say(DERIVED), Say(DERIVED), Say(calls=CALLS), Say(calls=CALLS[1:]), Say("Well.")]
    with ModelServer(*script) as server:
        models = ModelOptions(model="openai/m", base_url=server.url, record=place)
        store = Store.open(tmp_path / "recorded")
        done = run(store, options(tools, models, run="r"))
        assert (done.status, done.output, server.count) == ("complete", "Well.", 5)
    return place


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobodys-0123456789")
    monkeypatch.delenv("STATELINE_MODEL", raising=False)
    monkeypatch.delenv("STATELINE_BASE_URL", raising=False)


def options(tools: str, models: ModelOptions, call: CallOptions | None = None, **more: Any) -> RunOptions:
    context_request = ContextRequest(refine="Be kind.")
    return RunOptions(
        prompt=PROMPT, tools=tools, context_request=context_request, models=models, call=call or CallOptions(), **more
    )


def played(store: Store, tools: str, recording: str, name: str) -> Snapshot:
    """The last snapshot of a playback in one process."""
    done = run(store, options(tools, ModelOptions(playback=recording, playback_mode="strict"), run=name))
    assert (done.status, done.output) == ("complete", "Well.")
    return store.scope(f"run:{name}").load()


def step_by_step(opened: Callable[[], Store], tools: str, recording: str, name: str) -> Snapshot:
    """The last snapshot of a playback by calls that share nothing but the store."""
    how = options(tools, ModelOptions(playback=recording, playback_mode="strict"), CallOptions(one_turn=True), run=name)
    codes = [run(opened(), how).exit_code]
    while codes[-1] == 0:
        store = opened()
        models = Models(store, ModelOptions())
        call = CallOptions(one_turn=True, models=models)
        codes.append(resume(store, name, call).exit_code)
    assert codes == [0, 0, 2]
    return opened().scope(f"run:{name}").load()


def raw(snapshot: Snapshot) -> bytes:
    """The state as it lies there, with the digests of what it names, byte for byte."""
    document = snapshot.envelope.document()
    return canonical.encode([document["state"], document["objects"]], depth=canonical.FILE_DEPTH)


def test_playbacks_of_one_run_end_in_the_same_state_whatever_the_store_and_the_clock(
    tmp_path: Path, tools: str, recording: str
) -> None:
    memory = MemoryBackend()
    ends = [
        played(local(tmp_path / "a", clock(1_700_000_000, 0.5)), tools, recording, "one"),
        played(Store(MemoryBackend(), redactor=Redactor(), clock=clock(1_800_000_000, 3)), tools, recording, "two"),
        step_by_step(lambda: local(tmp_path / "b", clock(1_750_000_000, 60)), tools, recording, "three"),
        step_by_step(lambda: Store(memory, redactor=Redactor(), clock=clock(1, 0.001)), tools, recording, "four"),
    ]
    assert len({raw(end) for end in ends}) == 1
    assert ends[0].state["status"] == "complete"
    assert len({end.sha256 for end in ends}) == 4
    assert len({end.event["context"]["sha256"] for end in ends}) == 4, "snapshots of contexts hang on the clock"


def context(store: Store, name: str = "demo", **context_request: Any) -> Snapshot:
    return prepare(store, ContextOptions(name=name, context_request=ContextRequest(**context_request))).head


def test_the_digest_of_a_context_is_that_of_its_resolved_state(tmp_path: Path) -> None:
    store = local(tmp_path / "s", clock(5, 1))
    head = context(store, developer=[f"{number} " + "word " * 1000 for number in range(100)][:40])
    assert any(ref.media_type in (LIST_TYPE, "application/json") for ref in head.envelope.objects.values())
    whole = canonical.encode(store.resolve(head.state))
    assert read_context(store, head).sha256 == canonical.sha256(whole)
    other = Store.in_memory()
    again = context(other, developer=store.resolve(head.state)["prompts"]["developer"])
    assert again.sha256 != head.sha256
    assert read_context(other, again).sha256 == read_context(store, head).sha256


def test_a_context_with_an_artifact_has_a_digest_too() -> None:
    store = Store.in_memory()
    state = {
        "prompts": {"system": None, "developer": []},
        "settings": {},
        "custom": {"logo": Artifact(b"\x89PNG", "image/png")},
    }
    first = store.scope("context:a").save(state)
    other = store.scope("context:b").save({**state, "custom": {"logo": Artifact(b"\x89PNH", "image/png")}})
    same = store.scope("context:c").save(state)
    digests = [read_context(store, snapshot).sha256 for snapshot in (first, other, same)]
    assert digests[0] == digests[2] != digests[1]


def begun(store: Store, name: str = "r") -> None:
    done = run(store, RunOptions(prompt=PROMPT, run=name, context="demo"))
    assert done.status == "waiting"


def forged(store: Store, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """A next snapshot of the run ``r`` as an attacker would write it, all of whose digests are right."""
    scope = store.scope("run:r")
    head = scope.load()
    event, state = json.loads(json.dumps(head.event)), dict(head.state)
    state["context"] = dict(state["context"])
    change(event, state)
    scope.save(state, kind="run", event=event, parent=head, masked=True)


def refusal(store: Store) -> IntegrityError:
    with pytest.raises(IntegrityError) as caught:
        load_run(store, "r").context()
    models = Models(store, ModelOptions())
    with pytest.raises(IntegrityError):
        resume(store, "r", CallOptions(answer="Well.", models=models))
    return caught.value


def test_a_run_whose_context_was_exchanged_for_another_is_not_gone_on_with(tmp_path: Path) -> None:
    store = local(tmp_path / "s", clock(5, 1))
    context(store, system="Be careful.")
    begun(store)
    other = context(store, name="other", system="Tell all.")
    later = context(store, refine="Tell all.")
    heads = len(list(store.scope("run:r").walk()))

    def to_a_later_one(event: dict[str, Any], state: dict[str, Any]) -> None:
        event["context"] = {"path": later.path, "sha256": later.sha256}

    forged(store, to_a_later_one)
    assert verify(store).ok, "as files go nothing is wrong: it is the run that does not fit its context"
    error = refusal(store)
    assert error.finding == "altered"
    assert str(load_run(store, "r").state.context["sha256"]) in error.message
    assert "--force" in error.hint
    assert len(list(store.scope("run:r").walk())) == heads + 1, "nothing was written"

    def to_another_scope(event: dict[str, Any], state: dict[str, Any]) -> None:
        event["context"] = {"path": other.path, "sha256": other.sha256}
        state["context"]["scope"] = "context:other"

    forged(store, to_another_scope)
    assert refusal(store).finding == "altered"


def test_a_context_that_was_altered_or_is_gone_is_found_by_the_run(tmp_path: Path) -> None:
    store = local(tmp_path / "s", clock(5, 1))
    head = context(store, system="Be careful.")
    begun(store)
    file = tmp_path / "s" / head.scope / head.path
    whole = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(whole.replace(b"Be careful.", b"Be careless"))
    for finding in ("altered", "missing"):
        error = refusal(store)
        assert error.finding == finding
        assert error.message.startswith("the context with which the run started cannot be read: ")
        assert not verify(store).ok
        file.unlink(missing_ok=True)
    file.write_bytes(whole)
    file.chmod(0o600)
    assert load_run(store, "r").context() == {"prompts": {"system": "Be careful.", "developer": []}, "settings": {}}


@each("place", [None, {}, {"path": "latest.json", "sha256": "0" * 64}, {"path": 5}, "x"])
def test_a_run_with_a_context_must_say_which_snapshot_it_was(tmp_path: Path, place: Any) -> None:
    store = local(tmp_path / "s", clock(5, 1))
    context(store, system="Be careful.")
    begun(store)
    forged(store, lambda event, state: event.update(context=place))
    with pytest.raises(IntegrityError) as caught:
        load_run(store, "r")
    assert caught.value.finding == "malformed"
    if place is None or (isinstance(place, dict) and "sha256" in place):
        assert "its event does not name the snapshot of its context" in caught.value.message
        assert verify(store).ok
        assert "if it finds none, another version" in caught.value.hint


def test_a_call_that_goes_on_with_a_run_reads_its_context_once(tmp_path: Path) -> None:
    context(local(tmp_path / "s", clock(5, 1)), system="Be careful.")
    begun(local(tmp_path / "s", clock(50, 1)))
    store = local(tmp_path / "s", clock(100, 1))
    place = load_run(store, "r").event["context"]["path"]
    reads: list[str] = []
    get = store.backend.get

    def counted(name: str, limit: int) -> bytes:
        reads.append(name.rpartition("/")[2])
        return get(name, limit)

    store.backend.get = counted  # type: ignore[method-assign]
    models = Models(store, ModelOptions())
    how = CallOptions(answer="Well.", models=models)
    assert resume(store, "r", how).output == "Well."
    assert reads.count(place) == 1


def test_a_run_that_was_repaired_keeps_the_context_that_it_began_with(tmp_path: Path) -> None:
    store = local(tmp_path / "s", clock(5, 1))
    began_with = context(store, system="Be careful.")
    begun(store)
    context(store, refine="Tell all.")
    resume(store, "r", CallOptions(answer="Well.", models=Models(store, ModelOptions())))
    head = store.scope("run:r").load()
    (tmp_path / "s" / head.scope / head.path).unlink()
    apply_repair(store, "run:r")
    found = load_run(local(tmp_path / "s", clock(500, 1)), "r")
    assert found.event["type"] == "repaired"
    assert found.event["context"] == {"path": began_with.path, "sha256": began_with.sha256, "seq": began_with.seq}
    assert found.context() == {"prompts": {"system": "Be careful.", "developer": []}, "settings": {}}
