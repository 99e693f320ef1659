"""The settings of model calls: the known ones with their types and ranges. Unknown settings pass through. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateline.bundle.canonical import Json
from stateline.errors import RequestError, UsageError
from stateline.model.protocol import CALL_MEMBERS

_COUNT = {"type": "integer", "minimum": 1}
_PENALTY = {"type": "number", "minimum": -2, "maximum": 2}
_STRINGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1},  # some servers take -1 for "all"
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "max_output_tokens": _COUNT,
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "repetition_penalty": {"type": "number", "minimum": 0},
    "seed": {"type": "integer"},
    "stop": _STRINGS,
    "stop_sequences": _STRINGS,
    "reasoning_effort": {"type": "string"},
    "verbosity": {"type": "string"},
}
"""The JSON Schemas of the known settings, which a model may choose. Any other name must be one that the operator has
set, since settings become part of every later request."""


def setting_problem(settings: Mapping[str, Json]) -> str:
    """Return what is wrong with a known setting, or "". Null, which removes a setting, is accepted."""
    for name, value in settings.items():
        if name in SETTINGS and value is not None:
            from stateline.machine.expressions.json_schema import violations

            found = violations(SETTINGS[name], value)
            if isinstance(value, float) and SETTINGS[name].get("type") == "integer":  # JSON Schema takes 1.0 for one
                found = [f"{value} is not an integer"]
            if found:
                return f"{name}: {found[0].removeprefix('the value: ')}"
    return ""


def require_settings(settings: Mapping[str, Json]) -> None:
    """Check the settings of ``--set``. Raises ``RequestError`` for one that would replace a member of each call,
    ``UsageError`` for a known one with a value that no model takes. Null, which removes a setting, is accepted."""
    found = [name for name in CALL_MEMBERS if settings.get(name) is not None]
    if found:
        raise RequestError(
            f"a context cannot have the setting {found[0]}: it belongs to each call; nothing was sent or saved",
            hint="leave it out of --set; -m names the model, --system the system prompt, --tools the tools",
        )
    if problem := setting_problem(settings):
        raise UsageError(f"--set {problem}; nothing was sent or saved", hint="--set KEY=null removes a setting")
