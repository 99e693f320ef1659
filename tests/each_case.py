"""Tables of cases that state one fact: run all of them in one test and report the failures together."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any

import pytest


class Failures:
    """Collects the failed cases of a table."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._cases = 0

    @contextmanager
    def case(self, *label: object) -> Iterator[None]:
        """Run one case; ``label`` names it in the report. A case may skip itself."""
        self._cases += 1
        try:
            yield
        except pytest.skip.Exception:
            pass
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 (any error is a failure of this case)
            self._texts.append(f"case {', '.join(map(repr, label)):.300}:\n{traceback.format_exc(limit=-2):.2000}")

    def check(self) -> None:
        """Fail if a case failed, or if there was none."""
        assert self._cases, "the table is empty"
        assert not self._texts, f"{len(self._texts)} of {self._cases} cases failed\n\n" + "\n".join(self._texts)


def for_each(check: Callable[..., None], *tables: Iterable[Any], root: Path | None = None) -> None:
    """Call ``check`` with each case, or with each combination of several tables. A case that is a tuple gives several
    arguments. With ``root``, the first argument is a new directory below it."""
    failures = Failures()
    for number, combination in enumerate(product(*tables)):
        arguments = [value for part in combination for value in (part if isinstance(part, tuple) else (part,))]
        with failures.case(*arguments):
            if root is not None:
                arguments.insert(0, root / f"case {number}")
                arguments[0].mkdir(mode=0o700)
            check(*arguments)
    failures.check()


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with every case, as ``pytest.mark.parametrize`` does, but as one test. Can be stacked. Each case has
    its own directory under ``tmp_path`` and beside other paths, and its own ``monkeypatch``."""
    words = [name.strip() for name in names.split(",")]
    table = [tuple(case) if len(words) > 1 else (case,) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(*instance: Any, **fixtures: Any) -> None:
            failures = Failures()
            for number, values in enumerate(table):
                with failures.case(*values), ExitStack() as stack:
                    own = {name: _own(value, name, number, stack) for name, value in fixtures.items()}
                    test(*instance, **dict(zip(words, values, strict=True)), **own)
            failures.check()

        signature = inspect.signature(test)
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
    parent = value if name == "tmp_path" else value.parent
    parent /= f"case-{number}"
    parent.mkdir(mode=0o700, exist_ok=True)
    return parent if name == "tmp_path" else parent / value.name
