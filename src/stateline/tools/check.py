"""Check a tools manifest: bytes to tools, or to the list of all mistakes. Pure.

{"tools": [{"name": "search", "description": "Search the notes.", "schema": {"type": "object", "properties": {}},
            "argv": ["./bin/search"], "timeout": 30, "env": ["NOTES"], "repeatable": true}]}
"""

from __future__ import annotations

import msgspec

from stateline.bundle import canonical
from stateline.errors import InvalidManifestError
from stateline.machine.definition.fields import TOOL_NAME, TOOL_NAME_HINT, ObjectReader, ProgramCheck
from stateline.machine.definition.formats.document import Document
from stateline.machine.definition.formats.reader import read
from stateline.machine.definition.masked_names import report_masked_properties
from stateline.machine.problems import Path, quoted
from stateline.machine.spec import Json, Tool, Toolset

KEYS = ("name", "description", "schema", "argv", "timeout", "env", "repeatable")
"""Members of a tool."""
DEFAULT_TIMEOUT = 30.0
"""Longest call [s] of a tool without a ``timeout``."""
MAX_TOOLS = 1000
"""Most tools in a manifest; providers accept far fewer."""
RESERVED_VARIABLES = ("STATELINE_RUN", "STATELINE_IDEMPOTENCY_KEY")
"""Environment variables that Stateline sets for each call."""

FILE_NAME = "manifest.json"
"""Any name of a file in JSON."""
_MANIFEST = "the tools manifest"
_EXAMPLE = '"tools": [{"name": ..., "description": ..., "schema": {...}, "argv": [...]}]'
_NO_ARGUMENTS = '"schema": {"type": "object", "properties": {}} for a tool without arguments'
_SHOWN = 5


def check_manifest(
    data: bytes, exists: ProgramCheck | None = None, name: str = _MANIFEST, document: Document | None = None
) -> Toolset:
    """Return the tools in a manifest's bytes. ``exists`` returns the reason why the program of an ``argv`` is missing,
    or None; without it, programs are not checked. ``name`` is the manifest's name in messages. ``document`` is
    ``read(data, FILE_NAME)`` if the caller has it.

    Raises :class:`InvalidManifestError` with all mistakes in file order, and nothing else. Touches no file.
    """
    document = document or read(data, FILE_NAME)
    findings = document.findings
    tools = _read_tools(document, exists) if document.complete else {}
    if not findings.failed:
        return Toolset(sha256=canonical.sha256(data), tools=tools)
    problems = findings.problems()
    shown = (f"{one.where}: {one.message}" + (f" ({one.hint})" if one.hint else "") for one in problems[:_SHOWN])
    first = "; ".join(shown)
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    message = f"{name} has {len(problems)} mistake{'s' * (len(problems) > 1)}: {first}{more}"
    raise InvalidManifestError(message, problems, hint="correct the manifest; nothing was run or stored")


def toolset_hash(toolset: Toolset | None) -> str:
    """Return the SHA-256 of the tools as canonical JSON, in hex; "" without a manifest.

    It changes when a tool does. White space and the order of keys or tools do not matter. (A stored toolset is read
    back with its tools sorted.)
    """
    if toolset is None:
        return ""
    tools = [msgspec.to_builtins(tool) for _, tool in sorted(toolset.tools.items())]
    return canonical.sha256(canonical.encode(tools, depth=canonical.FILE_DEPTH))


def _read_tools(document: Document, exists: ProgramCheck | None) -> dict[str, Tool]:
    manifest = ObjectReader(document.findings, (), document.value, _MANIFEST)
    manifest.reject_unknown_keys(("tools",))
    manifest.require("tools", _EXAMPLE)
    tools: dict[str, Tool] = {}
    first: dict[str, Path] = {}
    listed = manifest.members.get("tools")
    if isinstance(listed, list) and len(listed) > MAX_TOOLS:
        message = f"{len(listed)} tools are too many: at most {MAX_TOOLS}"
        manifest.error("tools", "too_many_tools", message, "is it a tools manifest?")
        return {}
    for fields in manifest.children("tools", "a tool"):
        tool = _tool(fields, exists)
        if tool.name in tools:
            line = document.findings.position(first[tool.name])[0]
            message = f"there is already a tool {quoted(tool.name)}, on line {line}"
            fields.error("name", "duplicate_name", message, "a model calls tools by their names: choose another")
        elif tool.name:
            tools[tool.name], first[tool.name] = tool, (*fields.path, "name")
    return tools


def _tool(fields: ObjectReader, exists: ProgramCheck | None) -> Tool:
    """Return the tool, with defaults in place of mistakes."""
    fields.reject_unknown_keys(KEYS)
    name = fields.text("name") if fields.require("name", '"name": "search"') else None
    if name and not TOOL_NAME.fullmatch(name):
        fields.error("name", "bad_name", f"{quoted(name)} is not a valid tool name", TOOL_NAME_HINT)
    purpose = '"description": what it does and when to use it, for the model'
    description = fields.text("description") if fields.require("description", purpose) else None
    schema = _schema(fields)
    example = '["./bin/search", "--fast"]'
    required = fields.require("argv", f'"argv": {example}')
    return Tool(
        name=name or "",
        description=description or "",
        schema=schema,
        argv=fields.argv("argv", exists, base="manifest", example=example) if required else [],
        timeout=fields.seconds("timeout") if "timeout" in fields else DEFAULT_TIMEOUT,
        env=fields.env("env", RESERVED_VARIABLES),
        repeatable=fields.boolean("repeatable"),
    )


def _schema(fields: ObjectReader) -> dict[str, Json]:
    if not fields.require("schema", _NO_ARGUMENTS):
        return {}
    schema = fields.schema("schema")
    # Providers refuse a tool whose arguments are not an object.
    if schema is not None and (not isinstance(schema, dict) or schema.get("type") != "object"):
        fields.error(
            "schema", "bad_schema", 'the arguments of a tool are of "type": "object"', f"write {_NO_ARGUMENTS}"
        )
    # Arguments are masked before anything sees them, the tool included.
    report_masked_properties(fields.findings, (*fields.path, "schema"), schema, "; a tool gets secrets by `env`")
    return schema if isinstance(schema, dict) else {}
