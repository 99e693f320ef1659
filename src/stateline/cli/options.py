"""The common options as frozen settings.

Precedence: after the subcommand > before it > ``STATELINE_<OPTION>`` > default.
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from stateline.errors import UsageError

if TYPE_CHECKING:
    from stateline.store.store import Store


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The common options. ``state_scope`` names a context. With ``ephemeral`` everything is in memory, for this call.
    ``wait`` [s] bounds the wait for a lock; None means "not set", see :attr:`lock_wait`."""

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
        """True if stdout gets one JSON document."""
        return self.format == "json"

    @property
    def lock_wait(self) -> float:
        """The longest wait for a lock [s]."""
        from stateline.store.scope import WAIT

        return WAIT if self.wait is None else self.wait

    def store(self) -> Store:
        """The store in the state dir: the option, ``STATELINE_STATE_DIR``, or the user's state directory. With
        ``ephemeral`` an empty one in memory."""
        from stateline.store.store import Store

        if self.ephemeral:
            return Store.in_memory()
        path = self.state_dir
        if path is None:
            import platformdirs

            path = platformdirs.user_state_dir("stateline", appauthor=False)
        if not path or "\0" in path:
            raise UsageError("the state dir's name is empty or holds NUL", hint="give a path with --state-dir")
        return Store.open(path, durability=self.durability, trust_parent=self.trust_parent)


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
