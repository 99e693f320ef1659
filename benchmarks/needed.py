"""Which modules a command needs, so that the others can be counted: each costs every call its import."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from benchmarks.measure import Failed, environment

LIBRARIES = ("argparse", "msgspec", "filelock")
"""Libraries that the fast commands use by decision; the modules they import are counted separately."""

_BASE = [
    *("stateline", "stateline._version", "stateline.cli", "stateline.cli.main", "__future__", "gc"),
]
_COMMAND = [
    *(
        "stateline.errors",
        "stateline.cli.app",
        "stateline.cli.options",
        "stateline.cli.output",
        "stateline.cli.command",
        "stateline.cli.parser",
    ),
    *("collections", "collections.abc", "_collections", "contextlib", "functools", "_functools", "types", "typing"),
    *("_typing", "enum", "re", "re.*", "_sre", "copyreg", "keyword", "operator", "_operator", "reprlib", "itertools"),
    *("errno", "math", "_weakrefset", "weakref", "argparse", "gettext", "locale", "msgspec*"),
]
_STORE = [
    *("stateline.bundle", "stateline.bundle.*", "stateline.redaction", "stateline.redaction.*"),
    *("stateline.store", "stateline.store.*"),
    *("hashlib", "_hashlib", "_sha2", "_blake2", "datetime", "_datetime", "threading"),
]
_READ = [
    *("stateline.cli.audit", "stateline.history", "stateline.history.revision"),
    *("stateline.bundle.terminal",),
]
_RUN = [
    *("stateline.engine", "stateline.engine.record", "stateline.engine.event_codec", "stateline.service"),
    *(
        "stateline.machine",
        "stateline.machine.decider",
        "stateline.machine.decider.run",
        "stateline.machine.spec",
        "stateline.service.run_document",
    ),
]
_TURN = [
    *("stateline.engine.*", "stateline.service.*"),
    *(
        "stateline.cli.execute",
        "stateline.cli.call_options",
        "stateline.cli.inputs",
        "stateline.cli.outcome_text",
        "stateline.machine.decider.advance",
        "stateline.machine.decider.handlers",
    ),
    *(
        "stateline.machine.decider.routing",
        "stateline.machine.decider.evaluate_outputs",
        "stateline.machine.decider.bounds",
        "filelock*",
        "fcntl",
    ),
    *("select", "selectors", "signal", "_posixsubprocess", "subprocess", "stateline.process", "stateline.process.*"),
]
_MODEL = [
    *("stateline.cli.run", "stateline.service.run"),
    *("stateline.service.model_setup", "stateline.contexts", "stateline.contexts.*"),
    *("stateline.model", "stateline.model.*", "stateline.machine.*"),
]
NEEDED: dict[str, list[str]] = {
    "--version": _BASE,
    "--help": [*_BASE, *_COMMAND],
    "log -n 20": [*_BASE, *_COMMAND, *_STORE, *_READ, "stateline.history.log"],
    "show": [*_BASE, *_COMMAND, *_STORE, *_READ],
    "exec status": [*_BASE, *_COMMAND, *_STORE, *_RUN, "stateline.cli.runs", "stateline.service.runs"],
    "execute -i": [*_BASE, *_COMMAND, *_STORE, *_RUN, *_TURN],
    "run --playback": [*_BASE, *_COMMAND, *_STORE, *_RUN, *_TURN, *_MODEL],
    "save by API": ["stateline*", "__future__", *_COMMAND, *_STORE, "filelock*", "fcntl"],
}
"""Patterns of module names by command."""

_line = re.compile(r"import time: +(\d+) \| +\d+ \| +(\S+)")


def loaded(words: Sequence[str]) -> dict[str, int]:
    """Modules that a Python program (its words after ``python``) imports, with the time of each alone [us]."""
    command = [sys.executable, "-X", "importtime", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise Failed(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-300:]}")
    return {name: int(time) for time, name in _line.findall(done.stderr)}


def brought() -> dict[str, set[str]]:
    """Return the modules each library imports, itself included."""
    return {library: set(loaded(["-c", f"import {library}"])) for library in LIBRARIES}


def judge(
    command: str, modules: dict[str, int], bare: Iterable[str], libraries: dict[str, set[str]]
) -> dict[str, object]:
    """Count the modules that a command loaded beyond ``python -c pass`` (``bare``), how many of them came along with
    the ``libraries`` that it loaded, and those that it did not need, the heaviest first."""
    own = {name: time for name, time in modules.items() if name not in set(bare)}
    patterns = NEEDED[command]
    extra = {name: time for name, time in own.items() if not any(fnmatch.fnmatchcase(name, p) for p in patterns)}
    come = {name for library, names in libraries.items() if library in modules for name in names}
    along = [name for name in extra if name in come]
    rest = sorted((name for name in extra if name not in along), key=lambda name: -extra[name])
    return {
        "modules": len(own),
        "needed": len(own) - len(extra),
        "brought_by_libraries": len(along),
        "not_needed": len(rest),
        "heaviest_not_needed": [f"{name} ({extra[name]} us)" for name in rest[:5]],
        "modules_not_needed": rest,
        "heaviest_of_libraries": [f"{name} ({extra[name]} us)" for name in sorted(along, key=lambda n: -extra[n])[:5]],
        "modules_loaded": sorted(own),
    }
