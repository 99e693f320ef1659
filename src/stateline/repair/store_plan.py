"""Plan of a repair outside the scopes: objects, foreign files and ``stateline.json``."""

from __future__ import annotations

import msgspec

from stateline.bundle import naming
from stateline.errors import StatelineError, UnsafePathError
from stateline.repair.inventory import DamagedFile
from stateline.repair.plan import plan_scope
from stateline.repair.report import Obstacle
from stateline.store.integrity import ObjectChecker, digest_of, wrong_kind
from stateline.store.protocol import BlobMissingError
from stateline.store.store import Store
from stateline.verify.findings import Finding


class StorePlan(msgspec.Struct, kw_only=True):
    """Plan for everything outside the scopes, and the hashes of the scopes to examine.

    ``renew`` is the code of damage at ``stateline.json``, "" for none.
    """

    renew: str = ""
    set_aside: list[DamagedFile] = []
    scopes: list[str] = []
    obstacles: list[Obstacle] = []

    def block(self, found: Finding) -> None:
        """Add a finding that no repair can remove."""
        self.obstacles.append(Obstacle(found.scope, found.path, found.code, found.message))


def plan_store(store: Store, damage: list[Finding], key: str | None) -> StorePlan:
    """Plan from the damage that ``verify`` found. With ``key`` only that scope is examined."""
    plan = StorePlan()
    scopes: dict[str, None] = {}
    for found in damage:
        top = found.path.partition("/")[0]
        if top == naming.OBJECTS:
            _plan_object(store, found, plan)
            if key is None:
                # Any scope may name the object, and must then declare its loss on its own chain.
                scopes.update(dict.fromkeys(sorted(store.backend.scopes())))
        elif top == naming.STORE_FILE and found.code != "unreadable":
            plan.renew = found.code
        elif naming.is_sha256(top) and found.code == "not_regular" and "/" not in found.path:
            plan.set_aside.append(DamagedFile(found.path, found.code, found.message))
        elif naming.is_sha256(top):
            scopes[top] = None
        elif found.code == "unreadable" or not found.path:
            # The state dir itself is never moved.
            plan.block(found)
        else:
            plan.set_aside.append(DamagedFile(found.path, found.code, found.message))
    if key is not None:
        scopes = {naming.scope_hash(key): None} if damage else {}
    by_path = {file.path: file for file in plan.set_aside}
    plan.scopes = [scope for scope in scopes if scope not in by_path]
    plan.set_aside = list(by_path.values())
    _keep_objects_that_may_be_needed(store, plan)
    return plan


def _keep_objects_that_may_be_needed(store: Store, plan: StorePlan) -> None:
    """Leave damaged objects in place while a scope cannot be repaired.

    Nobody knows which objects such a scope names, and it cannot declare their loss.
    """
    objects = [
        file for file in plan.set_aside if file.path.startswith(f"{naming.OBJECTS}/") and file.code != "foreign_file"
    ]
    if not objects or not _some_scope_is_blocked(store, {file.path for file in plan.set_aside}):
        return
    message = "a scope that cannot be repaired now may need it; it was left in place"
    plan.obstacles += [Obstacle(None, file.path, file.code, message) for file in objects]
    plan.set_aside = [file for file in plan.set_aside if file not in objects]


def _some_scope_is_blocked(store: Store, set_aside: set[str]) -> bool:
    objects = ObjectChecker(store.backend)
    for scope in sorted(store.backend.scopes()):
        try:
            if scope not in set_aside and plan_scope(store, scope, objects).obstacles:
                return True
        except StatelineError:
            return True
    return False


def _plan_object(store: Store, found: Finding, plan: StorePlan) -> None:
    """Plan to set a damaged object aside. For an intact one the snapshot with the false claim is at fault."""
    if found.code == "unreadable":
        plan.block(found)
        return
    directory = found.path.count("/") < 2 and found.code == "not_regular"
    in_the_way = wrong_kind(store.backend, found.path + "/" if directory else found.path)
    if in_the_way is not None:
        message = f"{in_the_way} is not of the kind it must be; it was not opened"
        plan.set_aside.append(DamagedFile(in_the_way, "not_regular", message))
        return
    sha = found.path.rpartition("/")[2]
    if naming.is_sha256(sha) and naming.object_path(sha) == found.path:
        try:
            if digest_of(store.backend, found.path) == sha:
                return
        except BlobMissingError:
            return
        except UnsafePathError as error:
            plan.obstacles.append(Obstacle.of(error, found.scope, found.path))
            return
        except StatelineError:
            pass
    plan.set_aside.append(DamagedFile(found.path, found.code, found.message))
