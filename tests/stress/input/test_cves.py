"""One test for each lesson that others paid for: 27 CVEs and a few incidents, asserted of this program's own behaviour.

Each test names the lesson's number, the CVE and, in our words, the fault. What is proved of the source itself (no
pickle, no evaluation, no flag that turns a check off) is in ``test_source.py``; what readers make of hostile bytes in
``test_fuzzing.py``; names and places in ``test_lessons_about_names.py``. Lessons about things that are not here yet:

| lesson | not here | tested instead |
|---|---|---|
| 4, 5: injection through filters (SQL) | no query language | every command's words are typed; no database is imported |
| 6: the same in a second backend (redis) | no remote backend | all backends refuse the same names in the same words |
| 10: ids put into URLs | no HTTP client | ids are checked again by each command that takes one |
| 20: access lists on Windows | POSIX modes only are looked at | modes of all that is made, whatever the umask |
| LiteLLM: a guardrail's log | no guardrails, no logs | errors, ``--debug`` and verbose words, and all files |
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from stress.input.loaders import strict_json

from stateline import Store
from stateline.bundle import canonical, envelope, naming, objects
from stateline.cli.main import run
from stateline.errors import IntegrityError, InvalidValueError, StatelineError, UsageError
from stateline.machine.expressions import json_schema
from stateline.service.answers import parse_answer
from stateline.verify.checker import verify

ROOT = Path(__file__).resolve().parents[3]
SPOOFED: list[Any] = [
    {"lc": 1, "type": "secret", "id": ["LESSON_API_KEY"]},
    {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["touch ran"], "kwargs": {}},
    {"__reduce__": ["os.system", ["touch ran"]], "__class__": "os.system", "__proto__": {"a": 1}},
    {"py/object": "subprocess.Popen", "py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["touch ran"]}]},
    {
        "$type": "System.Diagnostics.Process",
        "@type": "java.lang.Runtime",
        "_type": "pickle",
        "!!python/object": "os.system",
    },
    {"__type__": "pickle", "data": base64.b64encode(b"cos\nsystem\n(S'touch ran'\ntR.").decode()},
    {"type": "artifact", "sha256": "ab" * 32, "size": 3, "media_type": "application/octet-stream"},
    {"$ref": "file:///etc/passwd", "path": "/etc/passwd", "include": "@/etc/passwd", "source": "file:///etc/hosts"},
]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LESSON_API_KEY", "s3cr3t-of-the-lesson")
    return "s3cr3t-of-the-lesson"


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_1_a_lone_surrogate_is_an_error_and_nothing_falls_back_to_another_encoding(tmp_path: Path) -> None:
    """CVE-2025-64439: what JSON could not hold was written by a fallback that could run code when it was read."""

    def check(tmp_path: Path, bad: Any) -> None:
        store = Store.open(tmp_path / "state")
        scope = store.scope("notes:a")
        scope.save({"n": 1})
        before = files(tmp_path)
        for refused in (lambda: scope.save({"v": bad}), lambda: store.put_value(bad), lambda: canonical.encode(bad)):
            with pytest.raises(InvalidValueError, match="surrogate"):
                refused()
        assert files(tmp_path) == before
        for text in (b'"\\ud800"', b'{"\\udfff":1}'):
            with pytest.raises(InvalidValueError):
                parse_answer(text)
            with pytest.raises(IntegrityError):
                canonical.decode(text)

    for_each(check, ["\ud800", {"a": ["\udfff"]}, {"\ud800": 1}, "ok\udc80"], root=tmp_path)


def test_2_3_7_and_12_what_looks_like_a_marker_of_a_type_is_data_and_comes_back_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """CVE-2026-28277, CVE-2026-27794, CVE-2025-68664, CVE-2025-32434, and spoofed markers in an agent framework: values
    that look like the format's own words were built into objects, or replaced by secrets of the environment."""

    def check(tmp_path: Path, marked: Any) -> None:
        monkeypatch.chdir(tmp_path)
        value = {"inline": marked, "taken out": [marked, "x" * 5000], "in a list": [[marked, "y" * 3000]] * 3}
        Store.open(tmp_path / "state").scope("notes:a").save(value)
        store = Store.open(tmp_path / "state")
        back = store.resolve(store.scope("notes:a").load().state)
        assert back == value
        assert canonical.encode(back) == canonical.encode(value)
        assert verify(store).ok
        assert not (tmp_path / "ran").exists()
        assert key.encode() not in b"".join(files(tmp_path / "state").values())

    for_each(check, SPOOFED, root=tmp_path)


def test_7_no_key_of_the_users_state_is_the_formats_own(tmp_path: Path) -> None:
    """CVE-2025-68664: user data and the serializer's words shared one place, and one could pass for the other."""
    names = [
        *envelope.Envelope.__struct_fields__,
        "sha256",
        "media_type",
        "size",
        "value",
        "items",
        "before",
        "repaired",
        "path",
    ]
    table = {"/a": {"media_type": "application/json", "sha256": "ab" * 32, "size": 9}}
    value = {**dict.fromkeys(names), "objects": table, "before": table["/a"], "repaired": {"objects": ["ab" * 32]}}
    scope = Store.open(tmp_path / "state").scope("notes:a")
    scope.save({**value, "large": {**value, "text": "x" * 5000}})
    store = Store.open(tmp_path / "state")
    head = store.scope("notes:a").load()
    assert store.resolve(head.state) == {**value, "large": {**value, "text": "x" * 5000}}
    assert set(head.envelope.objects) == {"/large/text"}
    assert verify(store).ok


def test_7_callers_cannot_set_the_stores_event_members(tmp_path: Path, key: str) -> None:
    """The same for events: how durable a save was, and how much was masked in it."""
    scope = Store.open(tmp_path / "state").scope("notes:a")
    saved = scope.save({"header": f"Bearer {key}"}, event={"durability": "mine"})
    assert (saved.event["durability"], saved.event["redactions"]) == ("full", 1)
    for mine in ({"redactions": 0}, {"repaired": {"gaps": [], "objects": []}}):
        with pytest.raises(InvalidValueError):
            scope.save({"n": 1}, event=mine)
    assert scope.load() == saved


def test_8_another_reader_reads_the_same_values() -> None:
    """CVE-2025-68665: the twin of a fault in another language. The fixtures are read by other readers than ours."""
    found = [path for path in (ROOT / "tests" / "fixtures").rglob("*") if path.is_file()]
    read = 0
    for path in found:
        data = path.read_bytes()
        good, value = strict_json(data, canonical.FILE_DEPTH)
        if good and path.suffix == ".json":
            assert canonical.decode(data) == value
            assert json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == data
            read += 1
    assert read >= 5


READS = """
import sys
opened = []
def hook(event, arguments):
    if event in ("open", "os.open", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.exec", "os.system"):
        opened.append((event, str(arguments[0])))
from stateline import Store
from stateline.verify.checker import verify
from stateline.machine.definition.check import check
import stateline.store.local.backend, stateline.machine.expressions.json_schema, jsonschema_rs
Store.open(sys.argv[1]).scope("notes:a").load()
sys.addaudithook(hook)
store = Store.open(sys.argv[1])
store.resolve(store.scope("notes:a").load().state)
verify(store)
machine = b'{"stateline":1,"name":"m","input":{"$ref":"file:///etc/passwd"},'
machine += b'"state_schema":{"$ref":"http://127.0.0.1:9/x"},'
machine += b'"context":"/etc/passwd","tools":"../../etc/passwd","stages":{"a":{"end":{}}}}'
check(machine, "m.json")
outside = [one for one in opened if "/etc/" in one[1] or "127.0.0.1" in one[1] or one[0] not in ("open", "os.open")]
print(outside, len(opened))
"""


def test_9_nothing_that_is_read_names_a_file_or_an_address_that_is_then_opened(tmp_path: Path) -> None:
    """CVE-2026-34070: a path in a loaded document was opened. Every file that is opened is seen, by the interpreter."""
    Store.open(tmp_path / "state").scope("notes:a").save({"v": SPOOFED, "big": ["file:///etc/passwd" * 500]})
    done = subprocess.run(
        [sys.executable, "-c", READS, str(tmp_path / "state")], capture_output=True, text=True, timeout=60, check=True
    )
    outside, _, count = done.stdout.strip().rpartition(" ")
    assert outside == "[]"
    assert int(count) >= 3  # it did watch


def test_9_a_schema_is_whole_in_itself_and_nothing_else_is_fetched_for_it(tmp_path: Path) -> None:
    """The same in compiled code, which the interpreter does not see: a file that is there, a server that listens."""
    import socket

    (tmp_path / "schema.json").write_text('{"type": "string"}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for where in (f"file://{tmp_path}/schema.json", f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"):
            for schema in ({"$ref": where}, {"properties": {"a": {"$ref": where}}}):
                assert json_schema.problems(schema) != []
                assert "the schema cannot be used" in json_schema.violations(schema, {"a": "text"})[0]
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()


def test_21_and_22_depth_is_bounded_on_the_way_in_and_on_the_way_out(tmp_path: Path) -> None:
    """CVE-2024-27454 and CVE-2025-67221: a JSON library ran out of stack, when it read and when it wrote."""

    def check(tmp_path: Path, levels: int) -> None:
        value: Any = []
        for _ in range(levels - 1):
            value = [value]
        text = b"[" * levels + b"]" * levels
        beside = b"[[]," * levels + b"0" + b"]" * levels  # never many brackets in a row
        scope = Store.open(tmp_path / "state").scope("notes:a")
        with pytest.raises(InvalidValueError, match="deep"):
            canonical.encode(value)
        with pytest.raises(InvalidValueError, match="deep"):
            scope.save({"v": value})
        for bomb in (text, beside):
            with pytest.raises(InvalidValueError, match="deep"):
                canonical.parse(bomb)
            with pytest.raises(IntegrityError, match="deep"):
                canonical.decode(bomb, depth=canonical.DEPTH)
        with pytest.raises(IntegrityError):
            envelope.read_envelope(b'{"state":' + text + b"}")
        with pytest.raises((IntegrityError, InvalidValueError)):
            objects.split(value) and canonical.encode(value)
        while value:  # taken apart by hand: freeing it all at once is a recursion as well
            value = value.pop()

    for_each(check, [canonical.DEPTH + 1, 1_000, 100_000], root=tmp_path)


def test_nan_and_infinity_are_refused_and_never_become_null() -> None:
    """Measured of three JSON libraries: NaN is written as null, and 1e400 is read as something else."""

    def check(text: str) -> None:
        for data in (text.encode(), f" {text}\n".encode()):
            with pytest.raises(InvalidValueError):
                canonical.parse(data)
        with pytest.raises(IntegrityError):
            canonical.decode(text.encode())
        with pytest.raises(InvalidValueError):
            canonical.encode({"a": [float("nan"), float("inf")]})

    for_each(check, ["NaN", "Infinity", "-Infinity", "1e400", "[-1e999]", '{"a":NaN}'])


SCRIPT = (ROOT / "docs" / "format.md").read_text("utf-8").split("```sh\n", 1)[-1].split("```", 1)[0]
NEEDED = ("sh", "jq", "sha256sum")


def read_all(state: Path) -> None:
    """All snapshots of ``notes:a``, with their objects."""
    reader = Store.open(state)
    for snapshot in reader.scope("notes:a").walk():
        reader.resolve(snapshot.state)


def audit(tmp_path: Path, store: Store, scope: str) -> tuple[int, list[str]]:
    """The auditor's script over a store: its exit code, and the names of the files that jq was given."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    log = tools / "given"
    log.write_text("")
    (tools / "jq").write_text(
        f'#!/bin/sh\nfor last; do :; done\necho "$last" >> "{log}"\nexec {shutil.which("jq")} "$@"\n'
    )
    (tools / "jq").chmod(0o755)
    (tools / "audit.sh").write_text(SCRIPT)
    done = subprocess.run(
        ["sh", str(tools / "audit.sh"), str(tmp_path / "state"), scope],
        env={"PATH": f"{tools}:/usr/bin:/bin:/usr/local/bin"}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, [Path(line).name for line in log.read_text().splitlines()]


@pytest.mark.usefixtures("jq_memo")
@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in NEEDED), reason="the auditor's script needs jq and sha256sum"
)
def test_23_an_auditor_hashes_first_and_jq_sees_no_file_that_is_altered_large_or_deep(tmp_path: Path) -> None:
    """CVE-2026-43896 and CVE-2026-32316: jq overflowed on files that it was asked to judge."""

    def check(tmp_path: Path, bomb: bytes) -> None:
        store = Store.open(tmp_path / "state")
        scope = store.scope("notes:a")
        first = scope.save({"n": 1})
        second = scope.save({"big": "x" * 5000})
        assert audit(tmp_path, store, scope.hash)[0] == 0
        place, big = tmp_path / "state" / scope.hash, second.envelope.objects["/big"].sha256
        good = (place / "latest.json").read_bytes()
        targets = {
            place / first.path: first.path,
            place / second.path: second.path,
            tmp_path / "state" / naming.object_path(big): big,
            place / "latest.json": "latest.json",
        }  # fmt: skip
        for path, name in targets.items():
            kept = path.read_bytes()
            path.write_bytes(bomb)
            code, given = audit(tmp_path, store, scope.hash)
            assert code == 1, name
            if name != "latest.json" or len(bomb) > 4096:
                assert name not in given
            with pytest.raises(StatelineError):
                read_all(tmp_path / "state")
            path.write_bytes(kept)
        assert (place / "latest.json").read_bytes() == good

    for_each(check, [b"[" * 100_000, b'{"a":' * 5_000, b'{"version":"1","x":"' + b"y" * 100_000 + b'"}'], root=tmp_path)


def test_24_a_truncated_or_replayed_tail_is_reported(tmp_path: Path) -> None:
    """CVE-2023-31438, CVE-2023-31439 and CVE-2026-44544: a log that was cut, and a policy that was set back, passed."""
    scope = Store.open(tmp_path / "state").scope("notes:a")
    chain = [scope.save({"n": number}) for number in range(4)]
    place = tmp_path / "state" / scope.hash

    def told() -> tuple[bool, set[tuple[str, str]]]:
        report = verify(Store.open(tmp_path / "state"))
        return report.ok, {(finding.severity, finding.code) for finding in report.findings}

    assert told() == (True, set())
    newest = (place / chain[3].path).read_bytes()
    (place / chain[3].path).unlink()  # the tail is gone, and the pointer still names it
    assert told()[0] is False
    assert ("damage", "missing") in told()[1]
    (place / chain[3].path).write_bytes(newest)
    (place / chain[3].path).chmod(0o600)
    (place / "latest.json").write_bytes(chain[1].pointer.encode())  # an older pointer, replayed
    assert told()[0] is False
    (place / "latest.json").write_bytes(chain[2].pointer.encode())  # by one: what a crash leaves behind
    assert told()[0] is True
    assert "residue" in {severity for severity, _ in told()[1]}
    (place / chain[3].path).unlink()  # consistent: only an anchor from outside can tell, and does
    assert told() == (True, set())
    assert not verify(Store.open(tmp_path / "state"), None, [chain[3].sha256]).ok


def test_no_error_no_traceback_and_no_file_shows_a_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """LiteLLM, 2026-03-18: a log of rejected requests held their Authorization headers."""

    def check(tmp_path: Path, words: list[str]) -> None:
        (tmp_path / "m.json").write_text(json.dumps({
            "stateline": 1, "name": "m", "input": {"type": "object", "maxProperties": 1},
            "stages": {"a": {"task": ["sh", "-c", "echo Authorization: Bearer $LESSON_API_KEY >&2; exit 3"],
                             "env": ["LESSON_API_KEY"], "repeatable": True}},
        }))  # fmt: skip
        monkeypatch.setenv("STATELINE_STATE_DIR", str(tmp_path / "state"))
        machine, secret = str(tmp_path / "m.json"), json.dumps({"authorization": f"Bearer {key}", "b": f"Basic {key}"})
        answer = json.dumps({"requestId": f"{key}:1", "answer": 1})
        calls = [
            ("execute", machine, "--id", "r1", "--no-input"),
            ("exec", "status", "r1"),
            ("exec", "history", "r1"),
            ("execute", machine, "--id", "r2", "--input", secret, "--force"),
            ("execute", machine, "--id", "r1", "--answer", answer),
            ("run", "--state-scope", "c", "--set", f"token={key}"),
            ("log", "-p", "run:r1"),
        ]
        for call in calls:
            assert run([*call, *words]) in (0, 1, 3, 5, 64)
            out, err = capfd.readouterr()
            assert key not in out + err, call
            assert base64.b64encode(f"Bearer {key}".encode()).decode() not in out + err
        assert files(tmp_path / "state")
        assert all(key.encode() not in data for data in files(tmp_path / "state").values())

    for_each(
        check,
        map(list, [(), ("--debug",), ("--verbose",), ("--format", "json"), ("--format", "json", "--debug")]),
        root=tmp_path,
    )


def test_4_and_5_what_selects_is_a_typed_word_and_never_part_of_a_query(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2025-67644 and CVE-2025-8709: keys and operators of a filter became part of a query."""

    def check(tmp_path: Path, words: list[str]) -> None:
        monkeypatch.setenv("STATELINE_STATE_DIR", str(tmp_path / "state"))
        Store.open(tmp_path / "state").scope("run:r1").save({"n": 1}, kind="run")
        before = files(tmp_path)
        assert run(list(words)) == 64
        assert files(tmp_path) == before
        assert "bug in stateline" not in capfd.readouterr().err

    for_each(
        check,
        map(
            list,
            [
                ("exec", "clean", "--older-than", "1' OR '1'='1"),
                ("exec", "clean", "--older-than", "-1d"),
                ("exec", "clean", "--older-than", "1d; rm"),
                ("exec", "clean", "--older-than", "9" * 400 + "d"),
                ("exec", "clean", "--older-than", "\u0663d"),
                ("exec", "clean", "--where", "1=1"),
                ("exec", "list", "--status", "' OR 1"),
                ("exec", "list", "$where"),
                ("scopes", "--filter", '{"$gt":""}'),
                ("scopes", "a*"),
                ("exec", "rm", "*"),
                ("exec", "rm", "r1' OR '1'='1"),
                ("log", "run:r1", "-n", "1 OR 1"),
                ("--wait", "1e999", "scopes"),
                ("--wait", "-1", "scopes"),
                ("--wait", "nan", "scopes"),
                ("--format", "json'", "scopes"),
            ],
        ),
        root=tmp_path,
    )


def test_an_invalid_id_is_a_usage_error_everywhere() -> None:
    """The type that all of the above rely on."""
    for text in ("1' OR '1'='1", "*", "$where", "a b"):
        with pytest.raises(UsageError):
            Store.in_memory().scope(text)
