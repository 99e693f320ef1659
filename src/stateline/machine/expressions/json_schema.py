"""Check JSON Schemas, and values against them. Pure: no reference leaves the schema.

Schemas and values may both be hostile, so the work is bounded: patterns run on an engine without backtracking, a
schema with too many subschemas per value is refused, and only the first violation of a large value is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from stateline.bundle import canonical
from stateline.errors import InvalidValueError
from stateline.machine.problems import printable
from stateline.machine.spec import Json

if TYPE_CHECKING:
    import jsonschema_rs

_MAX_VIOLATIONS = 20
_LARGE = 64 * 1024
"""Above this size [bytes] only one violation is computed: the library collects all of them first, for seconds."""
_PATTERN_SIZE = 2 * 1024 * 1024
"""Largest compiled pattern [bytes]: enough for `^.{0,1000}$`, too little for nested repetitions."""
_MAX_FAN_OUT = 10_000
"""Most subschemas that apply to one value. Ten `$defs` that each refer twice to the next: 1024."""
_MAX_CHAIN = 400
"""Longest chain of subschemas that apply to one value."""
_META = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
)
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_MAX_MESSAGE = 300


def problems(schema: Json) -> list[str]:
    """Return the mistakes in a schema, each with its JSON Pointer; empty when the schema can be used.

    A usable schema is valid in its draft (``$schema``, else 2020-12), refers only to itself or to the schema of a
    draft, and has no pattern with look-around or back-references.
    """
    reason = _unusable(schema)
    if reason:
        return [reason]
    import jsonschema_rs

    draft = schema.get("$schema", _META[0]) if isinstance(schema, dict) else _META[0]
    if draft in _META:
        meta = jsonschema_rs.validator_for({"$schema": draft, "$ref": draft}, offline=True)
        if found := _violations(meta, schema):
            return found
    try:
        _validator(schema)
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        return [_compile_problem(error)]
    return []


def violations(schema: Json, value: Json) -> list[str]:
    """Return the first 20 violations of ``schema``, each ``"/json/pointer: message"`` (``the value: message`` for the
    whole); only the first of a value over 64 KiB. A schema that cannot be used, and a value that JSON cannot hold,
    give one entry: nothing passes unchecked."""
    reason = _unusable(schema)
    if reason:
        return [f"the schema cannot be used: {reason}"]
    import jsonschema_rs

    try:
        validator = _validator(schema)
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        return [f"the schema cannot be used: {_compile_problem(error)}"]
    return _violations(validator, value)


def _validator(schema: Json) -> jsonschema_rs.Validator:
    import jsonschema_rs

    # Offline: the default retriever would read http:// and file:// references.
    engine = jsonschema_rs.RegexOptions(size_limit=_PATTERN_SIZE)
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=engine)


def _violations(validator: jsonschema_rs.Validator, value: Json) -> list[str]:
    import jsonschema_rs

    try:
        size = len(canonical.encode(value, depth=canonical.FILE_DEPTH))
    except InvalidValueError as refused:
        return [refused.message]
    if validator.is_valid(value):
        return []
    if size <= _LARGE:
        return list(
            dict.fromkeys(_describe(error) for error in islice(validator.iter_errors(value), 10 * _MAX_VIOLATIONS))
        )[:_MAX_VIOLATIONS]
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return [_describe(error)]
    return []


def _describe(error: jsonschema_rs.ValidationError) -> str:
    pointer = "".join(f"/{canonical.escape(str(part))}" for part in error.instance_path)
    return f"{printable(pointer)[:_MAX_MESSAGE] or 'the value'}: {_shorten(error.message)}"


def _shorten(message: str) -> str:
    """Keep both ends: messages begin with the value and end with what was expected."""
    if len(message) > _MAX_MESSAGE:
        message = f"{message[: _MAX_MESSAGE // 2]} … {message[-_MAX_MESSAGE // 2 :]}"
    return printable(message)


def _compile_problem(error: Exception) -> str:
    import jsonschema_rs

    if not isinstance(error, jsonschema_rs.ValidationError):
        return _shorten(str(error))
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format):
        return f"{_describe(error)} that runs in linear time and small space (no look-around, no back-references)"
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        return f"{_shorten(error.message)}: references must stay within the schema ($defs)"
    return _describe(error)


def _unusable(schema: Json) -> str | None:
    """Return why the schema must not reach the library, or None."""
    if not isinstance(schema, dict | bool):
        return "a JSON Schema is an object, true or false"
    try:
        canonical.encode(schema, depth=canonical.FILE_DEPTH)
    except InvalidValueError as refused:
        return str(refused)
    if _fans_out(schema):
        return f"more than {_MAX_FAN_OUT} subschemas would apply to one value; refer to each of them once"
    return None


def _fans_out(schema: Json) -> bool:
    """Return True if too many subschemas apply to one value, as in a chain of `allOf: [next, next]`."""
    nodes: list[dict[str, Any]] = []
    named: dict[str, Any] = {}
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            nodes.append(item)
            for key in ("$id", "$anchor", "$dynamicAnchor"):
                if isinstance(item.get(key), str):
                    named.setdefault(item[key].strip("#"), item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    memo: dict[int, int] = {}
    return any(_subschema_count(node, schema, named, memo) > _MAX_FAN_OUT for node in nodes)


def _subschema_count(node: dict[str, Any], root: Json, named: dict[str, Any], memo: dict[int, int]) -> int:
    """Count the subschemas that apply to the same value as ``node``, up to the limit."""
    # Iterative: the result must not depend on the depth of the caller's stack.
    stack: list[tuple[int, Iterator[Json]]] = []

    def enter(part: dict[str, Any]) -> None:
        memo[id(part)] = 0  # a reference back to here adds nothing: the library cuts such cycles
        stack.append((id(part), iter(_applied_with(part, root, named))))
        totals.append(1)

    totals: list[int] = []
    if id(node) not in memo:
        enter(node)
    while stack:
        part, children = stack[-1]
        for child in children:
            if isinstance(child, dict) and id(child) not in memo:
                if len(stack) > _MAX_CHAIN:
                    return _MAX_FAN_OUT + 1
                enter(child)
                break
            totals[-1] += memo[id(child)] if isinstance(child, dict) else 1
        else:
            stack.pop()
            memo[part] = min(totals.pop(), _MAX_FAN_OUT + 1)
            if totals:
                totals[-1] += memo[part]
    return memo[id(node)]


def _applied_with(node: dict[str, Any], root: Json, named: dict[str, Any]) -> list[Json]:
    """Return the subschemas that apply directly to the same value as ``node``."""
    found: list[Json] = []
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(node.get(key), list):
            found.extend(node[key])
    for key in ("dependentSchemas", "dependencies"):
        if isinstance(node.get(key), dict):
            found.extend(node[key].values())
    found.extend(node[key] for key in ("not", "if", "then", "else") if key in node)
    found.extend(resolve(node[key], root, named) for key in _REFS if isinstance(node.get(key), str))
    return found


def resolve(reference: str, root: Json, named: dict[str, Any]) -> Json:
    base, _, fragment = reference.partition("#")
    part: Json = named.get(base, root) if base else root
    if fragment and not fragment.startswith("/"):
        return named.get(fragment)
    for token in fragment.split("/")[1:]:
        key = canonical.unescape(token)
        if isinstance(part, dict):
            part = part.get(key)
        # More digits than any list has items: converting very long ones takes quadratic time, or is refused.
        elif isinstance(part, list) and key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < len(part):
            part = part[int(key)]
        else:
            return None
    return part
