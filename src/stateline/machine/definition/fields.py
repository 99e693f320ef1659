"""Read objects of a raw tree: each key as the right type, or a reported mistake and a default value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from stateline.machine.problems import Findings, Path, did_you_mean, quoted, shell_hint
from stateline.machine.spec import Json

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names of machines and stages."""
IDENTIFIER_HINT = "use 1 to 64 letters, digits, dots, underscores and hyphens, and begin with a letter or digit"
TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""Names of tools that every provider accepts."""
TOOL_NAME_HINT = "use 1 to 64 letters, digits, underscores and hyphens, and begin with a letter or underscore"
LARGEST = 2**63 - 1
"""Largest count and largest number of seconds."""
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

ProgramCheck = Callable[[list[str]], str | None]
"""Returns why the program of an argv cannot be found, or None."""


def kind_of(value: Json) -> str:
    """Describe a value for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if isinstance(value, int | float):
        return f"the number {value!r}"
    return "a list" if isinstance(value, list) else "an object"


class ObjectReader:
    """Reads one object of the tree. Each method reads one key. It returns the default if the key is absent; for a value
    of the wrong type it reports a mistake and returns the default too. ``label`` names the object in messages."""

    def __init__(self, findings: Findings, path: Path, value: Json, label: str) -> None:
        self.findings = findings
        self.path = path
        self.label = label
        self.is_object = isinstance(value, dict)
        self.members: dict[str, Json] = value if isinstance(value, dict) else {}
        if not self.is_object:
            self.wrong_type((), "an object", value, "write {} for an empty one" if value is None else "")

    def __contains__(self, key: str) -> bool:
        return key in self.members

    def reject_unknown_keys(self, known: Sequence[str]) -> None:
        """Report every key that is not ``known``."""
        for key in self.members:
            if key not in known:
                guess = "" if self.findings.full else did_you_mean(key, list(known))
                hint = guess or f"known keys: {', '.join(known)}"
                self.error(key, "unknown_key", f"{self.label} has an unknown key {quoted(key)}", hint)

    def require(self, key: str, example: str) -> bool:
        """Return True if ``key`` exists; report it otherwise."""
        if key in self.members:
            return True
        if self.is_object:
            self.findings.error(self.path, "missing_key", f"{self.label} has no {key!r}", f"write {example}")
        return False

    def error(self, key: str, code: str, message: str, hint: str = "") -> None:
        """Report a mistake in the value of ``key``."""
        self.findings.error((*self.path, key), code, message, hint)

    def wrong_type(self, below: Path, wanted: str, value: Json, hint: str = "") -> None:
        """Report that ``value``, at the path ``below`` this object, is not the type ``wanted``."""
        label = ".".join(str(part) for part in below if isinstance(part, str)) or self.label
        message = f"{label} must be {wanted}, not {kind_of(value)}"
        self.findings.error((*self.path, *below), "wrong_type", message, hint)

    def text(self, key: str) -> str | None:
        """Return a text that is not empty."""
        if key not in self.members:
            return None
        value = self.members[key]
        if not isinstance(value, str):
            self.wrong_type((key,), "text", value, "put it in quotes" if isinstance(value, int | float) else "")
        elif not value:
            self.error(key, "bad_value", f"{key} must not be empty")
        elif "\0" in value:
            self.error(key, "bad_value", f"{key} must not hold a NUL character")
        else:
            return value
        return None

    def boolean(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self.members.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong_type((key,), "true or false", value, "write true or false, without quotes")
        return default

    def integer(self, key: str, *, least: int = 0, default: int = 0) -> int:
        """Return a whole number of at least ``least``."""
        if key not in self.members:
            return default
        value = self.members[key]
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong_type((key,), "a whole number", value)
        elif value < least:
            hint = "0 means: no limit" if least == 0 else ""
            self.error(key, "bad_value", f"{key} must be {least} or more, not {value}", hint)
        elif value > LARGEST:
            self.error(key, "bad_value", f"{key} must be below 2^63")
        else:
            return value
        return default

    def seconds(self, key: str) -> float:
        """Return a finite number of seconds [s], 0 or more; 0 by default."""
        value = self.members.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong_type((key,), "a number of seconds", value, "write the number alone, for example 90")
        elif not 0 <= value <= LARGEST:
            self.error(key, "bad_value", f"{key} must be 0 or more seconds, not {value!r}", "0 means: none")
        else:
            return float(value)
        return 0.0

    def text_list(self, key: str) -> list[str]:
        """Return a list of texts without NUL characters."""
        value = self.members.get(key, [])
        if not isinstance(value, list):
            self.wrong_type((key,), "a list of texts", value, "write a list: [a, b]")
            return []
        found = []
        for index, item in enumerate(value):
            if not isinstance(item, str):
                self.wrong_type((key, index), "a list of texts", item, "put it in quotes")
            elif "\0" in item:
                self.findings.error((*self.path, key, index), "bad_value", "a text must not hold a NUL character")
            else:
                found.append(item)
        return found

    def argv(self, key: str, exists: ProgramCheck | None, *, base: str, example: str) -> list[str]:
        """Return a program and its arguments. ``base`` is the file whose directory relative programs belong to."""
        raw = self.members.get(key)
        if isinstance(raw, str) and " " in raw.strip():
            self.wrong_type((key,), "a list of texts", raw, shell_hint(raw))
            return []
        argv = self.text_list(key)
        if not isinstance(raw, list) or len(argv) != len(raw):
            return argv
        if not argv or not argv[0]:
            self.error(key, "bad_value", f"{key} names no program", f"write the program and its arguments: {example}")
        elif exists is not None and (missing := exists(argv)) is not None:
            hint = f"a program with a slash is looked up in the directory of the {base}, any other on PATH"
            if " " in argv[0].strip():
                hint = shell_hint(" ".join(argv))
            self.error(key, "program_missing", missing, hint)
        return argv

    def env(self, key: str, reserved: Sequence[str] = ()) -> list[str]:
        """Return names of environment variables; ``reserved`` ones are set by the engine."""
        names, raw = self.text_list(key), self.members.get(key)
        for index, name in enumerate(raw if isinstance(raw, list) else []):
            path = (*self.path, key, index)
            if isinstance(name, str) and not ENV_NAME.fullmatch(name):
                hint = "write the name alone; the value comes from the environment" if "=" in name else ""
                message = f"{quoted(name)} is not the name of an environment variable"
                self.findings.error(path, "bad_value", message, hint)
            elif name in reserved:
                self.findings.error(path, "bad_value", f"{name} is always set, with another value", "leave it out")
        return names

    def schema(self, key: str) -> Json:
        """Return a JSON Schema, or None if the key is absent or the schema cannot be used."""
        if key not in self.members:
            return None
        from stateline.machine.expressions.json_schema import problems

        found = problems(self.members[key])
        for problem in found:
            self.error(key, "bad_schema", f"{key} is not a usable JSON Schema: {problem}", "see json-schema.org")
        return None if found else self.members[key]

    def object(self, key: str, example: str = "") -> dict[str, Json]:
        """Return an object with any keys. ``example`` shows one in the hint."""
        value = self.members.get(key, {})
        if isinstance(value, dict):
            return value
        self.wrong_type((key,), "an object", value, f"write {example or f'{key}: {{NAME: VALUE}}'}")
        return {}

    def child(self, key: str, label: str) -> ObjectReader:
        """Return a reader of the object at ``key``."""
        return ObjectReader(self.findings, (*self.path, key), self.members[key], label)

    def children(self, key: str, label: str) -> list[ObjectReader]:
        """Return readers of the objects in the list at ``key``."""
        value = self.members.get(key, [])
        if not isinstance(value, list):
            self.wrong_type((key,), "a list", value, "write a list: [{...}, {...}]")
            return []
        return [ObjectReader(self.findings, (*self.path, key, index), item, label) for index, item in enumerate(value)]
