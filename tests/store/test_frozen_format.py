"""The frozen stores of format 1: every later version must read it, byte for byte as it lies there."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateline import Store
from stateline.bundle import canonical
from stateline.bundle.envelope import LIST_TYPE, NODE_TYPE, Link
from stateline.store.local.backend import LocalBackend
from stateline.verify.checker import verify

FROZEN = Path(__file__).parent.parent / "fixtures" / "format-1"
HEADS = {
    "context:docs-demo": (1, "eec6e09c9db4c972a765feef388ddd492d6e936b746abe12951155924ccaf36b"),
    "machine:1992500b9359637725e545050d5e7baaca8aaaeffe4bfa6418b5177ecd60b1aa": (
        0,
        "b2e4666f4b8b0e36a965c638b00439e3507718bcd1a57fd47d881f776bcfb950",
    ),
    "notes:readme": (1, "a309dc78b01edda384a637ac7258b18e87d971d8dfc2c649b37cfef1c860f7c7"),
    "run:exec-20261120-092659-1a2b": (2, "c47eff90b39a65109f53f270994ae371367e961df820cd5bc583aac347c0f9dd"),
    "run:exec-20261120-093000-3c4d": (1, "c4fb70e005c5bf80636ce705e2dc6b389c9cd20d1c64e4748762bf8eae3169c8"),
}
LISTS = FROZEN.with_name("format-1-lists")
LISTS_KEY = "session:lists-demo"
LISTS_HEAD = "b368f33d2dd32e6b59d7e957df769a5a71b8d3a4e80dee2970ac06f2ca6a50b4"
RUN = "run:exec-20261120-092659-1a2b"
FORK = "run:exec-20261120-093000-3c4d"


def thawed(frozen: Path, place: Path) -> Path:
    """A copy with the modes of a state dir: git does not keep them."""
    shutil.copytree(frozen, place)
    for path in [place, *place.rglob("*")]:
        os.chmod(path, 0o700 if path.is_dir() else 0o600)
    return place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return thawed(FROZEN, tmp_path / "s")


@pytest.fixture
def store(root: Path) -> Store:
    return Store(LocalBackend(str(root)))


def test_every_head_has_the_digest_it_always_had(store: Store) -> None:
    assert {head.envelope.scope: (head.seq, head.sha256) for head in store.heads()} == HEADS
    assert store.warnings == []


def test_verify_finds_nothing(store: Store) -> None:
    report = verify(store)
    assert (report.ok, report.findings) == (True, ())
    assert (report.scopes, report.snapshots, report.objects) == (5, 10, 6)


def test_every_chain_is_walked_to_its_beginning(store: Store) -> None:
    for key, (seq, _) in HEADS.items():
        assert [snapshot.seq for snapshot in store.scope(key).walk()] == list(range(seq, -1, -1))


def test_reading_and_writing_again_gives_the_same_bytes(root: Path, store: Store) -> None:
    for head in store.heads():
        for snapshot in store.scope(head.envelope.scope).walk():
            data = (root / snapshot.scope / snapshot.path).read_bytes()
            assert canonical.encode(snapshot.envelope.document(), depth=canonical.FILE_DEPTH) == data
            assert hashlib.sha256(data).hexdigest() == snapshot.sha256


def test_numbers_and_text_at_the_edges_are_exact(store: Store) -> None:
    state = store.scope("notes:readme").load().state
    assert state == {"n": 0.0, "min": -(2**63), "max": 2**64 - 1, "tiny": 5e-324, "t": "\x00\u2028é"}
    assert str(state["n"]) == "-0.0"
    before = store.scope("notes:readme").parent(store.scope("notes:readme").load())
    assert before is not None
    assert before.state == "A state may be any JSON value."


def test_a_context_and_its_refinement_are_resolved(store: Store) -> None:
    state = store.resolve(store.scope("context:docs-demo").load().state)
    assert state["prompts"]["developer"] == ["Answer in German.", "Be brief.\n" * 500]
    assert state["refinements"] == {"count": 1, "last": "text"}
    assert state["context"]["note"] == "Grüße, \U0001f600"


def test_a_run_with_nodes_and_artifacts_is_resolved(store: Store) -> None:
    head = store.scope(RUN).load()
    state: dict[str, Any] = store.resolve(head.state)
    conversation = state["tree"]["root"]["conversation"]
    assert len(conversation["before"]) == 64
    assert conversation["before"][63]["content"].startswith("63: lorem")
    assert conversation["item-39"] == "dolor sit amet " * 8
    assert head.envelope.objects["/tree/root/conversation"].media_type == NODE_TYPE
    assert store.get(state["outputs"]["shot"]) == b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    assert store.get(state["machine"]["source"]).startswith(b"stateline: 1\n")
    assert head.event["token"] == "[REDACTED]"
    assert state["context"]["sha256"] == HEADS["context:docs-demo"][1]


def test_a_fork_names_its_origin_and_a_merge_what_it_merged(store: Store) -> None:
    second = store.scope(FORK).load()
    first = store.scope(FORK).parent(second)
    assert first is not None
    assert second.envelope.merged == Link(RUN, 2, HEADS[RUN][1])
    origin = first.envelope.origin
    assert origin is not None
    assert (origin.scope, origin.seq, first.envelope.prev_sha, first.envelope.prev) == (RUN, 1, origin.sha256, None)


def test_every_chain_can_be_continued(store: Store) -> None:
    for key, (seq, sha) in HEADS.items():
        saved = store.scope(key).save(store.scope(key).load().state)
        assert (saved.seq, saved.envelope.prev_sha) == (seq + 1, sha)
    assert verify(store).ok


# -- lists -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lists(tmp_path: Path) -> Store:
    return Store(LocalBackend(str(thawed(LISTS, tmp_path / "lists"))))


def test_lists_kept_as_chains_are_intact_and_have_the_items_they_always_had(lists: Store) -> None:
    assert (verify(lists).ok, verify(lists).findings, verify(lists).objects) == (True, (), 26)
    last, middle, first = lists.scope(LISTS_KEY).walk()
    assert last.sha256 == LISTS_HEAD
    assert {name: ref.media_type for name, ref in last.envelope.objects.items()} == dict.fromkeys(
        ("/as it was", "/chat", "/numbers", "/table"), LIST_TYPE
    )
    state = lists.resolve(last.state)
    assert state["as it was"] == lists.resolve(first.state)["chat"] == state["chat"][:60]
    assert lists.resolve(middle.state)["chat"] == state["chat"][:90]
    assert [message["text"].split(":")[0] for message in state["chat"][:90]] == [str(number) for number in range(90)]
    assert state["chat"][90:] == [{"see": state["table"]}]
    assert lists.get(state["chat"][36]["files"][0]) == b"\0" * 36
    assert state["numbers"] == list(range(3000))
    assert state["table"] == [[f"cell {row},{column}" for column in range(50)] for row in range(40)]


def test_saving_the_whole_lists_again_gives_the_same_chunks(lists: Store) -> None:
    last = lists.scope(LISTS_KEY).load()
    saved = lists.scope(LISTS_KEY).save(lists.resolve(last.state))
    assert saved.envelope.objects == last.envelope.objects
    assert verify(lists).findings == ()
