"""Run a Python machine in a separate process and return the value that it binds to ``machine``.

The file is the user's own program, and the process is not a sandbox: it isolates this process from output, changes of
global state and endless loops, and has the environment of a task, without keys. It runs ``loader.py``.
"""

from __future__ import annotations

import json
import os
import sys

import msgspec

from stateline.bundle import canonical
from stateline.machine.definition.formats.python_text import Evaluated
from stateline.process import child
from stateline.process.executables import environment
from stateline.process.signals import Signals, shield

TIMEOUT = 30.0
"""The time limit for a machine file [s]."""
_LOADER = os.path.join(os.path.dirname(__file__), "loader.py")
# -P, -s: nothing is imported from where the caller happens to stand or from the user's site; -B: no file is written.
_FLAGS = ("-P", "-s", "-B", "-X", "utf8")


def evaluate(source: str, path: str, timeout: float = TIMEOUT) -> Evaluated:
    """Run ``source``, the text of the file at ``path``, in that file's directory; ``timeout`` [s].

    Modules beside the file can be imported. Every failure of the source is part of the result; only a signal to this
    process is raised, after the child process was terminated.
    """
    directory = os.path.dirname(path)
    # Sets and dicts of a file that is run twice must come out in the same order.
    variables = {**environment([]), "PYTHONHASHSEED": "0"}
    with Signals(), shield():
        try:
            started = child.start(sys.executable, [sys.executable, *_FLAGS, _LOADER, path], directory, variables)
        except (OSError, ValueError) as error:
            message = f"Python could not be started to run the file: {error}"
            return Evaluated(code="not_evaluated", message=message, hint="try again when the system allows it")
        data = source.encode()
        ended = child.watch(started, data, timeout=timeout, output_limit=canonical.TEXT_LIMIT)
    return _meaning(ended, timeout)


def _meaning(ended: child.Exit, timeout: float) -> Evaluated:
    if ended.reason == "timeout":
        message = f"running the file took longer than {timeout:g} s and was ended"
        return Evaluated(code="timeout", message=message, hint="do the work in tasks; the file only says what they are")
    if ended.reason == "overflow":
        message = f"`machine` is larger than {canonical.TEXT_LIMIT} bytes"
        return Evaluated(code="too_large", message=message, hint="keep data in files that tasks read")
    try:
        return msgspec.convert(json.loads(ended.output.stdout), Evaluated)
    # The file may have written past the loader, into the same pipe: what comes out of it is anything.
    except (ValueError, RecursionError, msgspec.ValidationError):
        message = f"running the file ended its process with code {ended.code} before `machine` was known"
        return Evaluated(code="exception", message=message)
