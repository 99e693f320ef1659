"""Draw a machine as a Mermaid flowchart, optionally with the path of a run. Pure.

Names become numbered nodes, and texts become quoted labels in which anything that Mermaid or a browser could take
for syntax is written as a character reference: a machine file must not control the viewer.
"""

from __future__ import annotations

from collections.abc import Iterator

from stateline.bundle.terminal import HARMFUL
from stateline.machine.decider.run import RunState
from stateline.machine.spec import Machine, Stage

_MAX_LABEL = 80
_PLAIN = frozenset(" _-.,()'!?=+/|")
_SHAPES = {"task": ('["', '"]'), "agent": ('{{"', '"}}'), "human": ('[/"', '"/]'), "end": ('(["', '"])')}
"""A task is a box, an agent a hexagon, a human stage a parallelogram (as for manual input), an end is round."""


def flowchart(machine: Machine, state: RunState | None = None) -> str:
    """Return the text of the flowchart, with a final newline.

    Solid arrows are taken after success: a route is labelled with its condition, the default has no label. A dashed
    arrow is ``error_next``. Limits are part of the labels. With the ``state`` of a run, visited stages and taken
    arrows are thick and have counts, and the current stage is marked.
    """
    nodes = {name: f"s{index}" for index, name in enumerate(machine.order)}
    lines = ["flowchart TD", f"    begin((start)) --> {nodes[machine.start]}"]
    for name in machine.order:
        lines.append(f"    {nodes[name]}{_node(machine.stages[name], state)}")
    taken = []
    for number, (source, target, arrow, words) in enumerate(_arrows(machine), start=1):
        count = state.edges.get(source, {}).get(target, 0) if state else 0
        if count:
            taken.append(str(number))
            words = [*words, f"taken {count}"]
        label = f'|"{"<br/>".join(words)}"|' if words else ""
        lines.append(f"    {nodes[source]} {arrow}{label} {nodes[target]}")
    if state is not None:
        lines += _run_styles(nodes, state, taken)
    return "\n".join(lines) + "\n"


def _node(stage: Stage, state: RunState | None) -> str:
    words = [escape(stage.name)]
    if stage.max_visits:
        words.append(f"at most {stage.max_visits} visit{'s' if stage.max_visits > 1 else ''}")
    if state is not None and stage.name in state.visits:
        words.append(f"visited {state.visits[stage.name]}")
    before, after = _SHAPES[stage.kind]
    return before + "<br/>".join(words) + after


def _arrows(machine: Machine) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield (source, target, arrow, lines of its label), in the order in which a run tries them."""
    limits = {(limit.source, limit.target): limit.max_count for limit in machine.edge_limits if limit.max_count}
    for name in machine.order:
        stage = machine.stages[name]
        transitions = [(route.to, "-->", [escape(route.when)]) for route in stage.routes]
        if stage.default_next is not None:
            transitions.append((stage.default_next, "-->", []))
        if stage.error_next is not None:
            transitions.append((stage.error_next, "-.->", ["error"]))
        for target, arrow, words in transitions:
            limit = limits.get((name, target))
            yield name, target, arrow, [*words, f"at most {limit}"] if limit else words


def _run_styles(nodes: dict[str, str], state: RunState, taken: list[str]) -> Iterator[str]:
    visited = [nodes[name] for name in nodes if name in state.visits]
    yield "    classDef visited stroke-width:3px"
    yield "    classDef here stroke-width:5px,stroke-dasharray:4"
    if visited:
        yield f"    class {','.join(visited)} visited"
    if state.tree.stage in nodes:
        yield f"    class {nodes[state.tree.stage]} here"
    # The arrow from the start is number 0; every run has taken it.
    yield f"    linkStyle {','.join(['0', *taken])} stroke-width:4px"


def escape(text: str) -> str:
    """Escape ``text`` for a quoted label: on one line, cut when very long, with letters, digits and a few signs
    unescaped."""
    cut = text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 1] + "…"
    line = " ".join("".join(" " if c.isspace() else c for c in cut).split())
    return "".join(_character(c) for c in line)


def _character(c: str) -> str:
    if ord(c) in HARMFUL or 0xD800 <= ord(c) < 0xE000:
        return "\N{REPLACEMENT CHARACTER}"
    return c if c.isalnum() or c in _PLAIN else f"#{ord(c)};"
