"""The documents: links lead somewhere, and examples work as shown."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stateline.machine.definition.check import check

CHECKOUT = Path(__file__).parent.parent
DOCUMENTS = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md"), *CHECKOUT.glob("examples/**/*.md")])


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def stateline(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stateline", "--state-dir", str(directory / "state"), *words],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_link_inside_the_project_leads_somewhere() -> None:
    broken = [
        f"{document.relative_to(CHECKOUT)}: {target}"
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text())
        if not target.startswith(("http:", "https:")) and document.name != "template.md"
        if not (document.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_every_python_example_runs(tmp_path: Path) -> None:
    """The examples of one page run in order, as one script."""
    failures = []
    for number, document in enumerate(DOCUMENTS):
        if not (examples := blocks(document, "python")):
            continue
        directory = tmp_path / str(number)
        directory.mkdir()
        script = directory / "example.py"
        script.write_text("\n".join(examples))
        ran = subprocess.run([sys.executable, script], cwd=directory, capture_output=True, text=True, check=False)
        if ran.returncode:
            failures.append(f"{document.relative_to(CHECKOUT)}: {ran.stderr}")
    assert not failures, "\n".join(failures)


def test_every_whole_machine_in_the_documents_is_valid() -> None:
    failures = []
    for document in DOCUMENTS:
        for source in blocks(document, "yaml"):
            if "stateline: 1" in source:
                machine, problems = check(source.encode(), "example.yaml")
                if machine is None:
                    failures.append(f"{document.relative_to(CHECKOUT)}: {problems}")
    assert not failures, "\n".join(failures)


def test_the_first_machine_works_as_getting_started_says(tmp_path: Path) -> None:
    (source,) = [block for block in blocks(CHECKOUT / "docs/getting-started.md", "yaml") if "# greet.yaml" in block]
    (tmp_path / "greet.yaml").write_text(source)
    assert stateline(tmp_path, "machine", "check", "greet.yaml").returncode == 0
    assert stateline(tmp_path, "execute", "-i", "greet.yaml").returncode == 0
    waits = stateline(tmp_path, "execute", "greet.yaml")
    assert (waits.returncode, "Counted to 3. Good?" in waits.stdout) == (3, True)
    assert stateline(tmp_path, "execute", "greet.yaml", "--answer", "true").returncode == 0
    assert stateline(tmp_path, "exec", "list").stdout.count("complete") == 1
    assert stateline(tmp_path, "verify").returncode == 0
    assert (
        stateline(tmp_path, "run", "--state-scope", "demo", "--system", "Be brief.", "--set", "limit=3").returncode == 0
    )
    refined = stateline(tmp_path, "run", "--state-scope", "demo", "--refine-text", "x", "--set", "limit=5")
    assert refined.returncode == 0
    assert stateline(tmp_path, "log", "context:demo").stdout.count("\n") == 2
    assert stateline(tmp_path, "execute", "greet.yaml", "--state-scope", "demo").returncode == 3


@pytest.mark.parametrize("document", ["docs/getting-started.md", "examples/conversation/README.md"])
def test_the_recorded_conversation_plays_offline_as_the_documents_say(document: str, tmp_path: Path) -> None:
    (source,) = [block for block in blocks(CHECKOUT / document, "console") if "--playback" in block]
    words = [line.removeprefix("$ ") for line in source.splitlines() if line.startswith("$ ")]
    script = [f'stateline() {{ {shlex.quote(sys.executable)} -m stateline "$@"; }}', "set -e", *words]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONUTF8": "1"}
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran
    assert "warning" not in ran.stderr, ran
    assert ran.stdout.count(": complete (turn 2: agent, complete)") == 3
    assert ran.stdout.count("Buy 4,000 g of flour: twelve loaves") == 2
    assert "Buy 4,000 g of flour (salt is enough); 32 days are left." in ran.stdout
    assert "settings.temperature  0.3 -> 0.2" in ran.stdout


def test_every_decision_is_listed_with_its_title_and_status() -> None:
    directory = CHECKOUT / "docs/adr"
    row = r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+?) \| (.+?) \|$"
    listed = re.findall(row, (directory / "README.md").read_text(), re.MULTILINE)
    files = sorted(path.name for path in directory.glob("[0-9]*.md"))
    assert [name for _, name, _, _ in listed] == files
    for number, name, title, status in listed:
        text = (directory / name).read_text()
        assert re.search(r"^# (.+)$", text, re.MULTILINE)[1] == f"{number}. {title}"  # type: ignore[index]
        assert re.search(r"^Status: ([^.(,\n]+)", text, re.MULTILINE)[1] == status  # type: ignore[index]


def test_every_module_named_in_the_architecture_exists() -> None:
    """And every module has one row in its tables."""
    source, page = CHECKOUT / "src/stateline", (CHECKOUT / "ARCHITECTURE.md").read_text()
    paths = sorted(str(path.relative_to(source)) for path in source.rglob("*.py"))
    named = sorted(set(re.findall(r"`(?:src/stateline/)?([a-z_/]+\.py)`", page)))
    unknown = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in paths)]
    assert not [name for name in unknown if not (CHECKOUT / name).exists()]
    rows = re.findall(r"^\| `([a-z_/]+\.py)` \|", page, re.MULTILINE)
    assert sorted(rows) == [path for path in paths if not Path(path).name.startswith("_")]
