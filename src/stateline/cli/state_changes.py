"""Changes from one state to another as lines: the important members first, one line for each change if it fits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec

from stateline.bundle.canonical import map_leaves
from stateline.bundle.envelope import Ref
from stateline.cli.layout import DIGITS, cut, width, wrapped
from stateline.cli.output import coloured, columns, counted, plain
from stateline.cli.snapshot_summary import size
from stateline.history.diff import END, Change, Path, focused, is_artifact, is_long_list, read_object
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store

_INDENT = 4
"""Columns before the lines of `log -p`, and before a value below its path."""
_ROWS = 3
"""Most rows of one line of a text."""
_BLOCK = 24
"""Most lines of one text."""
_READ = 64 * 1024
"""Larger objects [bytes] are not read; their size and digest are shown."""

_LINES = 5000
"""Texts with more lines are not compared: that takes quadratic time."""
_SIGNS = {"add": "+", "remove": "-", "replace": "~", "move": "~"}
_COLOURS = {"+": "green", "-": "red", "~": "yellow"}
_name = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

_FIRST: tuple[str | int, ...] = ("status", "input", "state", "outputs", "prompts", "settings")
"""Members that come first; the others follow in the order of the state."""
_SHOWN = 5
_SHOWN_AT_TOP = 20
"""Most changes of one kind in one container, and at the top; the others are counted."""


def _is_bookkeeping(kind: str, path: Path) -> bool:
    """True for a member that follows from the others: it is shown last and in few words."""
    if kind == "run":
        visible = path[1:2] in (("state",), ("error",), ("cause",), ("conversation",))
        return path[:1] in (("visits",), ("edges",), ("iteration",)) or (path[:1] == ("tree",) and not visible)
    return kind == "context" and path[:1] in (("refinements",), ("source_hash",), ("toolset_hash",))


def _spread(store: Store, kind: str, change: Change) -> list[Change]:
    """A change of all prompts of a context as one change for each prompt: they are long texts."""
    if kind != "context" or change.path != ("prompts",) or change.op not in ("add", "remove"):
        return [change]
    side = "new" if change.op == "add" else "old"
    prompts = _opened(store, getattr(change, side))
    if not isinstance(prompts, dict):
        return [change]
    system, developer = (_opened(store, prompts.get(name)) for name in ("system", "developer"))
    texts: dict[Path, Any] = {("prompts", "system"): system}
    if isinstance(developer, list):
        texts |= {("prompts", "developer", index): text for index, text in enumerate(developer)}
    return [msgspec.structs.replace(change, path=path, **{side: text}) for path, text in texts.items() if text]


def lines(store: Store, changes: list[Change], snapshot: Snapshot) -> Iterator[str]:
    """``changes`` up to ``snapshot`` as lines. Of large values, only the shown part is read.

    Raises ``IntegrityError`` for an object that cannot be read.
    """
    if not changes:
        yield "no difference: both have the same state"
    kind = snapshot.envelope.kind
    kept = [change for change in changes if _is_bookkeeping(kind, change.path)]
    shown = [change for change in changes if not _is_bookkeeping(kind, change.path) and not _is_empty(change)]
    shown = [part for change in shown for part in _spread(store, kind, change)]
    # Sorting is stable, so indices stay valid within a member.
    for _, group in groupby(sorted(shown, key=_rank), _kind):
        yield from _group(store, [*group])
    if kept:
        words = "; ".join(_few_words(change) for change in kept)
        yield coloured(cut(plain(f"  bookkeeping: {words}"), _room()), "dim")


def _room() -> int:
    return columns() - _INDENT


def _rank(change: Change) -> int:
    top = change.path[0] if change.path else None
    return _FIRST.index(top) if top is not None and top in _FIRST else len(_FIRST)


def _kind(change: Change) -> tuple[str, Path]:
    """The key of changes that are shown together: those added to, or removed from, one container."""
    return change.op, change.path[:-1] if change.op in ("add", "remove") else change.path


def _group(store: Store, changes: list[Change]) -> Iterator[str]:
    # A single hidden change is shown: the line that counts it would be as long.
    room = _SHOWN if len(changes[0].path) > 1 else _SHOWN_AT_TOP
    shown = changes if len(changes) <= room + 1 else changes[:room]
    for change in shown:
        yield from _change(store, change)
    if len(changes) > len(shown):
        sign = _SIGNS[changes[0].op]
        text = f"{sign} {place(changes[0].path[:-1])}  … {len(changes) - len(shown)} more"
        yield coloured(cut(plain(text), _room()), _COLOURS[sign])


def _is_empty(change: Change) -> bool:
    """True for an empty member of a first snapshot."""
    return change.op == "add" and len(change.path) == 1 and change.new in (None, "", [], {})


def _few_words(change: Change) -> str:
    if change.op == "remove":
        return f"{place(change.path)} gone"
    old = f"{_brief(change.old, _room())} -> " if change.op == "replace" else ""
    return f"{place(change.path)} {old}{_brief(change.new, _room())}"


def _change(store: Store, change: Change) -> Iterator[str]:
    sign = _SIGNS[change.op]
    path = cut(f"{sign} {plain(place(change.path))}", _room())
    if change.op == "move":
        yield from _beside(path, f"was {plain(place(change.source))}")
    elif change.op == "replace":
        yield from _replaced(path, _opened(store, change.old), _opened(store, change.new))
    else:
        value = _opened(store, change.new if change.op == "add" else change.old)
        if isinstance(value, str) and ("\n" in value.rstrip("\n") or width(path) + width(value) + 4 > _room()):
            yield from _beside(path, f"({counted(len(value.split(chr(10))), 'line')}, {size(len(value.encode()))})")
            yield from _block(_unified("", value) if sign == "+" else _unified(value, ""))
        else:
            yield from _beside(path, _brief(value, _room() - _INDENT))


def _beside(path: str, text: str) -> Iterator[str]:
    """A text on the line of its path, cut; below a path that leaves it too little room."""
    left = _room() - width(path) - 2
    shown = coloured(path, _COLOURS[path[0]])
    if width(text) > left and left < _room() // 2:
        yield shown
        yield f"{'':{_INDENT}}{cut(text, _room() - _INDENT)}"
    else:
        yield f"{shown}  {cut(text, left)}"


def _replaced(path: str, old: Any, new: Any) -> Iterator[str]:
    before, after = _json(old), _json(new)
    if width(path) + width(before) + width(after) + len("   -> ") <= _room():
        yield from _beside(path, f"{before} -> {after}")
    elif None in (old, new):
        yield from _beside(path, f"{_brief(old, _room())} -> {_brief(new, _room())}")
    elif isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        yield coloured(path, _COLOURS["~"])
        yield from _block(_unified(old, new))
    else:
        yield coloured(path, _COLOURS["~"])
        room = _room() - _INDENT - 2
        shown = focused(before, after, room - len("(999.9 KB) "))
        yield from _block([("-", _sized(old, before, shown[0], room)), ("+", _sized(new, after, shown[1], room))])


def _block(rows: Any) -> Iterator[str]:
    """Rows of (sign, text) below a path, wrapped and bounded."""
    room = _room() - _INDENT - 2
    shown = ((sign, part) for sign, text in rows for part in wrapped(cut(plain(text), _ROWS * room), room))
    for number, (sign, text) in enumerate(shown):
        if number == _BLOCK:
            yield coloured(f"{'':{_INDENT}}… and more", "dim")
            return
        line = f"{'':{_INDENT}}{sign} {text}".rstrip()
        yield coloured(line, _COLOURS[sign]) if sign in _COLOURS else line


def place(path: Path) -> str:
    """A path as in ``state.todos[3]``; ``[end]`` is after the last item of a long list."""
    words = ""
    for token in path:
        if isinstance(token, int):
            words += "[end]" if token == END else f"[{token}]"
        elif _name.fullmatch(token):
            words += f".{token}" if words else token
        else:
            words += f"[{cut(_json(token), 66)}]"
    return words or "(the whole state)"


def _opened(store: Store, value: Any) -> Any:
    """The value of an object that is small enough; anything else unchanged. Reads at most one object."""
    if not isinstance(value, Ref) or is_artifact(value) or is_long_list(value) or value.size > _READ:
        return value
    return read_object(store, value)


def _brief(value: Any, room: int) -> str:
    text = _json(value)
    return cut(_sized(value, text, text, room), room)


def _sized(value: Any, text: str, shown: str, room: int) -> str:
    """The shown text of a value, with its size in front if it is cut."""
    return shown if width(text) <= room or isinstance(value, Ref) else f"({size(len(text.encode()))}) {shown}"


def _json(value: Any) -> str:
    """A value as JSON on one line; objects as their size, artifacts also with their type. Of a failure, the message
    comes first: it is what a cut line must show."""
    if isinstance(value, Ref):
        return _described(value)
    if isinstance(value, dict) and "message" in value:
        value = {"message": value["message"], **value}
    text = msgspec.json.format(
        msgspec.json.encode(map_leaves(value, lambda leaf: _described(leaf) if isinstance(leaf, Ref) else leaf)),
        indent=0,
    ).decode()
    return plain(text)


def _described(ref: Ref) -> str:
    if is_long_list(ref):
        return f"<long list, {ref.sha256[:DIGITS]}>"
    what = f"artifact {ref.media_type}," if is_artifact(ref) else "object of"
    return f"<{what} {size(ref.size)}, {ref.sha256[:DIGITS]}>"


def _unified(old: str, new: str) -> Iterator[tuple[str, str]]:
    """(sign, line): ``-`` for a line of ``old`` only, ``+`` of ``new`` only, `` `` of both, ``@`` where lines are left
    out. One equal line is kept around each difference."""
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
    if not before or not after or len(before) + len(after) > _LINES:
        yield from (("-", line) for line in before)
        yield from (("+", line) for line in after)
        return
    import difflib

    for number, row in enumerate(difflib.unified_diff(before, after, n=1, lineterm="")):
        if number > 1:  # the first two name files
            yield ("@", row.strip("@ ")) if row.startswith("@@") else (row[0], row[1:])
