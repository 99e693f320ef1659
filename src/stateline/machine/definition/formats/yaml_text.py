"""YAML machine files, with the meaning of JSON: no tags, anchors, aliases, merge keys or directives, one document.

PyYAML gives the events, in C where available; the tree is built here, so that nothing is expanded or constructed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stateline.machine.definition.formats.document import Document, UnreadableError, position_of
from stateline.machine.problems import Path, Position
from stateline.machine.spec import Json

Event = Any
"""One of ``yaml.events``."""


def read_yaml(document: Document) -> None:
    """Fill ``document`` from its text."""
    import yaml

    if found := re.search("[\x85\u2028\u2029]", document.text):
        # YAML 1.1 ends a line there: it becomes a space, or loses the spaces around it, even in quotes.
        message = f"not YAML: U+{ord(found[0]):04X} is a line break in YAML only"
        hint = f'write "\\u{ord(found[0]):04x}" in double quotes'
        document.findings.error((), "syntax", message, hint, at=position_of(document.text, found.start()))
        return
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _read_stream(document, yaml.parse(document.text, Loader=loader))
    except UnreadableError:
        pass
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"{error.context}: {error.problem}" if error.context and error.problem else str(error.problem)
        hint = "indent with spaces; put text with special characters, such as ': ', in quotes"
        position = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        document.findings.error((), "syntax", f"not YAML: {message}", hint, at=position)
    except yaml.reader.ReaderError as error:
        document.findings.error((), "syntax", f"not YAML: {error.reason}", "remove it", at=_unprintable(document.text))
    except RecursionError:
        document.too_deep((1, 1))


def _read_stream(document: Document, events: Iterator[Event]) -> None:
    import yaml

    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if document.complete:
                raise document.fatal(
                    "multiple_documents", "a second document begins here", _position(event), "keep one machine per file"
                )
            if event.version or event.tags:
                document.findings.error((), "yaml_directive", "YAML directives are not allowed", "remove the % line")
            document.value = _value(document, events, next(events), ())
            document.complete = True
    if not document.complete:
        document.findings.error((), "syntax", "the file is empty", "write a machine: stateline, name, stages")


def _value(document: Document, events: Iterator[Event], event: Event, path: Path) -> Json:
    import yaml

    position = _position(event)
    document.set_position(path, position)
    if isinstance(event, yaml.AliasEvent):
        document.findings.error_unreadable(
            path, "yaml_alias", "YAML aliases are not allowed", "write the value out", position
        )
        return None
    _refuse_properties(document, event, path, position)
    if isinstance(event, yaml.ScalarEvent):
        if not event.implicit[0] or event.tag is not None:
            return document.checked_text(event.value, path, position)
        return document.scalar(event.value, path, position) if event.value else None
    document.check_depth(path, position)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Json] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_value(document, events, event, (*path, len(items))))
        return items
    return _mapping(document, events, path)


def _mapping(document: Document, events: Iterator[Event], path: Path) -> dict[str, Json]:
    import yaml

    members: dict[str, Json] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        position = _position(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise document.fatal("bad_key", "a key must be text", position, "write a plain word as the key", path)
        name = document.checked_text(event.value, path, position)
        _refuse_properties(document, event, (*path, name), position)
        if event.implicit[0] and name in ("<<", ""):
            code, what = ("yaml_merge", "merge keys") if name else ("bad_key", "empty keys")
            hint = "write the keys out" if name else "write the key before the colon, in quotes if it is really empty"
            document.findings.error(path, code, f"YAML {what} are not allowed", hint, at=position)
            _value(document, events, next(events), (*path, name))
            continue
        document.add_key(members, (*path, name), position)
        members[name] = _value(document, events, next(events), (*path, name))
    return members


def _refuse_properties(document: Document, event: Event, path: Path, position: Position) -> None:
    if event.anchor is not None:
        document.findings.error(path, "yaml_anchor", "YAML anchors are not allowed", "write the value out", at=position)
    if event.tag is not None:
        document.findings.error(
            path, "yaml_tag", "YAML tags are not allowed", "remove the tag; quotes make text of a value", at=position
        )


def _position(event: Event) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _unprintable(text: str) -> Position:
    """Return the position of the character that YAML forbids; the parser's unit depends on its implementation."""
    bad = re.search("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    return position_of(text, bad.start() if bad else 0)
