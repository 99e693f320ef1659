"""Fold a table of cases into one test that runs all of them and reports their failures together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]


def every_case(names: str, table: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test once for each row of ``table``, as ``parametrize`` would, within one test. Can be stacked.

    Each case gets its own ``tmp_path``, other path fixtures and ``monkeypatch``. A case may skip itself.
    """
    words, rows = [name.strip() for name in names.split(",")], list(table)
    assert rows, "the table is empty"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        def run(**fixtures: Any) -> None:
            failures: list[str] = []
            for number, row in enumerate(rows):
                values = dict(zip(words, row if len(words) > 1 else (row,), strict=True))
                try:
                    with ExitStack() as stack:
                        test(**{name: _own(value, name, number, stack) for name, value in fixtures.items()}, **values)
                except pytest.skip.Exception:
                    continue
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  reported below
                    failures.append(f"{values!r:.200}: {type(error).__name__}: {error}")
            assert not failures, "\n".join(failures)

        functools.update_wrapper(run, test)
        del run.__wrapped__  # pytest would read the fixtures from it
        kept = [parameter for name, parameter in signature.parameters.items() if name not in words]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate


def _own(value: Any, name: str, number: int, stack: ExitStack) -> Any:
    """Return the value of a fixture for one case."""
    if isinstance(value, pytest.MonkeyPatch):
        return stack.enter_context(value.context())
    if not isinstance(value, Path):
        return value
    own = value / f"case{number}" if name == "tmp_path" else value.parent / f"case{number}" / value.name
    (own if name == "tmp_path" else own.parent).mkdir(exist_ok=True)
    return own
