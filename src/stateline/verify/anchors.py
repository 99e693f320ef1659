"""Where the anchors are that an auditor gave, and what is known of one that is on no chain.

Pure: checks in, words out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stateline.bundle import naming
from stateline.errors import UsageError
from stateline.verify.chain import ChainCheck
from stateline.verify.findings import Anchor, Finding, has_damage

_COMPARE = "a repair cannot mend this: compare with a backup"
_FIRST = "mend what the other findings tell first, and verify again"
_UPGRADE = "verify it with the newer version"


def checked(anchors: Collection[str]) -> tuple[str, ...]:
    """The anchors in their order, each once. Raises ``UsageError`` for one that is no digest."""
    for text in anchors:
        if not naming.is_sha256(text):
            hint = "an anchor is the whole sha of a snapshot, 64 lower-case hex digits; fewer bind nothing"
            raise UsageError(f"{text[:80]!a} is no anchor", hint=hint)
    return tuple(dict.fromkeys(anchors))


class AnchorIndex:
    """Looks anchors up in the checks of all scopes, which are looked through once, however many anchors there are.

    ``key`` is the one scope that was read, None for all; ``absent`` whether that one does not exist; ``unread`` whether
    the store could not be read at all."""

    def __init__(
        self, checks: Sequence[ChainCheck], key: str | None = None, *, absent: bool = False, unread: bool = False
    ) -> None:
        self.key = key
        self.absent = absent
        self.uncertain = unread or any(not check.certain or check.newer for check in checks)
        self._found: dict[str, Anchor] = {}
        self._told: dict[str, Finding] = {}
        for check in checks:
            for sha, seq in check.anchored.items():
                self._found[sha] = Anchor(sha, check.key, seq)
        # The first word counts: what a repair says of one, then what lies there, then what only is named.
        for check in checks:
            for sha in sorted(check.given_up):
                self._tell(sha, check, "", f"a repair of this scope has recorded it as lost; {_COMPARE}")
        for check in checks:
            for sha, path in check.beside.items():
                self._tell(sha, check, path, _lying(check, path))
        for check in checks:
            for sha, path in check.named.items():
                self._tell(sha, check, path, _named(check, path))

    def _tell(self, sha: str, check: ChainCheck, path: str, why: str) -> None:
        if sha not in self._found and sha not in self._told:
            self._told[sha] = _adrift(sha, check.key, path, why)

    def anchor(self, sha: str) -> Anchor:
        """Where it is. No two chains have the same snapshot: each says which scope it is of."""
        return self._found.get(sha) or Anchor(sha)

    def finding(self, sha: str) -> Finding | None:
        """What is said of one that is on no chain that was read; None for one that is on one."""
        if sha in self._found:
            return None
        return self._told.get(sha) or _adrift(sha, None, "", self._unknown())

    def _unknown(self) -> str:
        """Why an anchor may be missing of which nothing is known here."""
        if self.absent:
            why = f"there is no scope {self.key}: it was taken away, or this is another store"
            return f"{why}; without a KEY all scopes are searched; {_COMPARE}"
        only = "" if self.key is None else f"only the scope {self.key} was read, and without a KEY all are searched; "
        if self.uncertain:
            why = "what is missing, damaged or of a newer version was not read and may have it"
            return f"{only}{why}; {_FIRST}"
        if only:
            only += "if it is in none, "
        return f"{only}it was cut off, written anew or taken away, or this is another store; {_COMPARE}"


def _lying(check: ChainCheck, path: str) -> str:
    """What is said of one that lies beside the chain, intact."""
    if check.newer:
        return f"it lies at {path}, but a newer version wrote what may lead there; {_UPGRADE}"
    if not check.complete and has_damage(check.findings):
        return f"it lies at {path}, but what should lead there is missing or damaged; {_FIRST}"
    why = f"it lies at {path}, beside the chain: a crash left it there, it is a fork, or the pointer was set back"
    if has_damage(check.findings):
        return f"{why}; {_FIRST}"
    return f"{why}; a repair does not mend this: look with `stateline show`, and compare with a backup"


def _named(check: ChainCheck, path: str) -> str:
    """What is said of one that could not be read where something says that it lies."""
    step = _UPGRADE if check.newer else "put that file back from a backup: a repair would only record it as lost"
    return f"{path} should have it, and could not be read; {step}"


def _adrift(sha: str, scope: str | None, path: str, why: str) -> Finding:
    return Finding("damage", "anchor", scope, path, f"no chain that was read has the anchor {sha}: {why}")
