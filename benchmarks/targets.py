"""Performance targets, and the verdicts for a run's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.measure import Row

Results = dict[str, list[Row]]
"""Rows by subject."""


class Target(NamedTuple):
    """One line of the table: ``reached`` must not be over ``limit``; None: it was not measured."""

    what: str
    limit: float
    reached: float | None
    unit: str = "x"

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return "not measured"
        return "reached" if self.reached <= self.limit else "missed"

    def row(self) -> Row:
        """Return the JSON form."""
        return {**self._asdict(), "verdict": self.verdict}


def targets(results: Results) -> list[Target]:
    """All targets, each with what was reached."""
    return [*_startup(results), *_commits(results), *_growth(results), *_verify(results), *_bytes(results)]


def _find(results: Results, subject: str, wanted: Callable[[Row], bool], figure: str) -> float | None:
    """The worst figure of the rows that are meant; None if there is none."""
    found = [float(row[figure]) for row in results.get(subject, []) if wanted(row) and row.get(figure) is not None]
    return max(found, default=None)


def _startup(results: Results) -> Iterator[Target]:
    for what, limit in {"--version": 5.5, "execute -i": 9.0, "log -n 20": 7.5, "show": 7.5}.items():
        reached = _find(results, "startup", lambda row, what=what: row["what"] == what, "ratio")  # type: ignore[misc]
        yield Target(f"CPU of `{what}` against `python -c pass`", limit, reached)


def _commits(results: Results) -> Iterator[Target]:
    for durability in ("full", "fast"):
        for size in (2, 64):
            name = f"{size} KiB, {durability}"
            reached = _find(results, "commits", lambda row, name=name: row["what"] == name, "ratio")  # type: ignore[misc]
            yield Target(f"save of {name}, against its plain calls", 1.3, reached)


def _growth(results: Results) -> Iterator[Target]:
    for what in ("save", "execute -i", "log -n 20", "show", "exec status"):
        reached = _find(results, "growth", lambda row, what=what: row["what"] == what, "cpu_ratio")  # type: ignore[misc]
        yield Target(f"CPU of `{what}` on the longest chains, against length 100", 1.2, reached)
        reached = _find(results, "growth", lambda row, what=what: row["what"] == what, "wall_ratio")  # type: ignore[misc]
        yield Target(f"time of `{what}` on the longest chains, against length 100", 1.2, reached)


def _verify(results: Results) -> Iterator[Target]:
    for row in results.get("verify") or [{"what": "any store"}]:
        yield Target(f"`verify` of {row['what']}, against `sha256sum`", 2.0, row.get("ratio"))


def _bytes(results: Results) -> Iterator[Target]:
    reached = _find(results, "bytes", lambda row: "1 MiB" in row["what"], "bytes_written")
    yield Target("a turn with a value of 1 MiB that stays", 4096, reached, "bytes")
