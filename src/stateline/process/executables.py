"""Find the program that a command names, explain why it is missing, and choose the environment that it gets.

Commands are named in files: a machine or a tools manifest. The parameter ``source`` is the name of such a file in
messages. Messages name programs as the file does, so that they do not depend on where the file lies.
"""

from __future__ import annotations

import os

from stateline.process.sanitize import Mask, sanitize

PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "TZ")
"""Environment variables that every program gets, if they are set."""

MACHINE_FILE = "the machine file"
"""``source`` of tasks."""
MANIFEST = "the manifest"
"""``source`` of tools."""


def environment(names: list[str]) -> dict[str, str]:
    """Return the variables of ``PASSED`` and of ``names`` that are set."""
    return {name: os.environ[name] for name in (*PASSED, *names) if name in os.environ}


def resolve_program(argv0: str, directory: str, path: str) -> str | None:
    """Return the file that ``argv0`` names, as an absolute path if ``directory`` is one; None if it is missing.

    A name with a slash is looked up in ``directory``; any other on ``path`` (entries separated by ``os.pathsep``; a
    relative or empty one counts from ``directory``, where the command runs).
    """
    if "/" in argv0:
        candidates = [os.path.join(directory, argv0)]
    else:
        candidates = [os.path.join(directory, entry, argv0) for entry in path.split(os.pathsep)]
    for candidate in candidates:
        if argv0 and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def program_problem(argv: list[str], directory: str, source: str = MACHINE_FILE) -> str | None:
    """Return the reason why ``argv`` cannot be started in ``directory`` with this process's PATH, in one sentence; None
    if it can. Checks before a run and before a start are the same."""
    return find_program(argv, directory, source, str)[1] or None


def find_program(argv: list[str], directory: str, source: str, mask: Mask) -> tuple[str, str]:
    """Return the program's file and "", or "" and the problem."""
    if not argv or not argv[0]:
        return "", "the command is empty"
    program = resolve_program(argv[0], directory, os.environ.get("PATH", os.defpath))
    return (program, "") if program else ("", _missing(argv[0], directory, source, quoted(argv[0], mask)))


def quoted(word: str, mask: Mask) -> str:
    """Quote a word of a command for a message: masked first, then cut."""
    return f'"{sanitize(mask(word)[:200])}"'


def _missing(argv0: str, directory: str, source: str, name: str) -> str:
    if "/" not in argv0:
        return f"there is no program {name} on PATH"
    path = os.path.join(directory, argv0)
    if os.path.isdir(path):
        return f"{name} is a directory, not a program"
    if not os.path.exists(path):
        return f"there is no program {name} beside {source}"
    return f"{name} is not executable; run chmod +x on it"
