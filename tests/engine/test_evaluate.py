"""Python machines: run apart from this process, and whatever they do is a problem with its line, or the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from each_case import for_each

from stateline.engine.evaluate import evaluate
from stateline.machine.definition.check import Lookups, check
from stateline.machine.definition.formats.python_text import Evaluated
from stateline.machine.problems import Problem


def told(tmp_path: Path, source: str) -> list[tuple[str, str]]:
    return [(problem.code, problem.where) for problem in problems(tmp_path, source)]


def problems(tmp_path: Path, source: str) -> tuple[Problem, ...]:
    path = str(tmp_path / "m.py")
    machine, found = check(source.encode(), path, Lookups(evaluate=lambda text: evaluate(text, path)))
    assert (machine is None) == any(problem.severity == "error" for problem in found)
    return found


GOOD = "machine = {'stateline': 1, 'name': 'm', 'stages': {'a': {'end': {}}}}\n"


def test_what_a_file_does_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    def check(tmp_path: Path, source: str, code: str, where: str) -> None:
        assert told(tmp_path, source) == [(code, where)]

    for_each(
        check,
        [
            ("x = 1\n\ny = 1 / 0\n", "exception", "3:1"),
            ("def f():\n  return g()\ndef g():\n  raise KeyError('x')\nf()\n", "exception", "4:1"),
            ("import json\njson.loads('{')\n", "exception", "2:1"),
            ("import no_such_module\n", "exception", "1:1"),
            ("import runevent\n", "exception", "1:1"),  # a module of Stateline's own, beside what runs the file
            ("\nraise SystemExit(0)\n", "exception", "2:1"),
            ("def f(): f()\nf()\n", "exception", "1:1"),
            ("class E(BaseException):\n  def __str__(self): raise self\nraise E\n", "exception", "3:1"),
            ("import os\nos._exit(0)\n", "exception", "1:1"),
            ("import os\nos.kill(os.getpid(), 9)\n", "exception", "1:1"),
            (GOOD + "print('hello')\n", "printed", "2:1"),
            (GOOD + "import sys\ntry:\n  sys.stdout.write('x')\nexcept Exception: pass\n", "printed", "4:1"),
            ("while True:\n  print('x' * 10000)\n", "printed", "2:1"),
            ("x = 1\n", "missing_key", "1:1"),
            ("x = 1\ndel machine\n", "exception", "2:1"),
            ("machine = None\n", "wrong_type", "1:1"),
            ("\nmachine = {1: 2}\n", "not_json", "2:1"),
            ("machine = {\n 'a': [0, {'b': (1, 2)}]}\n", "not_json", "2:12 a[1].b"),
            ("machine = {'a': {1, 2}}\n", "not_json", "1:12 a"),
            ("machine = {'a': lambda: 1}\n", "not_json", "1:12 a"),
            ("machine = {'n': 10 ** 5000}\n", "not_json", "1:1"),
            ("machine = {}\nmachine['a'] = machine\n", "too_deep", "1:1 a.a.a.a.a.a.a.a"),
            ("machine = {'a': 'x' * (17 << 20)}\n", "too_large", "1:1"),
            ("return 1\n", "exception", "1:1"),
            ("machine = {\n", "syntax", "1:11"),
            ("machine = '\x00'\n", "syntax", "1:1"),
        ],
        root=tmp_path,
    )


def test_values_that_no_json_has_are_told_at_their_keys(tmp_path: Path) -> None:
    source = "nan = float('nan')\nmachine = {\n  'n': [1, nan],\n  's': '\\ud800',\n  'i': 2 ** 64,\n}\n"
    found = [(code, where) for code, where in told(tmp_path, source) if code in ("number_range", "encoding")]
    assert found == [("number_range", "3:12 n[1]"), ("encoding", "4:3 s"), ("number_range", "5:3 i")]


def test_a_file_that_never_ends_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "life")
    life = os.open(tmp_path / "life", os.O_RDONLY | os.O_NONBLOCK)
    source = "import subprocess, sys\nsubprocess.Popen(['sh', '-c', 'exec 3>life; printf x >&3; sleep 1000'])\n"
    result = evaluate(source + "while True: sys.stderr.write('x' * 9999)\n", str(tmp_path / "m.py"), timeout=1.0)
    assert result.code == "timeout"
    assert os.read(life, 9) == b"x"
    assert os.read(life, 9) == b""  # whoever held it open is gone; else this would be BlockingIOError
    os.close(life)


def test_a_file_may_import_what_lies_beside_it_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts.py").write_text("from dataclasses import dataclass\nNAME = 'm'\n")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path / "here")
    source = "import sys, os\nfrom parts import NAME\nassert os.getcwd() == os.path.dirname(__file__)\n" + GOOD
    assert told(tmp_path, source.replace("'m'", "NAME")) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "json.py", "parts.py"]


def test_a_file_sees_a_tasks_environment_and_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-1234567890")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    result = evaluate("import os\nmachine = sorted(os.environ)\n", str(tmp_path / "m.py"))
    assert set(result.value) <= {"PATH", "HOME", "LANG", "TMPDIR", "TZ", "PYTHONHASHSEED", "LC_CTYPE"}


def test_the_order_of_a_set_is_the_same_each_time(tmp_path: Path) -> None:
    source = "machine = list({f'word{n}' for n in range(50)})\n"
    first = evaluate(source, str(tmp_path / "m.py"))
    assert evaluate(source, str(tmp_path / "m.py")) == first
    assert isinstance(first, Evaluated)
    assert len(first.value) == 50


def test_a_name_that_is_bound_once_leads_to_the_places_behind_it(tmp_path: Path) -> None:
    source = (
        "é = stage = {\n  'end': {'x': 1}}\nmachine = {'stateline': 1, 'name': 'm', 'stages': {'é': {}, 'a': stage}}\n"
    )
    assert told(tmp_path, source)[0] == ("unknown_key", "2:11 stages.a.end.x")


def test_without_somebody_to_run_it_a_python_machine_is_no_machine() -> None:
    machine, found = check(GOOD.encode(), "m.py")
    assert machine is None
    assert [problem.code for problem in found] == ["not_evaluated"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("words", [["machine", "check"], ["execute", "--dry-run"]], ids=["check", "dry run"])
def test_a_command_that_is_ended_ends_the_file_that_it_runs(tmp_path: Path, words: list[str], signum: int) -> None:
    os.mkfifo(tmp_path / "life")
    (tmp_path / "m.py").write_text(
        "import time\nlife = open('life', 'w')\nprint('x', file=life, flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "stateline", "--state-dir", str(tmp_path / "s"), *words, str(tmp_path / "m.py")]
    life = os.open(tmp_path / "life", os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while child.poll() is None and not _written(life):
            time.sleep(0.01)
        child.send_signal(signum)
        assert child.wait(30) == 128 + signum
    assert os.read(life, 9) == b""  # whoever held it open is gone; else this would be BlockingIOError
    os.close(life)


def _written(life: int) -> bytes:
    try:
        return os.read(life, 9)
    except BlockingIOError:
        return b""
