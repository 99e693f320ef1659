"""What every provider is asked alike: schemas, texts of tools' results, and JSON by instruction. Pure."""

from __future__ import annotations

import re
from typing import Any

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.machine.problems import quoted
from stateline.model.protocol import CALL_MEMBERS, ModelFailed, Request

_INSTRUCTION = (
    "Answer with exactly one JSON value that is valid under the JSON Schema below. Write nothing before or after it, "
    "and no code fence around it.\n\n"
)
_FENCED = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*?)\n[ \t]*```\s*", re.DOTALL)


def refuse_settings(request: Request, provider: str) -> None:
    """Raise :class:`ModelFailed` for a setting that would replace what the call itself says."""
    for name in CALL_MEMBERS:
        if name in request.settings:
            message = f"the setting {quoted(name)} belongs to the call itself and was not sent to {provider}"
            raise ModelFailed("model", message, "take it out of the context's settings or of --set", sent=False)


def arguments_schema(parameters: dict[str, Json]) -> dict[str, Json]:
    """The JSON Schema of a tool's arguments as providers want it: of an object that names its properties."""
    return {"type": "object", "properties": {}, **parameters}


def text_of(content: Json) -> str:
    """A tool's result as text: a string as it is, anything else as canonical JSON."""
    return content if isinstance(content, str) else canonical.encode(content, depth=canonical.FILE_DEPTH).decode()


def instruction(schema: Json) -> str:
    """The prompt that asks for JSON where a provider cannot be bound to a schema."""
    return _INSTRUCTION + canonical.encode(schema, depth=canonical.FILE_DEPTH).decode()


def unfenced(text: str) -> str:
    """``text`` without the Markdown fence that models put around JSON, if that is all there is around it."""
    match = _FENCED.fullmatch(text)
    return match[1] if match else text


def closed(schema: Json) -> bool:
    """Whether each object in ``schema`` lists its properties and allows no others: structured outputs are refused, or
    mean something else, without."""
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
    """The whole body of an HTTP response that was to be streamed and is a plain JSON document, from a server that does
    not stream; None for any other. Raises as reading the response does."""
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return None
    content: bytes = response.read()
    # Some send events under that type as well: what was read here can still be streamed.
    return content if content.lstrip()[:1] in (b"{", b"[", b"") else None
