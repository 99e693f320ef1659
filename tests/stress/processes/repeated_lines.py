"""Command lines that are killed once at a random moment and then repeated, as a scheduler or a script repeats them.

A line continues where it was killed: no exit code 64, no effect that must not be repeated is performed twice, and the
end is that of an undisturbed call, unless the run waits because an effect's outcome is unknown.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from killed_call import Program
from stress.oracle import require

from stateline import Store
from stateline.engine.record import load_run, run_scope
from stateline.verify.checker import verify

RUN = "r1"
_PUBLISHED = 12
"""Files that a line publishes, about: the most of any line."""
_MOST_CALLS = 12
"""Calls after which a line should have ended."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table. ``before`` are calls that prepare the store; REQUEST in ``words`` and ``stdin`` is the id of
    the request that is open then. ``again`` is repeated after the kill, if that is another line. ``once`` names effects
    that must not be performed twice."""

    name: str
    words: list[str]
    before: list[list[str]] = []
    stdin: str | None = None
    again: list[str] | None = None
    once: list[str] = []
    ends: int = 0


_INPUT = ["--input", '{"n": 1}']
_WHOLE = ["execute", "m.json", "--id", RUN]
_PROMPT = ["run", "-p", "Do it.", "--id", RUN]
_PLAYED = [*_PROMPT, "--tools", "tools.json", "--playback", "recording", "--playback-mode", "sequential"]
_CALL = '{"tools": [{"name": "once", "params": {}}]}'
_CONTEXT = ["run", "--state-scope", "c", "--system", "Be brief."]
_NAMED = ["--request", "REQUEST", "--answer"]
_ANSWERED: dict[str, Any] = {"before": [[*_WHOLE, *_INPUT]], "once": ["ship"]}

LINES = [
    Line(name="execute --id --input", words=[*_WHOLE, *_INPUT], once=["pay"], ends=3),
    Line(name="execute -i --id --input", words=[*_WHOLE, "-i", *_INPUT], once=["pay"], ends=3),
    Line(name="execute --id --request --answer", words=[*_WHOLE, *_NAMED, "true"], **_ANSWERED),
    Line(
        name="execute --id, answer on stdin",
        words=_WHOLE,
        stdin='{"requestId": "REQUEST", "answer": true}',
        **_ANSWERED,
    ),
    Line(
        name="exec resume --request --answer",
        words=["exec", "resume", RUN, *_NAMED, "true"],
        **_ANSWERED,
    ),
    Line(
        name="exec resume",
        words=["exec", "resume", RUN],
        before=[[*_WHOLE, "-i", *_INPUT]],
        once=["pay"],
        ends=3,
    ),
    Line(
        name="exec resume --retry, then exec resume",
        words=["exec", "resume", RUN, "--retry"],
        again=["exec", "resume", RUN],
        before=[["execute", "fails.json", "--id", RUN], ["touch", "ok"]],
        once=["retried"],
    ),
    Line(name="run -p --id", words=[*_PROMPT, "--system", "Be brief."], ends=3),
    Line(name="run -p --id --input", words=[*_PROMPT, *_INPUT], ends=3),
    Line(
        name="run -p --id --refine-text",
        words=[*_PROMPT, "--state-scope", "c", "--refine-text", "Be kind."],
        before=[_CONTEXT],
        ends=3,
    ),
    Line(
        name="run -p --id --tools --playback",
        words=[*_PLAYED, "--state-scope", "c"],
        before=[_CONTEXT],
        once=["once"],
    ),
    Line(
        name="run --id --request --answer (a reply with a tool)",
        words=["run", "--id", RUN, *_NAMED, _CALL],
        before=[[*_PROMPT, "--tools", "tools.json"]],
        once=["once"],
        ends=3,
    ),
]


def write_files(root: Path) -> None:
    """Write the machines, tools and the recording of the lines. Each effect notes its name in ``ran``."""

    def task(name: str, **more: Any) -> dict[str, Any]:
        return {"task": ["sh", "-c", f"echo {name} >> ran; sleep 0.01; echo 1"], **more}

    stages = {
        "look": task("look", repeatable=True, default_next="pay"),
        "pay": task("pay", default_next="ask"),
        "ask": {"human": {"prompt": "Ship?", "schema": {"type": "boolean"}}, "default_next": "ship"},
        "ship": task("ship", default_next="note"),
        "note": task("note", repeatable=True),
    }
    fails = {
        "a": {"task": ["sh", "-c", "test -e ok || exit 1; echo retried >> ran; echo 1"], "default_next": "note"},
        "note": task("note", repeatable=True),
    }
    once = {"name": "once", "description": "Acts.", "schema": {"type": "object"}}
    once["argv"] = ["sh", "-c", "echo once >> ran; echo 1"]
    for name, machine in (("m", stages), ("fails", fails)):
        (root / f"{name}.json").write_text(json.dumps({"stateline": 1, "name": name, "stages": machine}))
    (root / "tools.json").write_text(json.dumps({"tools": [once]}))
    (root / "recording").mkdir(mode=0o700)
    request = {"model": "openai/x", "messages": [], "tools": [], "settings": {}, "output_schema": None}
    calls = [{"id": "c1", "name": "once", "arguments": {}}]
    for number, reply in ((1, {"tool_calls": calls, "finish": "tool_calls"}), (2, {"content": "Done."})):
        exchange = {"version": "1", "purpose": "turn", "digest": "", "request": request, "reply": reply}
        (root / "recording" / f"{number:04d}.json").write_text(json.dumps(exchange))


class Trials:
    """One line, prepared once; each trial begins with a copy of that."""

    def __init__(self, program: Program, root: Path, line: Line) -> None:
        self.program, self.line = program, line
        self.root, self.kept = root / "place", root / "kept"
        self.root.mkdir(parents=True)
        write_files(self.root)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "STATELINE_STATE_DIR": str(self.root / "state"),
            "STATELINE_FORMAT": "json",
        }
        self.request = ""
        for words in line.before:
            if words[0] == "touch":
                (self.root / words[1]).touch()
            else:
                self.call(words)
        if "REQUEST" in f"{line.words} {line.stdin}":
            self.request = load_run(self.store(), RUN).event["waiting"]["requestId"]
        shutil.copytree(self.root, self.kept)
        began = time.monotonic()
        self.wanted, _ = self.until_it_ends(line.words)
        self.usual = time.monotonic() - began

    def store(self) -> Store:
        return Store.open(self.root / "state")

    def call(self, words: list[str], *, after: float = 0.0, nth: int = 0) -> tuple[int, dict[str, Any]]:
        """Call a line, and kill it as ``Program.call`` says; its exit code and document."""
        named = [self.request if word == "REQUEST" else word for word in words]
        stdin = None if self.line.stdin is None else self.line.stdin.replace("REQUEST", self.request)
        code, out, err = self.program.call(
            self.root, self.environ, *self._placed(named), after=after, nth=nth, stdin=stdin
        )
        require(code in (-9, 0, 1, 2, 3), f"{words} exited with {code}: {out!r} {err!r}")
        return code, {} if code == -9 else json.loads(out)

    def _placed(self, words: list[str]) -> list[str]:
        """The words with the paths of the files."""
        files = {path.name: str(path) for path in self.root.iterdir()}
        return [files.get(word, word) for word in words]

    def until_it_ends(self, words: list[str]) -> tuple[dict[str, Any], int]:
        """Repeat a line until the run is over or waits; its last document and the number of calls."""
        for number in range(1, _MOST_CALLS):
            code, document = self.call(words)
            if document.get("status") != "advanced":
                require("error" not in document or document["error"] is None, f"{words}: {document}")
                require(code in (self.line.ends, 2, 3), f"{words} exited with {code}: {document}")
                return document, number
        raise AssertionError(f"{words} does not end")

    def trial(self, rng: Random) -> tuple[str, str]:
        """Kill the line at a moment of its usual duration, or before it publishes something, and repeat it; where it
        was, and what became of it."""
        shutil.rmtree(self.root)
        shutil.copytree(self.kept, self.root)
        moment = {"after": max(rng.random() * self.usual, 0.001)}
        code, _ = self.call(self.line.words, **(moment if rng.random() < 0.5 else {"nth": rng.randint(1, _PUBLISHED)}))
        if code != -9:
            return "not killed", "ended before"
        at = self._where()
        if self.line.again is not None and at.endswith(": failed"):  # the retry was not saved
            code, _ = self.call(self.line.again)
            require((code, self._where()) == (1, at), f"{self.line.name}, killed at {at}: exit code {code}")
            return at, "failed as before"
        document, _ = self.until_it_ends(self.line.words if self.line.again is None else self.line.again)
        ran = Counter((self.root / "ran").read_text().split()) if (self.root / "ran").exists() else Counter[str]()
        twice = [name for name in self.line.once if ran[name] > 1]
        require(not twice, f"{self.line.name}, killed at {at}: {twice} performed twice")
        report = verify(self.store())
        require(report.ok, f"{self.line.name}, killed at {at}: {report.findings}")
        if (document["waiting"] or {}).get("kind") == "unknown_outcome":
            require(bool(self.line.once), f"{self.line.name}, killed at {at}: nothing could be in doubt")
            return at, "waits: unknown_outcome"
        same = [document[name] == self.wanted[name] for name in ("status", "stage", "outputs")]
        require(all(same), f"{self.line.name}, killed at {at}: {document} instead of {self.wanted}")
        return at, "continued"

    def _where(self) -> str:
        store = self.store()
        if run_scope(store, RUN).head() is None:
            return "before the run"
        run = load_run(store, RUN)
        return f"{run.state.tree.stage}: {run.event['type']}"


def campaign(root: Path, seed: str, *, trials: int, until: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Kill each line ``trials`` times, or until ``until`` [monotonic s], each line at least once. Returns the summary:
    ``table`` counts the trials by line, place of the kill and result.

    Raises ``ViolationError`` at the first line that cannot be repeated.
    """
    rng, table, program = Random(seed), Counter[str](), Program()
    began = time.monotonic()
    try:
        prepared = [Trials(program, root / str(number), line) for number, line in enumerate(LINES)]
        for number in range(trials):
            for each in prepared:
                if number and time.monotonic() > until:
                    break
                at, result = each.trial(rng)
                table[f"{each.line.name} | {at} | {result}"] += 1
            say(f"{number + 1} trials of each line")
    finally:
        program.close()
    kills = sum(count for row, count in table.items() if "not killed" not in row)
    results = Counter[str]()
    for row, count in table.items():
        results[row.rpartition(" | ")[2]] += count
    return {
        "lines": len(LINES),
        "kills": kills,
        "results": dict(results),
        "table": dict(sorted(table.items())),
        "seconds": round(time.monotonic() - began, 1),
    }
