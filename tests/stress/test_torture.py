"""The long campaigns can be run as the documents say, and what they found is what the page shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from stress import report
from stress.oracle import require
from stress.suites import SUITES, Amounts, Call, Suite

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "tests" / "stress" / "torture.py"


def torture(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True, check=False)


def test_one_suite_prints_its_seed_and_one_document() -> None:
    ran = torture("--suite", "limits", "--scopes", "30", "--minutes", "1", "--seed", "s")
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)
    assert (summary["seed"], summary["ok"]) == ("s", True)
    assert summary["suites"]["limits"]["scopes"] == 30
    assert ran.stderr.startswith("seed s\n== limits\n")


def test_help_lists_every_suite() -> None:
    said = torture("--help").stdout
    for name, suite in SUITES.items():
        assert f"  {name} " in said
        assert suite.about in " ".join(said.split())


def test_an_unknown_suite_is_a_usage_error() -> None:
    ran = torture("--suite", "everything")
    assert ran.returncode == 2
    assert "unknown suite 'everything'; --help lists them" in ran.stderr


def test_one_scenario_can_run_alone_and_is_stored_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = torture("--suite", "syscalls", "--scenario", "first save", "--minutes", "0.03")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["suites"]["syscalls"]["scenarios"] == 1
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    report.PAGE.write_text("<!-- torture -->\n\n<!-- /torture -->\n")
    report.keep("power", report.Run("s", "--minutes 1", "c"), {"judged": 9})
    report.keep("power", report.Run("s", "--scenario saves --minutes 1", "c", ("saves",)), {"judged": 1})
    assert {name: result["found"]["judged"] for name, result in report.load().items()} == {
        "power": 9,
        "power: saves": 1,
    }


def test_a_scenario_that_a_suite_does_not_have_is_a_usage_error() -> None:
    def check(suite: str, scenario: str) -> None:
        ran = torture("--suite", suite, "--scenario", scenario)
        assert ran.returncode == 2
        assert f"the suite {suite} has no scenario {scenario!r}; it has " in ran.stderr

    for_each(check, [("power", "effects"), ("errors", "no such scenario"), ("kills", "saves")])


def test_minutes_must_be_positive() -> None:
    def check(minutes: str) -> None:
        ran = torture("--suite", "mutants", "--minutes", minutes)
        assert ran.returncode == 2
        assert not ran.stdout

    for_each(check, ["0", "-1"])


def test_the_page_shows_the_stored_results() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.renewed(page, report.load()) == page


def test_stored_results_belong_to_existing_suites_and_have_no_violation() -> None:
    for suite, result in report.load().items():
        name, _, scenarios = suite.partition(": ")
        assert name in SUITES
        assert set(filter(None, scenarios.split(", "))) <= set(SUITES[name].scenarios)
        assert "violated" not in result["found"], suite
        assert result["command"].startswith("scripts/torture --suite ")


def test_a_table_shows_numbers_and_counts_only() -> None:
    found = {"saves": 16000, "by_kind": {"a": 1, "b": 2}, "nested": {"x": {"y": 1}}, "why": "a|b"}
    assert report.figures(found) == [("saves", 16000), ("by kind", "(a 1, b 2)"), ("why", "a|b")]
    row = report.renewed("<!-- torture -->\n<!-- /torture -->", {"s": _result(found)})
    assert "saves 16,000; by kind (a 1, b 2); why a\\|b" in row


def test_a_page_without_markers_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no lines"):
        report.renewed("# A page", {})


def test_a_suite_is_skipped_where_its_program_is_missing(tmp_path: Path) -> None:
    suite = Suite("never", 1, lambda call: require(False, "it ran") or {}, ("no-such-program",))
    call = Call(tmp_path, "s", 0.0, lambda text: None, Amounts())
    assert suite.perform(call) == {"skipped": "no-such-program not installed"}


def _result(found: dict[str, Any]) -> dict[str, Any]:
    return {"command": "scripts/torture --suite s --seed 1", "day": "2026-11-22", "commit": "c", "found": found}


def test_results_keep_their_order_when_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    report.PAGE.write_text("<!-- torture -->\n\n<!-- /torture -->\n")
    report.keep("saves", report.Run("s", "--minutes 1", "c"), {"zebra": 1, "ant": 2})
    page = report.PAGE.read_text()
    assert "ant 2; zebra 1" in page
    assert report.renewed(page, report.load()) == page
