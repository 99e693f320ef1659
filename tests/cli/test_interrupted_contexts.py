"""A signal while a run is prepared: there is no run yet, and none is named."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

from command_line import Cli
from each_case import Failures
from model_server import ModelServer, Say

from stateline import Store

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def stopped(process: Any) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    return dict(json.loads(out)["error"])


def test_no_run_is_named_while_a_model_derives_its_context(cli: Cli) -> None:
    failures = Failures()
    for signum, code in CODES:
        with failures.case(signum, code), cli.fresh():
            with ModelServer(Say("never", until=threading.Event())) as server:
                words = ["run", "-p", "x", "--id", "i4", "-m", "openai/m", "--base-url", server.url, "--format", "json"]
                process = cli.start(*words)
                server.wait(1)
                process.send_signal(signum)
                error = stopped(process)
            assert (process.returncode, error["code"]) == (code, "interrupted")
            assert "i4" not in json.dumps(error)
            assert "repeat the command" in error["hint"]
            assert cli.json("exec", "list")["runs"] == []
    failures.check()


def test_no_run_is_named_while_its_own_lock_is_waited_for(cli: Cli) -> None:
    cli.json("run", "--system", "S", "--state-scope", "other")
    context = Store.open(cli.state).scope("context:c")
    said = Say(json.dumps({"prompts": {"system": "S", "developer": []}, "settings": {}}))
    with Store.open(cli.state).scope("run:i4").locked(0), ModelServer(said) as server:
        words = ["-m", "openai/m", "--base-url", server.url, "--state-scope", "c", "--wait", "60"]
        process = cli.start("run", "-p", "x", "--id", "i4", *words, "--format", "json")
        while context.head() is None and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        error = stopped(process)
    assert (process.returncode, error["code"]) == (143, "interrupted")
    assert "i4" not in json.dumps(error)


def test_a_run_that_has_begun_is_named(cli: Cli) -> None:
    cli.json("run", "--system", "S", "--state-scope", "c")
    with ModelServer(Say("never", until=threading.Event())) as server:
        words = ["--state-scope", "c", "-m", "openai/m", "--base-url", server.url, "--format", "json"]
        process = cli.start("run", "-p", "x", "--id", "i4", *words)
        server.wait(1)
        process.send_signal(signal.SIGTERM)
        error = stopped(process)
    assert (error["run"], "exec resume i4" in error["hint"]) == ("i4", True)
