"""``stateline machine``."""

from __future__ import annotations

from typing import Annotated

import typer

from stateline.cli.options import settings
from stateline.cli.output import coloured, emit, plain


def check(
    ctx: typer.Context, machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A machine file.")]
) -> int:
    """Say everything that is wrong with a machine file, each mistake with its place and a hint."""
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
