"""The command line: from argv to an exit code. The one place that maps errors to exit codes and words."""

from __future__ import annotations

import sys

_INTERNAL = "this is a bug in stateline; run again with --debug and report what it prints"


def main() -> None:
    """The program ``stateline``. Ends the process; everything is flushed before."""
    import gc
    import os

    # A call is a process, and a short one: collecting garbage and tearing the interpreter down would be a third of it.
    gc.disable()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run one command; its exit code. Never raises, but for SystemExit of a broken interpreter."""
    if argv == ["--version"]:
        from stateline._version import __version__

        print(f"stateline {__version__}")
        return 0
    try:
        return _run(argv)
    except BrokenPipeError:
        # Whoever read our output has gone: nothing to say, and nobody to say it to.
        return 0
    except KeyboardInterrupt:
        return 130


def _run(argv: list[str]) -> int:
    import typer
    from typer._click import exceptions as click

    from stateline.cli.app import application
    from stateline.cli.options import json_wanted
    from stateline.cli.output import fail
    from stateline.engine.interrupts import Interrupted
    from stateline.errors import StatelineError

    json = json_wanted(argv)
    debug = "--debug" in argv
    try:
        result = application().main(args=argv, prog_name="stateline", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as error:
        return error.exit_code
    except click.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 64
    except click.ClickException as error:
        hint = (
            f"{error.ctx.command_path} --help"
            if isinstance(error, click.UsageError) and error.ctx
            else "stateline --help"
        )
        fail(json, {"code": "usage", "message": error.format_message(), "hint": f"see `{hint}`"})
        return 64
    except StatelineError as error:
        if debug:
            raise
        fail(json, error.document())
        return error.exit_code
    except Interrupted as error:
        hint = "call again to go on; an effect that was cut and is not repeatable waits as unknown_outcome"
        fail(json, {"code": "interrupted", "message": "stopped by a signal; what was finished is saved", "hint": hint})
        return error.exit_code
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        if debug:
            raise
        fail(json, {"code": "internal", "message": f"{type(error).__name__}: {error}", "hint": _INTERNAL})
        return 1


if __name__ == "__main__":
    main()
