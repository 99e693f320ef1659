"""Choose the model of a call: flags override the environment, the context and the machine file, in this order.

Nothing is opened before it is needed: a call that only waits, reports or plays back imports no provider library and
needs no key. Recording or playback belongs to the run and is kept in its ``event``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import Dependencies
from stateline.engine.record import Run, read_context
from stateline.errors import RequestError, StatelineError, UsageError
from stateline.service.exchanges import (
    Exchanges,
    ModelOptions,
    NumberRanges,
    Numbers,
    kept_exchanges,
    require_same_exchanges,
    wanted_exchanges,
)
from stateline.service.options import ModelSource
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store

if TYPE_CHECKING:
    from stateline.contexts.context import ContextContent, ContextRequest
    from stateline.model.protocol import Model, ModelRequest, Reply, TextListener
    from stateline.model.providers.selection import Choice
    from stateline.model.recordings.playback import Playback
    from stateline.model.recordings.recorder import Recorder

MANUAL = "manual"
"""The name that selects no model: the next call answers on standard input."""
_REMEMBERED = 64
"""The number of newest exchanges of a recording that are kept with the run; a crash loses the last one only."""


class Named(msgspec.Struct, frozen=True):
    """A model by name and endpoint; "" for none, and for the provider's default endpoint. ``choice`` is None without a
    model, and if a recording replies in its place."""

    name: str = ""
    base_url: str = ""
    choice: Any = None  # model.choice.Choice, which is loaded only where a model is named


class Models(ModelSource):
    """The models of one call, chosen by its flags."""

    def __init__(self, store: Store, options: ModelOptions, environ: Mapping[str, str] | None = None) -> None:
        """Opens nothing. Raises ``UsageError`` for flags that exclude each other or hold a secret."""
        self._store = store
        self._options = options
        self._environ = os.environ if environ is None else environ
        self._wanted = wanted_exchanges(options)
        if self._wanted is not None and store.redactor.redact(self._wanted.dir)[1] > 0:
            raise UsageError(  # a run keeps the path
                "the directory of --record or --playback has a secret in its path; nothing was done",
                hint="give a directory of another name",
            )
        self._overrides = Dependencies()
        self._exchanges: Exchanges | None = None
        self._source: Playback | Recorder | None = None
        self._used = self._stale = NumberRanges([])
        self._models = _LazyModels(self._environ)
        self._checked_directory = ""
        self._begun = False
        self._without_model = False
        self._prepared = False
        self._drifts: dict[str, None] = {}
        self._warnings: dict[str, None] = {}

    def begin(self) -> Json:
        """Start recording or playback by the flags, for a call that starts a run or has no run; return
        :meth:`exchanges`.

        Raises ``NotFoundError`` for a recording that does not exist, and as ``check_directory`` for a directory that
        cannot be recorded to.
        """
        wanted = self._wanted
        if wanted is not None and wanted.mode == "record":
            self._check_directory(wanted.dir)
        elif wanted is not None:
            wanted = replace(wanted, playback=wanted.playback or "hybrid")
        self._use(wanted)
        self._begun = True
        return self.exchanges()

    def choose(self, head: Snapshot | None = None, machine: str | None = None) -> Named:
        """Return the model for a context at ``head`` (None: it does not exist yet), or for a stage whose ``machine``
        file names one. Raises ``RequestError`` for an unknown model name."""
        return self._named(machine, lambda: _model_of_context(self._store, head))

    def require_ready(self, named: Named) -> None:
        """Raise ``RequestError`` for what is known to prevent a call of that model, and as ``check_directory`` for what
        prevents recording it. Sends and changes nothing."""
        if named.choice is None:
            return
        from stateline.model.providers.selection import require_ready

        require_ready(named.choice, environ=self._environ)
        if self._exchanges is not None and self._exchanges.mode == "record":
            self._check_directory(self._exchanges.dir)

    def _keep(self, request: ModelRequest, reply: Reply, dry: bool) -> Reply:
        """Record a reply that the caller gives, and return it as it was recorded; ``dry``: only check the directory."""
        recorder: Any = self._source
        self._check_directory(recorder.path)
        kept: Reply = reply if dry else recorder.keep(request, reply)
        return kept

    def _check_directory(self, path: str) -> None:
        """Check as ``check_directory``. The files in the directory are checked once; a recorder checks new ones."""
        from stateline.model.recordings.record_directory import check_directory

        check_directory(path, files=path != self._checked_directory)
        self._checked_directory = path

    def settle(self, effective: ContextContent, context: Mapping[str, Json]) -> None:
        """Use exactly these prompts and settings from now on; ``context`` holds the stored ones."""
        self._prepared = True
        prompts, settings = context["prompts"], context["settings"]
        self._overrides = Dependencies(
            system=effective.system if effective.system != prompts["system"] else None,
            developer=effective.developer if effective.developer != prompts["developer"] else None,
            settings={
                name: value
                for name, value in {**dict.fromkeys(settings), **effective.settings}.items()
                if name not in settings or canonical.encode(settings[name]) != canonical.encode(value)
            },
        )

    def overlay(self, context_request: ContextRequest, context: Mapping[str, Json] | None) -> None:
        """Apply these flags over the context of a run that is continued; they are not stored. Raises ``RequestError``
        for a setting that a context must not have."""
        from stateline.contexts.settings import require_settings

        require_settings(context_request.settings)
        developer: list[str] = self._mask(context_request.developer)
        before = ((context or {}).get("prompts") or {}).get("developer") or []
        self._overrides = Dependencies(
            system=self._mask(context_request.system),
            developer=[*before, *(text for text in developer if text not in before)] if developer else None,
            settings=self._mask(context_request.settings),
        )

    def exchanges(self) -> Json:
        """Return the current ``event.exchanges``; None for a run that neither records nor plays back."""
        now = self._exchanges
        if now is None or self._source is None:
            return None
        document: dict[str, Json] = {"mode": now.mode, "dir": now.dir}
        if now.mode == "record":
            return document | {"used": Numbers(self._source.used[-_REMEMBERED:]).ranges()}
        stale = self._stale.ranges()
        document |= {"used": self._used.ranges(), "playback": now.playback}
        return document | ({"stale": stale} if stale else {})

    @property
    def mode(self) -> str:
        """``record`` or ``playback``; "" for neither."""
        return "" if self._exchanges is None else self._exchanges.mode

    def dependencies(self, run: Run) -> Dependencies:
        """Return the dependencies for the effects of ``run`` as it is now.

        Raises ``RequestError`` for flags that contradict the recording or playback of the run, and for an unknown model
        name; ``NotFoundError`` for a recording that was removed.
        """
        if run.snapshot is not None:
            self._adopt(run)
        elif not self._begun:
            self.begin()
        wanted = _wanted_by(run)
        by_hand: dict[str, Any] = {}
        if self._exchanges is not None and self._source is not None:
            by_hand = {"answers": self._source} if self.mode == "playback" else {"keep": self._keep}
            by_hand["exchanges"] = self.exchanges
        if wanted is None:
            return Dependencies(**by_hand)
        named = self._named(wanted, lambda: _model_of_run(run))
        model = self.model(named)
        self._without_model = self._without_model or model is None
        self._compare(run, Named() if model is None else named)
        dependencies = replace(self._overrides, **by_hand)
        if model is None:
            return dependencies
        return replace(
            dependencies,
            model=model,
            name=named.name,
            ready=partial(self.require_ready, named),
            on_text=self._options.on_text,
            warn=lambda text: self._warnings.update({text: None}),
        )

    def closing_warnings(self, run: Run) -> list[str]:
        """Return warnings about flags without effect and about recordings: differences, and exchanges that were left
        over."""
        warnings = []
        if self._without_model:
            reason = "there is no model to ask; name one with -m PROVIDER/NAME"
            warnings = [] if self._options.base_url is None else [f"--base-url had no effect: {reason}"]
        warnings += [*self._drifts, *self._warnings]
        if self._source is None:
            return warnings
        from stateline.model.recordings.playback import Playback

        closing: list[str] = []
        if isinstance(self._source, Playback) and run.state.status == "complete":
            try:
                # A restored context does not play the exchanges of its derivation.
                closing = self._source.closing(("turn", "answer"))  # replaces some warnings of the source
            except StatelineError as error:  # the run is complete, even with a damaged recording
                closing = [error.message]
        return [*warnings, *self._source.warnings, *closing]

    def _named(self, machine: str | None, context: Callable[[], Named]) -> Named:
        """Return the model that the first of flag, environment, context and machine file names; in playback, else the
        model of the recording."""
        flag = self._flag("model")
        made_for = Named() if flag and self._flag("base_url") else context()
        name = flag or made_for.name or machine or ""
        if self.mode == "playback":
            from stateline.model.recordings.playback import Playback

            if name in ("", MANUAL) and isinstance(self._source, Playback):
                name = self._source.model()
            return Named(name, self._flag("base_url") or made_for.base_url)
        if name in ("", MANUAL):
            return Named(base_url=self._flag("base_url"))
        return self._chosen(name, made_for)

    def _chosen(self, name: str, made_for: Named) -> Named:
        from stateline.model.providers.selection import choose

        base_url, borrowed = self._flag("base_url"), made_for.base_url
        # Never the endpoint of another provider: it would be sent the key of this one.
        if borrowed and not base_url and _provider(name) == _provider(made_for.name):
            choice = None
            with suppress(RequestError):
                choice = choose(name, environ=self._environ)
            base_url = "" if choice is not None and choice.base_url else borrowed
        choice = choose(name, base_url, environ=self._environ)
        return Named() if choice is None else Named(choice.name, choice.base_url, choice)

    def _flag(self, what: Literal["model", "base_url"]) -> str:
        """Return the value of a flag, else of the environment variable; "" for neither."""
        flag: str | None = getattr(self._options, what)
        return (flag or "").strip() or self._environ.get(f"STATELINE_{what.upper()}", "").strip()

    def _compare(self, run: Run, named: Named) -> None:
        """Add warnings for differences from what the context of ``run`` was made for: the model, and at the start of a
        run the tools. A context that this call prepared was compared then."""
        context = run.began_with()
        if context is None or self._prepared or run.state.status not in ("running", "waiting"):
            return
        from stateline.contexts.context import ContextRequest, drift

        toolset = context.toolset
        if run.snapshot is None:
            from stateline.tools.check import toolset_hash

            toolset = toolset_hash(run.machine.toolset)
        made_for = {"model_id": context.model, "base_url": context.base_url, "toolset_hash": context.toolset}
        context_request = ContextRequest(model=named.name, base_url=named.base_url, toolset=toolset, task="")
        self._drifts |= dict.fromkeys(drift(made_for, context_request))

    def model(self, named: Named) -> Model | None:
        """Return the model, recorded or played back if the call asks for that; None without a model."""
        if self.mode == "playback":
            return self._source
        if named.choice is None:
            return None
        self._models.choices[named.name] = named.choice
        return self._source or self._models

    def deriving_model(self, named: Named) -> Model | None:
        """Return the model that derives and refines contexts; None without one, and where a recording was made without
        one."""
        from stateline.model.recordings.playback import Playback

        if isinstance(self._source, Playback) and self._source.model() == MANUAL:
            return None
        return self.model(named)

    def _adopt(self, run: Run) -> None:
        """Record or play back as the run does. Raises ``RequestError`` if the flags contradict it."""
        kept = kept_exchanges(run)
        require_same_exchanges(run, kept, self._wanted)
        ended = run.state.status not in ("running", "waiting")
        if not ended and (kept is None or self.exchanges() != run.event["exchanges"]):
            self._use(kept)

    def _use(self, wanted: Exchanges | None) -> None:
        before = [] if self._source is None else list(self._source.warnings)
        self._exchanges, self._source = wanted, None
        if wanted is None:
            return
        mask, used = self._mask, Numbers.read(wanted.used)
        if wanted.mode == "playback":
            from stateline.model.recordings.playback import Playback

            mode = wanted.playback or "hybrid"
            self._source = Playback(wanted.dir, mode, used, stale=Numbers.read(wanted.stale), mask=mask)
            self._used, self._stale = NumberRanges(self._source.used), NumberRanges(self._source.stale)
        else:
            from stateline.model.recordings.recorder import Recorder

            self._source = Recorder(self._models, wanted.dir, mask, used)
        self._source.warnings[:0] = before

    def _mask(self, value: Json) -> Json:
        return self._store.redactor.redact(value)[0]


class _LazyModels:
    """Models that are opened on the first call, by the name in the request."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.choices: dict[str, Choice] = {}
        self._environ = environ
        self._opened: dict[Choice, Model] = {}

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """Call the model. Raises ``RequestError`` also if its library or its key is missing; nothing was sent then."""
        choice = self.choices[request.model]
        if choice not in self._opened:
            from stateline.model.providers.selection import open_model

            self._opened[choice] = open_model(choice, environ=self._environ)
        return self._opened[choice].reply(request, on_text)


def _provider(name: str) -> str:
    """Return the provider of a model name for a given endpoint."""
    from stateline.model.providers.selection import PROVIDERS

    word = name.partition("/")[0]
    return word if word in PROVIDERS else "openai"


def _wanted_by(run: Run) -> str | None:
    """Return the model that the machine names for the current stage of ``run``, "" without a name; None if no stage
    calls a model. At another kind of stage: the model of an agent stage that may follow."""
    machine = run.machine
    stage = machine.stages[run.state.tree.stage]
    agents = [each.agent for each in machine.stages.values() if each.agent is not None]
    if not agents:
        return None
    if stage.agent is not None:
        return stage.agent.model or machine.model or ""
    return machine.model or next((agent.model for agent in agents if agent.model), None) or ""


def _model_of_run(run: Run) -> Named:
    """Return the model that the context of ``run`` was made for."""
    context = run.began_with()
    return Named() if context is None else Named(context.model, context.base_url)


def _model_of_context(store: Store, head: Snapshot | None) -> Named:
    """Return the model that the context at ``head`` was made for."""
    if head is None or head.state is None:
        return Named()
    context = read_context(store, head)
    return Named(context.model, context.base_url)
