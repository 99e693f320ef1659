"""Parts of requests that are the same for all providers: schemas, results of tools, JSON by instruction. Pure."""

from __future__ import annotations

import re
from typing import Any

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.machine.problems import quoted
from stateline.model.protocol import CALL_MEMBERS, ModelCallError, ModelRequest

_INSTRUCTION = (
    "Answer with exactly one JSON value that is valid under the JSON Schema below. Write nothing before or after it, "
    "and no code fence around it.\n\n"
)
_FENCED = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*?)\n[ \t]*```\s*", re.DOTALL)


def refuse_settings(request: ModelRequest, provider: str) -> None:
    """Raise :class:`ModelCallError` for a setting that would replace a member of the call."""
    for name in CALL_MEMBERS:
        if name in request.settings:
            message = f"the setting {quoted(name)} belongs to the call itself and was not sent to {provider}"
            raise ModelCallError("model", message, "remove it from the context's settings or from --set", sent=False)


def arguments_schema(parameters: dict[str, Json]) -> dict[str, Json]:
    """Return the JSON Schema of a tool's arguments as providers require it: an object that lists its properties."""
    return {"type": "object", "properties": {}, **parameters}


def text_of(content: Json) -> str:
    """Return a tool's result as text: a string unchanged, anything else as canonical JSON."""
    return content if isinstance(content, str) else canonical.encode(content, depth=canonical.FILE_DEPTH).decode()


def instruction(schema: Json) -> str:
    """Return the prompt that asks for JSON where a provider does not support schemas."""
    return _INSTRUCTION + canonical.encode(schema, depth=canonical.FILE_DEPTH).decode()


def unfenced(text: str) -> str:
    """Return ``text`` without the Markdown fence that models put around JSON."""
    match = _FENCED.fullmatch(text)
    return match[1] if match else text


def closed(schema: Json) -> bool:
    """Return whether each object in ``schema`` lists its properties and allows no others. Structured outputs require
    that."""
    if isinstance(schema, list):
        return all(closed(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" and not (
        schema.get("properties") and schema.get("additionalProperties") is False
    ):
        return False
    return all(closed(item) for item in schema.values())


def unstreamed(response: Any) -> bytes | None:
    """Return the body of a response that is a JSON document instead of a stream, from a server that does not stream;
    None for a stream. Raises as reading the response does."""
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return None
    content: bytes = response.read()
    # Some servers send events with that type too: the body can still be read as a stream.
    return content if content.lstrip()[:1] in (b"{", b"[", b"") else None
