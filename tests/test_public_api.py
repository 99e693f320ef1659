"""What the package promises to those who import it: names, examples that run, and an import that costs nothing."""

from __future__ import annotations

import doctest
import importlib.util
import json
import subprocess
import sys

import pytest

import stateline
import stateline.store.store

NAMES = ["Artifact", "Redactor", "Ref", "Scope", "Snapshot", "Store", "__version__"]
SLOW = [
    "typer",
    "yaml",
    "cel_expr_python",
    "filelock",
    "subprocess",
    "jsonschema_rs",
    "rich",
    "cryptography",
    "jsonpatch",
]
"""Loaded by whoever needs them, never by importing the package: start-up is the product's speed."""


def loaded_after(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` after ``code`` ran in a new process."""
    # -S and -I: what a site's .pth files load is not the package's doing.
    path = [entry for entry in sys.path if entry]
    code = f"import sys; sys.path[:0] = {path!r}; {code}; import json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_public_names_are_these_and_all_of_them_are_there() -> None:
    assert sorted(stateline.__all__) == NAMES
    for name in NAMES:
        assert getattr(stateline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        stateline.nothing  # noqa: B018  the access is the test


def test_the_package_says_that_it_is_typed() -> None:
    assert importlib.util.find_spec("stateline") is not None
    annotations = stateline.store.store.Scope.save.__annotations__
    assert annotations["return"] == "Snapshot"
    assert {"state", "kind", "event", "parent", "wait"} <= annotations.keys()


def test_the_examples_in_the_stores_docstrings_run() -> None:
    result = doctest.testmod(stateline.store.store)
    assert result.attempted >= 4
    assert result.failed == 0


def test_importing_the_package_loads_nothing_slow() -> None:
    modules = loaded_after("import stateline")
    assert not modules & {*SLOW, "msgspec", "stateline.store"}


def test_a_store_that_only_reads_loads_nothing_slow(tmp_path: object) -> None:
    code = f"from stateline import Store; assert Store.open({str(tmp_path)!r} + '/s').scope('notes:x').head() is None"
    modules = loaded_after(code)
    assert "stateline.store.local.backend" in modules
    assert not modules & {*SLOW, "pathlib", "dataclasses", "tempfile", "logging"}


def test_the_version_is_one() -> None:
    assert stateline.__version__.split(".")[0].isdigit()
