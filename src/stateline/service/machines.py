"""The verbs ``machine check``, ``show`` and ``draw``."""

from __future__ import annotations

import os

import msgspec

from stateline.bundle import naming
from stateline.bundle.canonical import Json
from stateline.bundle.limits import DEFAULT, Limits
from stateline.engine.record import load_run
from stateline.errors import RequestError, UsageError
from stateline.machine.decider.run import RunState
from stateline.machine.problems import Problem
from stateline.machine.spec import Machine, to_json
from stateline.redaction.redactor import Redactor
from stateline.service.machine_files import MachineFile, read_machine_file, read_toolset, require_no_secret_in
from stateline.store.store import Store


class Checked(msgspec.Struct, frozen=True):
    """The problems of a machine file; ``ok`` if none is an error."""

    ok: bool
    problems: list[Json]


def check_machine(path: str, limits: Limits = DEFAULT) -> Checked:
    """Return all problems of a machine file, with those that a call without flags in this environment would meet:
    missing programs, problems of its tools and of the names of its models.

    Raises ``NotFoundError`` or ``RequestError`` if the file cannot be read.
    """
    from stateline.machine.definition.check import Lookups, check
    from stateline.process.executables import program_problem

    machine_file, redactor = read_machine_file(path, limits), Redactor.from_environment(os.environ)
    directory = machine_file.directory
    outside = Lookups(
        exists=lambda argv: program_problem(argv, directory),
        evaluate=machine_file.evaluate,
        toolset=lambda tools: read_toolset(machine_file, tools, redactor.find, limits),
        model=_choose,
    )
    machine, problems = check(machine_file.data, machine_file.path, outside)
    secret = _secret_in(machine_file, machine, redactor)
    rows = [msgspec.to_builtins(problem) for problem in (*secret, *problems)]
    return Checked(machine is not None and not secret, rows)


def _secret_in(machine_file: MachineFile, machine: Machine | None, redactor: Redactor) -> list[Problem]:
    """Return the problem that the file holds a secret, with the message that refuses a run."""
    try:
        require_no_secret_in(machine_file, redactor)
        if machine is not None:
            require_no_secret_in(machine_file, redactor, machine)
    except RequestError as error:
        return [Problem(severity="error", code="secret", where="1:1", message=error.message, hint=error.hint)]
    return []


def _choose(name: str) -> object:
    """Raise ``RequestError`` for a model's name that a call without flags could not use."""
    from stateline.model.providers.selection import choose

    return choose(name, os.environ.get("STATELINE_BASE_URL", ""))


def machine_of(store: Store, path: str | None, run: str | None) -> tuple[Machine, RunState | None]:
    """Return the machine in the file at ``path``, or that of ``run`` with the run's state. Reads only. A Python machine
    at ``path`` is executed; the one that a run keeps never is.

    Raises ``UsageError`` unless exactly one of the two is given, ``InvalidMachineError``, and as ``read_machine_file``
    and ``load_run``.
    """
    if (path is None) == (run is None):
        raise UsageError("name a machine file or a run, one of the two", hint="MACHINE, or --run RUN")
    if run is not None:
        found = load_run(store, naming.checked_id(run, "run id"))
        return found.machine, found.state
    from stateline.machine.definition.check import Lookups, load

    machine_file = read_machine_file(path or "", store.limits)
    return load(machine_file.data, machine_file.path, Lookups(evaluate=machine_file.evaluate)), None


def show_machine(store: Store, path: str | None, run: str | None) -> dict[str, Json]:
    """Return the canonical spec. Raises as :func:`machine_of`."""
    return to_json(machine_of(store, path, run)[0])


def draw_machine(store: Store, path: str | None, run: str | None) -> str:
    """Return a Mermaid flowchart, with the path that ``run`` took. Raises as :func:`machine_of`."""
    from stateline.machine.draw import flowchart

    return flowchart(*machine_of(store, path, run))
