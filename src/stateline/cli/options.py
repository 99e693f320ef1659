"""Options that every command takes, before or after its name, and what they come to.

Precedence: after the subcommand > before it > ``STATELINE_<OPTION>`` > default.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from typer import _click as click  # typer >= 0.26 brings its own click; the pin in pyproject.toml keeps it there
from typer._click.exceptions import UsageError as UsageMistake
from typer.core import TyperCommand, TyperGroup, TyperOption

from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.store.store import Store

_META = "stateline.common"
_PATIENCE = 1.0
"""[s] after which somebody who waits for standard input is told so."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The common options. ``wait`` [s] bounds the wait for a lock; None: nothing is said, see :attr:`patience`.
    ``state_scope`` names a context. With ``ephemeral`` everything is in memory, for this call."""

    state_dir: str | None = None
    ephemeral: bool = False
    trust_parent: bool = False
    durability: Literal["full", "fast"] = "full"
    state_scope: str | None = None
    format: Literal["text", "json"] = "text"
    wait: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    verbose: bool = False
    quiet: bool = False
    debug: bool = False

    @property
    def json(self) -> bool:
        """Whether stdout gets one JSON document."""
        return self.format == "json"

    @property
    def patience(self) -> float:
        """How long to wait for a lock [s]."""
        from stateline.store.scope import WAIT

        return WAIT if self.wait is None else self.wait

    def store(self) -> Store:
        """The store of the state dir: the option, ``STATELINE_STATE_DIR``, or the user's state directory. An empty one
        in memory if that is asked for."""
        if self.ephemeral:
            from stateline.store.store import Store

            return Store.in_memory()
        path = self.state_dir
        if path is None:
            import platformdirs

            path = platformdirs.user_state_dir("stateline", appauthor=False)
        from stateline.store.store import Store

        if not path or "\0" in path:
            raise UsageError("the state dir's name is empty or holds NUL", hint="give a path with --state-dir")
        return Store.open(path, durability=self.durability, trust_parent=self.trust_parent)


def _common() -> list[click.Parameter]:
    """Fresh options for one command; their defaults are None, so that what was not said stays unsaid."""
    flag: dict[str, Any] = {"is_flag": True, "default": None}
    return [
        TyperOption(
            param_decls=["--state-dir"],
            metavar="DIR",
            help="Directory that holds everything [env: STATELINE_STATE_DIR; default: the user's state directory].",
        ),
        TyperOption(
            param_decls=["--ephemeral"],
            help="Keep everything in memory, for this call only [env: STATELINE_EPHEMERAL].",
            **flag,
        ),
        TyperOption(
            param_decls=["--durability"],
            metavar="full|fast",
            help="What a save survives: full, a power loss; fast, every crash but that "
            "[env: STATELINE_DURABILITY; default: full].",
        ),
        TyperOption(
            param_decls=["--trust-parent"],
            help="Write although others may write in a directory above the state dir [env: STATELINE_TRUST_PARENT].",
            **flag,
        ),
        TyperOption(param_decls=["--state-scope"], metavar="NAME", help="The context to use: the scope context:NAME."),
        TyperOption(
            param_decls=["--format"],
            metavar="text|json",
            help="What stdout gets [env: STATELINE_FORMAT; default: text].",
        ),
        TyperOption(
            param_decls=["--wait"],
            metavar="SECONDS",
            help="How long to wait for a lock [env: STATELINE_WAIT; default: 10; for a context's: 130].",
        ),
        TyperOption(param_decls=["-v", "--verbose"], help="Say more, on stderr.", **flag),
        TyperOption(param_decls=["-q", "--quiet"], help="Say nothing but errors on stderr.", **flag),
        TyperOption(param_decls=["--debug"], help="Show tracebacks.", **flag),
    ]


_NAMES = tuple(Settings.__struct_fields__)
_WANTED = {"format": "text or json", "durability": "full or fast", "wait": "a number of seconds, 0 or more"}
"""What the options that are no switches may be."""


class _Common:
    """Adds the common options to a click command and takes their values out of the way of its function."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not hasattr(self, "_own"):
            self._own = _common()
        return [*super().get_params(ctx), *self._own]  # type: ignore[misc]  # a mixin of click.Command

    def get_help_option(self, ctx: click.Context) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]  # a mixin of click.Command
        if option is not None:
            option.callback = _show_help
        return option

    def invoke(self, ctx: click.Context) -> Any:
        said = ctx.meta.setdefault(_META, {})
        for name in _NAMES:
            value = ctx.params.pop(name, None)
            if value is not None:
                said[name] = value
        return super().invoke(ctx)  # type: ignore[misc]  # a mixin of click.Command


def _show_help(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    """As click's, but that a standard output which takes nothing is told from what else goes wrong."""
    if asked and not ctx.resilient_parsing:
        from stateline.cli.output import tell

        tell(ctx.get_help())
        ctx.exit()


class Command(_Common, TyperCommand):
    """A command with the common options."""


class UnknownCommandError(UsageMistake):
    """A word that is no command here. ``hint`` says where one is that may be meant."""

    def __init__(self, error: UsageMistake, hint: str) -> None:
        super().__init__(error.message, error.ctx)
        self.hint = hint


class Group(_Common, TyperGroup):
    """A group of commands with the common options."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As typer's; a word that is no command here is looked for among all others."""
        try:
            return super().resolve_command(ctx, args)
        except UsageMistake as error:
            hint = "" if "Did you mean" in error.message else _elsewhere(ctx, args[0])
            if not hint:
                raise
            raise UnknownCommandError(error, hint) from None


GROUPS = ("exec", "machine")
"""Commands that have commands."""
_HIDDEN = ("complete", "e")


def _elsewhere(ctx: click.Context, word: str) -> str:
    """Where there is a command by that name, or by one that is like it; "" for one that there is nowhere."""
    from stateline.machine.problems import did_you_mean

    top = getattr(ctx.find_root().command, "commands", {})
    places = {name: f"stateline {name}" for name in top if name not in _HIDDEN}
    for group in GROUPS:
        for name in getattr(top.get(group), "commands", ()):
            places.setdefault(name, f"stateline {group} {name}")
    near = (
        word if word in places else did_you_mean(word, list(places)).removeprefix("did you mean '").removesuffix("'?")
    )
    return f"did you mean `{places[near]}`?" if near else ""


def read_file(path: str, limit: int) -> bytes:
    """At most ``limit`` + 1 [bytes] of a regular file; a FIFO is not waited for. Raises ``OSError`` and ``ValueError``
    for what cannot be read."""
    import stat

    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(fd, "rb") as file:  # which refuses a directory
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(limit + 1)


def settings(ctx: click.Context) -> Settings:
    """What the common options come to for this call. Raises ``UsageError`` for a value that is malformed."""
    said = ctx.meta.get(_META, {})
    environment = {name: os.environ.get(f"STATELINE_{name.upper()}") for name in _NAMES}
    if "state_dir" in said:
        if said.get("ephemeral"):
            raise UsageError(
                "--ephemeral keeps nothing in a state dir; nothing was done",
                hint="give either --ephemeral or --state-dir",
            )
        # What the command line says is nearer than a variable that was set for everything.
        environment["ephemeral"] = None
    values = {**{name: value for name, value in environment.items() if value}, **said}
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        # Its last word is where: `$.format`.
        name = str(error).rpartition("`$.")[2].rstrip("`")
        asked = f"--{name.replace('_', '-')}" if name in said else f"STATELINE_{name.upper()}"
        wanted = _WANTED.get(name, "true or false")
        raise UsageError(
            f"{asked} is {str(values.get(name))!r}; it must be {wanted}", hint="nothing was done; correct it"
        ) from None


def read_input(text: str | None) -> Any:
    """``--input JSON|@FILE``; UNSET without it. Raises ``UsageError`` for what is not JSON or cannot be read."""
    from stateline.bundle import canonical
    from stateline.errors import InvalidValueError

    if text is None:
        return msgspec.UNSET
    data = os.fsencode(text)
    if text.startswith("@"):
        try:
            with open(text[1:], "rb") as file:
                data = file.read(canonical.TEXT_LIMIT + 1)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the input {text!r}: {error}", hint="check the path after @") from None
    try:
        return canonical.parse(data, what="--input")
    except InvalidValueError as error:
        hint = error.hint if data[:1] in b'[{"' or text.startswith("@") else "a string needs quotes: --input '\"yes\"'"
        raise UsageError(f"{error.message}; nothing was changed", hint=hint) from None


def stdin_reader(no_input: bool) -> Any:
    """Reads standard input to its end, bounded; None on a terminal, without a stdin, or with ``--no-input``."""
    from stateline.bundle import canonical

    if no_input or sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    stream = sys.stdin.buffer

    def read() -> bytes:
        _tell_if_slow(stream)
        try:
            return bytes(stream.read(canonical.TEXT_LIMIT + 1))
        except OSError as error:
            if error.errno == errno.EBADF:  # nohup gives a stdin that cannot be read
                return b""
            raise UsageError(
                f"cannot read standard input: {error.strerror}", hint="use --input or --no-input"
            ) from None

    return read


def _tell_if_slow(stream: Any) -> None:
    """Say on stderr what is waited for, if standard input does not come at once: it may never end."""
    import select

    from stateline.cli.output import talk

    try:
        ready = select.select([stream], [], [], _PATIENCE)[0]
    except (OSError, ValueError):  # Windows selects sockets only
        return
    if not ready:
        talk("reading the answer from standard input, to its end (--no-input does not)")


def pairs(words: list[str] | None, option: str, *, parsed: bool) -> dict[str, Any]:
    """``KEY=VALUE`` words as a dict; with ``parsed`` a value is JSON, else a string. Raises ``UsageError``."""
    values: dict[str, Any] = {}
    for word in words or []:
        key, equals, text = word.partition("=")
        if not equals or not key or not key.isprintable() or len(key) > 128:
            raise UsageError(f"{option} {word!r} is not KEY=VALUE", hint=f"for example {option} limit=3")
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{option} {key}: the value is not UTF-8", hint="write UTF-8") from None
        values[key] = _json_or_text(data, text, f"{option} {key}: the value") if parsed else text
    return values


def _json_or_text(data: bytes, text: str, what: str) -> Any:
    from stateline.bundle import canonical
    from stateline.errors import InvalidValueError
    from stateline.service.answers import is_lenient_json

    try:
        return canonical.parse(data, what=what)
    except InvalidValueError as error:
        if is_lenient_json(data):
            raise UsageError(f"{error.message}; nothing was changed", hint=error.hint) from None
        if data.lstrip()[:1] in (b"{", b"["):
            # Nobody writes that by chance: kept as text, the mistake would be found by whoever reads the setting.
            hint = "mend the JSON; a text that begins so is written in quotes: KEY='\"{...\"'"
            raise UsageError(f"{error.message}; nothing was changed", hint=hint) from None
        return text
