"""Python machine files, which bind ``machine``: the value comes from running them, the positions from their AST. Pure.

The caller runs the file (``engine.evaluate``). Only parts that the file writes as literals have positions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import msgspec

from stateline.bundle.canonical import DEPTH
from stateline.machine.definition.formats.document import Document
from stateline.machine.definition.formats.plain_tree import read_tree
from stateline.machine.problems import Path, Position
from stateline.machine.spec import Json

_RUN_HINT = "bind `machine` to a dict of the same shape as a YAML file, and do nothing else"


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Result of running the file: the ``value`` of ``machine``, or an error if ``code`` is not empty.

    ``line`` is a line of the file (0: unknown), ``path`` the part of the value that is at fault.
    """

    value: Json = None
    code: str = ""
    message: str = ""
    hint: str = _RUN_HINT
    line: int = 0
    path: list[str | int] = []


Evaluate = Callable[[str], Evaluated]
"""Run the source text of a Python machine in another process. Never raises for what the source does."""


def read_python(document: Document, evaluate: Evaluate | None) -> None:
    """Fill ``document`` from the value that its text binds to ``machine``. Without ``evaluate``, report an error."""
    tree = _parse(document)
    if tree is None:
        return
    if evaluate is None:
        document.findings.error((), "not_evaluated", "reading a Python machine means running it", _RUN_HINT)
        return
    _find_positions(document, tree)
    result = evaluate(document.text)
    if result.code:
        at = (result.line, 1) if result.line else None
        document.findings.error(tuple(result.path), result.code, result.message, result.hint, at=at)
    else:
        read_tree(document, result.value)


def _parse(document: Document) -> ast.Module | None:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(document.text)
    except SyntaxError as error:
        position = (error.lineno or 1, max(error.offset or 1, 1))
        document.findings.error((), "syntax", f"not Python: {error.msg}", "correct it; nothing was run", at=position)
    except ValueError as error:  # NUL characters
        document.findings.error((), "syntax", f"not Python: {error}", "remove them; nothing was run")
    except (RecursionError, MemoryError):
        document.too_deep((1, 1))
    return None


def _find_positions(document: Document, tree: ast.Module) -> None:
    """Record the positions in ``machine`` of literals, and of names that are bound once to a literal."""
    bound: dict[str, list[tuple[ast.stmt, ast.expr]]] = {}
    for statement in tree.body:
        for target in _targets(statement):
            if isinstance(target, ast.Name) and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
                bound.setdefault(target.id, []).append((statement, statement.value))
    if "machine" not in bound:
        return
    lines = re.split("\r\n|\r|\n", document.text)  # the line ends of Python
    last, value = bound["machine"][-1]
    document.set_position((), _position(lines, last))
    once = {name: found[0][1] for name, found in bound.items() if len(found) == 1 and name != "machine"}
    _walk(document, lines, once, (), value)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) else []


def _walk(document: Document, lines: list[str], names: dict[str, ast.expr], path: Path, value: ast.expr) -> None:
    # Names bound to lists of names can have more positions than there is time to visit.
    if len(path) > DEPTH or document.positions_full:
        return
    if isinstance(value, ast.Name):
        value = names.get(value.id, value)
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                document.set_position((*path, key.value), _position(lines, key))
                _walk(document, lines, names, (*path, key.value), part)
    elif isinstance(value, ast.List) and not any(isinstance(part, ast.Starred) for part in value.elts):
        for index, part in enumerate(value.elts):
            document.set_position((*path, index), _position(lines, part))
            _walk(document, lines, names, (*path, index), part)


def _position(lines: list[str], node: ast.stmt | ast.expr) -> Position:
    # Python counts columns in bytes of UTF-8.
    line = lines[node.lineno - 1] if node.lineno <= len(lines) else ""
    return node.lineno, len(line.encode()[: node.col_offset].decode("utf-8", "replace")) + 1
