"""A machine file's bytes to a raw tree with the place of everything in it. The ending of its name says the format."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from stateline.machine.definition.formats.document import Document
from stateline.machine.problems import printable

if TYPE_CHECKING:
    from stateline.machine.definition.formats.python_text import Evaluate

LIMIT = 16 * 1024 * 1024
"""Largest machine file [bytes]."""


def _yaml(document: Document, evaluate: Evaluate | None) -> None:
    from stateline.machine.definition.formats.yaml_text import read_yaml

    read_yaml(document)


def _json(document: Document, evaluate: Evaluate | None) -> None:
    from stateline.machine.definition.formats.json_text import read_json

    read_json(document)


def _toml(document: Document, evaluate: Evaluate | None) -> None:
    from stateline.machine.definition.formats.toml_text import read_toml

    read_toml(document)


def _python(document: Document, evaluate: Evaluate | None) -> None:
    from stateline.machine.definition.formats.python_text import read_python

    read_python(document, evaluate)


class Format(msgspec.Struct, frozen=True):
    """A format of machine files: its word in a run's ``state.machine.format``, the endings of its files, the media
    type of a file's exact bytes, and what reads its text into a document.

    No media type is ``application/json``, which would promise canonical JSON, or one of format 1's own.
    """

    word: str
    endings: tuple[str, ...]
    media_type: str
    read: Callable[[Document, Evaluate | None], None]


FORMATS = (
    Format("yaml", (".yaml", ".yml"), "application/yaml", _yaml),
    Format("json", (".json",), "text/json", _json),
    Format("toml", (".toml",), "application/toml", _toml),
    Format("python", (".py",), "text/x-python", _python),
)
ENDINGS = tuple(sorted(ending for format in FORMATS for ending in format.endings))


def format_of(name: str) -> Format | None:
    """The format that the ending of a file's name says, in any case; None for any other ending."""
    ending = _ending(name)
    return next((format for format in FORMATS if ending in format.endings), None)


def read(data: bytes, name: str, evaluate: Evaluate | None = None) -> Document:
    """Read a machine file. ``name`` is used for its ending only. A Python machine is run by ``evaluate``.

    Never raises for what ``data`` or ``name`` hold: mistakes are in the document's ``findings``. When these have
    failed, ``value`` is what could be read, for checking the rest; ``whole`` says whether the end was reached.
    """
    document = Document()
    format = format_of(name)
    if format is None:
        document.findings.error(
            (),
            "unknown_format",
            f"a machine file's name ends in {', '.join(ENDINGS)}, not in {printable(_ending(name))!r}",
            "rename the file",
        )
    elif len(data) > LIMIT:
        document.findings.error(
            (), "too_large", f"the file is larger than {LIMIT} bytes", "keep data in files that tasks read"
        )
    elif (text := _decode(data, document)) is not None:
        document.text = text
        format.read(document, evaluate)
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
