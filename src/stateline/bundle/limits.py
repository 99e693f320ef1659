"""Limits of what is written and taken in: those of format 1, or lower ones.

Reading always uses those of format 1: what a store holds stays readable whatever limits the next call has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import InvalidValueError, UsageError

PREFIX = "STATELINE_MAX_"
"""Beginning of the names of the environment variables that lower limits."""

Name = Literal["snapshot", "object", "output", "input", "manifest", "depth"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Largest sizes [bytes] of a new ``snapshot`` and ``object``, of the ``output`` of a task or tool, of an ``input``
    (answers and prompts too) and of a ``manifest`` (machine files too); and the deepest nesting of a value, ``depth``
    [levels]. Each can be lowered. ``variables`` names those that the environment has set.

    Raises ``UsageError`` for a limit that is higher than the default, or too low for anything.
    """

    snapshot: int = canonical.SNAPSHOT_LIMIT
    object: int = canonical.OBJECT_LIMIT
    output: int = canonical.TEXT_LIMIT
    input: int = canonical.TEXT_LIMIT
    manifest: int = canonical.TEXT_LIMIT
    depth: int = canonical.DEPTH
    variables: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, most in _DEFAULTS.items():
            value, least = getattr(self, name), LEAST_DEPTH if name == "depth" else 1
            if type(value) is not int or not least <= value <= most:
                where = f"{PREFIX}{name.upper()}" if name in self.variables else f"the limit `{name}`"
                raise UsageError(
                    f"{where} is {value!r}; it must be a number from {least} to {most}; nothing was done",
                    hint=f"without it the limit is {most}, the highest there is",
                )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Limits:
        """Return the limits that the variables ``STATELINE_MAX_…`` set. Raises ``UsageError`` for a malformed one."""
        given = {name: value for name in _DEFAULTS if (value := environ.get(f"{PREFIX}{name.upper()}"))}
        if not given:
            return DEFAULT
        # What is not a number is left for the check, which names the variable.
        values = {name: int(text) if text.isascii() and text.isdecimal() else text for name, text in given.items()}
        return cls(**values, variables=frozenset(given))  # type: ignore[arg-type]

    def text(self, name: Name) -> str:
        """Return the limit of a size for messages: its value, name and origin."""
        return f"{getattr(self, name)} bytes (limit `{name}`, {self._origin(name)})"

    def _origin(self, name: Name) -> str:
        if name in self.variables:
            return f"set by {PREFIX}{name.upper()}"
        return "the default" if getattr(self, name) == _DEFAULTS[name] else "set by Store.open"

    def require_size(self, name: Name, size: int, what: str, *, hint: str) -> None:
        """Raise ``InvalidValueError`` if ``size`` is over a limit."""
        if size > getattr(self, name):
            raise InvalidValueError(f"{what} is larger than {self.text(name)}", hint=hint)

    def require_depth(self, data: bytes, *, around: int = 0, what: str = "the value") -> None:
        """Raise ``InvalidValueError`` for JSON text that nests deeper than a lowered limit, where ``around`` levels lie
        around it. The default limit is checked wherever a value is encoded or parsed."""
        most = self.depth - around
        if self.depth < canonical.DEPTH and canonical.deeper_than(data, most):
            less = f" less {around}" if around else ""
            raise InvalidValueError(
                f"{what} nests deeper than {most} levels (limit `depth`{less}, {self._origin('depth')})",
                hint="flatten the value",
            )

    def parse(self, name: Name, data: bytes, what: str) -> Json:
        """Read JSON text from outside that becomes a value in a run's state. Raises as ``canonical.parse``."""
        self.require_size(name, len(data), what, hint="write large data to a file and name it")
        self.require_depth(data, around=canonical.DEPTH - canonical.OUTSIDE_DEPTH, what=what)
        return canonical.parse(data, what=what)


LEAST_DEPTH = 8
"""The lowest limit of depth: a run's own state nests nearly as deep."""
_DEFAULTS: dict[str, int] = {
    field.name: field.default for field in msgspec.structs.fields(Limits) if field.name != "variables"
}
DEFAULT = Limits()
"""The limits of format 1."""
