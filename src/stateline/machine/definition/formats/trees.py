"""Trees that a parser without places has made: what JSON cannot hold is refused, at the places that are known."""

from __future__ import annotations

import math

from stateline.machine.definition.formats.document import INT_MAX, INT_MIN, Document, UnreadableError
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
    if isinstance(value, dict):
        document.check_depth(path, document.findings.position(path))
        return {
            document.checked_text(key, path, document.findings.position((*path, key))): _value(
                document, part, (*path, key)
            )
            for key, part in value.items()
        }
    if isinstance(value, list):
        document.check_depth(path, document.findings.position(path))
        return [_value(document, part, (*path, index)) for index, part in enumerate(value)]
    if isinstance(value, str):
        return document.checked_text(value, path, document.findings.position(path))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(document, value, path)
    message = f"{quoted(str(value))} is a date or a time, and JSON has none"
    document.findings.error(path, "date", message, "write it as text, in quotes", at=document.findings.position(path))
    return ""


def _number(document: Document, value: float, path: Path) -> Json:
    if INT_MIN <= value <= INT_MAX if isinstance(value, int) else math.isfinite(value):
        return value
    # A very long integer is not written out: that costs quadratic time, and Python refuses it.
    text = f"of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 256 else f"{value!r}"
    message = f"the number {text} is out of range"
    document.findings.error(
        path, "number_range", message, "write it as text, in quotes", at=document.findings.position(path)
    )
    return 0
