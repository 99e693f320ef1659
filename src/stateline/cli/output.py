"""Data to stdout, messages to stderr. Texts come from others, so nothing printed here can control a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from stateline.bundle import canonical
from stateline.bundle.terminal import HARMFUL_IN_LINES
from stateline.cli.layout import cut
from stateline.cli.options import Settings
from stateline.errors import StorageError

if TYPE_CHECKING:
    from stateline.cli.elapsed import Elapsed

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1"}
_COLUMNS = 80
_REPLACED = dict.fromkeys(HARMFUL_IN_LINES, "\N{REPLACEMENT CHARACTER}")
_ESCAPED = {code: f"\\u{code:04x}" for code in range(127, 160)}


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a command: a ``document`` for ``--format json``, ``lines`` for people, warnings, ``closing`` messages
    after the lines, and the exit code. An iterator of lines is printed line by line. ``raw`` bytes replace both forms.
    """

    document: Any = None
    lines: Iterable[str] = ()
    warnings: list[str] = []
    closing: list[str] = []
    exit_code: int = 0
    raw: bytes | None = None


def print_output(settings: Settings, output: Output) -> int:
    """Print the output of a command; its exit code. Raises ``StorageError`` if stdout takes nothing."""
    print_warnings(settings, output.warnings)
    if output.raw is not None:
        write_stdout(output.raw)
    elif settings.json:
        data = _encoded(output.document)
        if is_terminal(sys.stdout):
            data = "\n".join(pretty(output.document)).encode()
        write_stdout(data + b"\n")
    elif isinstance(output.lines, Iterator):
        for line in output.lines:
            if not write_stdout(_as_bytes([line])):
                break  # the reader has gone
    else:
        write_stdout(_as_bytes(output.lines))
    for line in [] if settings.json else output.closing:
        notify(settings, line)
    return output.exit_code


def _as_bytes(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def plain(text: str) -> str:
    """``text`` with everything replaced that could control a terminal; tab and newline stay."""
    return text.translate(_REPLACED)


def one_line(value: Any, limit: int = 200) -> str:
    """A value on one line, cut at ``limit`` columns: strings unquoted, everything else as JSON."""
    text = value if isinstance(value, str) else _encoded(value).decode()
    return cut(" ".join(plain(text).split()), limit)


def counted(number: int, word: str) -> str:
    """A number and a noun: ``1 gap``, ``2 gaps``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def coloured(text: str, colour: str, *, stderr: bool = False) -> str:
    """``text`` in a colour if its stream is a terminal and NO_COLOR is not set."""
    if not is_terminal(sys.stderr if stderr else sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def is_terminal(stream: Any) -> bool:
    """True if a standard stream is a terminal. The stream is None where the caller closed it."""
    return stream is not None and bool(stream.isatty())


def columns() -> int:
    """The width of the terminal that stdout is (or COLUMNS, if set), 80 if it is none."""
    if not is_terminal(sys.stdout):
        return _COLUMNS
    import shutil

    return shutil.get_terminal_size((_COLUMNS, 0)).columns


def pretty(document: Any) -> list[str]:
    """A document as indented JSON, by line. JSON leaves DEL and the second range of control characters as they are;
    they are escaped here, so that a terminal does not act on them."""
    text = msgspec.json.format(_encoded(document), indent=2).decode()
    return text.translate(_ESCAPED).split("\n")


def _encoded(document: Any) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        # A file's name that is not UTF-8 holds half a character, which JSON cannot express.
        return msgspec.json.encode(canonical.map_leaves(document, _as_utf8))


def _as_utf8(leaf: Any) -> Any:
    return leaf.encode("utf-8", "backslashreplace").decode() if isinstance(leaf, str) else leaf


class _Streamed:
    """A text that is written to stderr piece by piece: its pieces since anything else was written, and a function to be
    called at its end, before anything else is written. ``midline``: the last line is not complete. ``elapsed``: the
    last line counts seconds."""

    midline = False
    elapsed: Elapsed | None = None
    on_end: Callable[[], None] | None = None
    pieces: ClassVar[list[str]] = []


def stream_text(text: str) -> None:
    """Write a piece of a text to stderr. Anything printed afterwards begins on a new line."""
    text = plain(text)
    if text:
        _end_elapsed()
    if text and _write_stderr(text, end=""):
        _Streamed.midline = not text.endswith("\n")
        _Streamed.pieces.append(text)


def at_end_of_stream(on_end: Callable[[], None]) -> None:
    """Call ``on_end`` before anything else is printed. It may write the rest of the streamed text."""
    _Streamed.on_end = on_end


def was_just_streamed(text: str) -> bool:
    """True if ``text`` was streamed last, with nothing printed since, and stdout is a terminal too."""
    if _Streamed.on_end is not None:
        _Streamed.on_end()
    streamed = "".join(_Streamed.pieces).strip()
    return bool(streamed) and streamed == text.strip() and is_terminal(sys.stdout)


def notify_start(settings: Settings, text: str) -> None:
    """Print a message on stderr, unless ``--quiet``. On a terminal, count the seconds below until anything else is
    written."""
    notify(settings, text)
    if not settings.quiet and is_terminal(sys.stderr):
        from stateline.cli.elapsed import Elapsed

        _Streamed.elapsed = Elapsed(lambda text: _write_stderr(text, end=""))


def _end_elapsed() -> None:
    elapsed, _Streamed.elapsed = _Streamed.elapsed, None
    if elapsed is not None:
        elapsed.end()


def _end_stream() -> None:
    _end_elapsed()
    if _Streamed.on_end is not None:
        _Streamed.on_end()
    _Streamed.pieces.clear()
    if _Streamed.midline:
        _Streamed.midline = False
        _write_stderr("")


def write_stdout(data: bytes) -> bool:
    """Write bytes to stdout; False if its reader has gone. Raises ``StorageError`` if stdout takes nothing."""
    _end_stream()
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
        raise StorageError(
            f"cannot write to standard output: {getattr(error, 'strerror', None) or error}; the work is done and saved",
            hint="free some space; `stateline exec status` shows the run used last",
        ) from None


def print_message(text: str) -> None:
    """Print a line on stderr. Does nothing if stderr is closed."""
    _end_stream()
    _write_stderr(text)


def notify(settings: Settings, text: str) -> None:
    """Print a message on stderr, unless ``--quiet``."""
    if not settings.quiet:
        print_message(plain(text))


def is_confirmed(question: str) -> bool:
    """Ask on the terminal. Return True for an answer of yes, and where there is no terminal to ask on."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return True
    _end_stream()
    _write_stderr(f"{plain(question)} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_warnings(settings: Settings, warnings: list[str]) -> None:
    """Print warnings on stderr, each once, unless ``--quiet``. A JSON document repeats them."""
    if not settings.quiet:
        for warning in dict.fromkeys(warnings):
            print_message(f"{coloured('warning:', 'yellow', stderr=True)} {plain(warning)}")


def print_error(document: dict[str, Any], *, json: bool, quiet: bool = False) -> None:
    """Print an error that is not a run's outcome: on stdout as JSON, else (or if stdout takes nothing) on stderr. Its
    warnings come first, on stderr, unless ``quiet``."""
    print_warnings(Settings(quiet=quiet), document.get("warnings", []))
    if json:
        try:
            write_stdout(_encoded({"error": document}) + b"\n")
            return
        except StorageError:
            pass
    print_message(f"{coloured('error:', 'red', stderr=True)} {plain(document['message'])}")
    if document["hint"]:
        print_message(f"{coloured('hint:', 'dim', stderr=True)}  {plain(document['hint'])}")


def _write_stderr(text: str, end: str = "\n") -> bool:
    if sys.stderr is not None:
        try:
            print(text, file=sys.stderr, flush=True, end=end)
            return True
        except (OSError, ValueError):
            pass
    return False
