"""Which program a command names, why there is none, and what a program sees of the environment.

Commands stand in files: a machine, a manifest of tools. Such a file is ``beside`` in these functions, in the words of a
message. Messages name programs as the file does: they must not depend on where it lies.
"""

from __future__ import annotations

import os
import sys

from stateline.process.sanitize import Mask, shown

PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "TZ")
"""The names of the environment that every program sees, as far as they are set."""

MACHINE_FILE = "the machine file"
"""What ``beside`` is for tasks."""
MANIFEST = "the manifest"
"""What it is for tools."""

_WINDOWS_NEEDS = ("SYSTEMROOT", "PATHEXT", "TEMP", "TMP")  # most programs do not start there without them


def environment(names: list[str]) -> dict[str, str]:
    """What a program sees: the variables of ``PASSED`` and of ``names`` that are set here."""
    wanted = (*PASSED, *names) if sys.platform != "win32" else (*PASSED, *_WINDOWS_NEEDS, *names)
    return {name: os.environ[name] for name in wanted if name in os.environ}


def resolve_program(argv0: str, directory: str, path: str) -> str | None:
    """The file that ``argv0`` names, as an absolute path if ``directory`` is one; None if there is no such program.

    A name with a slash is looked up in ``directory``, beside the file that names it; any other on ``path`` (entries
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


def program_problem(argv: list[str], directory: str, beside: str = MACHINE_FILE) -> str | None:
    """What keeps ``argv`` from being started in ``directory`` with this process's PATH, in one sentence; None if
    nothing does. A check before a run asks the same question that is asked before a start."""
    return find_program(argv, directory, beside, str)[1] or None


def find_program(argv: list[str], directory: str, beside: str, mask: Mask) -> tuple[str, str]:
    """The program's file and "", or "" and the problem."""
    if not argv or not argv[0]:
        return "", "the command is empty"
    for word in argv:
        if "\0" in word or not _is_unicode(word):
            return "", f"{quoted(word, mask)} cannot be passed to a program: it holds NUL or half a character"
    program = resolve_program(argv[0], directory, os.environ.get("PATH", os.defpath))
    if program is not None:
        return program, ""
    return "", _missing(argv[0], directory, beside, quoted(argv[0], mask))


def quoted(word: str, mask: Mask) -> str:
    """A word of a command for a message: masked, then cut, then in quotes."""
    return f'"{shown(mask(word)[:200])}"'


def _missing(argv0: str, directory: str, beside: str, name: str) -> str:
    if "/" not in argv0:
        return f"there is no program {name} on PATH"
    place = os.path.join(directory, argv0)
    if os.path.isdir(place):
        return f"{name} is a directory, not a program"
    if not os.path.exists(place):
        return f"there is no program {name} beside {beside}"
    return f"{name} is not executable; chmod +x makes it so"


def _is_unicode(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
