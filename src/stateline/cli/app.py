"""All commands in one application. Each function parses its flags, calls a verb of ``service`` and prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

import typer
from typer import _click as click

from stateline.cli.options import Command, Group

Maker = Callable[[str], click.Command]
"""Makes the command of the name that it is given."""

EXITS = {
    0: "done, or advanced by one turn",
    1: "error, or a run that failed or hit a bound",
    2: "the run is complete (execute -i and exec resume -i only)",
    3: "waiting for input",
    4: "conflict: the head moved, or the lock is held",
    5: "integrity: something stored is missing, altered or truncated",
    6: "unsafe permissions or ownership",
    64: "usage",
    130: "interrupted (143: terminated)",
}


def _exits(*codes: int) -> str:
    return "Exit codes: " + " · ".join(f"{code} {EXITS[code]}" for code in codes) + "."


class _Commands(MutableMapping[str, click.Command]):
    """A group's commands by name, each built when it is first asked for: with its module that takes about a
    millisecond, and a call runs one of them."""

    def __init__(self, makers: dict[str, Maker]) -> None:
        self._makers = makers
        self._made: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._made:
            self._made[name] = self._makers[name](name)
        return self._made[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._makers[name] = lambda _: command

    def __delitem__(self, name: str) -> None:
        del self._makers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _command(place: str, epilog: str, *, hidden: bool = False) -> Maker:
    """Makes the command of the function at ``place``: a module of ``stateline.cli``, a dot, its name there."""

    def make(name: str) -> click.Command:
        import importlib

        module, _, function = place.partition(".")
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        register = app.command(name, cls=Command, epilog=epilog or None, hidden=hidden)
        register(getattr(importlib.import_module(f"stateline.cli.{module}"), function))
        return typer.main.get_command(app)

    return make


def _group(app: typer.Typer, makers: dict[str, Maker]) -> click.Command:
    group = typer.main.get_group(app)
    group.commands = _Commands(makers)
    return group


def _app(help: str, name: str | None = None) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=Group,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _tell_version(asked: bool) -> None:
    if asked:
        from stateline._version import __version__
        from stateline.cli.output import tell

        tell(f"stateline {__version__}")
        raise typer.Exit(0)


def application() -> click.Command:
    """The command ``stateline``."""
    app = _app("git for agent runs: every state change is one immutable JSON file that names its parent by SHA-256.")

    # Eager: it is told before a command is missed.
    asked = typer.Option(False, "--version", help="Print the version.", callback=_tell_version, is_eager=True)

    @app.callback()
    def stateline(version: bool = asked) -> None:
        pass

    run_exits = _exits(0, 1, 2, 3, 4, 5, 6, 64, 130)
    write_exits = _exits(0, 1, 4, 5, 6, 64, 130)
    read_exits = _exits(0, 1, 5, 64)
    exec_commands = {
        "list": _command("runs.list_runs", read_exits),
        "ls": _command("runs.list_runs", read_exits, hidden=True),
        "status": _command("runs.status", read_exits),
        "show": _command("runs.show", read_exits),
        "history": _command("history.history", read_exits),
        "resume": _command("execute.resume", run_exits),
        "clean": _command("runs.clean", write_exits),
        "rm": _command("runs.rm", write_exits),
    }
    machine_commands = {
        "check": _command("machines.check", _exits(0, 1, 64)),
        "show": _command("machines.show", read_exits),
        "draw": _command("machines.draw", read_exits),
        "schema": _command("machines.schema", _exits(0)),
    }
    exec_help = "Look at runs, go on with them, remove them."
    machine_help = "Read a machine: say what is wrong with it, show it, draw it."
    commands = {
        "run": _command("run.run", _exits(0, 1, 3, 4, 5, 6, 64, 130)),
        "execute": _command("execute.execute", run_exits),
        "e": _command("execute.execute", run_exits, hidden=True),
        "scopes": _command("audit.scopes", read_exits),
        "log": _command("log.log", read_exits),
        "show": _command("audit.show", read_exits),
        "diff": _command("diff.diff", read_exits),
        "verify": _command("audit.verify", read_exits),
        "repair": _command("repair.repair", write_exits),
        "completion": _command("completion.completion", _exits(0, 64)),
        "complete": _command("completion.complete", "", hidden=True),
        "exec": lambda name: _group(_app(exec_help, name), exec_commands),
        "machine": lambda name: _group(_app(machine_help, name), machine_commands),
    }
    return _group(app, commands)
