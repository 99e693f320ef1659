"""Failures of the cases of one test, reported together."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class Failures:
    """Collects the failed cases of a table, so that one test covers the table and names every failure."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._cases = 0

    @contextmanager
    def case(self, *label: object) -> Iterator[None]:
        """Run one case; ``label`` names it in the report."""
        self._cases += 1
        try:
            yield
        except Exception:  # noqa: BLE001 (any error is a failure of this case)
            self._texts.append(f"case {', '.join(map(repr, label))}:\n{traceback.format_exc(limit=-2)}")

    def check(self) -> None:
        """Fail if a case failed, or if there was none."""
        assert self._cases, "the table is empty"
        assert not self._texts, f"{len(self._texts)} of {self._cases} cases failed\n\n" + "\n".join(self._texts)
