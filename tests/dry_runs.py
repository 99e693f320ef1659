"""Dry runs of the verbs, as the command line makes them, and tables of cases that compare them with real calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from command_line import Cli
from each_case import for_each

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


@contextmanager
def new_home(cli: Cli, name: str) -> Iterator[None]:
    """Give the command line another home (also the current directory) and another state dir for a block."""
    home, state = cli.home, cli.state
    cli.home = home / name
    cli.state = cli.home / "state dir"
    cli.home.mkdir(mode=0o700)
    cli.monkeypatch.setenv("STATELINE_STATE_DIR", str(cli.state))
    cli.monkeypatch.chdir(cli.home)
    try:
        yield
    finally:
        cli.monkeypatch.chdir(home)
        cli.monkeypatch.setenv("STATELINE_STATE_DIR", str(state))
        cli.home, cli.state = home, state


def for_each_in_new_home(cli: Cli, check: Callable[..., None], rows: Iterable[Any]) -> None:
    """Call ``check`` with each row, in a new home; see :func:`each_case.for_each`."""

    def check_in_new_home(number: int, row: Any) -> None:
        with new_home(cli, f"case {number}"):
            check(row)

    for_each(check_in_new_home, enumerate(rows))
