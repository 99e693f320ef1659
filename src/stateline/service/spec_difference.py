"""The difference between two machines, as a few lines for a message."""

from __future__ import annotations

import msgspec

from stateline.bundle.canonical import Json
from stateline.history.diff import Change, Path, compare, focused
from stateline.machine.problems import path_text, printable
from stateline.machine.spec import Machine, to_json
from stateline.store.store import Store

_LINES = 10
"""Most lines of one difference; the other changes are counted."""
_WIDTH = 76
_FILE_KEYS = {"argv": ("task",), "prompt": ("human", "prompt"), "schema": ("human", "schema")}
"""Keys of a stage in a machine file that have other names in the spec."""
_SIGNS = {"add": "+", "remove": "-", "replace": "~", "move": "~"}


def changes(store: Store, old: Machine, new: Machine) -> list[Change]:
    """Return the changes of the canonical spec. The digest of a manifest does not count: its tools are compared."""
    before, after = _spec(old), _spec(new)
    return compare(store, before, after)


def _spec(machine: Machine) -> dict[str, Json]:
    spec = to_json(machine)
    if spec["toolset"] is not None:
        del spec["toolset"]["sha256"]
    # As stored: lists and objects in the types of JSON, keys in one order.
    decoded: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(spec, order="sorted"))
    return decoded


def is_of_tools(found: list[Change]) -> bool:
    """Return whether only the tools manifest differs."""
    return all(change.path[:1] == ("toolset",) for change in found)


def lines(found: list[Change], limit: int = _LINES) -> list[str]:
    """Return one line for each change, at most ``limit``, with keys as in the machine file."""
    shown = found if len(found) <= limit else found[: limit - 1]
    more = [f"… {len(found) - len(shown)} more changes"] if len(found) > len(shown) else []
    return [*map(_line, shown), *more]


def _line(change: Change) -> str:
    head = f"{_SIGNS[change.op]} {path_text(_file_path(change.path))}"
    if change.op == "move":
        return f"{head}  was {path_text(_file_path(change.source))}"
    room = max(_WIDTH - len(head), 30)
    if change.op == "replace":
        old, new = focused(_shown(change.old), _shown(change.new), (room - len("   -> ")) // 2)
        return f"{head}  {old} -> {new}"
    return f"{head}  {focused(_shown(change.new if change.op == 'add' else change.old), '', room)[0]}"


def _shown(value: Json) -> str:
    if isinstance(value, dict) and "default_next" in value:  # a whole stage: every field of it would be shown
        return f"(a stage: {value['kind']})"
    return printable(msgspec.json.encode(value).decode())


def _file_path(path: Path) -> Path:
    if path[:1] == ("stages",) and len(path) > 2 and path[2] in _FILE_KEYS:
        return (*path[:2], *_FILE_KEYS[str(path[2])], *path[3:])
    return path
