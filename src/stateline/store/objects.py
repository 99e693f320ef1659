"""Objects of a store: read them checked, write them once, and remember which are durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from stateline.bundle import canonical, naming
from stateline.bundle.canonical import Json, sha256
from stateline.bundle.envelope import Ref
from stateline.bundle.limits import DEFAULT, Limits
from stateline.bundle.objects import PARENT_TYPES, Artifact, Split, artifact_ref, extend, references, resolve
from stateline.errors import IntegrityError, NotFoundError, StatelineError
from stateline.redaction.redactor import Redactor
from stateline.store.actor import checked_name
from stateline.store.durability import sync_objects
from stateline.store.protocol import DAMAGE_HINT, FAST, Backend, BlobExistsError, BlobMissingError
from stateline.store.snapshot import Snapshot


def read_object(backend: Backend, ref: Ref) -> bytes:
    """Return an object's bytes, digest and size checked. Raises ``IntegrityError`` if they are missing or altered."""
    try:
        data = backend.get(naming.object_path(ref.sha256), max(ref.size, 1))
    except BlobMissingError:
        raise IntegrityError(f"the object {ref.sha256} is missing", finding="missing", hint=DAMAGE_HINT) from None
    except IntegrityError as error:
        if error.finding != "too_large":
            raise
        message = f"the object {ref.sha256} is too large: its table says {ref.size} bytes, and it has more"
        raise IntegrityError(message, finding="too_large", hint=DAMAGE_HINT) from None
    if sha256(data) != ref.sha256 or len(data) != ref.size:
        finding = "truncated" if len(data) < ref.size else "altered"
        raise IntegrityError(f"the object {ref.sha256} is {finding}", finding=finding, hint=DAMAGE_HINT)
    return data


class ObjectStore:
    """Values and artifacts in a backend, addressed by digest."""

    def __init__(
        self,
        backend: Backend,
        *,
        redactor: Redactor | None = None,
        clock: Callable[[], int] | None = None,
        actor: str | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        """``redactor`` masks secrets before anything is hashed (default: it knows no values, and masks
        by the names of keys); ``clock`` returns the time as [ns] since 1970 (default: ``time.time_ns``); ``actor``
        names the person or agent that the process acts for; ``limits`` bounds what is written. Raises
        ``UsageError`` for a malformed name."""
        import time

        self.backend = backend
        self.redactor = redactor or Redactor()
        self.clock = clock or time.time_ns
        self.actor = checked_name(actor)
        self.limits = limits
        self._kept: set[Ref] = set()
        self._durable_lists: set[Ref] = set()
        self.planned: list[Json] | None = None
        """Descriptions of the effects that a dry run came to; None in a store whose effects are performed."""

    @property
    def warnings(self) -> list[str]:
        """Warnings for the user about the place of this store, found so far (a network file system, open modes)."""
        return self.backend.warnings

    def put(self, artifact: Artifact) -> Ref:
        """Store raw bytes; durable on return. Artifacts are not redacted.

        Raises ``InvalidValueError`` for a media type that is reserved or malformed, ``StorageError``.
        """
        ref = artifact_ref(artifact)
        self._require_size(ref)
        self._put(ref, artifact.data)
        return ref

    def put_value(self, value: Json) -> Ref:
        """Store a JSON value as one object, not redacted; durable on return. Raises ``InvalidValueError``."""
        data = canonical.encode(value)
        ref = Ref(sha256(data), len(data))
        self.limits.require_depth(data)
        self._require_size(ref)
        self._put(ref, data)
        return ref

    def append(self, ref: Ref, items: list[Json]) -> Ref:
        """Store the list ``ref`` with ``items`` appended, and return its Ref; ``ref`` stays valid.

        Of a long list only the last chunk is read, and that one and new ones are written. A ``full`` store reads a
        ``ref`` whole and makes it durable first, unless this object has written it or found it in a ``full`` head.
        ``items`` may hold :class:`Ref` and :class:`Artifact` leaves. Secrets in them are masked, but not because of the
        key under which the list will stand (``api_key``), which is not known here. Raises ``InvalidValueError`` if the
        object is not a list, ``NotFoundError`` for a Ref to a missing object, ``IntegrityError``, ``StorageError``.
        """
        data = self.get(ref)
        if ref not in self._kept and ref not in self._durable_lists:
            sync_objects(self.backend, [ref], self.get)
        parts = extend(ref, data, self.redactor.redact(items)[0])
        self._put_parts(parts, {ref, *references(data, ref)})
        return parts.objects[""]

    def get(self, ref: Ref) -> bytes:
        """Return an object's bytes, checked. Raises ``IntegrityError`` if they are missing or altered."""
        return read_object(self.backend, ref)

    def resolve(self, value: Json) -> Json:
        """Return ``value`` with the content of every JSON object in place of its :class:`Ref`; artifacts stay Refs."""
        return resolve(value, self.get)

    def _put_new(self, head: Snapshot | None, parts: Split) -> None:
        """Store the objects of a split state that the parent ``head`` does not hold already.

        Objects of the parent are as durable as this save must be, since the parent was made durable first.
        """
        known: set[Ref] = set()
        if head is not None:
            wanted = parts.all_refs() - self._kept
            known = _objects_in_parent(head.envelope.objects.values(), parts, wanted, self.get)
        self._put_parts(parts, known)

    def _put_parts(self, parts: Split, known: set[Ref]) -> None:
        """Store the objects of a split value, parts before the objects that name them; ``known`` ones exist already.

        Objects that are only named must exist before anything is acknowledged. Raises ``NotFoundError``.
        """
        known = known | self._still_kept(parts.all_refs() - known)
        self._require(sorted(parts.all_refs() - known - parts.contents.keys()))
        new = [ref for ref in parts.contents if ref not in known]
        for ref in new:
            self._require_size(ref)
        for ref in new:
            self._put(ref, parts.contents[ref])

    def _require_size(self, ref: Ref) -> None:
        self.limits.require_size("object", ref.size, "an object", hint="split the value")

    def _require(self, refs: list[Ref]) -> None:
        """Check objects that a new snapshot names and that were not written here, and make them durable."""
        for ref in refs:
            try:
                self.get(ref)
            except IntegrityError as error:
                if error.finding != "missing":
                    raise
                raise NotFoundError(
                    f"there is no object {ref.sha256} in this store; nothing was written",
                    hint="put the content into this store first (Store.put), or save the value itself",
                ) from None
        sync_objects(self.backend, refs, self.get)

    def _still_kept(self, refs: set[Ref]) -> set[Ref]:
        """Return those of ``refs`` that were written here and still exist: another process may have repaired."""
        gone = {ref for ref in refs & self._kept if not self.backend.has(naming.object_path(ref.sha256), ref.size)}
        self._kept -= gone
        return refs & self._kept

    def _note_durable(self, head: Snapshot) -> None:
        """Remember for :meth:`append` which lists are durable: all that a ``full`` snapshot rests on are."""
        if head.event.get("durability") != FAST:
            self._durable_lists.update(ref for ref in head.envelope.objects.values() if ref.media_type in PARENT_TYPES)

    def _put(self, ref: Ref, data: bytes) -> None:
        try:
            self.backend.put(naming.object_path(ref.sha256), data)
        except BlobExistsError:
            message = f"the object {ref.sha256} exists with other bytes; nothing was written"
            raise IntegrityError(message, finding="altered", hint=DAMAGE_HINT) from None
        self._kept.add(ref)


def _objects_in_parent(
    table: Iterable[Ref], parts: Split, wanted: Collection[Ref], get: Callable[[Ref], bytes]
) -> set[Ref]:
    """Return objects that a parent with this ``table`` of objects holds, among them the ``wanted`` ones it finds.

    An object that ``parts`` holds too is known with everything below it, without reading. Only nodes and chunks that
    changed are read, each once with ``get``, at most as many as are wanted, and only until all wanted ones are found.
    An unreadable one is skipped: the new snapshot does not depend on it.
    """
    known: set[Ref] = set()
    missing = set(wanted)
    named = parts.all_refs()
    reads = len(missing)
    met, changed = list(table), deque[Ref]()
    while met or (changed and missing and reads):
        if met:
            ref = met.pop()
            if ref not in known:
                known.add(ref)
                missing.discard(ref)
                met += parts.children.get(ref, ())
                if ref not in named and ref.media_type in PARENT_TYPES:
                    changed.append(ref)
            continue
        reads -= 1
        ref = changed.popleft()
        with suppress(StatelineError):
            met += references(get(ref), ref)
    return known
