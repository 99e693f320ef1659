"""The example of a tools manifest, and the document about tools: they do what they show."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each

from stateline.machine.expressions.json_schema import violations
from stateline.tools.check import check_manifest
from stateline.tools.manifest import Manifest, read_manifest
from stateline.tools.runner import ToolRun, run_tool

CHECKOUT = Path(__file__).resolve().parents[2]
DOCUMENT = (CHECKOUT / "docs" / "tools.md").read_text()

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the programs are scripts")


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """The example, in a copy that may be written in."""
    monkeypatch.delenv("NOTES_DIR", raising=False)
    shutil.copytree(CHECKOUT / "examples" / "tools", tmp_path / "tools")
    return read_manifest(str(tmp_path / "tools" / "tools.json"), lambda text: False)


@pytest.fixture
def call(manifest: Manifest) -> Callable[..., Any]:
    """Calls a tool of the example with arguments that its schema allows."""

    def call(name: str, key: str = "r1:1:1:ab", **arguments: Any) -> Any:
        tool = manifest.toolset.tools[name]
        assert violations(tool.schema, arguments) == []
        run = ToolRun(tool=tool, arguments=arguments, directory=manifest.directory, run="r1", key=key)
        return run_tool(run).result

    return call


def test_notes_are_found_without_regard_to_case(call: Callable[..., Any]) -> None:
    found = call("search_notes", query="A LOCK")
    assert [each["note"] for each in found["found"]] == ["locks", "locks"]
    assert call("search_notes", query="a lock", most=1)["more"] == 1


def test_a_note_that_was_added_is_found(call: Callable[..., Any]) -> None:
    assert call("add_note", title="new-one", text="Sync the directory too.") == "kept as new-one"
    assert call("search_notes", query="directory")["found"][0]["note"] == "new-one"


def test_the_same_call_again_is_one_note_and_another_call_is_refused(call: Callable[..., Any]) -> None:
    for _ in range(2):
        assert call("add_note", title="once", text="Once.") == "kept as once"
    refused = call("add_note", key="r1:2:1:ab", title="once", text="Twice.")
    assert refused["error"]["message"].endswith("there is already a note once; choose another title")
    assert len(call("search_notes", query="once.")["found"]) == 1


def test_no_title_is_a_path(manifest: Manifest) -> None:
    def one_case(title: str) -> None:
        assert violations(manifest.toolset.tools["add_note"].schema, {"title": title, "text": "x"})

    for_each(one_case, ["../x", "a/b", "", "a b", "-x", "x" * 61])


def test_every_command_of_the_document_prints_what_it_shows(manifest: Manifest) -> None:
    for block in re.findall(r"^```console\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE):
        for shown in block.split("$ ")[1:]:
            command, _, output = shown.partition("\n")
            ran = subprocess.run(
                ["sh", "-c", command],
                cwd=manifest.directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            assert ran.stdout.strip() == output.strip()


def test_the_tool_and_the_failure_that_the_document_shows_are_real(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, failure = re.findall(r"^```json\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert "search_notes" in check_manifest(f'{{"tools": [{tool}]}}'.encode()).tools
    monkeypatch.setenv("NOTES_DIR", "nowhere")
    assert call("search_notes", query="lock") == json.loads(failure)
