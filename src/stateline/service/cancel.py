"""The verb ``exec cancel``: end an unfinished run for good."""

from __future__ import annotations

from stateline.bundle import naming
from stateline.engine.record import Run, load_run
from stateline.engine.step import apply
from stateline.errors import IllegalEventError
from stateline.machine.decider.run import Cancelled
from stateline.process.signals import Signals, shield
from stateline.service.answers import restart_commands
from stateline.service.continue_run import reload
from stateline.service.run_document import Outcome, outcome
from stateline.store.scope import WAIT
from stateline.store.store import Store


def cancel(store: Store, run: str, *, wait: float = WAIT) -> Outcome:
    """End a run that is not complete, by one snapshot. A run that was cancelled before is returned as it is.

    The lock is held, so no process performs an effect of the run meanwhile; one whose outcome was never saved is given
    up. Raises ``NotFoundError``, ``IllegalEventError`` for a complete run, ``LockTimeoutError`` for one in use.
    """
    naming.checked_id(run, "run id")
    with Signals() as signals:
        found = load_run(store, run)
        signals.run = run
        if _is_open(found):
            with found.scope.locked(wait), shield():
                found = reload(found)
                if _is_open(found):
                    found = apply(found, Cancelled())
    return outcome(found, one_turn=False, warnings=[])


def _is_open(run: Run) -> bool:
    """Return False for a run that was cancelled before. Raises ``IllegalEventError`` for a complete one."""
    if run.state.status == "complete":
        raise IllegalEventError(
            f"the run {run.id} is complete and cannot be cancelled; nothing was changed",
            hint=f"`stateline exec rm {run.id}` removes it; `{restart_commands(run)[1]}` restarts it",
        )
    return run.state.status != "cancelled"
