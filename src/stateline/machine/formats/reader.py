"""A machine file's bytes to a raw tree with the place of everything in it. The ending of its name says the format."""

from __future__ import annotations

from collections.abc import Callable

from stateline.machine.formats.document import Document
from stateline.machine.problems import printable

LIMIT = 16 * 1024 * 1024
"""Largest machine file [bytes]."""


def read(data: bytes, name: str) -> Document:
    """Read a machine file. ``name`` is used for its ending only: .yaml, .yml or .json in any case.

    Never raises for what ``data`` or ``name`` hold: mistakes are in the document's ``findings``. When these have
    failed, ``value`` is what could be read, for checking the rest; ``whole`` says whether the end was reached.
    """
    document = Document()
    ending = _ending(name)
    reader = READERS.get(ending)
    if reader is None:
        known = ", ".join(sorted(READERS))
        document.findings.error(
            (),
            "unknown_format",
            f"a machine file's name ends in {known}, not in {printable(ending)!r}",
            "rename the file",
        )
    elif len(data) > LIMIT:
        document.findings.error(
            (), "too_large", f"the file is larger than {LIMIT} bytes", "keep data in files that tasks read"
        )
    elif (text := _decode(data, document)) is not None:
        document.text = text
        reader(document)
    return document


def _ending(name: str) -> str:
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    dot = last.rfind(".")
    return last[dot:].lower() if dot >= 0 else ""


def _decode(data: bytes, document: Document) -> str | None:
    if data.startswith(b"\xef\xbb\xbf"):
        document.findings.error(
            (), "encoding", "the file begins with a byte order mark", "save it as UTF-8 without BOM"
        )
        data = data[3:]
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        document.findings.error(
            (), "encoding", f"byte {error.start} is not UTF-8", "save the file as UTF-8", at=(line, column)
        )
        return None


def _yaml(document: Document) -> None:
    from stateline.machine.formats.yaml_text import read_yaml

    read_yaml(document)


def _json(document: Document) -> None:
    from stateline.machine.formats.json_text import read_json

    read_json(document)


READERS: dict[str, Callable[[Document], None]] = {".yaml": _yaml, ".yml": _yaml, ".json": _json}
"""From a file's ending to what reads its text into a document."""
