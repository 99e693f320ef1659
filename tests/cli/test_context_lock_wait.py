"""The wait for a context's lock: its holder may be waiting for a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from command_line import Cli

from stateline.store.local.backend import LocalBackend


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits for a lock of all calls [s], in order."""
    noted: list[float] = []
    lock = LocalBackend.lock

    @contextmanager
    def note(self: LocalBackend, scope: str, wait: float) -> Iterator[None]:
        noted.append(wait)
        with lock(self, scope, wait):
            yield

    monkeypatch.setattr(LocalBackend, "lock", note)
    return noted


def test_a_context_is_waited_for_as_long_as_a_model_may_take(cli: Cli, waits: list[float]) -> None:
    cli.json("run", "--system", "S")
    assert waits[0] == 130
    cli.json("run", "-p", "x", "--refine-text", "R", exits=3)
    assert waits.count(130) == 2
    assert {wait for wait in waits if wait != 130} <= {10}  # that of the run is not


def test_what_the_caller_says_counts_for_all_locks(
    cli: Cli, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.json("run", "-p", "x", "--wait", "3", exits=3)
    monkeypatch.setenv("STATELINE_WAIT", "4")
    cli.json("run", "-p", "x", "--refine-text", "R", exits=3)
    assert {3, 4} <= {*waits} <= {3, 4, 10}
