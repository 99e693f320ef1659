"""Which model a call asks, and by which means: flags over environment over context over machine file.

Nothing here is opened before it is needed: a call that only waits, reports or plays back imports no provider's library
and wants no key. Whether exchanges are recorded or played back belongs to the run, and stands in its ``event``.
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
from stateline.engine.event_codec import MALFORMED_HINT
from stateline.errors import IntegrityError, RequestError, StatelineError, UsageError
from stateline.service.answers import restart_commands
from stateline.service.options import ModelSource
from stateline.service.ranges import Numbers
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
"""The name of no model: whoever calls next answers for it."""
_MODES = ("strict", "sequential", "hybrid")
_REMEMBERED = 64
"""So many of the newest numbers of a recording under way are kept with the run: a crash loses the last one only."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags of a call say about models; None where they say nothing. ``on_text`` hears a model's text while it
    comes."""

    model: str | None = None
    base_url: str | None = None
    record: str | None = None
    playback: str | None = None
    playback_mode: str | None = None
    on_text: Callable[[str], None] | None = None


class Named(msgspec.Struct, frozen=True):
    """A model by name and endpoint: "" for none, and for the provider's own or none said. ``choice`` is None for no
    model, and where a recording stands in for it."""

    name: str = ""
    base_url: str = ""
    choice: Any = None  # model.choice.Choice, which is loaded only where a model is named


class Exchanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a run records or plays back: ``event.exchanges``. ``dir`` is a real path, ``playback`` the mode ("" while
    recording). ``used`` are the numbers of the exchanges that the run has made or played (of a recording the newest),
    ``stale`` those of them that were recorded for other requests; both as ranges."""

    mode: Literal["record", "playback"]
    dir: str
    playback: Literal["", "strict", "sequential", "hybrid"] = ""
    used: list[tuple[int, int]] = []
    stale: list[tuple[int, int]] = []


class _NumberRanges:
    """The numbers in a list that grows, as ranges: each is looked at once."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers, self._seen, self._found = numbers, 0, Numbers()

    def ranges(self) -> Json:
        for number in self._numbers[self._seen :]:
            self._found.add(number)
        self._seen = len(self._numbers)
        return self._found.ranges()


class Models(ModelSource):
    """The models of one call. The engine asks for ``dependencies`` and ``closing``."""

    def __init__(self, store: Store, options: ModelOptions, environ: Mapping[str, str] | None = None) -> None:
        """Touches nothing. Raises ``UsageError`` for flags that exclude each other or name a secret."""
        self._store = store
        self._options = options
        self._environ = os.environ if environ is None else environ
        self._wanted = _wanted(options)
        if self._wanted is not None and store.redactor.redact(self._wanted.dir)[1] > 0:
            raise UsageError(  # a run keeps the path
                "the directory of --record or --playback has a secret in its path; nothing was done",
                hint="give a directory of another name",
            )
        self._with_overrides = Dependencies()
        self._exchanges: Exchanges | None = None
        self._voice: Playback | Recorder | None = None
        self._used = self._stale = _NumberRanges([])
        self._late = _LazyModels(self._environ)
        self._looked_through = ""
        self._begun = False
        self._nobody = False
        self._prepared = False
        self._drifts: dict[str, None] = {}
        self._told: list[str] = []

    def begin(self) -> Json:
        """The call begins a run, or is about no run: the flags say whether exchanges are recorded or played back. Gives
        :meth:`exchanges`. Raises ``NotFoundError`` for a recording that is not there, and as ``check_directory`` for a place
        that nothing can be recorded to."""
        wanted = self._wanted
        if wanted is not None and wanted.mode == "record":
            self._check_place(wanted.dir)
        if wanted is not None and wanted.mode == "playback" and not wanted.playback:
            wanted = msgspec.structs.replace(wanted, playback="hybrid")
        self._use(wanted)
        self._begun = True
        return self.exchanges()

    def asked(self, head: Snapshot | None = None, machine: str | None = None) -> Named:
        """The model for a context at ``head`` (None: it is not there yet), or for a stage whose ``machine`` file names
        one. Raises ``RequestError`` for a name that is no model's."""
        return self._named(machine, lambda: _made_for(self._store, head))

    def asking(self, named: Named) -> Model | None:
        """The model itself, recorded or played back if the call wants that; None where nobody is there to be asked."""
        return self._model(named)

    def ready(self, named: Named) -> Callable[[], None]:
        """Raises ``RequestError`` for what is known here to keep that model from being called, and as ``check_directory``
        for what keeps the call from being recorded. Sends nothing, changes nothing."""

        def require() -> None:
            if named.choice is None:
                return
            from stateline.model.providers.selection import require_ready

            require_ready(named.choice, environ=self._environ)
            if self._exchanges is not None and self._exchanges.mode == "record":
                self._check_place(self._exchanges.dir)

        return require

    def _check_place(self, directory: str) -> None:
        """As ``check_directory``. What lies in the directory is looked at once; a recorder looks at what is new."""
        from stateline.model.recordings.record_directory import check_directory

        check_directory(directory, files=directory != self._looked_through)
        self._looked_through = directory

    def settle(self, effective: ContextContent, context: Mapping[str, Json]) -> None:
        """From here on these prompts and settings hold, whole; ``context`` has those that are stored."""
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
        """From here on these flags hold over the context of the run that the call goes on with, and nothing of them is
        stored. Raises ``RequestError`` for a setting that no context may have."""
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
        """``event.exchanges`` as it is to be saved now; None for a run that neither records nor plays back."""
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
        """By which means the effects of ``run`` are performed as it stands now.

        Raises ``RequestError`` for a recording or playback that is not the run's own, and for a name that is no
        model's; ``NotFoundError`` for a recording that is gone.
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
        """What is to be said of recordings when a call ends: what did not fit, and what a complete run left over."""
        voice = self._voice
        unused_flags = [*self.unused_flags(self._nobody), *self._drifts, *self._told]
        if voice is None:
            return unused_flags
        from stateline.model.recordings.playback import Playback

        warnings: list[str] = []
        if isinstance(voice, Playback) and run.state.status == "complete":
            try:
                # A context that is restored leaves what was recorded of its derivation unplayed, and rightly so.
                warnings += voice.closing(("turn",))
            except StatelineError as error:  # the run is complete, whatever lies there
                warnings.append(error.message)
        return [*unused_flags, *voice.warnings, *warnings]

    def unused_flags(self, nobody: bool) -> list[str]:
        """Flags that do nothing where ``nobody`` is there to be asked."""
        if not nobody:
            return []
        said = {
            "--base-url": (self._options.base_url, "was not used"),
            "--record": (self._options.record, "recorded nothing of this"),
        }
        way = "there is no model to ask; name one with -m PROVIDER/NAME"
        return [f"{flag} {came}: {way}" for flag, (value, came) in said.items() if value is not None]

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.append(text)

    # -- names -----------------------------------------------------------------------------------------------------

    def _named(self, machine: str | None, context: Callable[[], Named]) -> Named:
        """The model by the first of flag, environment, context and machine file that names one; of a playback, else by
        the recording."""
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
        # Never another provider's: it would be sent this one's key.
        if borrowed and not said and _provider(name) == _provider(made_for.name):
            with suppress(RequestError):
                choice = choose(name, environ=self._environ)
            said = "" if choice is not None and choice.base_url else borrowed
        choice = choose(name, said, environ=self._environ)
        return Named() if choice is None else Named(choice.name, choice.base_url, choice)

    def _said(self, what: Literal["model", "base_url"]) -> str:
        """What a flag says, else the environment; "" for nothing."""
        flag: str | None = getattr(self._options, what)
        return (flag or "").strip() or self._environ.get(f"STATELINE_{what.upper()}", "").strip()

    def _compare(self, run: Run, named: Named) -> None:
        """Note how the model that is asked, and at the beginning of a run its tools, differ from what the context of
        ``run`` was made for. A context that was prepared by this call was compared then."""
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
        """The model that the context of ``run`` was made for."""
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
        """Record or play back as the run does. Raises ``RequestError`` if the flags say otherwise."""
        kept = _kept(run)
        _require_same(run, kept, self._wanted)
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
            self._used, self._stale = _NumberRanges(self._voice.used), _NumberRanges(self._voice.stale)
        else:
            from stateline.model.recordings.recorder import Recorder

            self._voice = Recorder(self._late, wanted.dir, mask, used)
        self._voice.warnings[:0] = before


class _LazyModels:
    """Opens a model when it is first asked, by the name in the request."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.choices: dict[str, Choice] = {}
        self._environ = environ
        self._opened: dict[Choice, Model] = {}

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """As the model's. Raises also ``RequestError`` where its library or its key is missing; nothing was sent."""
        choice = self.choices[request.model]
        if choice not in self._opened:
            from stateline.model.providers.selection import open_model

            self._opened[choice] = open_model(choice, environ=self._environ)
        return self._opened[choice].reply(request, on_text)


def _mask(store: Store) -> Callable[[Json], Json]:
    return lambda value: store.redactor.redact(value)[0]


def _provider(name: str) -> str:
    """Who is asked for a model of that name, where an endpoint is given."""
    from stateline.model.providers.selection import PROVIDERS

    word = name.partition("/")[0]
    return word if word in PROVIDERS else "openai"


def _wanted(options: ModelOptions) -> Exchanges | None:
    """What the flags say of recordings. Raises ``UsageError``."""
    if options.record is not None and options.playback is not None:
        raise UsageError("--record and --playback exclude each other; nothing was done", hint="give one of them")
    if options.playback_mode is not None and options.playback_mode not in _MODES:
        raise UsageError(
            f"--playback-mode is {options.playback_mode!r}; it must be strict, sequential or hybrid",
            hint="nothing was done; correct it",
        )
    path = options.playback if options.record is None else options.record
    if path is None:
        if options.playback_mode is not None:
            raise UsageError("--playback-mode needs --playback; nothing was done", hint="say which recording")
        return None
    real = _real(path)
    if options.record is not None:
        if options.playback_mode is not None:
            raise UsageError("--playback-mode is none of recording; nothing was done", hint="leave it out")
        return Exchanges(mode="record", dir=real)
    mode: Any = options.playback_mode or ""
    return Exchanges(mode="playback", dir=real, playback=mode)


def _real(path: str) -> str:
    try:
        path.encode()
        if path.strip() and "\0" not in path:
            return os.path.realpath(path)
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{path!r:.80} is no name of a directory that can be kept; nothing was done", hint="name another")


def _kept(run: Run) -> Exchanges | None:
    """What the run says of recordings. Raises ``IntegrityError`` for what is no such thing."""
    kept = run.event.get("exchanges")
    if kept is None:
        return None
    try:
        found = msgspec.convert(kept, Exchanges)
        for ranges in (found.used, found.stale):
            Numbers.read(ranges)
        if not os.path.isabs(found.dir) or "\0" in found.dir:
            raise ValueError(f"{found.dir!r:.80} is no real path")
        return found
    except (msgspec.ValidationError, ValueError) as error:
        raise IntegrityError(
            f"the snapshot {run.snapshot.path} does not say how its run records or plays back: {error}",
            finding="malformed",
            hint=MALFORMED_HINT,
        ) from None


def _require_same(run: Run, kept: Exchanges | None, wanted: Exchanges | None) -> None:
    if wanted is None:
        return
    same = kept is not None and (kept.mode, kept.dir) == (wanted.mode, wanted.dir)
    same = same and wanted.playback in ("", kept.playback if kept is not None else "")
    if not same:
        another, anew = restart_commands(run)
        raise RequestError(
            f"the run {run.id} {_told(kept)}, and this call says otherwise; nothing was changed",
            hint="leave --record and --playback out to go on with it; "
            f"`{another}` begins another run, `{anew}` begins this one anew",
        )


def _told(kept: Exchanges | None) -> str:
    if kept is None:
        return "neither records nor plays back"
    if kept.mode == "record":
        return f"records to {kept.dir}"
    return f"plays {kept.dir} back ({kept.playback})"


def _wanted_by(run: Run) -> str | None:
    """The model that the machine names for the stage where ``run`` stands, "" if it names none; None if no stage of it
    asks a model. Before another stage: for an agent stage that may follow."""
    machine = run.machine
    stage = machine.stages[run.state.tree.stage]
    agents = [each.agent for each in machine.stages.values() if each.agent is not None]
    if not agents:
        return None
    if stage.agent is not None:
        return stage.agent.model or machine.model or ""
    return machine.model or next((agent.model for agent in agents if agent.model), None) or ""


def _made_for(store: Store, head: Snapshot | None) -> Named:
    """The model that the context at ``head`` was made for."""
    state = None if head is None else store.resolve(head.state)
    if not isinstance(state, dict):
        return Named()
    name, base_url = state.get("model_id"), state.get("base_url")
    return Named(name if isinstance(name, str) else "", base_url if isinstance(base_url, str) else "")
