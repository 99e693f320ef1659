"""From a machine file's bytes to a raw tree with positions. The extension of its name selects the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stateline.machine.definition.formats.document import Document
from stateline.machine.problems import printable

if TYPE_CHECKING:
    from stateline.machine.definition.formats.python_text import Evaluate

LIMIT = 16 * 1024 * 1024
"""Largest machine file [bytes]."""


class Format(msgspec.Struct, frozen=True):
    """A format of machine files: its name in a run's ``state.machine.format``, the extensions of its files, and the
    media type of a file's exact bytes.

    No media type is ``application/json``, which would promise canonical JSON, or one that format 1 defines.
    """

    word: str
    extensions: tuple[str, ...]
    media_type: str


FORMATS = (
    Format("yaml", (".yaml", ".yml"), "application/yaml"),
    Format("json", (".json",), "text/json"),
    Format("toml", (".toml",), "application/toml"),
    Format("python", (".py",), "text/x-python"),
)
EXTENSIONS = tuple(sorted(extension for format in FORMATS for extension in format.extensions))


def format_of(name: str) -> Format | None:
    """Return the format for a file's extension, in any case; None for any other extension."""
    extension = _extension(name)
    return next((format for format in FORMATS if extension in format.extensions), None)


def read(data: bytes, name: str, evaluate: Evaluate | None = None) -> Document:
    """Read a machine file. ``name`` is used for its extension only; ``evaluate`` runs a Python machine.

    Never raises for any ``data`` or ``name``: mistakes are in the document's ``findings``. After a mistake, ``value``
    is what could be read, so that the rest can be checked if ``complete`` is true.
    """
    document = Document()
    format = format_of(name)
    if format is None:
        message = f"the name of a machine file ends in {', '.join(EXTENSIONS)}, not in {printable(_extension(name))!r}"
        document.findings.error((), "unknown_format", message, "rename the file")
    elif len(data) > LIMIT:
        message = f"the file is larger than {LIMIT} bytes"
        document.findings.error((), "too_large", message, "keep data in files that tasks read")
    elif (text := _decode(data, document)) is not None:
        document.text = text
        _parse(document, format.word, evaluate)
    return document


def _parse(document: Document, format: str, evaluate: Evaluate | None) -> None:
    # Each parser is imported only for its files: they are slow to import.
    if format == "yaml":
        from stateline.machine.definition.formats.yaml_text import read_yaml

        read_yaml(document)
    elif format == "json":
        from stateline.machine.definition.formats.json_text import read_json

        read_json(document)
    elif format == "toml":
        from stateline.machine.definition.formats.toml_text import read_toml

        read_toml(document)
    else:
        from stateline.machine.definition.formats.python_text import read_python

        read_python(document, evaluate)


def _extension(name: str) -> str:
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    dot = last.rfind(".")
    return last[dot:].lower() if dot >= 0 else ""


def _decode(data: bytes, document: Document) -> str | None:
    if data.startswith(b"\xef\xbb\xbf"):
        message = "the file begins with a byte order mark"
        document.findings.error((), "encoding", message, "save it as UTF-8 without BOM")
        data = data[3:]
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        position = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"byte {error.start} is not UTF-8"
        document.findings.error((), "encoding", message, "save the file as UTF-8", at=position)
        return None
