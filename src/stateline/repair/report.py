"""Result of a repair or of its plan, as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

from stateline.bundle.canonical import Json
from stateline.errors import StatelineError
from stateline.verify.findings import Document, Finding

ActionName = Literal["set_aside", "put_back", "renew", "publish", "move_head", "remove_scope"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a repair.

    ``set_aside`` renames ``path`` into the repair's directory (``to``, once done); ``put_back`` gives a misplaced
    snapshot its own name; ``renew`` makes a new ``stateline.json``; ``publish`` appends the repair's snapshot;
    ``move_head`` points to it; ``remove_scope`` sets aside a scope without an intact state.
    """

    action: ActionName
    scope: str | None
    path: str
    why: str
    to: str | None = None


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A lost snapshot or object. ``seq`` and ``sha256`` are None where they are unknown.

    ``newer`` means that the scope continues from an older state than this one. ``since`` is set in a gap of the chain:
    all snapshots from that number to ``seq`` are lost.
    """

    scope: str | None
    seq: int | None
    sha256: str | None
    path: str | None
    why: str
    newer: bool = False
    since: int | None = None


class Obstacle(msgspec.Struct, frozen=True):
    """A path that could not be repaired. ``code`` is that of a finding or of an error."""

    scope: str | None
    path: str
    code: str
    message: str
    exit_code: int = 5

    def document(self) -> dict[str, Json]:
        """Return the obstacle as in ``--format json``."""
        return {"scope": self.scope, "path": self.path, "code": self.code, "message": self.message}

    @classmethod
    def of(cls, error: StatelineError, scope: str | None, path: str) -> Obstacle:
        """Return the obstacle for an error that stopped the repair of ``path``."""
        return cls(scope, path, error.code, error.message, error.exit_code)


class RepairReport(Document, frozen=True, kw_only=True):
    """Steps that a repair would take, or took. ``ok``: nothing is damaged afterwards.

    ``findings`` is the damage before a plan, or after a repair; ``aside`` the directory of the files set aside.
    """

    ok: bool
    applied: bool
    actions: tuple[Action, ...] = ()
    lost: tuple[Loss, ...] = ()
    blocked: tuple[Obstacle, ...] = ()
    findings: tuple[Finding, ...] = ()
    aside: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if nothing is damaged, the exit code of an obstacle that is not damage, else 5."""
        others = [obstacle.exit_code for obstacle in self.blocked if obstacle.exit_code != 5]
        return others[0] if others else 0 if self.ok else 5

    def document(self) -> dict[str, Json]:
        """Return the report as in ``--format json``."""
        return super().document() | {"blocked": [obstacle.document() for obstacle in self.blocked]}
