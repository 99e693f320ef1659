"""TOML machine files. ``tomllib`` gives the values and no positions, so a problem in a value has only its key path."""

from __future__ import annotations

import re
import tomllib

from stateline.machine.definition.formats.document import Document
from stateline.machine.definition.formats.plain_tree import read_tree

_MAX_DOTS = 1000
"""Most dots on one line: tomllib takes time quadratic in the parts of a key, hours for the largest file."""
_LINE = re.compile(r"\(at line ([0-9]+), column ([0-9]+)\)$")
_DUPLICATE = ("Cannot overwrite", "Duplicate inline table key", "Cannot declare", "Cannot mutate")


def read_toml(document: Document) -> None:
    """Fill ``document`` from its text."""
    try:
        for number, line in enumerate(document.text.split("\n"), start=1):
            if line.count(".") > _MAX_DOTS:
                document.too_deep((number, 1))
                return
        tree = tomllib.loads(document.text)
    except tomllib.TOMLDecodeError as error:
        message, reported = str(error), _LINE.search(str(error))
        position = (int(reported[1]), int(reported[2])) if reported else None
        if message.startswith(_DUPLICATE):
            document.findings.error((), "duplicate_key", f"not TOML: {message}", "write each key once", at=position)
        else:
            hint = "put text in quotes; write what is in braces on one line"
            document.findings.error((), "syntax", f"not TOML: {message}", hint, at=position)
    except RecursionError:
        document.too_deep((1, 1))
    except ValueError:  # an integer of more digits than Python converts
        document.findings.error((), "number_range", "a number is out of range", "write it as text, in quotes")
    else:
        read_tree(document, tree)
