"""The package as embedders see it: its names, docstring examples that run, and an import that costs nothing."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys

import pytest

import stateline
import stateline.store.store
from stateline import Scope, Store, errors

NAMES = {
    "Artifact",
    "LATEST",
    "Limits",
    "Link",
    "Pointer",
    "Redactor",
    "Ref",
    "Scope",
    "Snapshot",
    "Store",
    "__version__",
}
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
"""Loaded where they are used, never by importing the package: start-up is the product's speed."""


def loaded_after(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` after ``code`` ran in a new process."""
    # -S and -I: what a site's .pth files load is not the package's doing.
    path = [entry for entry in sys.path if entry]
    code = f"import sys; sys.path[:0] = {path!r}; {code}; import json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_public_names_are_the_store_its_types_and_all_errors() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert set(stateline.__all__) == NAMES | classes
    for name in stateline.__all__:
        assert getattr(stateline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        stateline.nothing  # noqa: B018  the access is the test


def test_the_public_methods_of_stores_and_scopes_are_these() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Store) == {
        "append",
        "get",
        "heads",
        "in_memory",
        "open",
        "put",
        "put_value",
        "resolve",
        "scope",
        "warnings",
    }
    assert public(Scope) == {"head", "load", "locked", "parent", "save", "walk"}


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
