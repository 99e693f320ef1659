"""``stateline machine``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stateline.cli.command import Command, fields_of
from stateline.cli.options import Settings
from stateline.cli.output import Output, coloured, plain, pretty
from stateline.cli.parser import Parser

if TYPE_CHECKING:
    from stateline.service.machines import Checked

_FILE = "A machine file (.yaml, .json, .toml, .py)."


class CheckOptions(msgspec.Struct, frozen=True):
    """Options of ``machine check``."""

    settings: Settings
    machine: str


def _check_arguments(parser: Parser) -> None:
    parser.add_argument("machine", metavar="MACHINE", help=_FILE)


def _check(options: CheckOptions) -> Checked:
    from stateline.service.machines import check_machine

    return check_machine(options.machine)


def _check_output(options: CheckOptions, result: Checked) -> Output:
    name = plain(options.machine)
    lines = []
    for problem in result.problems:
        colour = "red" if problem["severity"] == "error" else "yellow"
        where = f"{problem['where']}: " if problem["where"] else ""
        lines.append(f"{name}:{where}{coloured(problem['severity'], colour)}: {plain(problem['message'])}")
        if problem["hint"]:
            lines.append(f"    hint: {plain(problem['hint'])}")
    lines.append(f"{name}: {'ok' if result.ok else 'not usable'}")
    return Output(document=msgspec.to_builtins(result), lines=lines, exit_code=0 if result.ok else 1)


class MachineOptions(msgspec.Struct, frozen=True):
    """Options of ``machine show`` and ``machine draw``: a file or a run."""

    settings: Settings
    machine: str | None
    run: str | None


def _machine_arguments(parser: Parser) -> None:
    parser.add_argument("machine", nargs="?", metavar="MACHINE", help=_FILE)
    parser.add_argument("--run", metavar="RUN", help="The stored machine of that run.")


def _show(options: MachineOptions) -> dict[str, Any]:
    from stateline.service.machines import show_machine

    return show_machine(options.settings.store(), options.machine, options.run)


def _document_output(options: Any, document: dict[str, Any]) -> Output:
    return Output(document=document, lines=pretty(document))


def _draw(options: MachineOptions) -> str:
    from stateline.service.machines import draw_machine

    return draw_machine(options.settings.store(), options.machine, options.run)


def _draw_output(options: MachineOptions, text: str) -> Output:
    return Output(document={"mermaid": text}, lines=text.splitlines())


class SchemaOptions(msgspec.Struct, frozen=True):
    """Options of ``machine schema``."""

    settings: Settings
    bundle: bool


def _schema_arguments(parser: Parser) -> None:
    parser.switch("--bundle", help="The schema of snapshots instead.")


def _schema(options: SchemaOptions) -> dict[str, Any]:
    if options.bundle:
        from stateline.service.snapshot_schema import snapshot_schema

        return snapshot_schema()
    from stateline.machine.definition.editor_schema import machine_schema

    return machine_schema()


CHECK = Command(
    help="""Report every mistake in a machine file, with its place and a hint.

A Python machine (.py) is executed for this, in a separate process.""",
    arguments=_check_arguments,
    options=fields_of(CheckOptions),
    run=_check,
    output=_check_output,
)
SHOW = Command(
    help="""Print a machine's canonical spec as JSON, with every field.

A Python machine (.py) is executed for this; with --run nothing is.""",
    arguments=_machine_arguments,
    options=fields_of(MachineOptions),
    run=_show,
    output=_document_output,
)
DRAW = Command(
    help="""Draw a machine as a Mermaid flowchart; with --run, with the run's path.

Rectangles are tasks, slanted boxes people, rounded boxes ends. Arrows carry their conditions; dashed arrows are
error_next. A Python machine (.py) is executed for this; with --run nothing is.""",
    arguments=_machine_arguments,
    options=fields_of(MachineOptions),
    run=_draw,
    output=_draw_output,
)
SCHEMA = Command(
    help="Print the JSON Schema (2020-12) of machine files, for editors.",
    arguments=_schema_arguments,
    options=fields_of(SchemaOptions),
    run=_schema,
    output=_document_output,
)
