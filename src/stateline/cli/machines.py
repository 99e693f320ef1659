"""``stateline machine``."""

from __future__ import annotations

import msgspec

from stateline.cli.command import Command, fields_of
from stateline.cli.layout import hanging, labelled
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, columns, plain, pretty
from stateline.cli.parser import argument, switch

_FILE = "A machine file (.yaml, .json, .toml, .py)."


class CheckOptions(msgspec.Struct, frozen=True):
    """Options of ``machine check``."""

    settings: Settings
    machine: str


def _check(options: CheckOptions) -> Output:
    from stateline.service.machines import check_machine

    result = check_machine(options.machine, options.settings.limits)
    name = plain(options.machine)
    lines = []
    for problem in result.problems:
        colour = "red" if problem["severity"] == "error" else "yellow"
        where = f"{problem['where']}: " if problem["where"] else ""
        text = f"{name}:{where}{coloured(problem['severity'], colour)}: {plain(problem['message'])}"
        lines += hanging(text, columns())
        if problem["hint"]:
            lines += labelled("    hint: ", plain(problem["hint"]), columns())
    lines += hanging(f"{name}: {'ok' if result.ok else 'not usable'}", columns())
    return Output(document=msgspec.to_builtins(result), lines=lines, exit_code=0 if result.ok else 1)


class MachineOptions(msgspec.Struct, frozen=True):
    """Options of ``machine show`` and ``machine draw``: a file or a run."""

    settings: Settings
    machine: str | None
    run: str | None


def _show(options: MachineOptions) -> Output:
    from stateline.service.machines import show_machine

    document = show_machine(options.settings.store(), options.machine, options.run)
    return Output(document=document, lines=pretty(document))


def _draw(options: MachineOptions) -> Output:
    from stateline.service.machines import draw_machine

    text = draw_machine(options.settings.store(), options.machine, options.run)
    return Output(document={"mermaid": text}, lines=text.splitlines())


_MACHINE = [
    argument("machine", nargs="?", metavar="MACHINE", help=_FILE),
    argument("--run", metavar="RUN", help="The stored machine of that run."),
]


class SchemaOptions(msgspec.Struct, frozen=True):
    """Options of ``machine schema``."""

    settings: Settings
    bundle: bool


def _schema(options: SchemaOptions) -> Output:
    if options.bundle:
        from stateline.service.snapshot_schema import snapshot_schema as schema
    else:
        from stateline.machine.definition.editor_schema import machine_schema as schema
    document = schema()
    return Output(document=document, lines=pretty(document))


CHECK = Command(
    help="""Report every mistake in a machine file, with its place and a hint.

A Python machine (.py) is executed for this, in a separate process.""",
    arguments=[argument("machine", metavar="MACHINE", help=_FILE)],
    options=fields_of(CheckOptions),
    run=_check,
)
SHOW = Command(
    help="""Print a machine's canonical spec as JSON, with every field.

A Python machine (.py) is executed for this; with --run nothing is.""",
    arguments=_MACHINE,
    options=fields_of(MachineOptions),
    run=_show,
)
DRAW = Command(
    help="""Draw a machine as a Mermaid flowchart; with --run, its path.

Rectangles are tasks, slanted boxes people, rounded boxes ends. Arrows carry their conditions; dashed arrows are
error_next. A Python machine (.py) is executed for this; with --run nothing is.""",
    arguments=_MACHINE,
    options=fields_of(MachineOptions),
    run=_draw,
)
SCHEMA = Command(
    help="Print the JSON Schema (2020-12) of machine files, for editors.",
    arguments=[switch("--bundle", help="The schema of snapshots instead.")],
    options=fields_of(SchemaOptions),
    run=_schema,
)
