"""Generate the JSON Schema (2020-12) of snapshots from the types that read them.

The envelope is the same for every kind; for runs, contexts and machine records ``state`` and ``event`` are described
too. An event without a ``type`` was not written by Stateline's commands; only the envelope of its snapshot is
described. A schema cannot express digests, links between files and canonical form: ``verify`` checks them.
"""

from __future__ import annotations

import msgspec

from stateline.bundle.canonical import Json
from stateline.bundle.envelope import VERSION, Envelope
from stateline.contexts.stored import ContextState
from stateline.engine.event_codec import RunEvent
from stateline.engine.record import MachineRecord
from stateline.machine.decider.run import RunState
from stateline.machine.definition.editor_schema import DIALECT
from stateline.model.protocol import Usage

_DEFS = "#/$defs/"
_TAKEN_OUT = ("array", "object", "string")
"""Types of values that may be objects of the store. In a state, null takes the place of an object."""


class ContextEvent(msgspec.Struct):
    """The event of a snapshot in a context's chain. What has a default is there only if a model was asked;
    ``error`` and ``refused`` only if its reply was refused."""

    type: str
    by: str
    text: str | None
    settings: dict[str, Json]
    unset: list[str] = []
    prompts: list[str] = []
    usage: Usage | None = None
    request: str = ""
    error: dict[str, str] = {}
    refused: dict[str, Json] = {}


class RecordState(msgspec.Struct):
    """The state of a machine record: the SHA-256 of the file's bytes."""

    machine: str


class RecordEvent(msgspec.Struct):
    """The event of a machine record: the run that was started from the file at ``path``."""

    type: str
    run: str
    path: str
    live: list[str]


_KINDS = {"run": (RunState, RunEvent), "context": (ContextState, ContextEvent), "machine": (RecordState, RecordEvent)}
"""The types of ``state`` and ``event`` by the snapshot's kind."""


def snapshot_schema() -> dict[str, Json]:
    """Return the schema; it refers to no other."""
    defs = _components(Envelope, *(event for _, event in _KINDS.values()))
    for state, _ in _KINDS.values():
        defs |= {name: _with_nulls(part) for name, part in _components(state).items()}
    run = defs["RunState"]
    run["properties"]["machine"] = _with_nulls(_components(MachineRecord)["MachineRecord"])
    run["required"] = [*run["required"], "machine"]
    envelope = defs.pop("Envelope")
    for name, default in (("objects", {}), ("version", VERSION)):
        envelope["properties"][name]["default"] = default
    envelope["properties"].pop("extra")  # where the reader keeps members that it does not know
    return {
        "$schema": DIALECT,
        **envelope,
        "title": "Stateline snapshot",
        "required": [*envelope["required"], "objects", "version"],
        "allOf": [_of_kind(kind, state.__name__, event.__name__) for kind, (state, event) in _KINDS.items()],
        "$defs": defs,
    }


def _components(*types: type) -> dict[str, Json]:
    """Return definitions by name, of these types and of those that they name."""
    _, found = msgspec.json.schema_components(types, ref_template=_DEFS + "{name}")
    for part in found.values():
        part["description"] = " ".join(part.get("description", "").split())
    return found


def _of_kind(kind: str, state: str, event: str) -> dict[str, Json]:
    found: dict[str, Json] = {"$ref": _DEFS + state}
    if kind == "context":  # null as long as all replies that should derive it were refused
        found = _or_null(found)
    return {
        "if": {"properties": {"kind": {"const": kind}, "event": {"required": ["type"]}}},
        "then": {"properties": {"state": found, "event": {"$ref": _DEFS + event}}},
    }


def _with_nulls(schema: dict[str, Json]) -> dict[str, Json]:
    """Return ``schema`` of an object, with null allowed where a part of the value may be an object of the store."""
    changed = dict(schema)
    if "properties" in schema:
        changed["properties"] = {name: _or_null(part) for name, part in schema["properties"].items()}
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            changed[key] = _or_null(schema[key])
    return changed


def _or_null(schema: dict[str, Json]) -> dict[str, Json]:
    changed = _with_nulls(schema)
    may_be_object = schema.get("type") in _TAKEN_OUT or "$ref" in schema
    return {"anyOf": [changed, {"type": "null"}]} if may_be_object else changed
