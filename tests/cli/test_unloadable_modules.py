"""A module of the program that the system does not let Python load is the system's matter, and no bug of ours."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Refuse = Callable[..., None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Let a module be not loaded yet, and loading it raise an error."""

    def refuse(module: str, error: Exception) -> None:
        class Finder:
            @staticmethod
            def find_spec(name: str, path: object = None, target: object = None) -> None:
                if name == module:
                    raise error

        package, _, name = module.rpartition(".")
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.delattr(sys.modules[package], name, raising=False)
        monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])

    return refuse


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "files open"),
        (errno.EIO, "the disk is well"),
        (errno.EACCES, "can be read"),
    ],
)
def test_a_module_that_the_system_does_not_give_is_the_systems_refusal(
    cli: Any, refuse: Refuse, number: int, hint: str
) -> None:
    refuse("stateline.cli.audit", OSError(number, os.strerror(number), "/usr/lib/audit.py"))
    error = cli.refused("verify", exits=1)
    assert error["code"] == "storage"
    assert f"{os.strerror(number)}: /usr/lib/audit.py" in error["message"]
    assert "what was acknowledged before is untouched" in error["message"]
    assert hint in error["hint"]
    assert not cli.state.exists()


def test_a_library_that_the_system_does_not_give_is_told_with_the_systems_words(cli: Any, refuse: Refuse) -> None:
    error = ImportError("cannot load it")
    error.__cause__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    refuse("stateline.cli.audit", error)
    said = cli.refused("verify", exits=1)
    assert said["code"] == "storage"
    assert os.strerror(errno.EMFILE) in said["message"]
    assert "ulimit -n" in said["hint"]


def test_a_module_that_is_not_there_is_named(cli: Any, refuse: Refuse) -> None:
    refuse("stateline.cli.audit", ModuleNotFoundError("No module named 'stateline.cli.audit'"))
    result = cli("verify")
    assert (result.code, result.out) == (1, b"")
    assert "No module named 'stateline.cli.audit'" in result.err
    assert "installation" in result.err
    assert "bug" not in result.err


def test_debug_shows_where_a_module_was_wanted(cli: Any, refuse: Refuse) -> None:
    refuse("stateline.cli.audit", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    result = cli("--debug", "verify")
    assert result.code == 1
    assert "Traceback" in result.err


def test_an_error_of_the_system_that_nobody_foresaw_stays_a_bug(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stateline.service import runs

    def fail(store: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(runs, "list_runs", fail)
    assert cli.refused("exec", "list", exits=1)["code"] == "internal"


_NO_FILE_MORE = """\
import resource, sys
from stateline.cli.main import main
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
main()
"""
"""What every command needs first cannot be loaded, nor what errors are written with."""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of open files")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_process_that_can_open_no_file_says_so_and_ends_with_1(cli: Any, as_json: bool) -> None:
    words = ["verify", "--format", "json" if as_json else "text"]
    done = subprocess.run(
        [sys.executable, "-c", _NO_FILE_MORE, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if as_json:
        assert done.stdout.count("\n") == 1
        error = json.loads(done.stdout)["error"]
        assert error["code"] == "storage"
        said, hint = error["message"], error["hint"]
    else:
        assert done.stdout == ""
        said, _, hint = done.stderr.partition("hint:")
        assert said.startswith("error: ")
    assert "cannot load a part of the program" in said
    assert "what was acknowledged before is untouched" in said
    assert hint.strip()
    assert not cli.state.exists()
