"""Input and output of a task: one JSON document on stdin, one on stdout, or a reason on stderr and exit 1."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Json = Any

MAX_FINDINGS = 500
"""Most findings of one program. The rest is counted, so that state stays small."""


class Problem(Exception):
    """The audit cannot go on; the text says why and what to do about it."""


def run(work: Callable[[Json], dict[str, Json]]) -> None:
    """Call ``work`` with the task's document and print what it returns, or end with exit 1 and the reason."""
    try:
        document = json.load(sys.stdin)
        if not isinstance(document, dict):
            raise Problem("stdin holds no JSON object; this program is a task of audit.yaml and is started by it")
        output = work(document)
        sys.stdout.write(json.dumps(output, sort_keys=True) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: say nothing at exit either
        sys.exit(1)
    except json.JSONDecodeError as error:
        sys.exit(f"stdin is not JSON: {error}")
    except Problem as problem:
        sys.exit(str(problem))


def keep(findings: list[dict[str, Json]]) -> dict[str, Json]:
    """Findings as ``{"findings": {id: finding}, "left_out": n}``; the first ``MAX_FINDINGS`` are kept.

    A map and not a list, so that a machine's ``set`` merges the findings of several stages, and a diff of two states
    names the finding that came or went.
    """
    by_id: dict[str, Json] = {}
    for finding in findings:
        by_id.setdefault(finding["id"], finding)
    kept = dict(list(by_id.items())[:MAX_FINDINGS])
    return {"findings": kept, "left_out": len(by_id) - len(kept)}
