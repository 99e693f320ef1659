"""The lessons of others about names, paths, links and modes, numbered as in ``test_lessons_of_others.py``."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each

from stateline import Artifact, Store
from stateline.bundle import canonical, naming
from stateline.bundle.envelope import Pointer
from stateline.cli.main import run
from stateline.errors import IntegrityError, NotFoundError, StatelineError, UnsafePathError, UsageError
from stateline.store.local.backend import LocalBackend
from stateline.store.memory import MemoryBackend
from stateline.verify.checker import verify

NOT_IDS = [
    "../x", "../../etc/passwd", "/etc/passwd", "a/../b", "a\\..\\b", "a/b", "..", ".", "", "-x", "x" * 65, "a\0b",
    "a\nb", "e\u0301", "\u00e9", "\uff0e\uff0e", "a b", "%2e%2e", "a:b", "~root", "$HOME", "`id`",
    "\u202eabc", "CON:",
]  # fmt: skip
POINTED = [
    "../x", "/etc/passwd", "latest.json", "../../state-2026-11-20T092659.123456Z-abababab.json", "state-x.json", "",
    "state-2026-11-20T092659.123456Z-abababab.json/../x", "sub/state-2026-11-20T092659.123456Z-abababab.json",
    "state-2026-11-20T092659.123456Z-ABABABAB.json", "state-2026-11-20T092659.123456Z-abababab.json\n",
    "state-\uff12026-11-20T092659.123456Z-abababab.json", "state-2026-11-20T092659.123456Z-abababab.json\0",
]  # fmt: skip


def tree(place: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in place.rglob("*")
    }


def read_all(state: Path) -> None:
    """The head of ``notes:a`` with all its objects."""
    reader = Store.open(state)
    reader.resolve(reader.scope("notes:a").load().state)


def state_dir(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state dir of a test, which commands find through the environment."""
    monkeypatch.setenv("STATELINE_STATE_DIR", str(place / "state"))
    monkeypatch.delenv("STATELINE_TRUST_PARENT", raising=False)
    return place / "state"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return state_dir(tmp_path, monkeypatch)


TAKERS: dict[str, Callable[[str], list[str]]] = {
    "exec status": lambda bad: ["exec", "status", "--", bad],
    "exec show": lambda bad: ["exec", "show", "--", bad],
    "exec history": lambda bad: ["exec", "history", "--", bad],
    "exec resume": lambda bad: ["exec", "resume", "--no-input", "--", bad],
    "exec resume --retry": lambda bad: ["exec", "resume", "--retry", "--", bad],
    "exec cancel": lambda bad: ["exec", "cancel", "--", bad],
    "exec rm": lambda bad: ["exec", "rm", "--", bad],
    "execute --id": lambda bad: ["execute", "m.json", "--no-input", f"--id={bad}"],
    "execute --state-scope": lambda bad: ["execute", "m.json", "--no-input", f"--state-scope={bad}"],
    "run --state-scope": lambda bad: ["run", "--set", "a=1", f"--state-scope={bad}"],
    "machine show --run": lambda bad: ["machine", "show", f"--run={bad}"],
    "machine draw --run": lambda bad: ["machine", "draw", f"--run={bad}"],
}


def test_10_and_16_each_command_that_takes_an_id_refuses_what_is_none_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-48776, CVE-2026-28482, CVE-2026-33497: ids were checked where they are made, or by one command only."""

    def check(tmp_path: Path, taker: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
        Path("m.json").write_text(json.dumps({"stateline": 1, "name": "m", "stages": {"a": {"end": {}}}}))
        Store.open(state).scope("run:r1").save({"n": 1}, kind="run")
        before = tree(tmp_path)
        for bad in NOT_IDS:
            if bad or taker not in ("run --state-scope", "execute --state-scope"):  # an empty word there is no word
                assert run(TAKERS[taker](bad)) in ((64,) if bad else (1, 64)), (taker, bad)
        assert tree(tmp_path) == before

    for_each(check, TAKERS, root=tmp_path)


def test_10_a_revision_that_could_be_a_path_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(tmp_path: Path, text: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        (tmp_path / "x").write_text("{}")
        Store.open(state).scope("run:r1").save({"n": 1}, kind="run")
        before = tree(tmp_path)
        for word in (text, f"run:{text}", f"run:r1@{text}", f"run:r1~{text}"):
            for command in ("show", "log"):
                assert run([command, "--", word]) in (1, 64), word
        assert tree(tmp_path) == before

    for_each(check, NOT_IDS, root=tmp_path)


def test_10_a_machine_record_that_names_a_run_by_a_path_leads_nowhere(state: Path, tmp_path: Path) -> None:
    """Ids out of the store are checked like those of the command line."""
    machine = tmp_path / "m.json"
    machine.write_text(json.dumps({"stateline": 1, "name": "m", "stages": {"a": {"human": {"prompt": "?"}}}}))
    assert run(["execute", str(machine), "--id", "r1", "--no-input"]) == 3
    store = Store.open(state)
    record = next(head for head in store.heads() if head.envelope.kind == "machine")
    for name in ("../../../x", "/etc/passwd", "a\nb", "", 5, None, ["r1"]):
        event = {**record.event, "run": name, "live": [name, "../y"]}
        event.pop("durability")
        store.scope(record.envelope.scope).save(record.state, kind="machine", event=event, masked=True)
        assert run(["execute", "-i", str(machine), "--dry-run"]) in (0, 1, 3, 5)
        assert run(["exec", "list"]) in (0, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "state"]


def test_13_a_pointer_names_a_snapshot_in_its_scope_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-28482: a file name in a session's record was joined to a directory."""

    def check(tmp_path: Path, path: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        scope = Store.open(state).scope("notes:a")
        saved = scope.save({"n": 1})
        for version in ("1", "1.1"):
            document = {"path": path, "sha256": saved.sha256, "version": version}
            (state / scope.hash / "latest.json").write_bytes(canonical.encode(document))
            with pytest.raises(IntegrityError):
                Store.open(state).scope("notes:a").head()
            assert not verify(Store.open(state)).ok

    for_each(check, POINTED, root=tmp_path)


def test_14_the_parent_that_a_snapshot_names_is_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """entireio/cli 1365: names in a shared checkpoint were trusted when it was restored."""

    def check(tmp_path: Path, path: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        scope = Store.open(state).scope("notes:a")
        scope.save({"n": 1})
        second = scope.save({"n": 2})
        document = {**canonical.decode(second.data), "prev": path}
        data = canonical.encode(document, depth=canonical.FILE_DEPTH)
        name = naming.snapshot_name(second.envelope.created_at, canonical.sha256(data))
        (state / scope.hash / name).write_bytes(data)
        (state / scope.hash / name).chmod(0o600)
        (state / scope.hash / "latest.json").write_bytes(Pointer(name, canonical.sha256(data)).encode())
        with pytest.raises(IntegrityError):
            list(Store.open(state).scope("notes:a").walk())

    for_each(check, POINTED, root=tmp_path)


@pytest.mark.skipif(not hasattr(os, "symlink") or os.name == "nt", reason="symbolic links of POSIX")
def test_14_18_and_19_a_link_in_the_place_of_anything_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2025-68146 and CVE-2026-22701: a lock's file was opened through a link that somebody had put there
    meanwhile; entireio/cli 1365: a directory led out of the store."""

    def check(tmp_path: Path, what: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        scope = Store.open(state).scope("notes:a")
        saved = scope.save({"big": "x" * 5000})
        digest = saved.envelope.objects["/big"].sha256
        path = {
            "scope": state / scope.hash,
            "objects": state / "objects",
            "shelf": state / "objects" / digest[:2],
            "pointer": state / scope.hash / "latest.json",
            "snapshot": state / scope.hash / saved.path,
            "object": state / "objects" / digest[:2] / digest,
        }.get(what, state / scope.hash / what)
        outside = tmp_path / "outside"
        if path.exists():
            path.rename(outside)  # just what belongs there, but reached through a link
        else:
            outside.write_bytes(b"precious")
        path.symlink_to(outside)
        before = {name: entry for name, entry in tree(tmp_path).items() if "outside" in name}
        if what not in ("scope.lock", ".tmp-held"):  # readers open neither
            with pytest.raises((UnsafePathError, IntegrityError)):
                read_all(state)
        try:
            Store.open(state).scope("notes:a").save({"big": "z" * 5000})
        except (UnsafePathError, IntegrityError):
            assert what not in ("shelf", "object")
        else:
            # The new object has another shelf, and a temporary file is made anew: neither way leads through the link.
            assert what in ("shelf", "object", ".tmp-held")
            assert what != ".tmp-held" or not path.is_symlink()
        assert {name: entry for name, entry in tree(tmp_path).items() if "outside" in name} == before

    for_each(
        check, ["scope", "objects", "shelf", "pointer", "snapshot", "object", "scope.lock", ".tmp-held"], root=tmp_path
    )


def test_15_whatever_a_value_holds_the_names_in_the_store_are_digests(state: Path, tmp_path: Path) -> None:
    """CVE-2026-42867 and CVE-2026-4502: a file was written where its content said."""
    store = Store.open(state)
    for name in ("../../x", "/etc/cron.d/x", "a\0b", "..", "~"):
        value = {
            name: "x" * 5000,
            "path": name,
            "filename": name,
            "raw": Artifact(name.encode() + b"y" * 5000, "text/plain"),
        }
        if name.isprintable():
            store.scope(f"notes:{name}").save(value)
        store.scope("notes:a").save(value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    for path in state.rglob("*"):
        known = (naming.STORE_FILE, naming.OBJECTS, naming.POINTER, naming.LOCK)
        good = path.name in known or naming.is_sha256(path.name) or naming.is_object_directory(path.name)
        assert good or naming.snapshot_parts(path.name), path
    assert verify(Store.open(state)).ok


def test_6_and_16_every_backend_refuses_the_same_names_at_every_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-27022: the fault of one backend came back in the next; CVE-2026-33497: in the next method."""

    def check(tmp_path: Path, kind: str, bad: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        backend: Any = LocalBackend(str(state)) if kind == "local" else MemoryBackend()
        pointer = Pointer("state-2026-11-20T092659.123456Z-abababab.json", "ab" * 32)
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: backend.put(f"{bad}/x", b""),
            "get": lambda: backend.get(f"{bad}/x", 10),
            "has": lambda: backend.has(f"{bad}/x", 0),
            "list": lambda: list(backend.list(bad)),
            "read": lambda: backend.read(bad),
            "swap": lambda: backend.swap(bad, None, pointer),
            "lock": lambda: backend.lock(bad, 0.0).__enter__(),
            "remove": lambda: backend.remove(bad),
        }
        for name, call in calls.items():
            with pytest.raises(UsageError) as refused:
                call()
            assert "nothing was" in refused.value.message, name
        assert not state.exists() or not any(state.iterdir())

    for_each(
        check,
        itertools.product(
            ["local", "memory"],
            ["../x", "/etc", "x", "objects/..", "objects/../..", "AB" * 32, "ab" * 32 + "/..", "", "objects/ab/.."],
        ),
        root=tmp_path,
    )


def test_17_no_option_makes_a_reader_take_what_is_altered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2026-2614: a tag on a request skipped the check of its path."""

    def check(tmp_path: Path, word: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        scope = Store.open(state).scope("notes:a")
        saved = scope.save({"n": 1})
        path = state / scope.hash / saved.path
        path.write_bytes(saved.data.replace(b'"n":1', b'"n":2'))
        for command in (["show", "notes:a"], ["log", "notes:a"], ["verify"]):
            words = [*command, word] if word != "--ephemeral" else [*command, "--state-dir", str(state)]
            assert run(words) == 5, words

    for_each(check, ["--trust-parent", "--ephemeral", "--debug", "--durability=fast", "--wait=0"], root=tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_11_and_20_all_that_is_made_is_the_owners_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2025-69872, CVE-2024-4030, and a framework's checkpoints with the umask's modes: others could write there."""

    def check(tmp_path: Path, umask: int) -> None:
        state = state_dir(tmp_path, monkeypatch)
        old = os.umask(umask)
        try:
            Store.open(state).scope("notes:a").save({"big": "x" * 5000})
            Store.open(state).scope("notes:a").save({"big": "y" * 5000})
        finally:
            os.umask(old)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in state.rglob("*") if path.is_dir()}
        assert modes | {stat.S_IMODE(state.stat().st_mode)} == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in state.rglob("*") if path.is_file()} == {0o600}

    for_each(check, [0o000, 0o022, 0o277], root=tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_11_a_writer_does_not_trust_a_place_that_others_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(tmp_path: Path, which: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        scope = Store.open(state).scope("notes:a")
        scope.save({"n": 1})
        {"state dir": state, "parent": tmp_path, "scope": state / scope.hash}[which].chmod(0o777)
        before = tree(state)
        with pytest.raises(UnsafePathError):
            Store.open(state).scope("notes:a").save({"n": 2})
        assert tree(state) == before
        tmp_path.chmod(0o700)

    for_each(check, ["state dir", "parent", "scope"], root=tmp_path)


def test_a_temporary_file_that_others_could_foresee_is_not_written_into(state: Path, tmp_path: Path) -> None:
    """A framework's storage wrote into one fixed ``.json.tmp``. What lies under our prefix is never written into."""
    scope = Store.open(state).scope("notes:a")
    scope.save({"n": 1})
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    os.link(outside, state / scope.hash / ".tmp-held")
    try:
        Store.open(state).scope("notes:a").save({"n": 2})
    except StatelineError:
        pass
    assert outside.read_bytes() == b"precious"


def test_16_an_object_is_fetched_by_a_digest_and_by_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(tmp_path: Path, sha: str) -> None:
        state = state_dir(tmp_path, monkeypatch)
        from stateline import Ref

        store = Store.open(state)
        store.scope("notes:a").save({"n": 1})
        for use in (
            lambda: store.get(Ref(sha, 1)),
            lambda: store.resolve({"a": Ref(sha, 1)}),
            lambda: store.append(Ref(sha, 1), [1]),
        ):
            with pytest.raises(StatelineError):
                use()
        with pytest.raises(StatelineError):
            store.scope("notes:a").save({"a": Ref(sha, 1)})

    for_each(
        check, ["../" * 20 + "etc/passwd", "AB" * 32, "ab" * 31, "ab" * 32 + "\n", "", "\uff10" * 64], root=tmp_path
    )


def test_10_an_id_is_judged_as_it_is_and_not_as_it_would_be_after_some_other_step() -> None:
    """Percent signs, composed characters and full-width dots are decoded, composed or folded by somebody, some day."""
    for text in ("%2e%2e%2f", "\uff0e\uff0e\uff0f", "e\u0301", "a%00", "..%c0%af"):
        assert not naming.is_id(text)
    first, second = (naming.scope_hash(f"notes:{text}") for text in ("\u00e9", "e\u0301"))
    assert first != second
    with pytest.raises(NotFoundError):
        Store.in_memory().scope("notes:\u00e9").load()
