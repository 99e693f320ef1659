"""Report schema properties that no value can satisfy, since values under the names of secrets are masked. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateline.machine.problems import Findings, Path, quoted
from stateline.machine.spec import Json
from stateline.redaction.masking import PLACEHOLDER, is_secret_name

_NAME_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords below which each key is a name chosen by the author."""
_DATA_KEYWORDS = ("const", "enum", "default", "examples")
"""Keywords with values, not schemas, below them."""
_UNMASKED = ("number", "integer", "boolean", "null")
"""Types of values that are never masked."""


def report_masked_properties(findings: Findings, path: Path, schema: Json, advice: str) -> None:
    """Report each property of the ``schema`` at ``path`` whose value would be masked because of its name. ``advice`` is
    appended to the hint."""
    for below, name in masked_properties(schema):
        message = f"a value under the name {quoted(name)} is masked as a secret: it would always be {PLACEHOLDER}"
        hint = f"rename it if it is not a secret ({quoted(name + '_text')}){advice}"
        findings.error((*path, *below), "masked_property", message, hint)


def masked_properties(schema: Json) -> Iterator[tuple[Path, str]]:
    """Yield the path and the name of each property, at any depth, whose value is masked because of its name. Numbers,
    booleans and null are not masked. Names in ``required`` count as well."""
    parts = list(_parts(schema, ()))
    declared = {name for _, part in parts for name in _members(part, "properties")}
    for path, part in parts:
        for name, below in _members(part, "properties").items():
            if is_secret_name(name) and not _is_unmasked(below):
                yield (*path, "properties", name), name
        for index, name in enumerate(part["required"] if isinstance(part.get("required"), list) else []):
            if isinstance(name, str) and is_secret_name(name) and name not in declared:
                yield (*path, "required", index), name


def _parts(schema: Json, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the schema and all schemas in it, with their paths."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _parts(item, (*path, index))
    elif isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            if key in _NAME_KEYWORDS:
                for name, item in _members(schema, key).items():
                    yield from _parts(item, (*path, key, name))
            elif key not in _DATA_KEYWORDS:
                yield from _parts(value, (*path, key))


def _members(part: dict[str, Any], key: str) -> dict[str, Any]:
    value = part.get(key)
    return value if isinstance(value, dict) else {}


def _is_unmasked(schema: Json) -> bool:
    declared = schema.get("type") if isinstance(schema, dict) else None
    kinds = declared if isinstance(declared, list) else [declared]
    return all(kind in _UNMASKED for kind in kinds)
