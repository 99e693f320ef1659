"""The key is sent in one header, and appears nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from each_case import each
from model_server import ModelServer, Say

from stateline.model.protocol import ModelCallError, ModelRequest
from stateline.model.providers.selection import PROVIDERS, Choice, open_model

KEY = "sk-secret-of-a-test-0123456789"
HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
QUICK = {"retry-after-ms": "5"}
ECHO = f"Incorrect API key provided: {KEY}."

FAULTS = {
    "echoed": Say(ECHO, status=401),
    "echoed in a page": Say(status=400, body=ECHO.encode(), headers={"content-type": "text/plain"}),
    "echoed far out": Say("x" * 290 + KEY, status=400),
    "echoed after status 200": Say(body=b'{"error": {"message": "%s"}}' % ECHO.encode()),
    "server": Say(ECHO, status=500, headers=QUICK),
    "redirect": Say(status=302, headers={"location": f"http://127.0.0.1:1/{KEY}"}),
    "slow": Say("Late.", delay=20),
    "cut": Say("Half of it", cut=5),
    "no json": Say(body=b"<html>"),
    "length": Say("Half of it", finish="length"),
    "arguments": Say(calls=[("f", "{oops")]),
}


def held_by(error: BaseException | None) -> list[BaseException]:
    """An error and those that it came from."""
    if error is None:
        return []
    return [error, *held_by(error.__cause__), *held_by(error.__context__)]


def said_by(error: BaseException) -> Iterator[str]:
    """Everything that an error, and whatever hangs on it, says or holds."""
    seen: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield repr(item)
        yield str(item)
        if isinstance(item, dict):
            queue += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set):
            queue += item
        elif hasattr(item, "__dict__"):
            queue += vars(item).items()
        if isinstance(item, BaseException):
            queue += [item.__cause__, item.__context__, *item.args]
            yield "".join(traceback.format_exception(item))


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("fault", FAULTS)
def test_no_error_holds_the_key(provider: str, streamed: bool, fault: str) -> None:
    with ModelServer(otherwise=FAULTS[fault]) as server:
        url = server.url if provider == "openai" else server.origin
        model = open_model(Choice(provider, "x", url), environ={f"{provider.upper()}_API_KEY": KEY})
        seconds = 0.2 if fault == "slow" else 20.0
        with pytest.raises(ModelCallError) as raised:
            model.reply(
                ModelRequest(model="x", messages=HI, timeout=seconds), (lambda text: None) if streamed else None
            )
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    told = "\n".join([*said_by(raised.value), raised.value.message, raised.value.hint])
    assert KEY not in told
    assert KEY[:20] not in told
    if fault.startswith("echoed") and not (streamed and "after" in fault):
        assert "[REDACTED]" in raised.value.message
    # Not even out of sight: what reports errors often shows all that hangs on them.
    assert not [type(held) for held in held_by(raised.value) if hasattr(held, "request") or hasattr(held, "response")]
    assert KEY not in repr(model)


@each("provider", PROVIDERS)
def test_the_sdks_own_logs_hold_no_key_and_stay_off_stdout(provider: str, tmp_path: Path) -> None:
    program = """
import sys
from stateline.model.providers.selection import choose, open_model
from stateline.model.protocol import ModelCallError, ModelRequest
model = open_model(choose(sys.argv[1]))
request = ModelRequest(model="x", messages=[{"role": "user", "content": "Hi"}], key="k", timeout=5.0)
model.reply(request)
model.reply(request, lambda text: None)
try:
    model.reply(request)
except ModelCallError as failed:
    print(failed.message, failed.hint, file=sys.stderr)
"""
    with ModelServer(Say(status=429, headers=QUICK), Say("A."), Say("B."), Say(ECHO, status=401)) as server:
        environ = {
            **os.environ,
            f"{provider.upper()}_API_KEY": KEY,
            f"{provider.upper()}_BASE_URL": server.url if provider == "openai" else server.origin,
            f"{provider.upper()}_LOG": "debug",
        }
        command = [sys.executable, "-W", "error", "-c", program, f"{provider}/x"]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path, check=True)
        assert server.count == 4
    assert done.stdout == ""
    assert "[REDACTED]" in done.stderr
    assert KEY not in done.stderr
    assert KEY[:20] not in done.stderr
    assert list(tmp_path.iterdir()) == []


@each("provider", PROVIDERS)
def test_without_being_asked_nothing_is_written(provider: str, tmp_path: Path) -> None:
    program = """
import sys
from stateline.model.providers.selection import choose, open_model
from stateline.model.protocol import ModelRequest
open_model(choose(sys.argv[1])).reply(ModelRequest(model="x", messages=[{"role": "user", "content": "Hi"}]))
"""
    with ModelServer(Say(status=500, headers=QUICK), Say("A.")) as server:
        environ = {name: value for name, value in os.environ.items() if not name.endswith("_LOG")}
        environ[f"{provider.upper()}_API_KEY"] = KEY
        environ[f"{provider.upper()}_BASE_URL"] = server.url if provider == "openai" else server.origin
        command = [sys.executable, "-W", "error", "-c", program, f"{provider}/x"]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []
