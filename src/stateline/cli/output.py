"""Data to stdout, talk to stderr. What is printed came from others, so nothing in it may act on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import msgspec

from stateline.bundle import canonical
from stateline.bundle.terminal import HARMFUL_IN_LINES
from stateline.cli.options import Settings
from stateline.errors import StorageError

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1"}
_REPLACED = dict.fromkeys(HARMFUL_IN_LINES, "\N{REPLACEMENT CHARACTER}")
_ESCAPED = {code: f"\\u{code:04x}" for code in range(127, 160)}


def plain(text: str) -> str:
    """``text`` with what could act on a terminal replaced; tab and newline stay."""
    return text.translate(_REPLACED)


def one_line(value: Any, limit: int = 200) -> str:
    """A value on one line, cut at ``limit`` characters: strings as they are, everything else as JSON."""
    text = value if isinstance(value, str) else _encoded(value).decode()
    text = " ".join(plain(text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, word: str) -> str:
    """A number and what it counts: ``1 gap``, ``2 gaps``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def coloured(text: str, colour: str, *, talk: bool = False) -> str:
    """``text`` in a colour if stdout (stderr for ``talk``) is a terminal, and nobody said NO_COLOR."""
    if not is_terminal(sys.stderr if talk else sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def is_terminal(stream: Any) -> bool:
    """Whether somebody sits before a standard stream; it is None where the caller closed it."""
    return stream is not None and bool(stream.isatty())


def columns() -> int | None:
    """How many characters a line of the terminal holds that stdout is; what COLUMNS says goes before. None where it is
    no terminal: what reads it there is no pair of eyes, whatever terminal the environment is of."""
    import shutil

    return shutil.get_terminal_size((0, 0)).columns or None if is_terminal(sys.stdout) else None


class _Typed:
    """A text that is written piece by piece to stderr: whether it stands in the middle of a line, its pieces since
    anything else was written, and what is called where it ends, before anything else is written."""

    midline = False
    ending: Callable[[], None] | None = None
    pieces: ClassVar[list[str]] = []


def type_out(text: str) -> None:
    """A piece of a text, on stderr, as it comes. Whatever is said or written next begins on a line of its own."""
    text = plain(text)
    if text and _put(text, end=""):
        _Typed.midline = not text.endswith("\n")
        _Typed.pieces.append(text)


def at_the_end_of_typing(ending: Callable[[], None]) -> None:
    """Have ``ending`` called, which may type out the rest of a text, before anything else is said or written."""
    _Typed.ending = ending


def just_typed(text: str) -> bool:
    """Whether ``text`` is what was typed out last, with nothing written since, on the terminal that stdout is."""
    if _Typed.ending is not None:
        _Typed.ending()
    typed = "".join(_Typed.pieces).strip()
    return bool(typed) and typed == text.strip() and _is_one_terminal()


def _is_one_terminal() -> bool:
    if not (is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        return False
    return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))


def _end_line() -> None:
    if _Typed.ending is not None:
        _Typed.ending()
    _Typed.pieces.clear()
    if _Typed.midline:
        _Typed.midline = False
        _put("")


def _put(text: str, end: str = "\n") -> bool:
    if sys.stderr is not None:
        try:
            print(text, file=sys.stderr, flush=True, end=end)
            return True
        except (OSError, ValueError):
            pass
    return False


def emit(settings: Settings, document: Any, lines: list[str]) -> None:
    """The result: one JSON document, or lines for people."""
    if settings.json:
        data = _encoded(document)
        if is_terminal(sys.stdout):
            data = "\n".join(pretty(document)).encode()
        write(data + b"\n")
    else:
        write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def stream(lines: Iterable[str]) -> None:
    """Lines for people, each as soon as it is known; none more is asked for once whoever reads them has gone."""
    for line in lines:
        if not write(f"{line}\n".encode("utf-8", "backslashreplace")):
            return


def _encoded(document: Any) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        # Half a character, from a file's name that is not UTF-8: JSON cannot hold it, and has to say so all the same.
        return msgspec.json.encode(canonical.walk(document, _whole))


def _whole(leaf: Any) -> Any:
    return leaf.encode("utf-8", "backslashreplace").decode() if isinstance(leaf, str) else leaf


def pretty(document: Any) -> list[str]:
    """A document as indented JSON, by line; still that document, and harmless on a terminal: JSON leaves DEL and the
    second range of control characters as they are, so they are escaped here."""
    text = msgspec.json.format(_encoded(document), indent=2).decode()
    return text.translate(_ESCAPED).split("\n")


def write(data: bytes) -> bool:
    """Bytes to stdout; False if whoever read it has gone, which is no error. Raises ``StorageError`` if it takes
    nothing."""
    _end_line()
    try:
        if sys.stdout is None:
            raise ValueError("it is closed")
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return True
    except BrokenPipeError:
        return False
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(
            f"cannot write the result to standard output: {reason}; what the command did before is done and saved",
            hint="give it a place to write to, and look again: `stateline exec status`",
        ) from None


def tell(text: str) -> None:
    """What was asked about the program itself, help or version: a text for stdout. That nobody reads it is no error.
    Raises ``StorageError`` if stdout takes nothing."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        raise StorageError(**not_printed(error)) from None


def not_printed(error: Exception) -> dict[str, str]:
    """What is said where help or version could not be printed."""
    reason = getattr(error, "strerror", None) or error
    message = f"cannot write to standard output: {reason}; nothing was changed"
    return {"message": message, "hint": "give it a place to write to, then call again"}


def talk(text: str) -> None:
    """A line on stderr. That nobody listens stops no work."""
    _end_line()
    _put(text)


def say(settings: Settings, text: str) -> None:
    """Talk, on stderr, unless told to be quiet."""
    if not settings.quiet:
        talk(plain(text))


def warn(settings: Settings, warnings: list[str]) -> None:
    """Warnings, on stderr; with ``--format json`` they are in the document too."""
    if not settings.quiet:
        for warning in dict.fromkeys(warnings):
            talk(f"{coloured('warning:', 'yellow', talk=True)} {plain(warning)}")


def fail(json: bool, document: dict[str, Any], *, quiet: bool = False) -> None:
    """An error that is not a run's outcome: on stdout as JSON, else (or where stdout takes nothing) on stderr. What it
    warns of comes first, on stderr, unless ``quiet``."""
    for warning in [] if quiet else document.get("warnings", []):
        talk(f"{coloured('warning:', 'yellow', talk=True)} {plain(warning)}")
    if json:
        try:
            write(_encoded({"error": document}) + b"\n")
            return
        except StorageError:
            pass
    talk(f"{coloured('error:', 'red', talk=True)} {plain(document['message'])}")
    if document["hint"]:
        talk(f"{coloured('hint:', 'dim', talk=True)}  {plain(document['hint'])}")


def table(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    """Rows as aligned columns with a heading."""
    cells = [columns, *([one_line(row[name], 64) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
