"""What a JSON Schema asks for and can never get: values under names of secrets are masked before it is asked. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateline.machine.problems import Findings, Path, quoted
from stateline.machine.spec import Json
from stateline.redaction.masking import PLACEHOLDER, is_secret_name

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keys below which each key is a name of the author's, and not a word of JSON Schema."""
_DATA = ("const", "enum", "default", "examples")
"""Keys below which stand values, and no schemas."""
_UNMASKED = ("number", "integer", "boolean", "null")
"""Types of values that stay as they are, whatever they are called."""


def report_masked_properties(findings: Findings, path: Path, schema: Json, way: str) -> None:
    """Note each property of the ``schema`` at ``path`` whose value would be masked for its name. ``way`` says how else
    a secret comes there, "" where it does not."""
    for place, name in masked_properties(schema):
        message = (
            f"a value under the name {quoted(name)} is masked as a secret, so only {PLACEHOLDER} could ever be there"
        )
        hint = f"rename it, if it is no secret ({quoted(name + '_text')}){way}"
        findings.error((*path, *place), "masked_property", message, hint)


def masked_properties(schema: Json) -> Iterator[tuple[Path, str]]:
    """The place and the name of each property, at any depth, whose value is masked for its name. One whose ``type`` is
    none but a number's, ``boolean`` or ``null`` is not: such values stay. Names that are only required count as well.
    """
    parts = list(_parts(schema, ()))
    declared = {name for _, part in parts for name in _members(part, "properties")}
    for path, part in parts:
        for name, below in _members(part, "properties").items():
            if is_secret_name(name) and not _stays(below):
                yield (*path, "properties", name), name
        for index, name in enumerate(_listed(part.get("required"))):
            if isinstance(name, str) and is_secret_name(name) and name not in declared:
                yield (*path, "required", index), name


def _parts(schema: Json, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schema and all schemas in it, with their places."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _parts(item, (*path, index))
    elif isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            if key in _NAMED:
                for name, item in _members(schema, key).items():
                    yield from _parts(item, (*path, key, name))
            elif key not in _DATA:
                yield from _parts(value, (*path, key))


def _members(part: dict[str, Any], key: str) -> dict[str, Any]:
    value = part.get(key)
    return value if isinstance(value, dict) else {}


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _stays(schema: Json) -> bool:
    said = schema.get("type") if isinstance(schema, dict) else None
    kinds = said if isinstance(said, list) else [said]
    return all(kind in _UNMASKED for kind in kinds)
