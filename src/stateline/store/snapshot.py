"""A snapshot as it is handed around, and who may build on one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stateline.bundle.canonical import Json
from stateline.bundle.envelope import VERSION, Envelope, Pointer
from stateline.bundle.objects import with_refs
from stateline.bundle.repair_record import MEMBER
from stateline.errors import InvalidValueError, NewerVersionError


class Snapshot(msgspec.Struct, frozen=True):
    """One immutable bundle file. ``sha256`` is the digest of ``data``, the file's exact bytes."""

    scope: str
    path: str
    sha256: str
    data: bytes
    envelope: Envelope

    @property
    def seq(self) -> int:
        return self.envelope.seq

    @property
    def event(self) -> dict[str, Json]:
        return self.envelope.event

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.path, self.sha256)

    @property
    def state(self) -> Json:
        """The state with a :class:`Ref` where an object belongs. ``Store.resolve`` fills them in."""
        return with_refs(self.envelope.state, self.envelope.objects)


def require_known_version(head: Snapshot) -> None:
    """Raise ``NewerVersionError`` for a head of a newer minor version: it may hold what this version does not know, and a
    snapshot on top of it would drop that. Reading goes on."""
    if head.envelope.version != VERSION:
        raise NewerVersionError(
            f"the head of {head.envelope.scope} is of format version {head.envelope.version}; this Stateline writes "
            f"version {VERSION}. It was left untouched.",
            hint="upgrade stateline",
        )


def require_callers_words(event: Mapping[str, Json], *, masked: bool) -> None:
    """Raise ``InvalidValueError`` for a member of an event that readers take for the store's own word: what a repair
    declares lost, and how much was masked, which only a caller knows that has ``masked`` it."""
    for name in (MEMBER,) if masked else (MEMBER, "redactions"):
        if name in event:
            raise InvalidValueError(
                f"the event member `{name}` is the store's own; nothing was written",
                where=f"/{name}",
                hint="give it another name",
            )
