"""Run one check over a table of cases and report all failures together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def check_all(cases: Iterable[Any], check: Callable[..., None], root: Path | None = None) -> None:
    """Call ``check`` with each case, unpacked if it is a tuple. With ``root``, the last argument is a new directory."""
    failures = []
    for number, case in enumerate(cases):
        arguments = case if isinstance(case, tuple) else (case,)
        if root is not None:
            place = root / f"case {number}"
            place.mkdir()
            arguments = (*arguments, place)
        try:
            check(*arguments)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (all failures are reported together)
            failures.append(f"{str(case)[:200]!r}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
