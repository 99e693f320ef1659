"""A task stage's effect: one command, one JSON document in, one JSON document out.

What happens to the process is ``engine.process``; here its end is given a meaning. Whatever the command does, the
answer is an event: an exception is only ever an interrupt. Messages become part of the run's state, which must not
depend on the host: they name programs as the machine does, and carry nothing that could act on a terminal.

Secrets are masked in what the task wrote, before anything else is done to it: half a secret, or one that is written
out as ``\\x0a``, is found by nobody later.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import msgspec

from stateline.bundle import canonical
from stateline.bundle.terminal import HARMFUL, HARMFUL_IN_LINES
from stateline.engine import process
from stateline.engine.interrupts import shield
from stateline.engine.pipes import KEPT, TAIL
from stateline.errors import ValueRefused
from stateline.machine.run import Failed, Succeeded

PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "TZ")
"""The names of the environment that every task sees, as far as they are set."""

_WINDOWS_NEEDS = ("SYSTEMROOT", "PATHEXT", "TEMP", "TMP")  # most programs do not start there without them
_WHITE = b" \t\r\n"
_EXCERPT = 80  # characters of bad output that are shown
# Text of which only a part is at hand may begin or end inside a secret, and that piece of it cannot be found. So this
# much [bytes] next to such a cut is never shown: the longest secret, in any of its spellings, that is masked for sure.
_LONGEST_SECRET = 16 * 1024


class TaskCall(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. ``directory`` is the machine file's, ``env`` the names passed besides ``PASSED``, ``document`` the
    bytes for stdin, ``timeout`` [s] (0 none), ``output_limit`` [bytes]. ``mask`` takes the secrets out of a text; it
    must not make any part of a text more than twice as long. A task's output, when it is one, is not masked here."""

    argv: list[str]
    directory: str
    document: bytes
    env: list[str] = []
    timeout: float = 0.0
    output_limit: int = canonical.TEXT_LIMIT
    mask: Callable[[str], str] = str


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended, and the time [s] from the start of the command to the end of its process group."""

    event: Succeeded | Failed
    seconds: float


def run_task(call: TaskCall) -> TaskOutcome:
    """Run one command to its end. See ``process.watch`` for how it is ended and what becomes of its descendants.

    The whole call is shielded from signals but for the wait itself. A caller that holds a shield of its own until the
    outcome is saved therefore never loses a task that has finished; an ``Interrupted`` means that the command was
    ended here and that nobody knows how far it had come.
    """
    began = time.monotonic()
    with shield():
        event = _run(call)
        return TaskOutcome(event=event, seconds=time.monotonic() - began)


def resolve_program(argv0: str, directory: str, path: str) -> str | None:
    """The file that ``argv0`` names, as an absolute path if ``directory`` is one; None if there is no such program.

    A name with a slash is looked up beside the machine file, in ``directory``; any other on ``path`` (entries
    separated by ``os.pathsep``; a relative or empty one counts from ``directory``, where the command runs).
    """
    if sys.platform == "win32":
        import shutil

        beside = "/" in argv0 or "\\" in argv0
        return shutil.which(os.path.join(directory, argv0) if beside else argv0, path=None if beside else path)
    if "/" in argv0:
        places = [os.path.join(directory, argv0)]
    else:
        places = [os.path.join(directory, entry, argv0) for entry in path.split(os.pathsep)]
    for place in places:
        if argv0 and os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    return None


def program_problem(argv: list[str], directory: str) -> str | None:
    """What keeps ``argv`` from being started in ``directory`` with this process's PATH, in one sentence; None if
    nothing does. ``machine check`` asks the same question before a run that a run asks before a task."""
    return _find(argv, directory)[1] or None


def _find(argv: list[str], directory: str, mask: Callable[[str], str] = str) -> tuple[str, str]:
    """The program's file and "", or "" and the problem."""
    if not argv or not argv[0]:
        return "", "the command is empty"
    for word in argv:
        if "\0" in word or not _is_unicode(word):
            return "", f"{_quoted(word, mask)} cannot be passed to a program: it holds NUL or half a character"
    program = resolve_program(argv[0], directory, os.environ.get("PATH", os.defpath))
    if program is not None:
        return program, ""
    return "", _missing(argv[0], directory, _quoted(argv[0], mask))


def _missing(argv0: str, directory: str, name: str) -> str:
    if "/" not in argv0:
        return f"there is no program {name} on PATH"
    place = os.path.join(directory, argv0)
    if os.path.isdir(place):
        return f"{name} is a directory, not a program"
    if not os.path.exists(place):
        return f"there is no program {name} beside the machine file"
    return f"{name} is not executable; chmod +x makes it so"


def _run(call: TaskCall) -> Succeeded | Failed:
    try:
        program, problem = _find(call.argv, call.directory, call.mask)
        if problem:
            return Failed(kind="spawn", message=problem, hint="correct the stage's `task` or install the program")
        child = process.start(program, call.argv, call.directory, environment(call.env))
    except (OSError, ValueError) as error:
        return _not_started(call, error)
    ended = process.watch(child, call.document, timeout=call.timeout, output_limit=call.output_limit)
    return _meaning(call, ended)


def environment(names: list[str]) -> dict[str, str]:
    """What a program of a machine sees: the variables of ``PASSED`` and of ``names`` that are set here."""
    wanted = (*PASSED, *names) if sys.platform != "win32" else (*PASSED, *_WINDOWS_NEEDS, *names)
    return {name: os.environ[name] for name in wanted if name in os.environ}


def _not_started(call: TaskCall, error: OSError | ValueError) -> Failed:
    """The program was there, and yet the system would not start it."""
    import errno

    name = _quoted(call.argv[0], call.mask)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOENT, errno.ENOTDIR):
        if not os.path.isdir(call.directory):
            return Failed(kind="spawn", message="the machine file's directory is gone", hint="put it back")
        message, hint = f"the interpreter of {name} is missing", "correct the first line of the script (#!...)"
    elif number == errno.ENOEXEC:
        message = f"{name} is neither a binary for this system nor a script that names its interpreter"
        hint = "begin the script with a line such as #!/bin/sh"
    elif number == errno.E2BIG:
        message, hint = f"the arguments of {name} are too long", "pass large data on stdin or in a file"
    else:
        reason = os.strerror(number) if number else call.mask(str(error))
        message = f"{name} could not be started: {shown(reason)}"
        hint = "nothing was run; retry when the system allows it"
    return Failed(kind="spawn", message=message, hint=hint)


def _meaning(call: TaskCall, ended: process.Exit) -> Succeeded | Failed:
    written = ended.written
    if ended.how != "exited":
        left = "; it could not be ended and may still be running" if ended.alive else " and was ended"
        if ended.how == "timeout":
            said = _last_words(call, ended)
            message = f"took longer than {call.timeout:g} s{left}" + (f"; its stderr ends: {said}" if said else "")
            return Failed(kind="timeout", message=message, hint="raise the stage's `timeout`, or make the task quicker")
        hint = "write large data to a file and print its name"
        return Failed(kind="output", message=f"printed more than {call.output_limit} bytes{left}", hint=hint)
    if ended.code is None:
        hint = "start Stateline with SIGCHLD not ignored"
        return Failed(kind="exit", message="ended, but the system threw its exit code away", hint=hint)
    if ended.code != 0:
        how, said = _how_it_exited(ended.code), _last_words(call, ended)
        if said:
            return Failed(kind="exit", message=said, hint=f"it {how}; the message is the end of its stderr")
        hint = "let the task write to stderr why it fails"
        return Failed(kind="exit", message=f"{how} and wrote nothing to stderr", hint=hint)
    return _output(call, written.output)


def _how_it_exited(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    import signal

    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"was ended by signal {-code}"


def _last_words(call: TaskCall, ended: process.Exit) -> str:
    """The end of stderr. Bytes that are not text count as the three of the character that stands for them."""
    kept, cut = ended.written.kept, ended.written.kept_cut
    text = _masked(call, kept.decode("utf-8", "replace"))
    if cut:
        text = text[_unsafe(kept[:_LONGEST_SECRET]) :]
    data = text.encode("utf-8", "replace")
    if not cut and len(data) <= TAIL:
        return shown(text, lines=True).strip()
    whole = data[-TAIL:].lstrip(bytes(range(0x80, 0xC0)))  # the cut may have gone through a character
    return "..." + shown(whole.decode("utf-8"), lines=True).rstrip()


def _output(call: TaskCall, data: bytes) -> Succeeded | Failed:
    text = data.strip(_WHITE)
    if not text:
        return Succeeded(output=None)
    try:
        return Succeeded(output=canonical.parse(text, limit=call.output_limit, what="the task's output"))
    except ValueRefused as refused:
        message, begin = shown(_refusal(call, refused)), shown(_excerpt(call, text))
        message += f"; it begins: {begin}" if begin else ""
        hint = "print one JSON document to stdout, and everything else to stderr"
        return Failed(kind="output", message=message, hint=hint)


def _excerpt(call: TaskCall, data: bytes) -> str:
    """How ``data`` begins; "" when too little of it is sure to be free of secrets."""
    text = _masked(call, data[:KEPT].decode("utf-8", "replace"))
    if len(data) > KEPT:
        text = text[: max(0, len(text) - _unsafe(data[KEPT - _LONGEST_SECRET : KEPT]))]
    return text[:_EXCERPT]


def _masked(call: TaskCall, text: str) -> str:
    text = call.mask(text)
    # A program may have changed the line ends of what it was given. Where that hides no secret they stay as they are.
    joined = text.replace("\r\n", "\n")
    masked = call.mask(joined)
    return text if masked == joined else masked


def _unsafe(data: bytes) -> int:
    """How many characters of the masked text may come from ``data``: no mask is twice as long as what it hides. (To
    mask without ``data`` would not do: that cut could go through a secret as well.)"""
    return 2 * len(data.decode("utf-8", "replace"))


def _refusal(call: TaskCall, refused: ValueRefused) -> str:
    """The message of ``refused`` with secrets masked in the keys it names, which it has escaped."""
    message = refused.message
    if refused.where:
        message = message.removesuffix(f" (at {refused.where})")
        message += f" (at {_place(call, refused.where)})"
    return _masked(call, _repeated_key(call, message))


def _place(call: TaskCall, where: str) -> str:
    """The JSON Pointer ``where`` with each key masked as it really is."""
    return "/".join(canonical.escape(_masked(call, canonical.unescape(key))) for key in where.split("/"))


def _repeated_key(call: TaskCall, message: str) -> str:
    """``message`` with the key in it, which stands there as ``repr`` writes it, masked as it really is."""
    import ast
    import re

    found = re.search(r"holds the key (.*) twice in one object", message, re.DOTALL)
    if found is None:
        return message
    key = _masked(call, str(ast.literal_eval(found[1])))
    return message[: found.start(1)] + repr(key) + message[found.end(1) :]


def _is_unicode(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _quoted(word: str, mask: Callable[[str], str]) -> str:
    return f'"{shown(mask(word)[:200])}"'


def shown(text: str, *, lines: bool = False) -> str:
    r"""``text`` with all that could act on a terminal or forge a line written out (``\x1b``): control characters, and
    those that turn or hide text. With ``lines``, line ends and tabs stay. The result is valid Unicode."""
    if lines:
        text = text.replace("\r\n", "\n")
    harmful = HARMFUL_IN_LINES if lines else HARMFUL
    table = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in harmful}
    return text.translate(table).encode("utf-8", "backslashreplace").decode("utf-8")
