"""Values from a parser without positions (TOML, Python): refuse what JSON cannot hold."""

from __future__ import annotations

import math

from stateline.bundle.canonical import INT_MAX, INT_MIN
from stateline.machine.definition.formats.document import Document, UnreadableError
from stateline.machine.problems import Path, quoted
from stateline.machine.spec import Json


def read_tree(document: Document, tree: Json) -> None:
    """Fill ``document`` from ``tree``: lists, dicts with text keys, and scalars of any type."""
    try:
        document.value = _value(document, tree, ())
        document.complete = True
    except UnreadableError:
        pass


def _value(document: Document, value: Json, path: Path) -> Json:
    if isinstance(value, dict | list):
        document.check_depth(path, document.findings.position(path))
    if isinstance(value, dict):
        return {_text(document, key, path): _value(document, part, (*path, key)) for key, part in value.items()}
    if isinstance(value, list):
        return [_value(document, part, (*path, index)) for index, part in enumerate(value)]
    if isinstance(value, str):
        return _text(document, value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(document, value, path)
    document.findings.error(path, "date", f"{quoted(str(value))} is a date or a time, and JSON has none", _AS_TEXT)
    return ""


def _text(document: Document, text: str, path: Path) -> str:
    return document.checked_text(text, path, document.findings.position(path))


def _number(document: Document, value: float, path: Path) -> Json:
    if INT_MIN <= value <= INT_MAX if isinstance(value, int) else math.isfinite(value):
        return value
    # A very long integer is not written out: that costs quadratic time, and Python refuses it.
    text = f"of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 256 else f"{value!r}"
    document.findings.error(path, "number_range", f"the number {text} is out of range", _AS_TEXT)
    return 0


_AS_TEXT = "write it as text, in quotes"
