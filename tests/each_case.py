"""Tables of cases that state one fact: run all of them in one test and report the failures together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from itertools import count, product
from typing import Any

import pytest


def for_each(check: Callable[..., None], *tables: Iterable[Any]) -> None:
    """Call ``check`` with each case, or with each combination of several tables. A case that is a tuple gives several
    arguments. Raises ``AssertionError`` with all failures, or without any case."""
    failures: list[str] = []
    cases = 0
    for combination in product(*tables):
        cases += 1
        arguments = [value for part in combination for value in (part if isinstance(part, tuple) else (part,))]
        try:
            check(*arguments)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (each failure is reported)
            failures.append(f"{repr(arguments)[:300]}: {type(error).__name__}: {str(error)[:1000]}")
    assert cases, "no case"
    assert not failures, f"{len(failures)} of {cases} cases failed:\n" + "\n".join(failures)


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with every case, as ``pytest.mark.parametrize`` does, but as one test that reports all failures
    together. Each case has its own directory under ``tmp_path`` and its own ``monkeypatch``."""
    arguments = [name.strip() for name in names.split(",")]
    table = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(*instance: Any, **fixtures: Any) -> None:
            place, numbers = fixtures.get("tmp_path"), count()

            def check(*values: Any) -> None:
                own = dict(fixtures)
                if place is not None:
                    own["tmp_path"] = place / f"case-{next(numbers)}"
                    own["tmp_path"].mkdir(mode=0o700)
                with pytest.MonkeyPatch.context() as patch:
                    if "monkeypatch" in fixtures:
                        own["monkeypatch"] = patch
                    test(*instance, **dict(zip(arguments, values, strict=True)), **own)

            for_each(check, [tuple(case) if len(arguments) > 1 else (case,) for case in table])

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
