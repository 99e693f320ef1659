"""Apply ``set`` to the user's state and choose the next stage by ``routes``, after a stage's output. Pure.

CEL and JSON Schema are imported only on use, so a machine without conditions does not wait for them.
"""

from __future__ import annotations

from msgspec.structs import replace

from stateline.errors import InvalidValueError
from stateline.machine.decider.run import Facts, RunState
from stateline.machine.spec import Json, Machine, Stage

_SHOWN = 3
"""Violations of a schema in one message; each quotes data, and the message is stored in ``state``."""


class EvaluationError(Exception):
    """``set``, ``routes`` or a prompt could not be evaluated. Has the kind, message and hint of the failure."""

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint


def names(state: RunState, facts: Facts) -> dict[str, Json]:
    """Return the names for conditions and templates in the current stage (docs/machines.md).

    ``output`` is the last output of this stage, null before the first. ``error`` is the failure that led here by
    ``error_next``, as ``{"stage", "kind", "message"}``, else null. ``context`` is null without a context.
    """
    cause = state.tree.cause
    return {
        "input": state.input,
        "state": state.state,
        "outputs": state.outputs,
        "output": state.outputs.get(state.tree.stage),
        "context": None if facts.context is None else dict(facts.context),
        "error": None if cause is None else {"stage": cause.stage, "kind": cause.kind, "message": cause.message},
        "visits": state.visits,
    }


def merge(base: Json, patch: Json) -> Json:
    """Merge ``patch`` into ``base``: objects recurse; arrays and scalars replace; null is a value, not a deletion."""
    if not (isinstance(base, dict) and isinstance(patch, dict)):
        return patch
    return base | {key: merge(base[key], value) if key in base else value for key, value in patch.items()}


def apply_set(machine: Machine, stage: Stage, state: RunState, facts: Facts) -> RunState:
    """Return the run's state with the stage's ``set`` merged. Raises :class:`EvaluationError`."""
    if not stage.set:
        return state
    value = merge(state.state, _evaluate(stage.set, "set", names(state, facts)))
    _require_storable(value)
    if found := violations_of(machine.state_schema, value):
        raise EvaluationError(
            "state_schema",
            f"`set` would give a state that state_schema forbids: {violations_text(found)}",
            "correct `set` or `state_schema`, or the output they read",
        )
    return replace(state, state=value)


def choose(stage: Stage, state: RunState, facts: Facts) -> tuple[str | None, str]:
    """Return the target (None: the run is complete) and the transition's reason. Raises :class:`EvaluationError`."""
    if stage.routes:
        from stateline.machine.expressions.cel import evaluate_condition
        from stateline.machine.expressions.cel_errors import ExpressionError

        scope = names(state, facts)
        for index, route in enumerate(stage.routes):
            try:
                if evaluate_condition(route.when, scope):
                    return route.to, "routing"
            except ExpressionError as error:
                raise EvaluationError("condition", f"routes[{index}].when: {error.message}", error.hint) from error
    return stage.default_next, "default"


def _require_storable(value: Json) -> None:
    """Raise :class:`EvaluationError` for a state that could not be saved: the finished effect would be lost with it."""
    from stateline.bundle import canonical

    try:
        canonical.encode(value, depth=canonical.DEPTH - 1)  # the user's state is one level deep in the run's
    except InvalidValueError as refused:
        raise EvaluationError(
            "set", f"`set` would give a state that cannot be stored: {refused.message}", refused.hint
        ) from None


def _evaluate(tree: dict[str, Json], where: str, scope: dict[str, Json]) -> dict[str, Json]:
    """Evaluate a nested mapping of expressions."""
    from stateline.machine.expressions.cel import evaluate
    from stateline.machine.expressions.cel_errors import ExpressionError

    values: dict[str, Json] = {}
    for key, expression in tree.items():
        if isinstance(expression, dict):
            values[key] = _evaluate(expression, f"{where}.{key}", scope)
            continue
        try:
            values[key] = evaluate(expression, scope)
        except ExpressionError as error:
            raise EvaluationError("set", f"{where}.{key}: {error.message}", error.hint) from error
    return values


def violations_of(schema: Json, value: Json) -> list[str]:
    """Return the violations of ``schema``; none without a schema."""
    if schema is None:
        return []
    from stateline.machine.expressions.json_schema import violations

    return violations(schema, value)


def example_of(schema: Json) -> str:
    """Return words that give an example of a value that fits ``schema``; "" if none is known."""
    from stateline.machine.expressions.schema_example import example_text

    return example_text(schema)


def violations_text(violations: list[str]) -> str:
    """Join the first few violations on one line."""
    return "; ".join(violations[:_SHOWN]) + ("; and more" if len(violations) > _SHOWN else "")
