"""Types of the ``event`` of a run's snapshot, read strictly. See the section "Runs" of ``docs/format.md``."""

from __future__ import annotations

import shlex
from typing import Annotated

import msgspec

from stateline.bundle.canonical import Json
from stateline.bundle.envelope import Pointer
from stateline.errors import IntegrityError
from stateline.machine.decider.run import Instance, Transition
from stateline.store.snapshot import Snapshot


class MachinePlace(msgspec.Struct, frozen=True):
    """The machine file: real path, the machine's name, the SHA-256 of the file's bytes."""

    path: str
    name: str
    sha256: str


class ToolsPlace(msgspec.Struct, frozen=True):
    """The tools manifest: real path, the SHA-256 of the file's bytes."""

    path: str
    sha256: str


class Actor(msgspec.Struct, frozen=True):
    """Writer of the snapshot: the process's user and host, and the person or agent that it acted for."""

    user: str
    host: str
    name: str | None = None


class ContextPlace(Pointer, frozen=True):
    """The snapshot of the context that a run began with. Runs of older versions lack ``seq``."""

    seq: int | None = None


_Count = Annotated[int, msgspec.Meta(ge=0)]
"""A count. A negative one would let a run exceed its bounds."""


class Tokens(msgspec.Struct, frozen=True):
    """Tokens sent to models and received from them."""

    input: _Count = 0
    output: _Count = 0


class Meters(msgspec.Struct, frozen=True):
    """Use of the run so far: ``active`` time [s], model calls, rounds of tool calls, tokens, failed attempts."""

    active: Annotated[float, msgspec.Meta(ge=0)]
    llm_calls: _Count
    tool_rounds: _Count = 0
    tokens: Tokens = Tokens()
    failures: _Count = 0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one event, in the units of :class:`Meters`."""

    seconds: float = 0.0
    llm_calls: int = 0
    tokens: Tokens = Tokens()


FREE = Cost()
"""The cost of an event that used nothing."""


class Effect(msgspec.Struct, frozen=True):
    """The pending effect: its idempotency key, and how often it has been attempted. ``doubtful``: it may have been
    performed, in snapshots that are lost. ``reserved``: a call of a model that has been counted before it was made.
    ``refused``: how many of its replies were of no use."""

    key: str
    attempt: _Count
    doubtful: bool = False
    reserved: bool = False
    refused: _Count = 0


class Calls(msgspec.Struct, frozen=True):
    """The tool calls of the reply at hand: their idempotency keys by id. ``doubtful``: they may have been performed, in
    snapshots that are lost."""

    keys: dict[str, str]
    doubtful: bool = False


class CallEnd(msgspec.Struct, frozen=True):
    """The tool call that has ended. ``error`` is the kind of its failure, if it failed."""

    id: str
    name: str
    error: str | None = None


class CallRecord(msgspec.Struct, frozen=True):
    """A tool call in a reply. ``refused`` is the kind of error that the model received instead of a result."""

    id: str
    name: str
    refused: str | None = None


class ModelRecord(msgspec.Struct, frozen=True):
    """The model that was asked."""

    name: str


class Replacement(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """The digests of the machine files before and after an accepted change; equal if only the file's path changed."""

    before: str
    after: str


class Request(msgspec.Struct, frozen=True):
    """The id of an open request."""

    requestId: str


class AnswerRecord(msgspec.Struct, frozen=True):
    """The last answer: the request it was for, and the SHA-256 of its canonical form."""

    requestId: str
    sha256: str


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a snapshot of a run. ``nonce`` ("birth" on disk) is random; keys and request ids contain it, so that
    another run with the same id never repeats them. ``open`` means that the turn is not finished."""

    type: str
    run: str
    nonce: str = msgspec.field(name="birth")
    turn: int
    started_at: str
    stage: str
    machine: MachinePlace
    meters: Meters
    transitions: list[Transition]
    actor: Actor | None = None
    tools: ToolsPlace | None = None
    context: ContextPlace | None = None
    prompt: str | None = None
    prepared: _Count = 0
    model_used: str | None = None
    effect: Effect | msgspec.UnsetType = msgspec.UNSET
    calls: Calls | None = None
    refused: dict[str, Json] | None = None
    asked: list[CallRecord] = []
    call: CallEnd | None = None
    model: ModelRecord | None = None
    usage: Tokens | None = None
    waiting: Request | None = None
    answered: AnswerRecord | None = None
    output_of: str | None = None
    open: bool = False
    redactions: int = 0
    replaced: Replacement | None = None
    error: dict[str, Json] | None = None


MALFORMED_HINT = (
    "nothing was changed; `stateline verify` lists all damage; if it finds none, another version of stateline may have "
    "written it"
)
"""The hint for a snapshot of an unexpected shape."""


def read_event(snapshot: Snapshot) -> RunEvent:
    """The event of a run's snapshot. Raises ``IntegrityError`` for one that is not a run's."""
    try:
        return msgspec.convert(snapshot.event, RunEvent)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"the snapshot {snapshot.path} does not hold a run's event: {error}",
            finding="malformed",
            hint=MALFORMED_HINT,
        ) from None


def is_built_in(event: dict[str, Json]) -> bool:
    """Return True for the event of a run that ``run -p`` started: it has no machine file, and its directory is that of
    its tools manifest."""
    path = event["machine"]["path"]
    return not path or path == (event.get("tools") or {}).get("path")


def restart_command(run: str, event: dict[str, Json]) -> str:
    """Return the command that restarts a run."""
    if is_built_in(event):
        return f"stateline run --id {run} --force -p TEXT"
    return f"stateline execute {shlex.quote(event['machine']['path'])} --id {run} --force"


def has_new_output(event: RunEvent) -> bool:
    """Return True if the event's stage ended with an output. Otherwise its newest output is one of an earlier visit."""
    invalid = event.type == "replied" and event.error is not None and event.error["kind"] in ("reply", "output")
    ended = event.type in ("succeeded", "replied", "answered") and not event.asked and event.call is None
    return ended and not invalid and event.output_of == event.stage


def is_calling_tools(tree: Instance) -> bool:
    """Return True if the tool calls of a reply are pending."""
    return any(isinstance(effect, dict) and effect.get("type") == "tool" for effect in tree.pending)
