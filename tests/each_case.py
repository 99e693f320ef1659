"""Tables of cases that state one fact: run all of them in one test and report the failures together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
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
