"""The common options: their declarations, defaults, and values as frozen settings.

Precedence: after the subcommand > before it > ``STATELINE_<OPTION>`` > default.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from stateline.cli.parser import Argument, argument, switch
from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.bundle.limits import Limits
    from stateline.store.store import Store

LOCK_WAIT = 10.0
"""Default of ``--wait`` [s]."""
CONTEXT_LOCK_WAIT = 130.0
"""Default of ``--wait`` for a context [s]: the process that holds its lock may be waiting for a model."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The common options. ``state_scope`` names a context, ``actor`` the person or
    agent that the call is made for. With ``ephemeral`` everything is in memory, for this call.
    ``wait`` [s] bounds the wait for a lock; None means "not set"."""

    state_dir: str | None = None
    ephemeral: bool = False
    trust_parent: bool = False
    durability: Literal["full", "fast"] = "full"
    state_scope: str | None = None
    actor: str | None = None
    format: Literal["text", "json"] = "text"
    wait: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    verbose: bool = False
    quiet: bool = False
    debug: bool = False

    @property
    def json(self) -> bool:
        """True if stdout gets one JSON document."""
        return self.format == "json"

    @property
    def lock_wait(self) -> float:
        """The longest wait for a lock [s]."""
        return LOCK_WAIT if self.wait is None else self.wait

    @property
    def context_lock_wait(self) -> float:
        """The longest wait for the lock of a context [s]."""
        return CONTEXT_LOCK_WAIT if self.wait is None else self.wait

    @property
    def limits(self) -> Limits:
        """The limits, as lowered by ``STATELINE_MAX_...``. Raises ``UsageError`` for a malformed one."""
        from stateline.bundle.limits import Limits

        return Limits.from_environment(os.environ)

    def store(self) -> Store:
        """The store in the state dir: the option, ``STATELINE_STATE_DIR``, or the user's state directory. With
        ``ephemeral`` an empty one in memory."""
        from stateline.store.store import Store

        if self.ephemeral:
            return Store.in_memory(actor=self.actor, limits=self.limits)
        path = self.state_dir
        if path is None:
            import platformdirs

            path = platformdirs.user_state_dir("stateline", appauthor=False)
        if not path or "\0" in path:
            raise UsageError("the state dir's name is empty or holds NUL", hint="give a path with --state-dir")
        return Store.open(
            path,
            durability=self.durability,
            trust_parent=self.trust_parent,
            actor=self.actor,
            limits=self.limits,
        )


_NAMES = tuple(Settings.__struct_fields__)
_ALLOWED = {"format": "text or json", "durability": "full or fast", "wait": "a number of seconds, 0 or more"}
"""Values of the options that are not switches."""


def settings_of(flags: Namespace) -> Settings:
    """The settings of a call, from its flags and the environment. Raises ``UsageError`` for a malformed value."""
    given = {name: value for name, value in vars(flags).items() if name in _NAMES}
    environment = {name: os.environ.get(f"STATELINE_{name.upper()}") for name in _NAMES}
    if "state_dir" in given:
        if given.get("ephemeral"):
            raise UsageError(
                "--ephemeral keeps nothing in a state dir; nothing was done",
                hint="give either --ephemeral or --state-dir",
            )
        # A flag of this call wins over a variable that was set for every call.
        environment["ephemeral"] = None
    values = {**{name: value for name, value in environment.items() if value}, **given}
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        # The message ends with the place: `$.format`.
        name = str(error).rpartition("`$.")[2].rstrip("`")
        source = f"--{name.replace('_', '-')}" if name in given else f"STATELINE_{name.upper()}"
        allowed = _ALLOWED.get(name, "true or false")
        raise UsageError(
            f"{source} is {str(values.get(name))!r}; it must be {allowed}; nothing was done",
            hint="see `stateline --help`",
        ) from None


def common_options(*, shown: bool) -> Iterator[Argument]:
    """Options that every command takes, before or after its name. One that is not given leaves no trace in the flags:
    so a value from before the command's name is not overwritten by a default."""
    for names, keywords in _COMMON:
        yield argument(*names, **(keywords | {"default": SUPPRESS} | ({} if shown else {"help": SUPPRESS})))


_COMMON = (
    argument(
        "--state-dir",
        metavar="DIR",
        help="Directory of the store [env: STATELINE_STATE_DIR; default: the user's state directory].",
    ),
    switch("--ephemeral", help="Keep everything in memory, for this call only [env: STATELINE_EPHEMERAL]."),
    argument(
        "--durability",
        metavar="full|fast",
        help="full: a save survives a power loss. fast: it survives process crashes, but not a power loss "
        "[env: STATELINE_DURABILITY; default: full].",
    ),
    switch(
        "--trust-parent",
        help="Write although other users may write to a directory above the state dir [env: STATELINE_TRUST_PARENT].",
    ),
    argument("--state-scope", metavar="NAME", help="Use the context NAME, the scope context:NAME."),
    argument(
        "--actor",
        metavar="NAME",
        help="Record that the call is made for NAME, a person or an agent [env: STATELINE_ACTOR].",
    ),
    argument("--format", metavar="text|json", help="Format of standard output [env: STATELINE_FORMAT; default: text]."),
    argument(
        "--wait",
        metavar="SECONDS",
        help="Longest wait for a lock "
        f"[env: STATELINE_WAIT; default: {LOCK_WAIT:g}; for a context: {CONTEXT_LOCK_WAIT:g}].",
    ),
    switch("-v", "--verbose", help="Print more messages on stderr."),
    switch("-q", "--quiet", help="Print only errors on stderr."),
    switch("--debug", help="Print tracebacks."),
)
