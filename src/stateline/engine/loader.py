"""Evaluate a Python machine: the source on stdin, the value on stdout. ``engine.evaluate`` starts it as a process.

Only the standard library is imported, nothing of Stateline: the file's own imports have precedence.
"""

from __future__ import annotations

import io
import json
import os
import sys
import types
from typing import Any, NoReturn

DEPTH = 128
_LONGEST = 500  # characters of an exception's message
_PLAIN = (str, bool, int, float, type(None))


class Mistake(Exception):
    """The file cannot be used: ``document`` is what ``python_text.Evaluated`` holds."""

    def __init__(self, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.document = {"code": code, "message": message, **more}


class Refusing(io.TextIOBase):
    """Replaces stdout. The first write raises at the line that wrote; the error is kept even if the file catches it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.mistake: Mistake | None = None

    def write(self, text: str) -> NoReturn:
        frame: types.FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self._path:
            frame = frame.f_back
        line = frame.f_lineno if frame is not None else 0
        hint = "print to sys.stderr, or not at all"
        self.mistake = self.mistake or Mistake("printed", "the file prints to standard output", hint=hint, line=line)
        raise self.mistake


def main() -> None:
    """Write one JSON document: the value, or the mistake."""
    path = sys.argv[1]
    source = sys.stdin.buffer.read().decode()
    result = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what programs print that the file starts
    try:
        document = {"value": run(source, path)}
        text = json.dumps(document)
    except Mistake as mistake:
        text = json.dumps(mistake.document)
    except (ValueError, RecursionError) as error:
        text = json.dumps({"code": "not_json", "message": f"`machine` is not JSON: {error}"})
    result.write(text)
    result.flush()
    os._exit(0)  # threads and exit handlers of the file do not run


def run(source: str, path: str) -> Any:
    """Return the value that ``source`` binds to ``machine``. Raises ``Mistake``."""
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(path))
    sys.stdout = sys.__stdout__ = stdout = Refusing(path)  # type: ignore[misc,assignment]  # final for others than us
    module = types.ModuleType("machine")
    module.__file__ = path
    sys.modules["machine"] = module
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 (what this is for)
    except Mistake:
        raise
    except BaseException as error:  # noqa: BLE001 (SystemExit too: all of it is a mistake in the file)
        raise stdout.mistake or _mistake(error, path) from None
    if stdout.mistake:
        raise stdout.mistake
    if "machine" not in module.__dict__:
        raise Mistake("missing_key", "the file does not bind `machine`", hint="write machine = {...}")
    value = module.__dict__["machine"]
    check(value, [])
    return value


def check(value: Any, path: list[str | int]) -> None:
    """Raise ``Mistake`` for a value that is not JSON: ``json`` would turn tuples into lists and keys into text."""
    if len(path) > DEPTH:
        raise Mistake("too_deep", f"`machine` is nested deeper than {DEPTH} levels", hint="flatten it", path=path[:8])
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                message = f"the key {key!r:.80} is not text but of type {type(key).__name__}"
                raise Mistake("not_json", message, hint="keys are text", path=path)
            check(part, [*path, key])
    elif isinstance(value, list):
        for index, part in enumerate(value):
            check(part, [*path, index])
    elif not isinstance(value, _PLAIN):
        message = f"a value of type {type(value).__name__} is not JSON"
        hint = "use dict, list, str, int, float, bool and None; for a tuple or a set write a list"
        raise Mistake("not_json", message, hint=hint, path=path)


def _mistake(error: BaseException, path: str) -> Mistake:
    line = error.lineno or 0 if isinstance(error, SyntaxError) and error.filename == path else 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        words = str(error)
    except BaseException:  # noqa: BLE001 (an exception of the file's own making)
        words = ""
    message = f"running the file raised {type(error).__name__}" + (f": {words[:_LONGEST]}" if words else "")
    return Mistake("exception", message, hint="correct that line; nothing was stored", line=line)


if __name__ == "__main__":
    main()
