"""Tables of cases that one test checks, each in a new directory; all failures are reported together."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def check_each(place: Path, cases: Iterable[Any], check: Callable[..., None]) -> None:
    """Call ``check(directory, *case)`` for each case; a case that is not a tuple is one argument."""
    failures = []
    for number, case in enumerate(cases):
        directory = place / f"case {number}"
        directory.mkdir()
        try:
            check(directory, *(case if isinstance(case, tuple) else (case,)))
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (reported with all others)
            line = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(f"{case!r:.300}: {line.name}, line {line.lineno}: {type(error).__name__}: {error!s:.500}")
    assert not failures, "\n".join(failures)
