"""Every digest that a command prints can be passed to ``show``."""

from __future__ import annotations

import json
import re
from typing import Any

from command_line import Cli, Task
from each_case import Failures

DIGEST = re.compile(r"\b[0-9a-f]{12}(?:[0-9a-f]{52})?\b")


def make_runs(cli: Cli, task: Task) -> None:
    """A run with a context that was refined since, a large output, and a failure."""
    cli.json("run", "--state-scope", "c", "--system", "one")
    large = task("head -c 9000 /dev/zero | tr '\\0' x | sed 's/.*/\"&\"/'", default_next="b")
    machine = cli.machine("m", _context="c", a=large, b=task("exit 3"))
    cli.json("execute", machine, "--id", "r", exits=1)
    cli.json("run", "--state-scope", "c", "--refine-text", "two")


def test_every_digest_in_text_can_be_shown(cli: Cli, task: Task) -> None:
    make_runs(cli, task)
    failures = Failures()
    calls = [["scopes"], ["verify"], ["exec", "list"], ["exec", "status", "r"], ["exec", "show", "r"]]
    for words in [*calls, *(["log", *more, key] for key in ("run:r", "context:c") for more in ([], ["-p"]))]:
        shown = cli(*words).out.decode()
        for digest in set(DIGEST.findall(shown)):
            with failures.case(*words, digest):
                assert cli("show", digest).code == 0
    failures.check()


def test_the_digest_of_a_contexts_state_shows_its_snapshot(cli: Cli, task: Task) -> None:
    make_runs(cli, task)
    digest = cli.json("exec", "show", "r")["context"]["sha256"]
    for text in (digest, digest[:12], digest[:12].upper()):
        found = cli.json("show", text)
        assert (found["scope"], found["seq"], found["state"]["prompts"]["system"]) == ("context:c", 0, "one")
    assert cli.refused("show", "0" * 64, exits=1)["code"] == "not_found"


def test_objects_and_scopes_are_shown_by_their_digest(cli: Cli, task: Task) -> None:
    make_runs(cli, task)
    scope = next(row for row in cli.json("scopes")["scopes"] if row["scope"] == "run:r")
    assert cli.json("show", scope["hash"]) == cli.json("show", "run:r")
    objects: dict[str, Any] = cli.json("show", "run:r")["objects"]
    assert cli.json("show", objects["/outputs/a"]["sha256"]) == "x" * 9000
    source = objects["/machine/source"]["sha256"]
    assert json.loads(cli("show", source, "--raw").out)["name"] == "m"
    assert cli("show", source, "--raw").out == (cli.home / "m.json").read_bytes()


def test_an_artifact_is_shown_as_text_that_cannot_control_a_terminal(cli: Cli) -> None:
    from stateline import Store
    from stateline.bundle.objects import Artifact

    store = Store.open(cli.state)
    text, data = (store.put(Artifact(content, "text/plain")).sha256 for content in (b"a\x1b[2Jb\n", b"\xff\x00"))
    assert cli("show", text).out.decode() == "a\ufffd[2Jb\n"
    assert cli.json("show", text) == "a\x1b[2Jb\n"
    assert cli.refused("show", data, exits=1)["code"] == "refused"
    assert cli("show", data, "--raw").out == b"\xff\x00"
    (cli.state / "objects" / text[:2] / text).write_bytes(b"other")
    assert cli.refused("show", text, exits=5)["code"] == "integrity"
