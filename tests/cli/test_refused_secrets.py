"""A token that somebody pasted into a machine file, a tools manifest or a name is refused before anything is kept."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Cli
from each_case import Failures

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
SECRET = TOKEN[4:]
MACHINE = """\
stateline: 1
name: pasted
stages:
  a:
    task: [sh, -c, echo 1, %s]
    repeatable: true
    default_next: done
  done: {end: {}}
"""


def wrote(cli: Cli, name: str, text: str) -> str:
    path = cli.home / name
    path.write_text(text)
    return str(path)


def bytes_kept(cli: Cli) -> bytes:
    return b"".join(path.read_bytes() for path in cli.state.rglob("*") if path.is_file())


def test_a_token_in_a_machine_file_is_refused_with_its_line(cli: Cli) -> None:
    path = wrote(cli, "machine.yaml", MACHINE % f"'--token={TOKEN}'")
    error = cli.refused("execute", path, exits=1)
    assert "holds a secret (line 5: GitHub token)" in error["message"]
    assert "environment" in error["hint"]
    assert SECRET not in json.dumps(error)
    assert SECRET.encode() not in bytes_kept(cli)


def test_check_says_of_a_token_what_execute_says(cli: Cli) -> None:
    failures = Failures()
    for spelt in [f"'--token={TOKEN}'", f'"\\x67{TOKEN[1:]}"']:
        with failures.case(spelt), cli.fresh():
            path = wrote(cli, "machine.yaml", MACHINE % spelt)
            checked = cli.json("machine", "check", path, exits=1)
            assert not checked["ok"]
            (problem,) = checked["problems"]
            assert (problem["code"], problem["message"]) == ("secret", cli.refused("execute", path, exits=1)["message"])
            assert SECRET not in json.dumps(checked)
    failures.check()


def test_a_token_that_a_machine_file_spells_with_escapes_is_refused_with_its_pointer(cli: Cli) -> None:
    path = wrote(cli, "machine.yaml", MACHINE % f'"\\x67{TOKEN[1:]}"')
    error = cli.refused("execute", path, exits=1)
    assert "holds a secret (/stages/a/argv/3: GitHub token)" in error["message"]
    assert SECRET.encode() not in bytes_kept(cli)


def test_a_token_in_a_tools_manifest_is_refused_with_its_place(cli: Cli) -> None:
    tool = {"name": "t", "description": "d", "argv": ["/bin/echo", TOKEN], "schema": {"type": "object"}}
    path = wrote(cli, "tools.json", json.dumps({"tools": [tool]}, indent=1))
    error = cli.refused("run", "-p", "x", "-m", "openai/m", "--tools", path, exits=1)
    assert "holds a secret (line 8: GitHub token)" in error["message"]
    assert SECRET not in json.dumps(error)
    Path(path).write_text(Path(path).read_text().replace("ghp_", "\\u0067hp_"))
    error = cli.refused("run", "-p", "x", "-m", "openai/m", "--tools", path, exits=1)
    assert "holds a secret (/tools/0/argv/1: GitHub token)" in error["message"]
    assert SECRET.encode() not in bytes_kept(cli)


def test_a_token_as_the_id_of_a_run_is_refused(cli: Cli) -> None:
    path = wrote(cli, "machine.yaml", MACHINE % "x")
    error = cli.refused("execute", path, "--id", TOKEN, exits=1)
    assert "the run's id holds a secret (GitHub token)" in error["message"]
    assert SECRET.encode() not in bytes_kept(cli)


def test_digests_base64_and_examples_are_not_tokens(cli: Cli) -> None:
    failures = Failures()
    for word in [
        "'sha256:" + "0a1b" * 16 + "'",
        "'ghp_" + "x" * 36 + "'",
        "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAA",
    ]:
        with failures.case(word), cli.fresh():
            assert cli.json("execute", wrote(cli, "machine.yaml", MACHINE % word))["status"] == "complete"
    failures.check()


def test_a_secret_is_refused_whatever_example_is_glued_to_it(cli: Cli) -> None:
    failures = Failures()
    for words in [
        f"'{TOKEN}_EXAMPLE'",
        f"'AKIAIOSFODNN7EXAMPLE{TOKEN}'",
        f"'Cookie: session={SECRET}; site=example.com'",
        f"'Authorization: Bearer {SECRET}/example'",
        f"'https://h/?token={SECRET}#example'",
    ]:
        with failures.case(words), cli.fresh():
            error = cli.refused("execute", wrote(cli, "machine.yaml", MACHINE % words), exits=1)
            assert "holds a secret (line 5: " in error["message"]
            assert SECRET.encode() not in bytes_kept(cli)
    failures.check()


def test_what_opens_nothing_is_run_as_it_was_written(cli: Cli) -> None:
    failures = Failures()
    for words in [
        "'DATABASE_URL=postgres://postgres:postgres@localhost:5432/test'",
        "'authorization,x-amz-content-sha256,x-amz-date'",
        "'Authorization: https://tools.ietf.org/html/rfc6749#section-7'",
    ]:
        with failures.case(words), cli.fresh():
            assert cli.json("machine", "check", wrote(cli, "machine.yaml", MACHINE % words))["ok"]
    failures.check()


def test_a_token_that_json_hides_in_the_name_of_a_value_is_refused(cli: Cli) -> None:
    machine = {"stateline": 1, "name": "pasted", "stages": {"a": {"task": ["true"]}}, "state": {TOKEN: 1}}
    path = wrote(cli, "machine.json", json.dumps(machine).replace("ghp_", "\\u0067hp_"))
    error = cli.refused("execute", path, exits=1)
    assert "holds a secret (" in error["message"]
    assert "GitHub token" in error["message"]
    assert SECRET not in json.dumps(error)
    assert SECRET.encode() not in bytes_kept(cli)
