"""Scans of ``src`` for constructs that caused vulnerabilities elsewhere. Each scan is shown to find a planted case."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

from each_case import for_each

import stateline

SOURCE = Path(stateline.__file__).parent
Found = Iterator[tuple[str, int]]

UNSAFE_MODULES = {
    "pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "copyreg",
    "torch", "sqlite3", "dbm", "redis", "socket", "http", "urllib.request", "requests", "httpx", "ftplib", "xml",
    "tarfile", "zipfile",
}  # fmt: skip
UNSAFE_CALLS = {
    "eval", "exec", "compile", "__import__", "import_module", "load_module", "find_class", "unsafe_load", "full_load",
    "load_all", "system", "popen", "mkdtemp", "mktemp",
}  # fmt: skip
NO_DATA = {
    ("engine/loader.py", "exec"),  # a Python machine is the user's own program, run apart; nothing out of the store is
    ("engine/loader.py", "compile"),
    ("machine/expressions/cel.py", "compile"),  # of CEL, which knows values and no functions of this process
    ("machine/expressions/cel.py", "eval"),
    ("__init__.py", "import_module"),  # what is imported late, by names that stand in the source
    ("cli/command.py", "import_module"),
}
"""Calls that are named like dangerous ones, and what they are given."""


def modules(tree: ast.Module) -> Found:
    """CVE-2026-27794, CVE-2026-28277, CVE-2025-69872, CVE-2025-32434, CVE-2025-67644: formats that build objects, and
    languages that are made of strings, are not imported at all: no option, fallback or safe mode can reach them."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name in UNSAFE_MODULES or name.split(".")[0] in UNSAFE_MODULES:
                yield name, node.lineno


def calls(tree: ast.Module) -> Found:
    """CVE-2025-64439, CVE-2026-28277: no data becomes code, and no name in data becomes an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            own = (
                isinstance(function, ast.Attribute)
                and isinstance(function.value, ast.Name)
                and function.value.id == "re"
            )
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in UNSAFE_CALLS and not own:
                yield name, node.lineno
        # `yaml.load` and its kind: only the events of YAML are read, and nothing is built from them.
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "yaml"
            and "load" in node.attr
        ):
            yield f"yaml.{node.attr}", node.lineno


def assertions(tree: ast.Module) -> Found:
    """Find assertions, which ``python -O`` removes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield "assert", node.lineno


LOOSE = (
    "unsafe",
    "allow_",
    "skip_",
    "no_verify",
    "insecure",
    "weights_only",
    "pickle_fallback",
    "lenient",
    "force_load",
)


def flags(tree: ast.Module) -> Found:
    """CVE-2026-2614, CVE-2025-32434, CVE-2026-27794: no parameter or option turns a check of what is read off."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.keyword) and node.arg and node.arg.startswith(LOOSE):
            yield node.arg, getattr(node, "lineno", 0)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.lstrip("-").startswith(("unsafe-", "skip-", "no-verify"))
        ):
            yield node.value, node.lineno


def paths_from_links(tree: ast.Module) -> Found:
    """CVE-2024-4030, CVE-2025-68146, CVE-2026-22701: no temporary name that others can foresee or that a library makes,
    and no check of a path followed by another use of it. Shared temporary places are not used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and "tempfile" in ast.dump(node):
            yield "tempfile", node.lineno
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/tmp"):
            yield node.value, node.lineno


SCANS: dict[str, tuple[Callable[[ast.Module], Found], str]] = {
    "imports nothing that builds objects from data, queries or downloads": (modules, "def f():\n    import pickle\n"),
    "makes code of no data": (calls, "x = eval('1')\nimport yaml\nyaml.safe_load('')\n"),
    "has no assertion": (assertions, "assert True\n"),
    "has no flag that turns a check off": (flags, "def load(data, *, allow_pickle=False): ...\n"),
    "uses no shared temporary place": (paths_from_links, "import tempfile\nopen('/tmp/x')\n"),
}
KNOWN = {
    "makes code of no data": NO_DATA,
    "has no flag that turns a check off": {("cli/parser.py", "allow_abbrev")},  # of argparse: no abbreviated options
}


def scanned(scan: Callable[[ast.Module], Found]) -> set[tuple[str, str]]:
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        if not where.startswith("testing/"):  # ships for tests of backends, which assert
            found |= {(where, name) for name, _ in scan(ast.parse(path.read_text("utf-8")))}
    return found


def test_the_source_has_no_unsafe_construct() -> None:
    def check(fact: str) -> None:
        assert scanned(SCANS[fact][0]) == KNOWN.get(fact, set())

    for_each(check, SCANS)


def test_the_scan_finds_a_planted_case() -> None:
    def check(fact: str) -> None:
        scan, planted = SCANS[fact]
        assert list(scan(ast.parse(planted)))

    for_each(check, SCANS)


def test_the_scan_reads_all_of_the_source() -> None:
    assert len(list(SOURCE.rglob("*.py"))) > 90
    assert (SOURCE / "bundle" / "canonical.py").is_file()
