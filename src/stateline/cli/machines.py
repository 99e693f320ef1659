"""``stateline machine``."""

from __future__ import annotations

from typing import Annotated

import typer

from stateline.cli.options import settings
from stateline.cli.output import coloured, emit, plain, pretty

File = Annotated[str | None, typer.Argument(metavar="[MACHINE]", help="A machine file (.yaml, .json, .toml, .py).")]
OfRun = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="The machine that this run goes by, from the store.")
]


def check(
    ctx: typer.Context,
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A machine file (.yaml, .json, .toml, .py).")],
) -> int:
    """Say everything that is wrong with a machine file, each mistake with its place and a hint.

    A Python machine (.py) is run for that, in a process of its own.
    """
    import msgspec

    from stateline.service.machines import check_machine

    said = settings(ctx)
    result = check_machine(machine)
    name = plain(machine)
    lines = []
    for problem in result.problems:
        colour = "red" if problem["severity"] == "error" else "yellow"
        where = f"{problem['where']}: " if problem["where"] else ""
        lines.append(f"{name}:{where}{coloured(problem['severity'], colour)}: {plain(problem['message'])}")
        if problem["hint"]:
            lines.append(f"    hint: {plain(problem['hint'])}")
    lines.append(f"{name}: {'ok' if result.ok else 'not usable'}")
    emit(said, msgspec.to_builtins(result), lines)
    return 0 if result.ok else 1


def show(ctx: typer.Context, machine: File = None, run: OfRun = None) -> int:
    """Print the machine's canonical spec as JSON: every field written out, whatever the file's format.

    A Python machine (.py) is run for that; with --run nothing is.
    """
    from stateline.service.machines import show_machine

    said = settings(ctx)
    document = show_machine(said.store(), machine, run)
    emit(said, document, pretty(document))
    return 0


def draw(ctx: typer.Context, machine: File = None, run: OfRun = None) -> int:
    """Draw the machine as a Mermaid flowchart; with --run, with the way that the run took.

    Boxes are tasks, leaning ones people, round ones ends. Arrows bear their conditions, dashed ones are error_next.
    A Python machine (.py) is run for that; with --run nothing is.
    """
    from stateline.service.machines import draw_machine

    said = settings(ctx)
    text = draw_machine(said.store(), machine, run)
    emit(said, {"mermaid": text}, text.splitlines())
    return 0


def schema(
    ctx: typer.Context,
    bundle: Annotated[bool, typer.Option("--bundle", help="That of snapshots, not of machine files.")] = False,
) -> int:
    """Print the JSON Schema (2020-12) of machine files, by which editors complete and check."""
    said = settings(ctx)
    if bundle:
        from stateline.service.snapshot_schema import snapshot_schema

        document = snapshot_schema()
    else:
        from stateline.machine.definition.editor_schema import machine_schema

        document = machine_schema()
    emit(said, document, pretty(document))
    return 0
