"""One-line summary of a snapshot: event, result and reason. Reads no file but the snapshot."""

from __future__ import annotations

from typing import Any

from stateline.bundle.envelope import LIST_TYPE, Ref
from stateline.bundle.repair_record import MEMBER
from stateline.cli.layout import DIGITS, ago, at_blank, cut, width
from stateline.cli.output import coloured, columns, counted, one_line, plain
from stateline.store.snapshot import Snapshot

_LEAST = 24
"""Fewest columns of a summary, on any terminal."""
_MOST = 104
"""Most columns of a summary: a longer line is hard to read."""
_QUOTED = 16
"""Fewest columns of a quoted text."""
_LONG = 512
"""More characters of one text are never looked at."""
_NAME = 32
"""Most columns of a stage's or a tool's name."""

Part = tuple[str, str]
"""A piece of a summary, and its colour ("" for none)."""

_PROMPTS = {
    ("system",): ["new system prompt"],
    ("developer",): ["new developer prompts"],
    ("system", "developer"): ["new prompts"],
}
"""Words for the prompts that a model changed."""
_OBVIOUS = ("default", "start", "complete")
"""Reasons of a transition that follow from its stages."""
_BY_PEOPLE = ("answered", "cancelled", "replaced", "retried")
"""Events of a run that somebody asked for."""
_FIXED: dict[str, Part] = {
    "intended": (" is about to run; it must not run twice", ""),
    "calls_intended": (": tools are about to run; not all may run twice", ""),
    "unsent": (" was not asked", "yellow"),
    "retried": (" is retried", ""),
    "replaced": (": the machine was replaced", "yellow"),
    "cancelled": (": the run was cancelled", "yellow"),
}
"""Events with fixed words."""
_PHASES = {
    "waiting": "waits for an answer",
    "unknown": "waits: its outcome is unknown",
    "failed": "the run stops",
}


def log_lines(snapshot: Snapshot) -> list[str]:
    """Sha, number, age, and beside them the summary, on at most three lines."""
    sha, rest = snapshot.sha256[:DIGITS], f" {snapshot.seq:>4}  {ago(snapshot.envelope.created_at):<10}  "
    indent = DIGITS + len(rest)
    room = min(max(columns() - indent, _LEAST), _MOST)
    first, *more = summary(snapshot, room, rows=3) or [""]
    return [f"{coloured(sha, 'yellow')}{rest}{first}".rstrip(), *(f"{'':{indent}}{line}" for line in more)]


def actor_text(actor: Any) -> str:
    """The actor of an event: ``NAME (USER@HOST)``, or ``USER@HOST`` without a name; "" for one of another shape."""
    user, host, name = (member(actor, key) for key in ("user", "host", "name"))
    if not (isinstance(user, str) and isinstance(host, str)):
        return ""
    return one_line(f"{name} ({user}@{host})" if isinstance(name, str) else f"{user}@{host}")


def actor_name(actor: Any) -> str:
    """The name of the actor of an event, else of the user; "" for one of another shape."""
    name = member(actor, "name") or member(actor, "user")
    return name if isinstance(name, str) else ""


def _by(event: dict[str, Any], word: str = "by") -> list[Part]:
    name = actor_name(event.get("actor"))
    return [(f" {word} {name}", "")] if name else []


def summary(snapshot: Snapshot, room: int, *, rows: int = 1) -> list[str]:
    """The snapshot's event in at most so many ``rows`` of ``room`` columns. An event of unknown shape is shown as
    JSON."""
    event = snapshot.event
    try:
        if event.get("type") == MEMBER and MEMBER in event:
            parts = [(MEMBER, "yellow"), *_by(event), *_repair(event[MEMBER])]
        elif "transitions" in event:
            parts = _turn(event, snapshot.state)
        elif event.get("type") == "refused":
            parts = [("refused", "red"), (f" a reply of {event['by']}  {event['error']['message']}", "")]
        elif event.get("type") in ("derive", "refine"):
            parts = _refinement(event, snapshot.state, room * rows)
        elif event.get("type") == "run_started":
            parts = [("run ", ""), (str(event["run"]), "bold"), (" started", "")]
        else:
            parts = _raw(event)
    except (AttributeError, KeyError, TypeError):
        parts = _raw(event)
    return _joined(parts, room, rows)


def _joined(parts: list[Part], room: int, rows: int) -> list[str]:
    """The parts, wrapped into so many rows and cut in the last."""
    lines, left = [""], room
    for text, colour in parts:
        rest = plain(text).replace("\n", " ").replace("\t", " ")
        while width(rest) > left:
            end = at_blank(rest, left)
            if len(lines) == rows or (not end and left == room):
                return [*lines[:-1], lines[-1] + _painted(cut(rest, left), colour)]
            lines[-1] += _painted(rest[:end], colour)
            rest, left = rest[end:].lstrip(), room
            lines.append("")
        lines[-1] += _painted(rest, colour)
        left -= width(rest)
    return lines


def _painted(text: str, colour: str) -> str:
    return coloured(text, colour) if colour and text else text


def _raw(event: dict[str, Any]) -> list[Part]:
    hidden = ("type", "durability", "started_at", "actor")
    rest = {name: value for name, value in event.items() if name not in hidden}
    kind = event.get("type", "")
    words = [(kind, "bold"), (" ", "")] if kind and isinstance(kind, str) else []
    return [*words, (one_line(rest, _LONG) if rest else "", "")]


def _refinement(event: dict[str, Any], state: Any, room: int) -> list[Part]:
    """A context's event: the model if one was asked, the actor, changes, and in the rest of the line the instruction,
    or the system prompt of a new context."""
    kind, author = str(event["type"]), event.get("by", "literal")
    settings = (event.get("settings") or {}).items()
    changed = [f"no {name}" if value is None else f"{name} = {one_line(value, 40)}" for name, value in settings]
    changed += [f"no {name}" for name in event.get("unset") or []]
    if kind == "refine":
        changed += _PROMPTS.get(tuple(event.get("prompts") or []), [])
    parts: list[Part] = [(kind, "bold")]
    parts += _by(event) if author == "literal" else [(f" by {author}", ""), *_by(event, "for")]
    parts += [(f"  {'; '.join(changed)}", "")] if changed else []
    text = member(member(state, "prompts"), "system") if kind == "derive" else event.get("text")
    if isinstance(text, str) and text:
        left = room - sum(width(part) for part, _ in parts) - len("  “”")
        parts.append((f"  “{one_line(text, max(left, _QUOTED))}”", ""))
    return parts


def _repair(record: dict[str, Any]) -> list[Part]:
    """A repair's event: the snapshot that it continues from, and the losses."""
    counts = (
        (record["lost_count"], "newer snapshot", " lost"),
        (len(record["gaps"]), "gap", " in the chain"),
        (len(record["objects"]), "object", " lost"),
        (record["set_aside_count"], "file", " set aside"),
    )
    counted_losses = ", ".join(counted(count, what) + rest for count, what, rest in counts if count)
    state = f" with the state of snapshot {record['from']['seq']}"
    return [(state, ""), (f"; {counted_losses}" if counted_losses else "", "")]


def _turn(event: dict[str, Any], state: Any) -> list[Part]:
    """A run's event: turn, stage and its result, transitions, and output."""
    kind, stage, transitions = str(event["type"]), one_line(event["stage"], _NAME), event["transitions"]
    parts: list[Part] = [(f"turn {event['turn']}  ", "dim")]
    if kind == "started":
        return [*parts, ("run started", "bold"), *_transitions(transitions)]
    parts.append((stage, "bold"))
    error = event.get("error")
    if kind == "lost":
        parts.append((_lost_effect(event), "yellow"))
    elif kind == "intended" and member(event.get("effect"), "reserved") is True:
        parts.append((" is about to be asked; the call is counted", ""))
    elif kind in _FIXED:
        parts.append(_FIXED[kind])
    elif event.get("call") or event.get("asked"):
        parts += _conversation(event)
    elif error:
        parts.append((f" {kind}" if kind == "failed" else " failed", "red"))
    elif kind != "succeeded":
        parts.append((f" {kind}", ""))
    if kind in _BY_PEOPLE and not event.get("asked"):
        parts += _by(event)
    why = [(f"  {error['kind']}: {one_line(error['message'], _LONG)}", "")] if error else _output(event, state)
    return [*parts, *_transitions(transitions), *_phase(event, state), *why]


def _conversation(event: dict[str, Any]) -> list[Part]:
    """An event between two replies of a model: the tools that were called, or the end of a call."""
    kind, call = str(event["type"]), event.get("call")
    if call:
        failed = call.get("error")
        how = (f" failed ({failed})", "red") if failed else (" was answered" if kind == "answered" else " ended", "")
        return [(f": {call['name']}", ""), how]
    names = [call["name"] + (f" ({call['refused']})" if call.get("refused") else "") for call in event["asked"]]
    who = _by(event) if kind in _BY_PEOPLE else []
    return [(f" {kind}", ""), *who, (f"; it calls {', '.join(names)}", "")]


def _lost_effect(event: dict[str, Any]) -> str:
    doubtful = member(event.get("effect"), "doubtful") is True
    return " may have run, in newer snapshots that are lost" if doubtful else " was cut off"


def _transitions(transitions: list[Any]) -> list[Part]:
    parts: list[Part] = []
    for transition in transitions:
        if transition["to"] is None:
            parts.append(("  complete", "green"))
        else:
            why = "" if transition["reason"] in _OBVIOUS else f" ({transition['reason']})"
            parts.append((f" -> {one_line(transition['to'], _NAME)}{why}", ""))
    return parts


def _phase(event: dict[str, Any], state: Any) -> list[Part]:
    """The phase of a run that waits or has stopped."""
    phase = member(member(state, "tree"), "phase")
    if event["type"] == "failed" and phase == "ready" and not event["transitions"]:
        return [("; it is retried", "yellow")]
    if event["type"] == "replaced" and phase == "failed":
        return [("; the run is still stopped", "red")]
    return [(f"; {_PHASES[phase]}", "yellow" if phase != "failed" else "red")] if phase in _PHASES else []


def _output(event: dict[str, Any], state: Any) -> list[Part]:
    """The output of this event."""
    if event["type"] not in ("succeeded", "answered", "replied") or event.get("asked") or event.get("call"):
        return []
    output = member(member(state, "outputs"), event.get("output_of"))
    return [] if output is None else [(f"  {_brief(output)}", "dim")]


def member(value: Any, name: Any) -> Any:
    """A member of a mapping; None without it, or if the mapping is stored in an object, which is not read."""
    return value.get(name) if isinstance(value, dict) else None


def _brief(value: Any) -> str:
    """The beginning of a value; the size of each object in it."""
    from stateline.bundle.canonical import map_leaves

    shown = map_leaves(value, lambda leaf: _size_of(leaf) if isinstance(leaf, Ref) else leaf)
    return one_line(shown, 64)


def _size_of(ref: Ref) -> str:
    # The Ref of a long list names its last part only.
    return "(a long list)" if ref.media_type == LIST_TYPE else f"({size(ref.size)})"


def size(number: int) -> str:
    """A number of bytes for people, as ``4.2 KB``."""
    if number < 1000:
        return f"{number} B"
    exponent = 1 if number < 999_950 else 2 if number < 999_950_000 else 3
    return f"{number / 1000**exponent:.1f} {('KB', 'MB', 'GB')[exponent - 1]}"
