"""The table of all commands."""

from __future__ import annotations

from stateline.cli.command import Entry, Group

_READ = (0, 1, 5, 64)
_WRITE = (0, 1, 4, 5, 6, 64, 130)
_RUN = (0, 1, 2, 3, 4, 5, 6, 64, 130)

COMMANDS = Group(
    "git for agent runs: every state change is one immutable JSON file that names its parent by SHA-256.",
    {
        "run": Entry("run.RUN", (0, 1, 3, 4, 5, 6, 64, 130)),
        "execute": Entry("execute.EXECUTE", _RUN),
        "e": Entry("execute.EXECUTE", _RUN, hidden=True),
        "exec": Group(
            "List, show, continue, cancel and remove runs.",
            {
                "list": Entry("runs.LIST", _READ),
                "ls": Entry("runs.LIST", _READ, hidden=True),
                "status": Entry("runs.STATUS", _READ),
                "show": Entry("runs.SHOW", _READ),
                "history": Entry("history.HISTORY", _READ),
                "resume": Entry("execute.RESUME", _RUN),
                "cancel": Entry("runs.CANCEL", _WRITE),
                "clean": Entry("runs.CLEAN", _WRITE),
                "rm": Entry("runs.RM", _WRITE),
            },
        ),
        "machine": Group(
            "Check, show and draw machine files.",
            {
                "check": Entry("machines.CHECK", (0, 1, 64)),
                "show": Entry("machines.SHOW", _READ),
                "draw": Entry("machines.DRAW", _READ),
                "schema": Entry("machines.SCHEMA", (0,)),
            },
        ),
        "scopes": Entry("audit.SCOPES", _READ),
        "log": Entry("log.LOG", _READ),
        "show": Entry("audit.SHOW", _READ),
        "diff": Entry("diff.DIFF", _READ),
        "verify": Entry("verify.VERIFY", _READ),
        "repair": Entry("repair.REPAIR", _WRITE),
        "completion": Entry("completion.COMPLETION", (0, 64)),
        "complete": Entry("completion.COMPLETE", (0,), hidden=True),
    },
)
