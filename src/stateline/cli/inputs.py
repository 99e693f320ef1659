"""Values that a command takes from files, standard input and ``KEY=VALUE`` words."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stateline.bundle import canonical
from stateline.bundle.limits import DEFAULT, Limits
from stateline.cli.output import print_message
from stateline.errors import InvalidValueError, UsageError

_STDIN_DELAY = 1.0
"""Time without standard input after which a message says that the command waits for it [s]."""


def read_file(path: str, limit: int) -> bytes:
    """At most ``limit`` + 1 [bytes] of a regular file; never blocks on a FIFO. Raises ``OSError``, ``ValueError``."""
    import stat

    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:  # raises for a directory
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        return file.read(limit + 1)


def read_json(text: str | None, option: str, limits: Limits = DEFAULT) -> Any:
    """The value of ``--input JSON|@FILE``, or of another such ``option``; UNSET without it. Raises ``UsageError``."""
    if text is None:
        return msgspec.UNSET
    data = os.fsencode(text)
    if text.startswith("@"):
        try:
            with open(text[1:], "rb") as file:
                data = file.read(limits.input + 1)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {option} {text!r}: {error}", hint="check the path after @") from None
    try:
        return limits.parse("input", data, option)
    except InvalidValueError as error:
        quotes = f"give JSON: {option} true, {option} 5, or a string in quotes: {option} '\"yes\"'"
        hint = error.hint if data[:1] in b'[{"' or text.startswith("@") else quotes
        raise UsageError(f"{error.message}; nothing was changed", hint=hint) from None


def stdin_reader(no_input: bool, limits: Limits = DEFAULT) -> Callable[[], bytes] | None:
    """A function that reads standard input to its end, bounded; None on a terminal, without a stdin, or with
    ``no_input``."""
    if no_input or sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    stream = sys.stdin.buffer

    def read() -> bytes:
        _report_delay(stream)
        try:
            return bytes(stream.read(limits.input + 1))
        except OSError as error:
            if error.errno == errno.EBADF:  # nohup gives a stdin that cannot be read
                return b""
            raise UsageError(
                f"cannot read standard input: {error.strerror}", hint="use --answer or --no-input"
            ) from None

    return read


def _report_delay(stream: Any) -> None:
    """Print a message if nothing comes from standard input: it may never end."""
    import select

    try:
        ready = select.select([stream], [], [], _STDIN_DELAY)[0]
    except (OSError, ValueError):  # not a file descriptor
        return
    if not ready:
        print_message("reading the answer from standard input, to its end (skip this with --no-input)")


def pairs(words: Sequence[str], option: str, *, parsed: bool) -> dict[str, Any]:
    """``KEY=VALUE`` words as a dict; with ``parsed`` a value is JSON, else a string. Raises ``UsageError``."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key or not key.isprintable() or len(key) > 128:
            raise UsageError(f"{option} {word!r} is not KEY=VALUE", hint=f"for example {option} limit=3")
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{option} {key}: the value is not UTF-8", hint="write UTF-8") from None
        values[key] = _json_or_text(data, text, f"{option} {key}: the value") if parsed else text
    return values


def _json_or_text(data: bytes, text: str, what: str) -> Any:
    from stateline.service.answers import is_lenient_json

    try:
        return canonical.parse(data, what=what)
    except InvalidValueError as error:
        if is_lenient_json(data):
            raise UsageError(f"{error.message}; nothing was changed", hint=error.hint) from None
        if data.lstrip()[:1] in (b"{", b"["):
            # More likely a mistake in JSON than a text: kept as text, the mistake would show only where it is read.
            hint = "fix the JSON; put a text that begins with a bracket in quotes: KEY='\"{...\"'"
            raise UsageError(f"{error.message}; nothing was changed", hint=hint) from None
        return text
