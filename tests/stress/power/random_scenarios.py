"""Stories that nobody thought of: drawn from a seed, with a few scopes, both durabilities, and several processes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from stress.scenarios import NOTES, OTHER, Place, Scenario, harm, messages

from stateline import Artifact, Store
from stateline.contexts.context import ContextRequest
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.errors import ConflictError, StatelineError
from stateline.store.protocol import FAST, FULL

LENGTH = 6
"""Steps of a scenario."""
_SIZES = (1, 40, 4090, 5000, 9000)

Step = Callable[[Place, Random], None]


def drawn(seed: str, *, fast: bool) -> Scenario:
    """The scenario of that seed; ``fast``: some of its stores promise less."""

    def prepared(place: Place) -> None:
        rng = Random(f"{seed}:before")
        for _ in range(rng.randrange(3)):
            _save(place.open(), rng)

    def act(place: Place) -> None:
        rng = Random(seed)
        for _ in range(LENGTH):
            rng.choice(STEPS)(_Hurried(place, rng) if fast else place, rng)

    return Scenario(f"drawn {seed}", act, prepared)


class _Hurried(Place):
    """The same place, where a third of those who open a store ask for ``fast``."""

    def __init__(self, place: Place, rng: Random) -> None:
        self.__dict__.update(place.__dict__)
        self._rng = rng

    def open(self, durability: Any = None) -> Store:
        return super().open(durability or (FAST if self._rng.random() < 0.35 else FULL))


def _value(rng: Random) -> Any:
    letter = rng.choice("abc")
    kind = rng.randrange(5)
    if kind == 0:
        return letter * rng.choice(_SIZES)
    if kind == 1:
        return {"one": letter * rng.choice(_SIZES), "two": [rng.choice("xyz") * rng.choice(_SIZES), 1, None]}
    if kind == 2:
        return messages(0, rng.choice((2, 30, 70)))
    if kind == 3:
        return Artifact(letter.encode() * rng.choice(_SIZES), "image/png")
    return rng.randrange(10**6)


def _save(store: Store, rng: Random) -> None:
    scope = store.scope(rng.choice((NOTES, NOTES, OTHER)))
    scope.save({rng.choice("pq"): _value(rng), rng.choice("rs"): _value(rng)})


def _one_save(place: Place, rng: Random) -> None:
    _save(place.open(), rng)


def _several_saves(place: Place, rng: Random) -> None:
    store = place.open()
    for _ in range(rng.randint(2, 3)):
        _save(store, rng)


def _same_again(place: Place, rng: Random) -> None:
    """Save the state of one scope in another."""
    head = place.open().scope(NOTES).head()
    if head is not None:
        place.open().scope(OTHER).save({"same": head.state})


def _late_save(place: Place, rng: Random) -> None:
    store = place.open()
    head = store.scope(NOTES).head()
    _save(place.open(), rng)
    try:
        store.scope(NOTES).save({"late": True}, parent=head)
    except ConflictError:
        pass


def _append(place: Place, rng: Random) -> None:
    store = place.open()
    ref = store.put_value(messages(0, rng.choice((40, 60))))
    ref = store.append(ref, messages(60, rng.choice((1, 20))))
    if rng.random() < 0.7:
        store.scope(NOTES).save({"log": ref})


def _put(place: Place, rng: Random) -> None:
    place.open().put(Artifact(rng.choice("abc").encode() * rng.choice(_SIZES), "text/plain"))


def _remove(place: Place, rng: Random) -> None:
    store = place.open()
    store.backend.remove(store.scope(rng.choice((NOTES, OTHER))).hash)


def _context(place: Place, rng: Random) -> None:
    context_request = rng.choice(
        (ContextRequest(system="Be careful. " * 400), ContextRequest(settings={"n": rng.randrange(9)}))
    )
    prepare(place.open(), ContextOptions(name="docs", context_request=context_request))


def _die(place: Place, rng: Random) -> None:
    """A writer is killed in the middle of a save; what it left may last, or not."""
    store = place.open()
    hash_of = store.scope(NOTES).hash
    try:
        head = store.scope(NOTES).head()
    except StatelineError:
        return
    if head is not None:
        # The mark comes first, as in every save.
        lasting = rng.random() < 0.5
        for name in (".tmp-held", ".tmp-0123456789abcdef")[: rng.randint(1, 2)]:
            harm(place, hash_of, name, b'{"half', lasting=lasting)


STEPS: tuple[Step, ...] = (
    *(_one_save, _one_save, _several_saves, _same_again, _late_save),
    *(_append, _put, _remove, _context, _die),
)
