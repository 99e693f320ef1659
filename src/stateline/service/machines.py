"""The verb ``machine check``."""

from __future__ import annotations

import os

import msgspec

from stateline.bundle.canonical import Json
from stateline.service.launch import read_machinery


class Checked(msgspec.Struct, frozen=True):
    """What is wrong with a machine file; ``ok`` if nothing is an error."""

    ok: bool
    problems: list[Json]


def check_machine(path: str) -> Checked:
    """Read a machine file and say everything that is wrong with it, programs that are missing included.

    Raises ``NotFound`` or ``RequestError`` if the file cannot be read; mistakes in it are the result, not an error.
    """
    from stateline.engine.task import program_problem
    from stateline.machine.check import check

    machinery = read_machinery(path)
    directory = os.path.dirname(machinery.path)
    machine, problems = check(machinery.data, machinery.path, exists=lambda argv: program_problem(argv, directory))
    return Checked(machine is not None, [msgspec.to_builtins(problem) for problem in problems])
