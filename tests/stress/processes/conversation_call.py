"""One call about a conversation, in a process of its own, with a model that goes by a script.

    python conversation_call.py [-i] [--retry | --request ID --answer JSON] [--wait SECONDS] [--once]

It prepares the context ``talk``, which the same model derives and refines (``--once``: only derives), and then
continues with the run ``talk`` of the machine ``talk.json`` in the current directory. The state dir, and the log in
which the model and the tools say when they start and when they end, come from the environment, as those of ``task.py``
do. What the model says hangs on nothing but what it is asked, so a conversation ends in the same state however often it
was cut off. As ``conversation_call.py tool NAME`` it is one of the tools.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

RUN = CONTEXT = "talk"
ANSWERS = 2
"""Number of visits of ``think`` before the conversation is summed up."""
ROUNDS: dict[str, list[list[tuple[str, int]]]] = {
    "think": [[("look", 1), ("push", 2), ("look", 3)], [("push", 4), ("fail", 5)]],
    "sum": [[("push", 6)]],
}
"""The tools that each stage calls, by reply, with their argument; after those comes its answer."""
CALLED = ANSWERS * sum(map(len, ROUNDS["think"])) + sum(map(len, ROUNDS["sum"]))
"""Calls of tools in a whole run."""
REPLIES = ANSWERS * (len(ROUNDS["think"]) + 1) + len(ROUNDS["sum"]) + 1
"""Replies in a whole run; the context takes two more."""


def line_of(stage: str, round_: int, results: list[Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the model's reply at a stage after a number of tool rounds: text, and calls as they are kept."""
    rounds = ROUNDS[stage]
    if round_ == len(rounds):
        return f"{stage} has heard {json.dumps(results, sort_keys=True)}", []
    calls = [
        {"id": f"c{round_}{number}", "name": name, "arguments": {"n": n}}
        for number, (name, n) in enumerate(rounds[round_])
    ]
    return f"Round {round_}.", calls


def stage_of(messages: list[dict[str, Any]]) -> str:
    """Which stage speaks: its prompt begins with its name."""
    first: str = next(message["content"] for message in messages if message["role"] == "user")
    return first.partition(":")[0]


def result_of(name: str, n: int) -> Any:
    """Return the output of a tool; ``fail`` has none."""
    return {"tool": name, "square": n * n, "text": f"{name} {n} " * 30}


def note(stage: str, key: str, what: str) -> None:
    """One line in the log, as ``task.py`` writes them."""
    fd = os.open(os.environ["TORTURE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{stage} {key} {what} 1 {os.environ['TORTURE_CALL']}\n".encode())
    os.close(fd)


def _rest() -> None:
    time.sleep(float(os.environ.get("TORTURE_SLEEP", "0")))


def tool(name: str) -> int:
    """One call of a tool."""
    arguments = json.loads(sys.stdin.read())
    key = os.environ["STATELINE_IDEMPOTENCY_KEY"]
    note(name, key, "start")
    _rest()
    note(name, key, "end")
    if name == "fail":
        sys.stderr.write("fail cannot do it\n")
        return 3
    sys.stdout.write(json.dumps(result_of(name, arguments["n"])))
    return 0


class Model:
    """The model of the context and of the run."""

    def reply(self, request: Any, told: Any = None) -> Any:
        from stateline.model.protocol import Reply, ToolCall

        about = "context" if request.key.startswith("context:") else "model"
        note(about, request.key, "start")
        _rest()
        if about == "context":
            prompts = {"system": f"You {request.purpose}. " * 50, "developer": []}
            content, calls = json.dumps({"prompts": prompts, "settings": {}}), []
        else:
            results = [message["content"] for message in request.messages if message["role"] == "tool"]
            said = sum(message["role"] == "assistant" for message in request.messages)
            content, calls = line_of(stage_of(request.messages), said, results)
        note(about, request.key, "end")
        listed = [ToolCall(**call) for call in calls]
        return Reply(content=content, tool_calls=listed, finish="tool_calls" if listed else "stop")

    def dependencies(self, run: Any) -> Any:
        from stateline.engine.dependencies import Dependencies

        return Dependencies(model=self, name="scripted/one")

    def begin(self) -> None:
        return None

    def closing_warnings(self, run: Any) -> list[str]:
        return []


def talk(words: list[str]) -> int:
    """The call itself. Its document goes to stdout, as that of the command line does."""
    from stateline import Store
    from stateline.errors import StatelineError
    from stateline.service.execute import execute, resume
    from stateline.service.options import CallOptions, ExecuteOptions

    model = Model()
    given: dict[str, Any] = {"answer": json.loads(words[words.index("--answer") + 1])} if "--answer" in words else {}
    given |= {"request": words[words.index("--request") + 1]} if "--request" in words else {}
    wait = float(words[words.index("--wait") + 1]) if "--wait" in words else 60.0
    call = CallOptions(one_turn="-i" in words, models=model, wait=wait, **given)
    try:
        store = Store.open(os.environ["STATELINE_STATE_DIR"])
        _prepare(store, model, wait, refined="--once" not in words)
        if "--retry" in words or given:
            outcome = resume(store, RUN, call, retry="--retry" in words)
        else:
            outcome = execute(store, ExecuteOptions(machine="talk.json", run=RUN, context=CONTEXT, call=call))
    except StatelineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(outcome.document()))
    return outcome.exit_code


def _prepare(store: Any, model: Model, wait: float, *, refined: bool) -> None:
    """Derive the context, and refine it unless that was done."""
    from stateline.contexts.context import ContextRequest
    from stateline.contexts.plan import ContextOptions
    from stateline.contexts.prepare import prepare

    head = store.scope(f"context:{CONTEXT}").load() if store.scope(f"context:{CONTEXT}").head() else None
    refine = "Say it again." if refined and (head is None or head.seq == 0) else None
    context_request = ContextRequest(model="scripted/one", task="Talk.", refine=refine)
    prepare(store, ContextOptions(name=CONTEXT, context_request=context_request, model=model, wait=wait))


if __name__ == "__main__":
    sys.exit(tool(sys.argv[2]) if sys.argv[1:2] == ["tool"] else talk(sys.argv[1:]))
