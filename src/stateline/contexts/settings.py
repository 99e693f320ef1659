"""The settings of model calls: the known ones with their types and ranges. Unknown settings pass through. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from stateline.bundle.canonical import Json
from stateline.errors import RequestError, UsageError
from stateline.model.protocol import CALL_MEMBERS


class SettingRule(msgspec.Struct, frozen=True):
    """The type of a setting, and the least and largest value of a number (None: no limit)."""

    type: Literal["number", "integer", "string", "strings"]
    least: float | None = None
    most: float | None = None

    def allows(self, value: Json) -> bool:
        """Return True for a value of the type and in the range."""
        if self.type == "string":
            return isinstance(value, str)
        if self.type == "strings":
            return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
        if isinstance(value, bool) or not isinstance(value, int if self.type == "integer" else int | float):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def words(self) -> str:
        """Return the allowed values in words."""
        if self.type == "strings":
            return "a string or a list of strings"
        what = "an integer" if self.type == "integer" else f"a {self.type}"
        if self.least is None:
            return what
        return (
            f"{what}, {self.least:g} or more" if self.most is None else f"{what} from {self.least:g} to {self.most:g}"
        )

    def schema(self) -> dict[str, Json]:
        """Return the JSON Schema of the type. It has no range: not every provider accepts one in a reply's schema."""
        if self.type == "strings":
            return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        return {"type": self.type}


_PENALTY = SettingRule("number", -2, 2)
_COUNT = SettingRule("integer", 1)
SETTINGS = {
    "temperature": SettingRule("number", 0, 2),
    "top_p": SettingRule("number", 0, 1),
    "top_k": SettingRule("integer", -1),  # some servers take -1 for "all"
    "min_p": SettingRule("number", 0, 1),
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "max_output_tokens": _COUNT,
    "frequency_penalty": _PENALTY,
    "presence_penalty": _PENALTY,
    "repetition_penalty": SettingRule("number", 0),
    "seed": SettingRule("integer"),
    "stop": SettingRule("strings"),
    "stop_sequences": SettingRule("strings"),
    "reasoning_effort": SettingRule("string"),
    "verbosity": SettingRule("string"),
}
"""The known settings, which a model may choose. Any other name must be one that the operator has set, since settings
become part of every later request."""


def setting_problem(settings: Mapping[str, Json]) -> str:
    """Return what is wrong with a known setting, or "". Null, which removes a setting, is accepted."""
    for name, value in settings.items():
        rule: Any = SETTINGS.get(name)
        if rule is not None and value is not None and not rule.allows(value):
            shown = msgspec.json.encode(value).decode()
            shown = shown if len(shown) <= 40 else f"{shown[:39]}…"
            return f"{name} is {shown}; it must be {rule.words()}"
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
