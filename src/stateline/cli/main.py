"""The command line: from argv to an exit code. The one place that maps errors to exit codes and words."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

_INTERNAL = "this is a bug in stateline; run again with --debug and report what it prints"
_CTRL_C = 130
"""Also what typer makes of a Ctrl-C outside a turn; in a turn it is ``Interrupted``."""
_CUT = "an effect that was cut and is not repeatable waits as unknown_outcome"
_STOPPED = {
    "code": "interrupted",
    "message": "stopped by a signal; what was finished is saved",
    "hint": f"call again to go on; {_CUT}",
}
_LOADED_LATER = {
    errno.EMFILE: "raise the limit of open files (ulimit -n), then call again",
    errno.ENFILE: "end what holds so many files open, then call again",
    errno.ENOMEM: "free some memory, then call again",
}
"""What to do where a module could not be loaded."""
_INSTALLATION = "check that the disk is well and the installation of stateline can be read, then call again"


def main() -> None:
    """The program ``stateline``. Ends the process; everything is flushed before."""
    import gc

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
    try:
        return _version(argv) if argv == ["--version"] else _run(argv)
    except KeyboardInterrupt:
        # Ctrl-C while modules are loaded.
        _last_words(argv, _STOPPED)
        return _CTRL_C
    except (OSError, ImportError) as error:
        # Not even what every command needs can be loaded.
        _last_words(argv, _not_loaded(error))
        return 1


def json_wanted(argv: list[str]) -> bool:
    """Whether the caller wants JSON, told from the bare words: for errors that come before they are understood."""
    wanted = os.environ.get("STATELINE_FORMAT") == "json"
    for index, word in enumerate(argv):
        if word == "--":
            break
        if word.startswith("--format="):
            wanted = word == "--format=json"
        elif word == "--format" and index + 1 < len(argv):
            wanted = argv[index + 1] == "json"
    return wanted


def debug_wanted(argv: list[str]) -> bool:
    """Whether the caller wants tracebacks, told from the bare words."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return "--debug" in words or os.environ.get("STATELINE_DEBUG", "").lower() in ("1", "true")


def quiet_wanted(argv: list[str]) -> bool:
    """Whether the caller wants no warnings, told from the bare words."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    said = os.environ.get("STATELINE_QUIET", "").lower() in ("1", "true")
    return said or "-q" in words or "--quiet" in words


def _version(argv: list[str]) -> int:
    """As ``--version`` beside other words does, without loading what commands need."""
    from stateline._version import __version__

    try:
        print(f"stateline {__version__}", flush=True)
    except BrokenPipeError:
        pass
    except (OSError, ValueError) as error:
        from stateline.cli.output import not_printed

        _last_words(argv, {"code": "storage", **not_printed(error)})
        return 1
    return 0


def _run(argv: list[str]) -> int:
    import typer
    from typer._click import exceptions as click

    from stateline.cli.app import application
    from stateline.cli.output import fail, talk
    from stateline.process.signals import Interrupted

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

            talk(_masked({"": traceback.format_exc()})[""])
        if isinstance(error, click.NoArgsIsHelpError) and not json:
            talk(error.format_message())
            return 64
        document, code = _explain(error)
        fail(json, _masked(document), quiet=quiet_wanted(argv))
        return code


def _explain(error: BaseException) -> tuple[dict[str, Any], int]:
    """What is said about an error, as the object under ``error``, and the exit code."""
    from typer._click import exceptions as click

    from stateline.errors import StatelineError
    from stateline.process.signals import Interrupted

    if isinstance(error, StatelineError):
        return error.document(), error.exit_code
    if isinstance(error, Interrupted):
        return _stopped(error.run), error.exit_code
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        message = "no command was given" if isinstance(error, click.NoArgsIsHelpError) else error.format_message()
        path = context.command_path if context else "stateline"
        elsewhere = getattr(error, "hint", "")
        hint = f"{elsewhere} Else see `{path} --help`" if elsewhere else f"see `{path} --help`"
        return {"code": "usage", "message": message, "hint": hint}, 64
    if _while_loading(error):
        return _not_loaded(error), 1
    return {"code": "internal", "message": f"{type(error).__name__}: {error}", "hint": _INTERNAL}, 1


def _stopped(run: str | None) -> dict[str, Any]:
    """What is said after a signal. To call ``run`` again would begin another run: the way on names the one there is."""
    if not run:
        return _STOPPED
    return {**_STOPPED, "hint": f"`stateline exec resume {run}` goes on (repeat -m if you gave it); {_CUT}", "run": run}


def _masked(document: dict[str, Any]) -> dict[str, Any]:
    """What is said, without the environment's secrets: an error quotes what was typed."""
    from stateline.redaction.redactor import Redactor

    redact = Redactor.from_environment(os.environ).redact
    # Part by part: the names of the parts are ours, and no secret even where one is spelled like them.
    return {name: redact(part)[0] for name, part in document.items()}


def _while_loading(error: BaseException) -> bool:
    """Whether a module could not be loaded: the system refuses that too (too many open files, an I/O error)."""
    if isinstance(error, ImportError):
        return True
    trace = error.__traceback__ if isinstance(error, OSError) else None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        trace = trace.tb_next
    return False


def _not_loaded(error: BaseException) -> dict[str, Any]:
    """What is said where a module could not be loaded. Loads nothing."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    if cause is None:
        reason, hint = str(error) or type(error).__name__, _INSTALLATION
    else:
        where = f": {cause.filename}" if isinstance(cause.filename, str) else ""
        reason, hint = f"{cause.strerror or cause}{where}", _LOADED_LATER.get(cause.errno or 0, _INSTALLATION)
    message = f"cannot load a part of the program: {reason}; what was acknowledged before is untouched"
    return {"code": "storage", "message": message, "hint": hint}


def _last_words(argv: list[str], document: dict[str, Any]) -> None:
    """Say ``document`` although what else says it may not load."""
    try:
        from stateline.cli.output import fail

        fail(json_wanted(argv), document)
        return
    except (OSError, ImportError):
        pass
    words = {key: _plain(text) for key, text in document.items()}
    try:
        if json_wanted(argv):
            # Nothing is left in the words that JSON would have to escape.
            members = ",".join(f'"{key}":"{text}"' for key, text in words.items())
            print(f'{{"error":{{{members}}}}}', flush=True)
        else:
            print(f"error: {words['message']}\nhint:  {words['hint']}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def _plain(text: str) -> str:
    """``text`` with nothing in it that acts on a terminal or has to be escaped."""
    return "".join(letter if " " <= letter <= "~" and letter not in '"\\' else "?" for letter in text)


if __name__ == "__main__":
    main()
