"""The deterministic task of the campaigns' machine, copied beside the machine file and run as a program of its own.

It says in a log when it starts and when it ends, with its idempotency key and the number of the call that ran it.
Its output hangs on nothing but the document: the same visit gives the same output in every attempt that succeeds.
Standard library only, and little of it: a campaign starts it thousands of times.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

LOOPS = 4
"""Number of times ``step`` runs before the machine continues."""
BULK = 40
"""Items in ``bulk``'s output: far more than stay inline in a snapshot."""


def output_of(document: dict[str, Any]) -> Any:
    """Return the output of the stage of ``document`` when it succeeds."""
    stage, state = document["stage"], document["state"]
    if stage == "step":
        return {"value": 2 * state["count"] + 1, "note": f"{state['count']}:{state['total']}"}
    if stage == "mend":
        return {"mended": document["error"]["stage"], "kind": document["error"]["kind"]}
    if stage == "bulk":
        return [{"n": n, "text": f"{state['total']}-{n} " * 20} for n in range(BULK)]
    if stage == "review":
        return {"again": state["count"] == LOOPS, "notes": len(state["notes"]), "last": document["outputs"]["mend"]}
    return {"value": 3, "stage": stage}


def fails(document: dict[str, Any]) -> bool:
    """Return whether this attempt fails: ``broken`` always, ``flaky`` at its first."""
    stage: str = document["stage"]
    return stage == "broken" or (stage == "flaky" and document["attempt"] == 1)


def _note(document: dict[str, Any], what: str) -> None:
    line = (
        f"{document['stage']} {document['idempotency_key']} {what} {document['attempt']} {os.environ['TORTURE_CALL']}"
    )
    # One write of few bytes with O_APPEND: lines of tasks that run at once do not mix.
    fd = os.open(os.environ["TORTURE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (line + "\n").encode())
    os.close(fd)


def main() -> int:
    document = json.load(sys.stdin)
    _note(document, "start")
    time.sleep(float(os.environ.get("TORTURE_SLEEP", "0")))
    failed = fails(document)
    _note(document, "end")
    if failed:
        sys.stderr.write(f"{document['stage']} cannot do it\n")
        return 3
    sys.stdout.write(json.dumps(output_of(document)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
