"""Limits of a store: lowered for new writes, never raised, and no obstacle to reading what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each_case import Failures

from stateline import Artifact, InvalidValueError, Limits, Store, UsageError
from stateline.bundle import canonical
from stateline.verify.checker import verify

KEY = "notes:x"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_lowered_limit_refuses_new_values_by_its_name_and_origin(tmp_path: Path) -> None:
    limits = Limits(snapshot=4000, object=5000, depth=10)
    scope = Store.open(tmp_path / "s", limits=limits).scope(KEY)
    failures = Failures()
    for name, write in [
        ("snapshot", lambda: scope.save({str(n): "x" * 1000 for n in range(4)})),
        ("object", lambda: scope.save({"text": "x" * 5000})),
        ("object", lambda: scope.save({"file": Artifact(b"x" * 5001)})),
        ("object", lambda: scope.store.put(Artifact(b"x" * 5001))),
        ("object", lambda: scope.store.put_value("x" * 5000)),
        ("depth", lambda: scope.save(nested(11))),
        ("depth", lambda: scope.store.put_value(nested(11))),
    ]:
        with failures.case(name), pytest.raises(InvalidValueError) as caught:
            write()
        with failures.case(name):
            assert f"{getattr(limits, name)} " in caught.value.message
            assert f"(limit `{name}`, set by Store.open)" in caught.value.message
    failures.check()
    assert scope.head() is None
    assert scope.save({"text": "x" * 4990, "deep": nested(9)}).seq == 0


def test_the_limits_of_the_format_are_named_as_the_default() -> None:
    scope = Store.in_memory().scope(KEY)
    failures = Failures()
    for name, value in [
        ("snapshot", {f"{n:0900}": 1 for n in range(20_000)}),
        ("depth", nested(canonical.DEPTH + 1)),
    ]:
        with failures.case(name), pytest.raises(InvalidValueError) as caught:
            scope.save(value)
        with failures.case(name):
            assert f"(limit `{name}`, the default)" in caught.value.message
    failures.check()


def test_what_is_stored_stays_readable_and_unchanged_parts_stay_usable(tmp_path: Path) -> None:
    Store.open(tmp_path / "s").scope(KEY).save(
        {"text": "x" * 9000, "deep": nested(50), **dict.fromkeys("abc", "y" * 3000)}
    )
    lowered = Store.open(tmp_path / "s", limits=Limits(snapshot=1000, object=1000, depth=8))
    head = lowered.scope(KEY).load()
    assert lowered.resolve(head.state)["text"] == "x" * 9000
    assert verify(lowered).ok
    kept = Store.open(tmp_path / "s", limits=Limits(object=5000)).scope(KEY)
    assert kept.save({**kept.load().state, "n": 1}).seq == 1
    assert kept.save({**lowered.resolve(head.state), "n": 2}).seq == 2, "the text is an object of the parent"


def test_a_limit_is_never_raised() -> None:
    failures = Failures()
    for name, value in [
        ("snapshot", canonical.SNAPSHOT_LIMIT + 1),
        ("object", canonical.OBJECT_LIMIT + 1),
        ("output", canonical.TEXT_LIMIT + 1),
        ("depth", canonical.DEPTH + 1),
        ("input", 0),
        ("depth", 7),
        ("manifest", "10"),
        ("manifest", True),
    ]:
        with failures.case(name, value), pytest.raises(UsageError):
            Limits(**{name: value})  # type: ignore[arg-type]
    failures.check()
