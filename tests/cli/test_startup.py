"""Modules that a call loads. Each call is a process, so it must load no module that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from each_case import Failures

NEVER = {
    "asyncio",
    "click",
    "typer",
    "cel_expr_python",
    "concurrent",
    "cryptography",
    "http",
    "json",
    "jsonpatch",
    "jsonschema_rs",
    "markdown_it",
    "multiprocessing",
    "pickle",
    "platformdirs",
    "pydantic",
    "pygments",
    "rich",
    "socket",
    "sqlite3",
    "ssl",
    "tempfile",
    "tomllib",
    "yaml",
}
"""Top-level modules that none of these calls needs."""
READERS = {"filelock", "stateline.machine", "stateline.service", "stateline.process.child"}
"""Modules that only a turn needs."""
MACHINE = """\
stateline: 1
name: loop
start: a
stages:
  a: {task: ["/bin/echo", "{}"], default_next: b}
  b: {task: ["/bin/echo", "{}"], default_next: a}
"""


def loaded(place: Path, *argv: str) -> set[str]:
    """The modules that are loaded after a call of the command line that succeeds, in a new process."""
    code = (
        "import sys; from stateline.cli.main import run; sys.argv.pop(0); code = run(sys.argv);"
        "sys.stderr.write('\\0' + '\\n'.join([str(code), *sys.modules]))"
    )
    command = [sys.executable, "-I", "-c", code, *argv]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True, cwd=place, check=True, input="")
    _, _, listed = done.stderr.rpartition("\0")
    exit_code, *modules = listed.split("\n")
    assert exit_code == "0", done
    return {part for module in modules for part in (module, module.partition(".")[0])}


def commands(modules: set[str]) -> set[str]:
    return modules & {
        f"stateline.cli.{name}" for name in ("audit", "diff", "execute", "log", "machines", "run", "runs")
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with a machine file and a store ``s``, in which a run of it has done a turn; and the run's id."""
    path = tmp_path_factory.mktemp("startup")
    (path / "m.yaml").write_text(MACHINE)
    call = ["-m", "stateline", "--state-dir", "s", "--format", "json", "execute", "-i", "m.yaml"]
    done = subprocess.run([sys.executable, *call], capture_output=True, timeout=60, cwd=path, check=True, input=b"")
    return path, json.loads(done.stdout)["run"]


def test_the_version_is_reported_without_any_library(place: tuple[Path, str]) -> None:
    assert not loaded(place[0], "--version") & (NEVER | READERS | {"argparse", "msgspec", "subprocess", "inspect"})


def test_reading_a_run_loads_nothing_that_only_a_turn_needs(place: tuple[Path, str]) -> None:
    failures = Failures()
    for name in ["log", "show"]:
        with failures.case(name):
            modules = loaded(place[0], "--state-dir", "s", name, f"run:{place[1]}")
            assert not modules & (NEVER | READERS)
            assert commands(modules) <= {"stateline.cli.audit", "stateline.cli.log"}
    failures.check()


def test_a_turn_of_an_unchanged_machine_without_conditions_reads_no_machine_file(place: tuple[Path, str]) -> None:
    modules = loaded(place[0], "--state-dir", "s", "execute", "-i", "m.yaml")
    assert not modules & (
        NEVER
        | {
            "stateline.machine.definition.check",
            "stateline.machine.expressions.cel",
            "stateline.machine.expressions.json_schema",
        }
    )
    assert commands(modules) == {"stateline.cli.execute"}


PROVIDERS = {"anthropic", "anyio", "httpcore", "httpx", "httpx2", "openai", "stateline.model.providers.anthropic"} | {
    "stateline.model.providers.openai"
}
"""Modules that only a call of a model needs."""
RECORDING = Path(__file__).parents[2] / "examples" / "conversation" / "recording"


def test_a_playback_loads_no_provider_and_no_network(place: tuple[Path, str]) -> None:
    play = ["--playback", str(RECORDING), "--playback-mode", "sequential"]
    first, second = (loaded(place[0], "--state-dir", "p", "run", "-q", "-p", "What?", *play) for _ in range(2))
    assert "stateline.model.recordings.playback" in first & second
    # What a model says of a context is held against a schema, and the library for that loads `socket`.
    assert not first & (PROVIDERS | NEVER - {"json", "jsonschema_rs", "socket"})
    assert not second & (PROVIDERS | NEVER)
    assert commands(second) == {"stateline.cli.run"}


def test_a_turn_that_asks_nobody_loads_nothing_of_models(place: tuple[Path, str]) -> None:
    modules = loaded(place[0], "--state-dir", "s", "execute", "-i", "m.yaml")
    assert not modules & (
        PROVIDERS
        | {
            "stateline.model.recordings.playback",
            "stateline.model.recordings.recorder",
            "stateline.tools.manifest",
            "stateline.tools.check",
        }
    )
    assert not modules & {"stateline.model.providers.selection", "stateline.engine.agent", "stateline.engine.calls"}
