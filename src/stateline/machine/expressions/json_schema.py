"""JSON Schema: of a run's input, its state, and a human's answer. Pure: no reference ever leaves the schema.

Schemas and values may both be hostile, so the work is bounded: patterns run on an engine without backtracking, a
schema whose parts multiply is refused, and of a large value only the first violation is looked for.
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

_MOST = 20
_LARGE = 64 * 1024
"""The library collects every violation before it gives the first; in a value above this [bytes] that takes seconds."""
_PATTERN_SIZE = 2 * 1024 * 1024
"""Compiled size of a pattern [bytes]: enough for `^.{0,1000}$`, too little for repetitions of repetitions."""
_FAN_OUT = 10_000
"""How many subschemas may apply to one and the same value. Ten `$defs` that each name the next twice: 1024."""
_CHAIN = 400
_META = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
)
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_LONGEST = 300


def problems(schema: Json) -> list[str]:
    """What is wrong with a schema, each with the JSON Pointer of the place in it; empty when it can be used.

    Valid means: valid by its own draft (2020-12 unless ``$schema`` says otherwise), every reference within itself or
    to a draft's own schema, every pattern without look-around and back-references.
    """
    refused = _refused(schema)
    if refused:
        return [refused]
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
    """How ``value`` breaks ``schema``: at most the first 20, each ``"/json/pointer: what"`` (``the value: what`` for
    the whole). Of a value over 64 KiB only the first is given. A schema that cannot be used, and a value that JSON
    cannot hold, give one entry: nothing passes unchecked."""
    refused = _refused(schema)
    if refused:
        return [f"the schema cannot be used: {refused}"]
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
        return list(dict.fromkeys(_text(error) for error in islice(validator.iter_errors(value), 10 * _MOST)))[:_MOST]
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return [_text(error)]
    return []


def _text(error: jsonschema_rs.ValidationError) -> str:
    pointer = "".join(f"/{canonical.escape(str(part))}" for part in error.instance_path)
    return f"{printable(pointer)[:_LONGEST] or 'the value'}: {_cut(error.message)}"


def _cut(message: str) -> str:
    """Messages quote the value and end with what was expected; both ends are kept."""
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
    return printable(message)


def _compile_problem(error: Exception) -> str:
    import jsonschema_rs

    if not isinstance(error, jsonschema_rs.ValidationError):
        return _cut(str(error))
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format):
        return f"{_text(error)} that runs in linear time and small space (no look-around, no back-references)"
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        return f"{_cut(error.message)}: references must stay within the schema ($defs)"
    return _text(error)


def _refused(schema: Json) -> str | None:
    """Why the library must not even see this schema, or None."""
    if not isinstance(schema, dict | bool):
        return "a JSON Schema is an object, true or false"
    try:
        canonical.encode(schema, depth=canonical.FILE_DEPTH)
    except InvalidValueError as refused:
        return str(refused)
    if _multiplies(schema):
        return f"more than {_FAN_OUT} parts of the schema would apply to one value; name each part once"
    return None


def _multiplies(schema: Json) -> bool:
    """Whether the parts that apply to one value are too many, as in a chain of `allOf: [next, next]`."""
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
    return any(_parts(node, schema, named, memo) > _FAN_OUT for node in nodes)


def _parts(node: dict[str, Any], root: Json, named: dict[str, Any], memo: dict[int, int]) -> int:
    """How many subschemas apply to a value that ``node`` applies to; more than the limit is not counted further."""
    # Not by recursion: the answer must not depend on how deep the caller stands.
    stack: list[tuple[int, Iterator[Json]]] = []

    def enter(part: dict[str, Any]) -> None:
        memo[id(part)] = 0  # a reference back to here adds nothing: the library cuts such cycles
        stack.append((id(part), iter(_in_place(part, root, named))))
        totals.append(1)

    totals: list[int] = []
    if id(node) not in memo:
        enter(node)
    while stack:
        part, children = stack[-1]
        for child in children:
            if isinstance(child, dict) and id(child) not in memo:
                if len(stack) > _CHAIN:
                    return _FAN_OUT + 1
                enter(child)
                break
            totals[-1] += memo[id(child)] if isinstance(child, dict) else 1
        else:
            stack.pop()
            memo[part] = min(totals.pop(), _FAN_OUT + 1)
            if totals:
                totals[-1] += memo[part]
    return memo[id(node)]


def _in_place(node: dict[str, Any], root: Json, named: dict[str, Any]) -> list[Json]:
    """The subschemas that apply to the same value as ``node``."""
    found: list[Json] = []
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(node.get(key), list):
            found.extend(node[key])
    for key in ("dependentSchemas", "dependencies"):
        if isinstance(node.get(key), dict):
            found.extend(node[key].values())
    found.extend(node[key] for key in ("not", "if", "then", "else") if key in node)
    found.extend(_target(node[key], root, named) for key in _REFS if isinstance(node.get(key), str))
    return found


def _target(reference: str, root: Json, named: dict[str, Any]) -> Json:
    base, _, fragment = reference.partition("#")
    place: Json = named.get(base, root) if base else root
    if fragment and not fragment.startswith("/"):
        return named.get(fragment)
    for token in fragment.split("/")[1:]:
        key = canonical.unescape(token)
        if isinstance(place, dict):
            place = place.get(key)
        # More digits than any list has items: converting very long ones takes quadratic time, or is refused.
        elif isinstance(place, list) and key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < len(place):
            place = place[int(key)]
        else:
            return None
    return place
