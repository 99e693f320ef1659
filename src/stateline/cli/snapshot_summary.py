"""A snapshot in one line for people: what happened, what came of it, and why.

Everything is taken from the snapshot itself: no other file is read.
"""

from __future__ import annotations

from typing import Any

from stateline.bundle.envelope import LIST_TYPE, Ref
from stateline.bundle.repair_record import MEMBER
from stateline.cli.output import coloured, columns, counted, one_line, plain
from stateline.store.snapshot import Snapshot

WIDTH = 104
"""Most characters of a story, its colours not counted."""

_ANY = 1 << 30
_LEAST = 24
"""So many characters of a story are shown on however narrow a terminal."""
_QUOTED = 16
"""So many characters of a text are quoted in any case."""

Part = tuple[str, str]
"""A piece of a story, and its colour ("" for none)."""

_PROMPTS = {
    ("system",): ["new system prompt"],
    ("developer",): ["new developer prompts"],
    ("system", "developer"): ["new prompts"],
}
"""Which prompts a model has changed."""
_QUIET = ("default", "start", "complete")
"""Reasons of a transition that say nothing which the stages do not say."""
_TOLD: dict[str, Part] = {
    "intended": (" is about to run; it must not run twice", ""),
    "calls_intended": (": tools are about to run; not all may run twice", ""),
    "unsent": (" was not asked", "yellow"),
    "retried": (" is tried again", ""),
    "replaced": (": the machine was replaced", "yellow"),
}
"""Events whose words are always the same."""
_PHASES = {
    "waiting": "waits for an answer",
    "unknown": "waits: nobody knows whether it was done",
    "failed": "the run stops",
}


def line(snapshot: Snapshot) -> str:
    """The line of a log: sha, number, time [UTC], story. On a terminal it is no longer than a line there."""
    sha, rest = snapshot.sha256[:8], f"{snapshot.seq:>4}  {created_at(snapshot)}"
    left = (columns() or _ANY) - len(f"{sha} {rest}  ")
    return f"{coloured(sha, 'yellow')} {rest}  {summary(snapshot, min(max(left, _LEAST), WIDTH))}"


def created_at(snapshot: Snapshot) -> str:
    """When it was made [UTC], to the second."""
    return snapshot.envelope.created_at[:19].replace("T", " ")


def summary(snapshot: Snapshot, room: int = WIDTH) -> str:
    """What a snapshot's event says, in at most ``room`` characters. An event that is not as this version writes it is
    shown bare."""
    event = snapshot.event
    try:
        if event.get("type") == MEMBER and MEMBER in event:
            parts = _repair(event[MEMBER])
        elif "transitions" in event:
            parts = _turn(event, snapshot.state)
        elif event.get("type") in ("derive", "refine"):
            parts = _refinement(event, snapshot.state, room)
        elif event.get("type") == "run_started":
            parts = [("run ", ""), (str(event["run"]), "bold"), (" started", "")]
        else:
            parts = _bare(event)
    except (AttributeError, KeyError, TypeError):
        parts = _bare(event)
    return _painted(parts, room)


def _painted(parts: list[Part], room: int) -> str:
    """The parts on one line, cut where they are too long."""
    said = ""
    for text, colour in parts:
        shown = plain(text).replace("\n", " ").replace("\t", " ")
        if len(shown) > room:
            shown = shown[: max(room - 1, 0)] + "…"
        said += coloured(shown, colour) if colour else shown
        room -= len(shown)
        if room <= 0:
            break
    return said.rstrip()


def _bare(event: dict[str, Any]) -> list[Part]:
    rest = {name: value for name, value in event.items() if name not in ("type", "durability", "started_at")}
    kind = event.get("type", "")
    words = [(kind, "bold"), (" ", "")] if kind and isinstance(kind, str) else []
    return [*words, (one_line(rest, WIDTH) if rest else "", "")]


def _refinement(event: dict[str, Any], state: Any, room: int) -> list[Part]:
    """A context's event: by whom it was done if a model did it, what that changed, and in the room that is left the
    words that asked for it, or of a new context its system prompt."""
    kind, author = str(event["type"]), event.get("by", "literal")
    settings = (event.get("settings") or {}).items()
    changed = [f"no {name}" if value is None else f"{name} = {one_line(value, 40)}" for name, value in settings]
    changed += [f"no {name}" for name in event.get("unset") or []]
    if kind == "refine":
        changed += _PROMPTS.get(tuple(event.get("prompts") or []), [])
    said: list[Part] = [(kind, "bold")]
    said += [] if author == "literal" else [(f" by {author}", "")]
    said += [(f"  {'; '.join(changed)}", "")] if changed else []
    text = _part(_part(state, "prompts"), "system") if kind == "derive" else event.get("text")
    if isinstance(text, str) and text:
        left = room - sum(len(part) for part, _ in said) - len("  “”")
        said.append((f"  “{one_line(text, max(left, _QUOTED))}”", ""))
    return said


def _repair(record: dict[str, Any]) -> list[Part]:
    """What a repair went back to, and what it says is lost."""
    counts = (
        (record["lost_count"], "newer snapshot", " lost"),
        (len(record["gaps"]), "gap", " in the chain"),
        (len(record["objects"]), "object", " lost"),
        (record["set_aside_count"], "file", " set aside"),
    )
    told = ", ".join(counted(count, what) + rest for count, what, rest in counts if count)
    state = f" with the state of snapshot {record['from']['seq']}"
    return [(MEMBER, "yellow"), (state, ""), (f"; {told}" if told else "", "")]


def _turn(event: dict[str, Any], state: Any) -> list[Part]:
    """A run's event: the turn, what became of its stage, where that led, and what was put out."""
    kind, stage, ways = str(event["type"]), str(event["stage"]), event["transitions"]
    said: list[Part] = [(f"turn {event['turn']}  ", "dim")]
    if kind == "started":
        return [*said, ("run started", "bold"), *_ways(ways)]
    said.append((stage, "bold"))
    error = event.get("error")
    if kind == "lost":
        said.append((_cut_off(event), "yellow"))
    elif kind == "intended" and _part(event.get("effect"), "reserved") is True:
        said.append((" is about to be asked; the call is counted", ""))
    elif kind in _TOLD:
        said.append(_TOLD[kind])
    elif event.get("call") or event.get("asked"):
        said += _talk(event)
    elif error:
        said.append((f" {kind}" if kind == "failed" else " failed", "red"))
    elif kind != "succeeded":
        said.append((f" {kind}", ""))
    why = [(f"  {error['kind']}: {one_line(error['message'], WIDTH)}", "")] if error else _output(event, state)
    return [*said, *_ways(ways), *_standing(event, state), *why]


def _talk(event: dict[str, Any]) -> list[Part]:
    """What an event is about between a model's reply and the next one: the tools asked for, or how a call ended."""
    kind, call = str(event["type"]), event.get("call")
    if call:
        failed = call.get("error")
        how = (f" failed ({failed})", "red") if failed else (" was told" if kind == "answered" else " ended", "")
        return [(f": {call['name']}", ""), how]
    names = [call["name"] + (f" ({call['refused']})" if call.get("refused") else "") for call in event["asked"]]
    return [(f" {kind}", ""), (f"; it asks for {', '.join(names)}", "")]


def _cut_off(event: dict[str, Any]) -> str:
    doubtful = _part(event.get("effect"), "doubtful") is True
    return " may have been done, in newer snapshots that are lost" if doubtful else " was cut off"


def _ways(ways: list[Any]) -> list[Part]:
    parts: list[Part] = []
    for way in ways:
        if way["to"] is None:
            parts.append(("  complete", "green"))
        else:
            why = "" if way["reason"] in _QUIET else f" ({way['reason']})"
            parts.append((f" -> {way['to']}{why}", ""))
    return parts


def _standing(event: dict[str, Any], state: Any) -> list[Part]:
    """What a run that does not go on by itself waits for."""
    phase = _part(_part(state, "tree"), "phase")
    if event["type"] == "failed" and phase == "ready" and not event["transitions"]:
        return [("; it is tried again", "yellow")]
    if event["type"] == "replaced" and phase == "failed":
        return [("; the run is still stopped", "red")]
    return [(f"; {_PHASES[phase]}", "yellow" if phase != "failed" else "red")] if phase in _PHASES else []


def _output(event: dict[str, Any], state: Any) -> list[Part]:
    """The output that this event brought: it is why the next stage is what it is."""
    if event["type"] not in ("succeeded", "answered", "replied") or event.get("asked") or event.get("call"):
        return []
    output = _part(_part(state, "outputs"), event.get("output_of"))
    return [] if output is None else [(f"  {_brief(output)}", "dim")]


def _part(value: Any, name: Any) -> Any:
    """A member of a mapping; None without it, also where the whole lies in an object, which is not read."""
    return value.get(name) if isinstance(value, dict) else None


def _brief(value: Any) -> str:
    """The beginning of a value; of what lies in objects only how large it is."""
    from stateline.bundle.canonical import map_leaves

    shown = map_leaves(value, lambda leaf: _unread(leaf) if isinstance(leaf, Ref) else leaf)
    return one_line(shown, 64)


def _unread(ref: Ref) -> str:
    # Of a long list the Ref names the last part, whose size says nothing.
    return "(a long list)" if ref.media_type == LIST_TYPE else f"({size(ref.size)})"


def size(number: int) -> str:
    """A number of bytes for people, as ``4.2 KB``."""
    if number < 1000:
        return f"{number} B"
    exponent = 1 if number < 999_950 else 2 if number < 999_950_000 else 3
    return f"{number / 1000**exponent:.1f} {('KB', 'MB', 'GB')[exponent - 1]}"
