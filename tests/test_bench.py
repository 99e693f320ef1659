"""The measurements run and tell what they should. What they measure is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import measure, tables
from benchmarks.targets import Target, targets

CHECKOUT = Path(__file__).resolve().parents[1]
SUBJECTS = ("startup", "commits", "growth", "verify", "bytes")
COMMANDS = {"--version", "--help", "log -n 20", "show", "exec status", "execute -i", "run --playback", "save by API"}


def bench(*words: str, place: Path) -> subprocess.CompletedProcess[str]:
    program = CHECKOUT / "benchmarks" / "main.py"
    return subprocess.run(
        [sys.executable, str(program), "--dir", str(place), *words], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> tables.Document:
    place = tmp_path_factory.mktemp("bench")
    done = bench(*SUBJECTS, "--quick", "--json", str(place / "figures.json"), place=place)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in place.iterdir()] == ["figures.json"], "temporary stores are taken away"
    found: tables.Document = json.loads((place / "figures.json").read_text())
    return found


def rows(document: tables.Document, subject: str) -> list[measure.Row]:
    return list(document["subjects"][subject]["rows"])


def test_a_quick_run_gives_the_rows_of_every_subject(document: tables.Document) -> None:
    assert set(document["subjects"]) == set(SUBJECTS)
    assert {row["what"] for row in rows(document, "startup")} == {
        "python -c pass",
        *COMMANDS,
    }
    full = {"2 KiB, full", "64 KiB, full"}
    assert {row["what"] for row in rows(document, "commits")} in (full, full | {"2 KiB, fast", "64 KiB, fast"})
    lengths = [(row["what"], row["length"]) for row in rows(document, "growth")]
    assert lengths == [
        (what, n) for what in ("save", "execute -i", "log -n 20", "show", "exec status") for n in (5, 20)
    ]
    assert len(rows(document, "verify")) == 3
    assert [row["turn"] for row in rows(document, "bytes")] == [5, 3, 6]
    assert all(row["ratio"] > 0 for subject in ("startup", "commits", "verify") for row in rows(document, subject))


def test_each_subject_names_its_machine(document: tables.Document) -> None:
    for found in document["subjects"].values():
        assert found["quick"] is True
        assert {"source", "cpus", "system", "file_system", "python", "versions", "load"} <= found["machine"].keys()


def test_unneeded_modules_are_named(document: tables.Document) -> None:
    for row in rows(document, "startup"):
        if row["what"] in COMMANDS:
            assert row["modules"] == row["needed"] + row["brought_by_libraries"] + row["not_needed"]
            assert len(row["modules_not_needed"]) == row["not_needed"]
            assert "stateline.cli.main" in row["modules_loaded"] or row["what"] == "save by API"
            assert not {"openai", "anthropic", "httpx2"} & {name.partition(".")[0] for name in row["modules_loaded"]}


def test_syncs_and_bytes_are_counted(document: tables.Document) -> None:
    for row in rows(document, "commits"):
        assert row["bytes_written"] > row["snapshot_bytes"] > row["size"] * 0.9
        # A full save waits for the snapshot, its directory, the pointer and its directory again.
        assert row["syncs"] == (4 if row["durability"] == "full" else 0)
        # What a save is held against is what it does.
        assert row.get("replayed_order") == row.get("syscall_order")
        assert "syscall_order" in row or row["counted_by"] == "the seam"
    for row in rows(document, "bytes"):
        assert row["new_files"] >= 1
        assert row["bytes_written"] >= row["snapshot_bytes"] > 0


def test_each_target_has_a_verdict_that_follows_from_its_figures(document: tables.Document) -> None:
    found = targets({name: subject["rows"] for name, subject in document["subjects"].items()})
    assert len(found) >= 20
    for target in found:
        if target.reached is None:
            assert target.verdict == "not measured"
            assert "fast" in target.what
        else:
            assert target.verdict == ("reached" if target.reached <= target.limit else "missed")
    assert Target("x", 1.3, 1.3).verdict == "reached"
    assert Target("x", 1.3, 1.31).verdict == "missed"


def test_a_quick_run_has_no_verdicts(document: tables.Document) -> None:
    assert [target["what"] for target in document["targets"]]
    assert all(target.keys() == {"what", "limit", "reached", "unit"} for target in document["targets"])
    text = tables.target_table(document)
    assert "mean nothing" in text
    assert "missed" not in text
    assert "reached |\n" in text.split("---")[0], "the verdict's column is left out"


def test_tables_are_updated_between_their_markers_only(document: tables.Document, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- bench:verify -->\nold\n<!-- /bench -->\nbetween\n<!-- bench:rivals -->\n<!-- /bench -->\n"
    )
    assert tables.rewrite(page, document) == ["verify"]
    text = page.read_text()
    assert text.startswith("before\n<!-- bench:verify -->\n")
    assert text.endswith("<!-- /bench -->\nbetween\n<!-- bench:rivals -->\n<!-- /bench -->\n")
    assert "| 2 KiB and an object of 64 KiB |" in text
    assert "old" not in text
    assert tables.rewrite(page, document) == ["verify"]
    assert page.read_text() == text, "renewed again it is the same"


def test_the_page_has_a_place_for_every_table() -> None:
    page = (CHECKOUT / "docs" / "performance.md").read_text()
    for name in (*SUBJECTS, "rivals", "targets"):
        assert page.count(f"<!-- bench:{name} -->\n") == 1


def test_an_unknown_subject_is_refused_and_measures_nothing(tmp_path: Path) -> None:
    done = bench("everything", place=tmp_path)
    assert done.returncode == 2
    assert "there is no subject everything" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_calls_that_strace_splits_are_counted_once() -> None:
    lines = [
        '7 access("/save-0", F_OK) = -1 ENOENT (No such file or directory)',
        "7 fsync(4</s/a> <unfinished ...>",
        '8 write(1</s/b>, "x", 1) = 1',
        "7 <... fsync resumed>) = 0",
        '7 access("/save-1", F_OK) = -1 ENOENT (No such file or directory)',
        '7 write(5</s/c>, "abc", 3) = 3',
    ]
    first, second = measure.between_marks(measure.calls(lines))
    assert (measure.syncs(first), measure.written(first, "/s")) == (1, 1)
    assert (measure.syncs(second), measure.written(second, "/s"), measure.written(second, "/t")) == (0, 3, 0)
