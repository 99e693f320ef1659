"""The store against a model: dictionaries of lists. Hypothesis chooses the steps and shortens what fails."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stateline import Artifact, Store
from stateline.errors import ConflictError, InvalidValueError, NotFoundError
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.store.snapshot import Snapshot

KEYS = st.sampled_from(["notes:a", "notes:b", "run:exec-1", "context:docs"])
LENGTHS = st.integers(0, 50) | st.integers(4080, 4110) | st.integers(8180, 8200)
TEXTS = st.builds(lambda letter, length: letter * length, st.sampled_from("xyé\x01"), LENGTHS)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
STATES = st.recursive(
    SCALARS | TEXTS,
    lambda v: (
        st.lists(v, max_size=4) | st.dictionaries(st.sampled_from(["a", "b/c", "~", "", "media_type"]), v, max_size=4)
    ),
    max_leaves=8,
)


class StoreModel(RuleBasedStateMachine):
    """``chains`` is the oracle: for each scope the states that were acknowledged, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.chains: dict[str, list[Any]] = {}
        self.heads: dict[str, list[Snapshot]] = {}
        self.time = 1_795_000_000_000_000_000
        self.artifacts: dict[bytes, Any] = {}
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def clock(self) -> int:
        return self.time

    def another(self) -> Store:
        raise NotImplementedError

    @initialize(seconds=st.integers(0, 2_000_000_000))
    def start(self, seconds: int) -> None:
        self.time = seconds * 10**9

    @rule(step=st.integers(-(10**12), 10**12))
    def the_clock_moves(self, step: int) -> None:
        self.time = max(0, self.time + step)

    @rule(key=KEYS, state=STATES, store=st.booleans())
    def save(self, key: str, state: Any, store: bool) -> None:
        scope = (self.store if store else self.another()).scope(key)
        self.note(key, state, scope.save(state))

    @rule(key=KEYS, value=st.integers())
    def change_the_loaded_state(self, key: str, value: int) -> None:
        if self.chains.get(key) and isinstance(self.chains[key][-1], dict):
            loaded = self.store.scope(key).load()
            value %= 2**32
            self.note(key, self.chains[key][-1] | {"n": value}, self.store.scope(key).save(loaded.state | {"n": value}))

    def note(self, key: str, state: Any, saved: Snapshot) -> None:
        self.chains.setdefault(key, []).append(state)
        self.heads.setdefault(key, []).append(saved)
        assert saved.seq == len(self.chains[key]) - 1

    @rule(key=KEYS, state=STATES, back=st.integers(1, 4))
    def save_on_a_stale_parent(self, key: str, state: Any, back: int) -> None:
        heads = self.heads.get(key, [])
        parent = heads[-1 - back] if back < len(heads) else None
        if parent is None and not heads:
            self.note(key, state, self.another().scope(key).save(state, parent=None))
            return
        with pytest.raises(ConflictError):
            self.another().scope(key).save(state, parent=parent)

    @rule(key=KEYS, state=STATES)
    def save_on_the_head(self, key: str, state: Any) -> None:
        heads = self.heads.get(key)
        self.note(key, state, self.another().scope(key).save(state, parent=heads[-1] if heads else None))

    @rule(key=KEYS)
    def a_refused_value_changes_nothing(self, key: str) -> None:
        with pytest.raises(InvalidValueError):
            self.store.scope(key).save({"a": [float("nan")]})

    @rule(data=st.binary(max_size=6000))
    def put_an_artifact(self, data: bytes) -> None:
        self.artifacts[data] = self.store.put(Artifact(data))

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        self.store.backend.remove(self.store.scope(key).hash)
        self.chains.pop(key, None)
        self.heads.pop(key, None)

    @rule()
    @precondition(lambda self: self.chains)
    def reopen(self) -> None:
        self.store = self.another()

    @invariant()
    def every_chain_is_what_was_acknowledged(self) -> None:
        reader = self.another()
        for key in ("notes:a", "notes:b", "run:exec-1", "context:docs"):
            expected = self.chains.get(key, [])
            found = list(reader.scope(key).walk())
            assert [snapshot.sha256 for snapshot in found] == [s.sha256 for s in reversed(self.heads.get(key, []))]
            assert [reader.resolve(snapshot.state) for snapshot in found[:2]] == expected[::-1][:2]
            times = [snapshot.envelope.created_at for snapshot in found]
            assert times == sorted(set(times), reverse=True)
            if not expected:
                with pytest.raises(NotFoundError):
                    reader.scope(key).load()

    @invariant()
    def heads_are_those_of_all_scopes(self) -> None:
        assert {head.envelope.scope for head in self.another().heads()} == set(self.chains)

    @invariant()
    def artifacts_keep_their_bytes(self) -> None:
        for data, ref in self.artifacts.items():
            assert self.another().get(ref) == data

    def teardown(self) -> None:
        for key, states in self.chains.items():
            found = list(self.another().scope(key).walk())
            assert [self.store.resolve(snapshot.state) for snapshot in found] == states[::-1]


class LocalModel(StoreModel):
    def open(self) -> None:
        self.path = tempfile.mkdtemp()
        self.store = self.another()

    def another(self) -> Store:
        return Store(LocalBackend(f"{self.path}/s"), clock=self.clock)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.path)


class MemoryModel(StoreModel):
    def open(self) -> None:
        self.backend = MemoryBackend()
        self.store = self.another()

    def another(self) -> Store:
        return Store(self.backend, clock=self.clock)


QUICK = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
TestLocalModel = LocalModel.TestCase
TestLocalModel.settings = settings(QUICK, max_examples=25, stateful_step_count=20)
TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = settings(QUICK, max_examples=40, stateful_step_count=30)
