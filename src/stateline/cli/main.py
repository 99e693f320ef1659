"""The command line: from argv to an exit code. The one place that maps errors to exit codes."""

from __future__ import annotations

import os
import sys
from typing import Any

_INTERNAL = "this is a bug in stateline; run again with --debug and report the output"
_CTRL_C = 130
_CUT = "an effect that was cut off and is not repeatable waits as unknown_outcome"
_STOPPED = {
    "code": "interrupted",
    "message": "stopped by a signal; finished work is saved",
    "hint": f"repeat the command to continue; {_CUT}",
}


def main() -> None:
    """Run the program ``stateline``. Ends the process; everything is flushed before."""
    import gc

    # A call is a short process: collecting garbage and tearing the interpreter down would be a third of it.
    gc.disable()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run one command; its exit code. Never raises an ``Exception``."""
    if argv == ["--version"] and _print_version():
        return 0
    try:
        from stateline.cli.app import COMMANDS
        from stateline.cli.command import parse
        from stateline.cli.options import settings_of
        from stateline.cli.output import print_output

        command, flags = parse(COMMANDS, argv)
        settings = settings_of(flags)
        return print_output(settings, command.run(command.options(flags, settings)))
    except SystemExit:  # after --help and --version
        return 0
    except BaseException as error:  # noqa: BLE001 (the last line of defence: every error becomes a message and a code)
        return _report(error, argv)


def _print_version() -> bool:
    """Print the version without loading what the commands need; False if stdout takes nothing."""
    from stateline._version import __version__

    try:
        print(f"stateline {__version__}", flush=True)
    except BrokenPipeError:
        pass
    except (OSError, ValueError):
        return False
    return True


def _report(error: BaseException, argv: list[str]) -> int:
    """Print an error; its exit code."""
    from stateline.cli.command import MissingCommandError
    from stateline.cli.output import print_error, print_message

    if is_set(argv, "debug"):
        import traceback

        print_message(_masked({"": "".join(traceback.format_exception(error))})[""])
    json = json_wanted(argv)
    if isinstance(error, MissingCommandError) and not json:
        print_message(error.help)
        return error.exit_code
    document, code = _explain(error)
    print_error(_masked(document), json=json, quiet=is_set(argv, "quiet", "-q"))
    return code


def json_wanted(argv: list[str]) -> bool:
    """True if the bare words ask for JSON: an error may come before they are parsed."""
    wanted = os.environ.get("STATELINE_FORMAT") == "json"
    for index, word in enumerate(argv):
        if word == "--":
            break
        if word.startswith("--format="):
            wanted = word == "--format=json"
        elif word == "--format" and index + 1 < len(argv):
            wanted = argv[index + 1] == "json"
    return wanted


def is_set(argv: list[str], name: str, short: str | None = None) -> bool:
    """True if the bare words or the environment switch on the common option ``name``."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return (
        f"--{name}" in words
        or short in words
        or os.environ.get(f"STATELINE_{name.upper()}", "").lower() in ("1", "true")
    )


def _explain(error: BaseException) -> tuple[dict[str, Any], int]:
    """The object under ``error`` in the document, and the exit code."""
    from stateline.errors import StatelineError
    from stateline.process.signals import Interrupted

    if isinstance(error, StatelineError):
        return error.document(), error.exit_code
    if isinstance(error, Interrupted):
        return _stopped(error.run), error.exit_code
    if isinstance(error, KeyboardInterrupt):  # outside a turn
        return _STOPPED, _CTRL_C
    return {"code": "internal", "message": f"{type(error).__name__}: {error}", "hint": _INTERNAL}, 1


def _stopped(run: str | None) -> dict[str, Any]:
    """The error after a signal. Repeating the command ``run`` would begin another run, so the hint names this one."""
    if not run:
        return _STOPPED
    return {
        **_STOPPED,
        "hint": f"`stateline exec resume {run}` continues (repeat -m if you gave it); {_CUT}",
        "run": run,
    }


def _masked(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` without the environment's secrets: an error quotes the command line."""
    from stateline.redaction.redactor import Redactor

    redact = Redactor.from_environment(os.environ).redact
    # Member by member: a key named like a secret does not mask its value here.
    return {name: redact(part)[0] for name, part in document.items()}


if __name__ == "__main__":
    main()
