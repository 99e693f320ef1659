"""The command line: from argv to an exit code. The one place that maps errors to exit codes and words."""

from __future__ import annotations

import sys
from typing import Any

_INTERNAL = "this is a bug in stateline; run again with --debug and report what it prints"
_CTRL_C = 130
"""Also what typer makes of a Ctrl-C outside a turn; in a turn it is ``Interrupted``."""
_STOPPED = {
    "code": "interrupted",
    "message": "stopped by a signal; what was finished is saved",
    "hint": "call again to go on; an effect that was cut and is not repeatable waits as unknown_outcome",
}


def main() -> None:
    """The program ``stateline``. Ends the process; everything is flushed before."""
    import gc
    import os

    # A call is a process, and a short one: collecting garbage and tearing the interpreter down would be a third of it.
    gc.disable()
    if sys.stdout is not None:
        # Help must come out whatever the locale can show.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper here
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run one command; its exit code. Never raises."""
    if argv == ["--version"]:
        return _version()
    try:
        return _run(argv)
    except KeyboardInterrupt:
        # Ctrl-C while modules are loaded.
        from stateline.cli.options import json_wanted
        from stateline.cli.output import fail

        fail(json_wanted(argv), _STOPPED)
        return _CTRL_C


def _version() -> int:
    from stateline._version import __version__

    try:
        print(f"stateline {__version__}")
    except OSError:
        return 0
    return 0


def _run(argv: list[str]) -> int:
    import typer
    from typer._click import exceptions as click

    from stateline.cli.app import application
    from stateline.cli.options import debug_wanted, json_wanted
    from stateline.cli.output import fail, talk
    from stateline.engine.interrupts import Interrupted

    json = json_wanted(argv)
    try:
        result = application().main(args=argv, prog_name="stateline", standalone_mode=False)
        if result == _CTRL_C:
            fail(json, _STOPPED)
        return result if isinstance(result, int) else 0
    except typer.Exit as error:
        return error.exit_code
    except SystemExit:
        # How typer leaves when whoever read its help has gone: nothing to say, and nobody to say it to.
        return 0
    except (Exception, Interrupted) as error:  # noqa: BLE001 (the last line of defence: it becomes words and a code)
        if debug_wanted(argv):
            import traceback

            talk(traceback.format_exc())
        if isinstance(error, click.NoArgsIsHelpError) and not json:
            talk(error.format_message())
            return 64
        document, code = _explain(error)
        fail(json, document)
        return code


def _explain(error: BaseException) -> tuple[dict[str, Any], int]:
    """What is said about an error, as the object under ``error``, and the exit code."""
    from typer._click import exceptions as click

    from stateline.engine.interrupts import Interrupted
    from stateline.errors import StatelineError

    if isinstance(error, StatelineError):
        return error.document(), error.exit_code
    if isinstance(error, Interrupted):
        return {**_STOPPED, "run": error.run} if error.run else _STOPPED, error.exit_code
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        message = "no command was given" if isinstance(error, click.NoArgsIsHelpError) else error.format_message()
        path = context.command_path if context else "stateline"
        return {"code": "usage", "message": message, "hint": f"see `{path} --help`"}, 64
    return {"code": "internal", "message": f"{type(error).__name__}: {error}", "hint": _INTERNAL}, 1


if __name__ == "__main__":
    main()
