"""One call of `execute` or `exec resume` in a process of its own, with a model that goes by a script.

    python agent_call.py STATE_DIR MACHINE SCRIPT [--retry] [--one] [--answer JSON]

The model says the line of the script whose number is that of its replies in the conversation. It notes each key it is
asked with in the file `asked` beside the script, and the results of tools that it is told in `told`. A line is
`{"content", "calls", "sleep"}`, where calls are names with arguments, and sleep comes first [s]. `{"die": "calls"}` in
the script's last place kills the process by SIGKILL when that is about to happen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stateline import Store
from stateline.engine.dependencies import Dependencies
from stateline.engine.record import Run
from stateline.model.protocol import ModelRequest, Reply, TextListener, ToolCall
from stateline.process.signals import Interrupted
from stateline.service.execute import execute, resume
from stateline.service.options import CallOptions, ExecuteOptions, ModelSource

RUN = "r"


class Model(ModelSource):
    """See the module."""

    def __init__(self, script: Path) -> None:
        self.script = script
        self.lines = json.loads(script.read_text())

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        with (self.script.parent / "asked").open("a") as asked:
            asked.write(f"{request.key}\n")
        with (self.script.parent / "told").open("a") as told_by_tools:
            results = [message["content"] for message in request.messages if message["role"] == "tool"]
            told_by_tools.write(f"{json.dumps(results)}\n")
        line = self.lines[sum(message["role"] == "assistant" for message in request.messages)]
        time.sleep(line.get("sleep", 0))
        calls = [ToolCall(f"c{n}", name, arguments) for n, (name, arguments) in enumerate(line.get("calls", []))]
        return Reply(content=line.get("content", ""), tool_calls=calls, finish="tool_calls" if calls else "stop")

    def dependencies(self, run: Run) -> Dependencies:
        return Dependencies(model=self, name="scripted")

    def watch(self, run: Run, what: str) -> None:
        if self.lines[-1].get("die") == what:
            os.kill(os.getpid(), signal.SIGKILL)


def main(state_dir: str, machine: str, script: str, *more: str) -> int:
    model = Model(Path(script))
    words: dict[str, Any] = {"answer": json.loads(more[more.index("--answer") + 1])} if "--answer" in more else {}
    call = CallOptions(one_turn="--one" in more, models=model, watch=model.watch, **words)
    store = Store.open(state_dir)
    try:
        if "--retry" in more or "--answer" in more:
            outcome = resume(store, RUN, call, retry="--retry" in more)
        else:
            outcome = execute(store, ExecuteOptions(machine=machine, run=RUN, call=call))
    except Interrupted as interrupted:
        return interrupted.exit_code
    sys.stdout.write(json.dumps(outcome.document()))
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
