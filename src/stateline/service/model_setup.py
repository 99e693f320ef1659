"""Choose the model of a call: flags override the environment, the context and the machine file, in this order.

Nothing is opened before it is needed: a call that only waits, reports or plays back imports no provider library and
needs no key. Recording or playback belongs to the run and is kept in its ``event``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.engine.dependencies import Dependencies
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
    from stateline.engine.record import Run
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
        self._with_overrides = Dependencies()
        self._exchanges: Exchanges | None = None
        self._voice: Playback | Recorder | None = None
        self._used = self._stale = NumberRanges([])
        self._late = _LazyModels(self._environ)
        self._looked_through = ""
        self._begun = False
        self._nobody = False
        self._prepared = False
        self._drifts: dict[str, None] = {}
        self._warnings: list[str] = []

    def begin(self) -> Json:
        """Start recording or playback by the flags, for a call that starts a run or has no run; return
        :meth:`exchanges`.

        Raises ``NotFoundError`` for a recording that does not exist, and as ``check_directory`` for a directory that
        cannot be recorded to.
        """
        wanted = self._wanted
        if wanted is not None and wanted.mode == "record":
            self._check_place(wanted.dir)
        if wanted is not None and wanted.mode == "playback" and not wanted.playback:
            wanted = msgspec.structs.replace(wanted, playback="hybrid")
        self._use(wanted)
        self._begun = True
        return self.exchanges()

    def asked(self, head: Snapshot | None = None, machine: str | None = None) -> Named:
        """Return the model for a context at ``head`` (None: it does not exist yet), or for a stage whose ``machine``
        file names one. Raises ``RequestError`` for an unknown model name."""
        return self._named(machine, lambda: _made_for(self._store, head))

    def asking(self, named: Named) -> Model | None:
        """Return the model, recorded or played back if the call asks for that; None without a model."""
        return self._model(named)

    def ready(self, named: Named) -> Callable[[], None]:
        """Return a function that raises ``RequestError`` for what is known to prevent a call of that model, and as
        ``check_directory`` for what prevents recording it. It sends and changes nothing."""

        def require() -> None:
            if named.choice is None:
                return
            from stateline.model.providers.selection import require_ready

            require_ready(named.choice, environ=self._environ)
            if self._exchanges is not None and self._exchanges.mode == "record":
                self._check_place(self._exchanges.dir)

        return require

    def _check_place(self, directory: str) -> None:
        """Check as ``check_directory``. The files in the directory are checked once; a recorder checks new ones."""
        from stateline.model.recordings.record_directory import check_directory

        check_directory(directory, files=directory != self._looked_through)
        self._looked_through = directory

    def settle(self, effective: ContextContent, context: Mapping[str, Json]) -> None:
        """Use exactly these prompts and settings from now on; ``context`` holds the stored ones."""
        self._prepared = True
        prompts, settings = context["prompts"], context["settings"]
        self._with_overrides = Dependencies(
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
        from stateline.contexts.context import require_settings

        require_settings(context_request.settings)
        mask = self._store.redactor.redact
        developer: list[str] = mask(context_request.developer)[0]
        before = ((context or {}).get("prompts") or {}).get("developer") or []
        self._with_overrides = Dependencies(
            system=mask(context_request.system)[0],
            developer=[*before, *(text for text in developer if text not in before)] if developer else None,
            settings=mask(context_request.settings)[0],
        )

    def exchanges(self) -> Json:
        """Return the current ``event.exchanges``; None for a run that neither records nor plays back."""
        now, voice = self._exchanges, self._voice
        if now is None or voice is None:
            return None
        document: dict[str, Json] = {"mode": now.mode, "dir": now.dir}
        if now.mode == "record":
            return document | {"used": Numbers(voice.used[-_REMEMBERED:]).ranges()}
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
        if wanted is None:
            return Dependencies()
        named = self._named(wanted, lambda: self._made_for(run))
        model = self._model(named)
        self._nobody = self._nobody or model is None
        self._compare(run, Named() if model is None else named)
        exchanges = None if self._exchanges is None else self.exchanges
        if model is None:
            return msgspec.structs.replace(self._with_overrides, exchanges=exchanges)
        return msgspec.structs.replace(
            self._with_overrides,
            model=model,
            name=named.name,
            ready=self.ready(named),
            on_text=self._options.on_text,
            exchanges=exchanges,
            warn=self._tell,
        )

    def closing_warnings(self, run: Run) -> list[str]:
        """Return warnings about flags without effect and about recordings: differences, and exchanges that were left
        over."""
        voice = self._voice
        unused_flags = [*self.unused_flags(self._nobody), *self._drifts, *self._warnings]
        if voice is None:
            return unused_flags
        from stateline.model.recordings.playback import Playback

        warnings: list[str] = []
        if isinstance(voice, Playback) and run.state.status == "complete":
            try:
                # A context that is restored leaves what was recorded of its derivation unplayed, and rightly so.
                warnings += voice.closing(("turn",))
            except StatelineError as error:  # the run is complete, whatever the recording holds
                warnings.append(error.message)
        return [*unused_flags, *voice.warnings, *warnings]

    def unused_flags(self, nobody: bool) -> list[str]:
        """Return warnings about flags without effect if ``nobody`` is True: there was no model to call."""
        if not nobody:
            return []
        said = {
            "--base-url": (self._options.base_url, "was not used"),
            "--record": (self._options.record, "recorded nothing of this"),
        }
        way = "there is no model to ask; name one with -m PROVIDER/NAME"
        return [f"{flag} {came}: {way}" for flag, (value, came) in said.items() if value is not None]

    def _tell(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)

    # -- names -----------------------------------------------------------------------------------------------------

    def _named(self, machine: str | None, context: Callable[[], Named]) -> Named:
        """Return the model that the first of flag, environment, context and machine file names; in playback, else the
        model of the recording."""
        said = self._said("model")
        made_for = Named() if said and self._said("base_url") else context()
        name = said or made_for.name or machine or ""
        if self._exchanges is not None and self._exchanges.mode == "playback":
            name = self._recorded_name() if name in ("", MANUAL) else name
            return Named(name, self._said("base_url") or made_for.base_url)
        if name in ("", MANUAL):
            return Named(base_url=self._said("base_url"))
        return self._chosen(name, made_for)

    def _chosen(self, name: str, made_for: Named) -> Named:
        from stateline.model.providers.selection import choose

        said, borrowed = self._said("base_url"), made_for.base_url
        choice = None
        # Never the endpoint of another provider: it would be sent the key of this one.
        if borrowed and not said and _provider(name) == _provider(made_for.name):
            with suppress(RequestError):
                choice = choose(name, environ=self._environ)
            said = "" if choice is not None and choice.base_url else borrowed
        choice = choose(name, said, environ=self._environ)
        return Named() if choice is None else Named(choice.name, choice.base_url, choice)

    def _said(self, what: Literal["model", "base_url"]) -> str:
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

    def _made_for(self, run: Run) -> Named:
        """Return the model that the context of ``run`` was made for."""
        context = run.began_with()
        return Named() if context is None else Named(context.model, context.base_url)

    def _recorded_name(self) -> str:
        from stateline.model.recordings.playback import Playback

        return self._voice.model() if isinstance(self._voice, Playback) else ""

    # -- models ----------------------------------------------------------------------------------------------------

    def _model(self, named: Named) -> Model | None:
        voice = self._voice
        if self._exchanges is not None and self._exchanges.mode == "playback":
            return voice
        if named.choice is None:
            return None
        self._late.choices[named.name] = named.choice
        return self._late if voice is None else voice

    def _adopt(self, run: Run) -> None:
        """Record or play back as the run does. Raises ``RequestError`` if the flags contradict it."""
        kept = kept_exchanges(run)
        require_same_exchanges(run, kept, self._wanted)
        can_continue = run.state.status in ("running", "waiting")
        if can_continue and (kept is None or self.exchanges() != run.event["exchanges"]):
            self._use(kept)

    def _use(self, wanted: Exchanges | None) -> None:
        before = [] if self._voice is None else list(self._voice.warnings)
        self._exchanges, self._voice = wanted, None
        if wanted is None:
            return
        mask, used = _mask(self._store), Numbers.read(wanted.used)
        if wanted.mode == "playback":
            from stateline.model.recordings.playback import Playback

            mode = wanted.playback or "hybrid"
            self._voice = Playback(wanted.dir, mode, used, stale=Numbers.read(wanted.stale), mask=mask)
            self._used, self._stale = NumberRanges(self._voice.used), NumberRanges(self._voice.stale)
        else:
            from stateline.model.recordings.recorder import Recorder

            self._voice = Recorder(self._late, wanted.dir, mask, used)
        self._voice.warnings[:0] = before


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


def _mask(store: Store) -> Callable[[Json], Json]:
    return lambda value: store.redactor.redact(value)[0]


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


def _made_for(store: Store, head: Snapshot | None) -> Named:
    """Return the model that the context at ``head`` was made for."""
    state = None if head is None else store.resolve(head.state)
    if not isinstance(state, dict):
        return Named()
    name, base_url = state.get("model_id"), state.get("base_url")
    return Named(name if isinstance(name, str) else "", base_url if isinstance(base_url, str) else "")
