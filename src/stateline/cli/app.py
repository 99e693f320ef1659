"""All commands in one application. Each function parses its flags, calls a verb of ``service`` and prints."""

from __future__ import annotations

import typer
from typer import _click as click

from stateline.cli import audit, contexts, execute, machines, runs
from stateline.cli.options import Command, Group

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


def _app(help: str) -> typer.Typer:
    return typer.Typer(
        cls=Group,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def application() -> click.Command:
    """The command ``stateline``."""
    app = _app("git for agent runs: every state change is one immutable JSON file that names its parent by SHA-256.")

    @app.callback()
    def stateline(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
        if version:
            from stateline._version import __version__

            print(f"stateline {__version__}")
            raise typer.Exit(0)

    run_exits = _exits(0, 1, 2, 3, 4, 5, 6, 64, 130)
    write_exits = _exits(0, 1, 4, 5, 6, 64, 130)
    read_exits = _exits(0, 1, 5, 64)
    app.command("run", cls=Command, epilog=write_exits)(contexts.run)
    app.command("execute", cls=Command, epilog=run_exits)(execute.execute)
    app.command("e", cls=Command, epilog=run_exits, hidden=True)(execute.execute)
    app.command("scopes", cls=Command, epilog=read_exits)(audit.scopes)
    app.command("log", cls=Command, epilog=read_exits)(audit.log)
    app.command("show", cls=Command, epilog=read_exits)(audit.show)
    app.command("verify", cls=Command, epilog=read_exits)(audit.verify)

    exec_app = _app("Look at runs, go on with them, remove them.")
    exec_app.command("list", cls=Command, epilog=read_exits)(runs.list_runs)
    exec_app.command("ls", cls=Command, epilog=read_exits, hidden=True)(runs.list_runs)
    exec_app.command("status", cls=Command, epilog=read_exits)(runs.status)
    exec_app.command("show", cls=Command, epilog=read_exits)(runs.show)
    exec_app.command("history", cls=Command, epilog=read_exits)(runs.history)
    exec_app.command("resume", cls=Command, epilog=run_exits)(execute.resume)
    exec_app.command("clean", cls=Command, epilog=write_exits)(runs.clean)
    exec_app.command("rm", cls=Command, epilog=write_exits)(runs.rm)
    app.add_typer(exec_app, name="exec")

    machine_app = _app("Read a machine and say what is wrong with it.")
    machine_app.command("check", cls=Command, epilog=_exits(0, 1, 64))(machines.check)
    app.add_typer(machine_app, name="machine")
    return typer.main.get_command(app)
