"""The verb ``run``: one prompt, one agent. It builds a machine of one stage from the flags and prepares the context
first."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.bundle.canonical import Json, sha256
from stateline.contexts.context import CONTEXT_WAIT, ContextRequest
from stateline.contexts.plan import ContextOptions, context_scope
from stateline.contexts.prepare import Prepared, prepare
from stateline.contexts.stored import was_refined
from stateline.engine.record import Run, load_run, read_context, run_scope
from stateline.errors import ConflictError, NotFoundError, RequestError, UsageError
from stateline.machine.spec import Agent, Bounds, Machine, Stage, Toolset
from stateline.process.signals import Signals
from stateline.service.answers import no_run_error, restart_commands
from stateline.service.continue_run import continue_run, require_not_cancelled
from stateline.service.create_run import (
    NewRunOptions,
    plan_start,
    require_no_secret,
    start_chain,
)
from stateline.service.exchanges import ModelOptions
from stateline.service.machine_files import MachineFile
from stateline.service.model_setup import Models
from stateline.service.options import CallOptions, require_names
from stateline.service.run_document import Outcome, context_of_call
from stateline.store.store import Store

NAME = "run"
"""The name of the machine."""
STAGE = "agent"
"""The name of its stage, and of the answer in ``outputs``."""
TOOL_ROUNDS = 100
"""The largest number of rounds of tool calls, so that a model that never stops calling tools costs a bounded amount."""

PROMPT_SHOWN = 60
"""The length of a prompt's beginning in a list of runs [characters]."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``run``. ``prompt`` None: continue ``run``, or only prepare the context. ``tools`` is the path of a
    manifest; ``context`` names the context (None: the default one of model, base URL and toolset). ``on_call`` receives
    the purpose of each model call that prepares the context before it is made; ``wait`` bounds the wait for the
    context's lock [s]. Without ``transcript`` the run is in memory, and only the context is saved. ``new_context``: as
    in ``ContextOptions``."""

    prompt: str | None = None
    run: str | None = None
    force: bool = False
    tools: str | None = None
    context: str | None = None
    context_request: ContextRequest = ContextRequest()
    models: ModelOptions = ModelOptions()
    call: CallOptions = CallOptions()
    on_call: Callable[[str], None] | None = None
    wait: float = CONTEXT_WAIT
    transcript: bool = True
    new_context: bool = False

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for a malformed run id or context name, and for an id of a run that is not kept."""
        require_names(self.run, self.context)
        if not self.transcript and self.run is not None:
            raise UsageError(
                "--no-transcript keeps nothing of the run, so it has no id; nothing was done",
                hint="leave out --id or --no-transcript",
            )


class PromptMachine(msgspec.Struct, frozen=True):
    """The machine of a prompt: bytes and checked machine; the prompt's beginning, and its number of masked values."""

    machine_file: MachineFile
    machine: Machine
    beginning: str
    masks: int


def run(store: Store, options: RunOptions) -> Outcome:
    """Start a run of one prompt, or continue a run, to its end or to a request that this call does not answer.

    Raises a ``StatelineError`` for what prevents the call, ``Interrupted`` for a signal; a failed run is an outcome,
    not an error.
    """
    with Signals() as signals:
        models = Models(store, options.models)
        call = replace(options.call, models=models)
        found = find_existing(store, options)
        if found is not None and not options.force:
            signals.run = require_not_cancelled(found).id
            require_same(store, found, options)
            models.overlay(options.context_request, found.context())
            return continue_run(found, call, unused_flags(found, options.context_request))
        if call.answer is not msgspec.UNSET:
            raise no_run_error()
        prompt = machine_of_prompt(store, options)
        require_no_secret(store, NewRunOptions(run=options.run), prompt.machine_file)
        models.begin()
        prepared = prepare(store, context_options(store, options, models, prompt.machine.toolset))
        content = read_context(store, prepared.head)
        models.settle(prepared.effective, content.facts)
        start = NewRunOptions(
            run=options.run,
            force=options.force,
            context=prepared.scope.partition(":")[2],
            context_head=prepared.head,
            context_content=content,
            exchanges=models.exchanges(),
            prompt=prompt.beginning,
            prepared=prepared.made,
            call=replace(call, parent=None),  # the required head is the context's
        )
        first = plan_start(store, start, prompt.machine, prompt.machine_file)
        first = replace(first, redactions=first.redactions + prompt.masks)
        created, started = start_chain(_store_of_run(store, options), start, prompt.machine_file, first)
        if not started:
            raise ConflictError(
                f"another process started the run {created.id}; the prompt of this call was not used",
                hint="choose another --id, or continue that run without a prompt",
            )
        signals.run = created.id if options.transcript else None
        # The input was used, and standard input was not meant for a question of this run.
        call = replace(call, input=msgspec.UNSET, stdin=None, parent=None)
        outcome = continue_run(created, call, prepared.warnings, failures=0)
        return replace(outcome, kept=options.transcript, context=context_of_call(prepared))


def _store_of_run(store: Store, options: RunOptions) -> Store:
    """Return the store for the run: ``store``, or one over it that keeps what is written in memory."""
    if options.transcript or store.planned is not None:  # a dry run is such a store already
        return store
    from stateline.store.overlay import OverlayBackend

    backend = OverlayBackend(store.backend)
    return Store(backend, redactor=store.redactor, clock=store.clock, actor=store.actor, limits=store.limits)


def prepare_context(store: Store, options: RunOptions) -> Prepared:
    """Derive, refine or restore the context: ``run`` without a prompt. Raises a ``StatelineError``."""
    models = Models(store, options.models)
    models.begin()
    return prepare(store, context_options(store, options, models, toolset_of(store, options.tools)))


def find_existing(store: Store, options: RunOptions) -> Run | None:
    """Return the run that ``--id`` names, if it exists. Reads only. Raises ``NotFoundError`` for a missing one that
    cannot start without a prompt, ``UsageError`` for ``--force`` without a prompt."""
    if options.run is None:
        return None
    there = run_scope(store, options.run).head() is not None
    if options.prompt is None and not there:
        raise NotFoundError(
            f"there is no run {options.run}", hint="give -p TEXT to start it; `stateline exec list` lists the others"
        )
    if options.prompt is None and options.force:
        raise UsageError("--force restarts the run, and needs a prompt; nothing was done", hint="give -p TEXT")
    return load_run(store, options.run) if there else None


def require_same(store: Store, found: Run, options: RunOptions) -> None:
    """Raise ``RequestError`` for flags that differ from those with which the run ``found`` started: they would have no
    effect. The instruction that refined the context for this very run may be repeated."""
    ways = "leave that option out to continue the run; --force restarts it, another --id (or none) starts another run"
    stage = found.machine.stages.get(STAGE)
    agent = stage.agent if stage is not None else None
    given = None if options.prompt is None else template(store.redactor.redact(options.prompt)[0])
    if given is not None and (agent is None or agent.prompt != given):
        raise RequestError(f"the run {found.id} started with another prompt; nothing was changed", hint=ways)
    if options.tools is not None:
        from stateline.tools.check import toolset_hash

        if toolset_hash(toolset_of(store, options.tools)) != toolset_hash(found.machine.toolset):
            raise RequestError(f"the run {found.id} started with other tools; nothing was changed", hint=ways)
    if options.context_request.refine is not None and not was_refined(store, found, options.context_request):
        raise RequestError(
            f"the run {found.id} keeps the context with which it started; nothing was refined",
            hint="refine without --id, for later runs",
        )


def unused_flags(found: Run, request: ContextRequest) -> list[str]:
    """Return a warning about flags for a model call if the run ``found`` makes none, because it has ended. Settings
    that refined its context were used."""
    settings = request.settings if request.refine is None else {}
    given = {"--system": request.system is not None, "--developer": request.developer, "--set": settings}
    flags = ", ".join(name for name, value in given.items() if value)
    if not flags or found.state.status not in ("complete", "error"):
        return []
    restart = restart_commands(found)[1]
    return [f"not used, because the run {found.id} has ended: {flags}; restart the run to use them: `{restart}`"]


def machine_of_prompt(store: Store, options: RunOptions) -> PromptMachine:
    """Build the machine of one stage from the flags. Reads only. Raises ``RequestError``, and as ``read_manifest``."""
    if "\0" in (options.prompt or ""):
        raise RequestError("the prompt holds a NUL character; nothing was done", hint="take it out")
    text, masks = store.redactor.redact(options.prompt or "")
    prompt = template(text)
    agent: dict[str, Json] = {"prompt": prompt}
    document: dict[str, Json] = {"stateline": 1, "name": NAME, "stages": {STAGE: {"agent": agent}}}
    path, tools, bounds, toolset = "", None, Bounds(), None
    if options.tools is not None:
        from stateline.tools.manifest import read_manifest

        manifest = read_manifest(options.tools, store.redactor.find, store.limits)
        path, toolset = manifest.path, manifest.toolset
        tools, bounds = os.path.basename(path), Bounds(max_tool_rounds=TOOL_ROUNDS)
        agent["tools"] = list(toolset.tools)
        document |= {"tools": tools, "bounds": {"max_tool_rounds": TOOL_ROUNDS}}
    # Equal to reading the document, without importing the readers of files.
    stage = Stage(name=STAGE, kind="agent", agent=Agent(prompt=prompt, tools=agent.get("tools", [])), repeatable=True)
    machine = Machine(
        name=NAME, start=STAGE, order=[STAGE], stages={STAGE: stage}, tools=tools, toolset=toolset, bounds=bounds
    )
    data = canonical.encode(document)
    beginning = " ".join(text[: 4 * PROMPT_SHOWN].split())[:PROMPT_SHOWN]
    return PromptMachine(MachineFile(path, data, sha256(data), recorded=False), machine, beginning, masks)


def template(text: str) -> str:
    """Return a masked prompt as a template that renders to it."""
    return text.replace("{{", "{{ '{{' }}")


def toolset_of(store: Store, path: str | None) -> Toolset | None:
    """Return the tools of the manifest at ``path``; None without one. Raises as ``read_manifest``."""
    if path is None:
        return None
    from stateline.tools.manifest import read_manifest

    return read_manifest(path, store.redactor.find, store.limits).toolset


def context_options(store: Store, options: RunOptions, models: Models, toolset: Toolset | None) -> ContextOptions:
    """Return the options of the context that the run starts with; its model is that of this call, of the environment,
    or of the context."""
    request = replace(options.context_request, task=options.prompt)
    if toolset is not None:
        from stateline.model.protocol import ToolSpec
        from stateline.tools.check import toolset_hash

        tools = [ToolSpec(tool.name, tool.description, tool.schema) for tool in toolset.tools.values()]
        request = replace(request, toolset=toolset_hash(toolset), tools=tools)
    named = models.choose()
    context_options = ContextOptions(
        name=options.context,
        context_request=replace(request, model=named.name, base_url=named.base_url),
        parent=options.call.parent,
        wait=options.wait,
        on_call=options.on_call,
        exchanges=models.mode,
        new_context=options.new_context,
        run=options.run if options.prompt is not None else None,
    )
    if options.context is not None:
        # A named context stores its model; flags and environment have precedence.
        named = models.choose(context_scope(store, context_options).head())
        request = replace(request, model=named.name, base_url=named.base_url)
        context_options = replace(context_options, context_request=request)
    return replace(context_options, model=models.deriving_model(named), ready=partial(models.require_ready, named))
