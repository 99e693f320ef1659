"""The recipes of docs/recipes.md, run as they are shown; each is repeated, as a scheduler does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parent.parent / "docs/recipes.md"
BLOCKS = re.findall(r"^```(?:bash|yaml)\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.skipif(shutil.which("jq") is None, reason="the recipes use jq")


class Shop:
    """A directory with every file of the page, and a ``stateline`` on PATH."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in BLOCKS:
            (root / name).write_text(text)
        program = root / "bin" / "stateline"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stateline "$@"\n')
        program.chmod(0o755)
        self.environ = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HOME": str(root),
            "STATELINE_STATE_DIR": str(root / "state"),
            "BUILD": "7",
        }

    def run(self, *words: str, code: int = 0) -> str:
        return self.call(*words, code=code).stdout

    def call(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            words,
            cwd=self.root,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert ran.returncode == code, (words, ran.stdout, ran.stderr)
        return ran

    def script(self, name: str, code: int = 0) -> str:
        return self.run("bash", "-eu", name, code=code)

    def stderr(self, name: str) -> str:
        return self.call("bash", "-eu", name).stderr

    def stateline(self, *words: str) -> Any:
        return json.loads(self.run("stateline", "--format", "json", *words))

    def answer(self, run: str, value: str = "true") -> None:
        request = self.stateline("exec", "status", run)["interrupts"][0]["requestId"]
        self.run("stateline", "exec", "resume", run, "--request", request, "--answer", value)

    def published(self) -> int:
        log = self.root / "log"
        return log.read_text().count("published") if log.exists() else 0

    def runs(self) -> dict[str, str]:
        return {row["run"]: row["status"] for row in self.stateline("exec", "list")["runs"]}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_every_script_of_the_page_is_tested() -> None:
    text = Path(__file__).read_text()
    assert [name for name, _ in BLOCKS if f'"{name}"' not in text and name != "release.yaml"] == []
    assert len(BLOCKS) == PAGE.read_text().count("```") / 2


def test_cron_starts_the_run_of_a_night_once(shop: Shop) -> None:
    for _ in range(2):
        assert "waits: stateline exec status nightly-" in shop.script("nightly.sh")
    (run,) = shop.runs()
    shop.answer(run)
    shop.script("nightly.sh")
    assert (shop.runs(), shop.published()) == ({run: "complete"}, 1)


def test_a_job_of_ci_approves_what_another_job_built(shop: Shop) -> None:
    for script in ("build-job.sh", "release-job.sh"):
        for _ in range(2):
            shop.script("build-job.sh")
            shop.script(script)
            shop.script(script)
    assert (shop.runs(), shop.published()) == ({"ci-7": "complete"}, 1)
    assert json.loads((shop.root / "out/output.json").read_text()) == {"done": True}


def test_a_shell_loop_performs_turn_after_turn(shop: Shop) -> None:
    for _ in range(2):
        shop.script("loop.sh")
    assert (shop.runs(), shop.published()) == ({"loop": "complete"}, 1)


def test_another_agent_drives_a_run(shop: Shop) -> None:
    agent = shop.root / "agent"
    agent.write_text('#!/bin/sh\njq -c \'{"response": "\\(.[-1].content) It is 5."}\'\n')
    agent.chmod(0o755)
    for _ in range(2):
        assert shop.script("driver.sh") == "What is 2 + 3? It is 5.\n"
    assert shop.runs() == {"sum": "complete"}


def test_a_queue_worker_takes_each_job_once(shop: Shop) -> None:
    (shop.root / "queue").mkdir()
    for version in ("1", "2"):
        (shop.root / "queue" / f"{version}.json").write_text(json.dumps({"version": version}))
    for _ in range(2):
        shop.script("worker.sh")
    assert shop.runs() == {"job-1": "waiting", "job-2": "waiting"}
    # Neither an input that does not fit nor a name that is no run id stops the others, or is said to have a history.
    for name in ("bad.json", "c d.json"):
        (shop.root / "queue" / name).write_text("{}")
        message = shop.stderr("worker.sh")
        assert f"queue/{name} was not done" in message
        assert "exec history" not in message
        (shop.root / "queue" / name).unlink()
    shop.answer("job-1")
    shop.script("worker.sh")
    assert [path.name for path in shop.root.glob("finished/*")] == ["1.json"]
    shop.answer("job-2", "false")
    shop.script("worker.sh")
    assert (shop.runs(), shop.published()) == ({"job-1": "complete", "job-2": "complete"}, 1)
    assert list((shop.root / "queue").iterdir()) == []
