"""Dry runs of the verbs, as the command line makes them."""

from __future__ import annotations

from stateline import Store
from stateline.contexts.plan import ContextOptions
from stateline.contexts.prepare import prepare
from stateline.service.dry_run import Plan, dry_run
from stateline.service.execute import execute
from stateline.service.options import ExecuteOptions


def plan_execute(store: Store, options: ExecuteOptions) -> Plan:
    """The plan of ``execute``."""
    return dry_run(store, lambda overlay: execute(overlay, options), run=options.run, one_turn=options.call.one_turn)


def plan_context(store: Store, options: ContextOptions) -> Plan:
    """The plan of ``run`` without a prompt."""
    return dry_run(store, lambda overlay: prepare(overlay, options))
