"""A snapshot whose digests are right and whose members are not: refused by the reader, ``verify`` and the auditor's
script of docs/format.md alike."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from each_case import each

from stateline import Store
from stateline.bundle import canonical, naming
from stateline.bundle.canonical import sha256
from stateline.bundle.envelope import LIST_TYPE, NODE_TYPE, Pointer, Ref
from stateline.errors import IntegrityError
from stateline.verify.checker import verify

pytestmark = [
    pytest.mark.skipif(not shutil.which("jq") or not shutil.which("sh"), reason="the script needs sh and jq"),
    pytest.mark.usefixtures("jq_memo"),
]

KEY = "notes:forged"
SCRIPT = re.findall(
    r"^```sh\n(.*?)^```$",
    (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)[0]
TIME = "2026-11-20T09:26:59.123456Z"
LINK = {"scope": "notes:other", "seq": 3, "sha256": "b" * 64}
GOOD: dict[str, Any] = {
    "version": "1", "seq": 0, "created_at": TIME, "tool_version": "0", "scope": KEY, "prev_sha": None, "prev": None,
    "kind": "notes", "event": {"durability": "full"}, "state": {"a": None}, "merged": LINK,
}  # fmt: skip


def forge(root: Path, document: dict[str, Any]) -> None:
    """The document as the scope's only snapshot, with all digests right."""
    scope = Store.open(root).scope(KEY)
    scope.save({"n": 1})
    for path in (root / scope.hash).glob("state-*"):
        path.unlink()
    data = canonical.encode(document, depth=canonical.FILE_DEPTH)
    path = naming.snapshot_name(TIME, sha256(data), naming.LABEL)
    for name, content in ((path, data), (naming.POINTER, Pointer(path, sha256(data)).encode())):
        (root / scope.hash / name).write_bytes(content)
        (root / scope.hash / name).chmod(0o600)


def entry(root: Path, media_type: str, content: Any) -> dict[str, Any]:
    """The entry of a table for an object that is put for it."""
    ref = Store.open(root).put_value(content)
    return Ref(ref.sha256, ref.size, media_type).document()


def called_intact(root: Path) -> list[bool]:
    (root.parent / "audit.sh").write_text(SCRIPT)
    command = ["sh", "audit.sh", str(root), naming.scope_hash(KEY)]
    done = subprocess.run(command, cwd=root.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    damage = [finding for finding in verify(Store.open(root), KEY).findings if finding.severity == "damage"]
    try:
        head = Store.open(root).scope(KEY).load()
        Store.open(root).resolve(head.state)
    except IntegrityError:
        return [done.returncode == 0, not damage, False]
    return [done.returncode == 0, not damage, True]


CHANGES: dict[str, Any] = {
    "none": {},
    "no media type": {"media_type": ...},
    "another member": {"more": 1},
}


@each("where", ["a snapshot", "a node", "a chunk", "before"])
@each("change", CHANGES)
def test_reader_verify_and_script_refuse_an_entry_with_other_members(tmp_path: Path, where: str, change: str) -> None:
    root = tmp_path / "s"
    chunk = {"before": None, "items": [1], "objects": {}}
    inner = entry(root, LIST_TYPE, chunk) if where == "before" else entry(root, "application/json", "text")
    inner = {name: value for name, value in (inner | CHANGES[change]).items() if value is not ...}
    outer = {
        "a snapshot": lambda: inner,
        "a node": lambda: entry(root, NODE_TYPE, {"value": [None], "objects": {"/0": inner}}),
        "a chunk": lambda: entry(root, LIST_TYPE, {"before": None, "items": [None], "objects": {"/0": inner}}),
        "before": lambda: entry(root, LIST_TYPE, {"before": inner, "items": [1], "objects": {}}),
    }[where]()
    forge(root, GOOD | {"objects": {"/a": outer}})
    assert called_intact(root) == [change == "none"] * 3


@each(
    "change",
    [
        {"merged": None},
        {"origin": None},
        {"merged": LINK | {"seq": -5}},
        {"merged": LINK | {"scope": ""}},
        {"merged": LINK | {"sha256": "b"}},
        {"objects": {"/a": {"media_type": "a/b", "sha256": "b" * 64, "size": 2**62}}},
        {"objects": {"/a": {"media_type": "a/b", "sha256": "b" * 64, "size": 1.5}}},
    ],
)
def test_reader_verify_and_script_refuse_an_impossible_link_or_size(tmp_path: Path, change: dict[str, Any]) -> None:
    forge(tmp_path / "s", GOOD | {"objects": {}} | change)
    assert called_intact(tmp_path / "s") == [False] * 3
