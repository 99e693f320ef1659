"""Tables of cases that one test checks; all failures are reported together."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def check_each(place: Path, cases: Iterable[Any], check: Callable[..., None]) -> None:
    """Call ``check(directory, *case)`` for each case, with a new directory; see :func:`check_cases`."""

    def check_in_directory(number: int, case: Any) -> None:
        directory = place / f"case {number}"
        directory.mkdir()
        check(directory, *(case if isinstance(case, tuple) else (case,)))

    check_cases(check_in_directory, enumerate(cases))


def check_cases(check: Callable[..., None], cases: Iterable[Any]) -> None:
    """Call ``check(*case)`` for each case; a case that is not a tuple is one argument."""
    failures, count = [], 0
    for case in cases:
        count += 1
        try:
            check(*(case if isinstance(case, tuple) else (case,)))
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (reported with all others)
            line = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(f"{case!r:.300}: {line.name}, line {line.lineno}: {type(error).__name__}: {error!s:.500}")
    assert count, "the table is empty"
    assert not failures, "\n".join(failures)
