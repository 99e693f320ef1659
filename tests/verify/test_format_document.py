"""The vectors, examples and script of docs/format.md."""

from __future__ import annotations

import base64
import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical, naming
from stateline.bundle.envelope import OWN_TYPES, Ref, read_envelope, read_pointer
from stateline.bundle.objects import THRESHOLD, Artifact, split
from stateline.errors import IntegrityError, InvalidValueError
from stateline.redaction.redactor import Redactor
from stateline.store.local.backend import LocalBackend
from stateline.store.snapshot import Snapshot
from stateline.store.store import Store
from stateline.verify.checker import verify

pytestmark = pytest.mark.usefixtures("jq_memo")

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
KEY = "notes:to audit"


def table(heading: str) -> list[list[str]]:
    """The cells of the table that begins with that heading, code quotes removed."""
    lines = PAGE.split("\n")
    start = lines.index(heading) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([re.sub(r"^`(.*)`$", r"\1", cell) for cell in line.strip("|")[1:-1].split(" | ")])
    return rows


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


VECTORS = table("| text | canonical form | SHA-256 |")
HEX_VECTORS = table("| text | canonical form in hex | SHA-256 |")
REFUSED = table("| text | because |")
NOT_CANONICAL = table("| bytes | because |")


def test_the_page_has_its_tables() -> None:
    assert (len(VECTORS), len(HEX_VECTORS), len(REFUSED), len(NOT_CANONICAL)) == (27, 3, 9, 9)


def test_values_have_the_canonical_form_and_digest_of_the_page() -> None:
    for text, form, sha in VECTORS:
        assert canonical.encode(canonical.parse(text.encode())) == form.encode(), text
        assert canonical.sha256(form.encode()) == sha, text
        assert canonical.encode(canonical.decode(form.encode())) == form.encode(), text
    for text, form, sha in HEX_VECTORS:
        assert canonical.encode(canonical.parse(text.encode())).hex() == form, text
        assert canonical.sha256(bytes.fromhex(form)) == sha, text


def accepted(read: Callable[[bytes], object], texts: list[list[str]], error: type[Exception]) -> list[str]:
    """The texts that ``read`` does not refuse with ``error``."""
    found = []
    for text, *_ in texts:
        try:
            read(text.encode())
        except error:
            continue
        found.append(text)
    return found


def test_texts_without_a_canonical_form_are_refused_in_values_and_in_files() -> None:
    assert accepted(canonical.parse, REFUSED, InvalidValueError) == []
    assert accepted(canonical.decode, REFUSED, IntegrityError) == []
    assert accepted(canonical.decode, NOT_CANONICAL, IntegrityError) == []


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_written_by_rule_five(number: float) -> None:
    """Compare with an oracle made of Python's own shortest digits and the words of the page."""
    sign = "-" if str(number).startswith("-") else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0").rstrip("0") or "0"
    leading = len(whole) if whole != "0" else -(len(fraction) - len(fraction.lstrip("0")))
    k = leading - 1 + int(exponent or 0) if digits != "0" else 0
    if -5 <= k <= 15:
        if k < 0:
            expected = "0." + "0" * (-k - 1) + digits
        else:
            expected = digits[: k + 1].ljust(k + 1, "0") + "." + (digits[k + 1 :] or "0")
    else:
        expected = digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + f"e{k}"
    assert canonical.encode(number).decode() == sign + expected


def test_the_example_of_the_page_is_a_store() -> None:
    first, second, pointer = (block.rstrip("\n").encode() for block in blocks("json"))
    names = re.findall(r"`(state-2026[^`]*\.json)`", PAGE)
    digests = re.findall(r"sha\n`([0-9a-f]{64})`", PAGE)
    assert f"`{naming.scope_hash('notes:demo')}`" in PAGE
    for data, name, sha in zip((first, second), names, digests, strict=True):
        envelope = read_envelope(data)
        assert canonical.sha256(data) == sha
        assert naming.snapshot_name(envelope.created_at, sha) == name
    later = read_envelope(second)
    assert (later.prev, later.prev_sha) == (names[0], digests[0])
    assert later.objects == split({"n": 2, "text": "a" * 4094}).objects
    assert (read_pointer(pointer).path, read_pointer(pointer).sha256) == (names[1], digests[1])


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"form, after its own parts have been taken out, has {THRESHOLD:,} bytes or more" in PAGE.replace("\n", " ")
    assert f"nest at most {canonical.DEPTH} deep in a value, and at most {canonical.FILE_DEPTH} in a file" in PAGE
    assert canonical.SNAPSHOT_LIMIT == 16 * 1024**2
    assert canonical.OBJECT_LIMIT == 1024**3
    assert f"`{OWN_TYPES}`" in PAGE
    for kind in ("context", "run", "session", "machine"):
        assert f"`{kind}`" in PAGE


def test_secrets_are_masked_as_the_page_promises_and_no_further() -> None:
    known = 'mk "välue"/1234'
    redactor = Redactor.from_environment({"SERVICE_API_KEY": known})
    redactor.add("registered-1")
    masked = [
        known,
        base64.b64encode(known.encode()).decode(),
        quote(known, safe=""),
        json.dumps(known),
        "registered-1",
    ]
    for text in masked:
        assert redactor.redact([f"a {text} b"])[1] == 1
    assert redactor.redact({"client_secret": "anything"})[1] == 1
    formats = [
        "AKIA" + "ABCDEFGH" * 2,
        "ghp_" + "a1" * 18,
        "Authorization: Bearer 0a1b2c3d4e5f6a7b8c9d",
        "postgres://ann:hunter22@db.example/x",
        "https://h.example/?api_key=0a1b2c3d4e5f6a7b",
        "SOME_API_KEY=0a1b2c3d4e5f6a7b8c9d",
        "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIB" * 8 + "\n-----END PRIVATE KEY-----",
    ]
    for text in formats:
        assert redactor.redact([f"a {text}"])[1] == 1
    ordinary = ["short-1", "ab12" * 16, "https://h.example/?key=products_2024_list_page", "Bearer your-api-key"]
    for text in (*ordinary, base64.b64encode(formats[1].encode()).decode()):
        assert redactor.redact([text]) == ([text], 0)


# -- the auditor's script ----------------------------------------------------------------------------------------------

needs_tools = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("sh", "jq", "sha256sum")), reason="the script needs jq and sha256sum"
)


class Audited:
    """A store on disk with a chain of three, and names for its files."""

    def __init__(self, place: Path) -> None:
        self.place = place
        ticks = iter(range(10**18, 10**19, 10**9))
        self.store = Store(LocalBackend(str(place)), redactor=Redactor(), clock=lambda: next(ticks))
        scope = self.store.scope(KEY)
        self.hash = scope.hash
        doc = {"body": "a" * 4094, "note": "b" * 3000, "tail": "c" * 3000}
        self.chain: list[Snapshot] = [scope.save({"n": 0})]
        self.chain.append(scope.save({"n": 2**60 + 1, "big": "x" * 5000, "doc": doc}))
        self.chain.append(scope.save({"n": 2, "doc": doc, "raw": Artifact(b"raw bytes"), "log": ["l" * 3000] * 5}))
        node: Ref = self.chain[2].envelope.objects["/doc"]
        inner = canonical.decode(self.store.get(node))["objects"]["/body"]["sha256"]
        self.inner = inner
        last: Ref = self.chain[2].envelope.objects["/log"]
        self.chunk = canonical.decode(self.store.get(last))["before"]["sha256"]
        self.name_files()

    def at(self, place: Path) -> Audited:
        """Return the same for a copy of the store."""
        other = copy.copy(self)
        other.place = place
        other.store = Store(LocalBackend(str(place)), redactor=Redactor(), clock=lambda: 2 * 10**18)
        other.name_files()
        return other

    def name_files(self) -> None:
        place, node = self.place, self.chain[2].envelope.objects["/doc"]
        self.scope = place / self.hash
        self.files = {
            "store file": place / "stateline.json",
            "pointer": self.scope / "latest.json",
            "first": self.scope / self.chain[0].path,
            "middle": self.scope / self.chain[1].path,
            "head": self.scope / self.chain[2].path,
            "value": place / naming.object_path(self.chain[1].envelope.objects["/big"].sha256),
            "node": place / naming.object_path(node.sha256),
            "inner value": place / naming.object_path(self.inner),
            "last chunk": place / naming.object_path(self.chain[2].envelope.objects["/log"].sha256),
            "chunk before": place / naming.object_path(self.chunk),
            "artifact": place / naming.object_path(self.chain[2].envelope.objects["/raw"].sha256),
        }

    def point(self, number: int) -> None:
        self.files["pointer"].write_bytes(self.chain[number].pointer.encode())


def script_says(audited: Audited, script: Path) -> str:
    done = subprocess.run(
        ["sh", str(script), str(audited.place), audited.hash], capture_output=True, text=True, timeout=60, check=False
    )
    return {0: "intact", 1: "damage", 2: "newer"}.get(done.returncode, done.stderr)


def verify_says(audited: Audited) -> str:
    report = verify(Store.open(audited.place), KEY)
    if not report.ok:
        return "damage"
    return "newer" if any(finding.code == "newer_version" for finding in report.findings) else "intact"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return Audited(tmp_path_factory.mktemp("good") / "state dir")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "audit.sh"
    path.write_text(blocks("sh")[0], encoding="utf-8")
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def to_symlink(path: Path) -> None:
    path.rename(path.parent.parent.parent / "aside")
    path.symlink_to(path.parent.parent.parent / "aside")


CORRUPTIONS: dict[str, Callable[[Path], object]] = {
    "a byte in the middle flipped": lambda path: flip(path, path.stat().st_size // 3),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a newline added": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "removed": lambda path: path.unlink(),
    "made a symlink": to_symlink,
}
FILES = (
    *("store file", "pointer", "first", "middle", "head", "value", "node", "inner value", "artifact"),
    *("last chunk", "chunk before"),
)


Case = tuple[str, Callable[[Audited], object], str]


def disagreements(good: Audited, script: Path, directory: Path, cases: Iterable[Case]) -> list[str]:
    """Cases in which script or verify do not give the expected answer, each on its own copy of the store."""
    failures = []
    for number, (name, change, expected) in enumerate(cases):
        place = directory / str(number) / "state dir"
        shutil.copytree(good.place, place)
        audited = good.at(place)
        change(audited)
        answers = (script_says(audited, script), verify_says(audited))
        if answers != (expected, expected):
            failures.append(f"{name}: script and verify say {answers}, expected {expected}")
        shutil.rmtree(place.parent)
    return failures


@needs_tools
def test_script_and_verify_call_a_good_chain_intact_and_the_script_writes_nothing(good: Audited, script: Path) -> None:
    before = {str(path): path.lstat().st_mtime_ns for path in [good.place, *good.place.rglob("*")]}
    assert (script_says(good, script), verify_says(good)) == ("intact", "intact")
    assert {str(path): path.lstat().st_mtime_ns for path in [good.place, *good.place.rglob("*")]} == before


@needs_tools
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_script_and_verify_agree_on_a_corrupted_file(good: Audited, script: Path, tmp_path: Path, name: str) -> None:
    def corrupt(file: str) -> Callable[[Audited], object]:
        return lambda audited: CORRUPTIONS[name](audited.files[file])

    # Longer and shorter files are one kind of harm, so each file has one of them.
    files = {"cut in half": FILES[::2], "a newline added": FILES[1::2]}.get(name, FILES)
    cases = [(file, corrupt(file), "damage") for file in files]
    failures = disagreements(good, script, tmp_path, cases)
    assert not failures, "\n".join(failures)


def set_back(steps: int) -> Callable[[Audited], None]:
    return lambda audited: audited.point(2 - steps)


def swap(one: str, other: str) -> Callable[[Audited], None]:
    def change(audited: Audited) -> None:
        first, second = audited.files[one].read_bytes(), audited.files[other].read_bytes()
        audited.files[one].write_bytes(second)
        audited.files[other].write_bytes(first)

    return change


def add(name: str, content: bytes = b"") -> Callable[[Audited], None]:
    def change(audited: Audited) -> None:
        (audited.scope / name).write_bytes(content)

    return change


def point_nowhere(audited: Audited) -> None:
    replace("pointer", b'"version":"1"', b'"version":"1.1"')(audited)
    replace("pointer", b"Z-", b"Y-")(audited)


def rename(file: str, name: str) -> Callable[[Audited], None]:
    return lambda audited: audited.files[file].rename(audited.scope / name) and None


def replace(file: str, old: bytes, new: bytes) -> Callable[[Audited], None]:
    def change(audited: Audited) -> None:
        data = audited.files[file].read_bytes()
        assert old in data
        audited.files[file].write_bytes(data.replace(old, new))

    return change


def leftover(audited: Audited) -> None:
    """Leave a fourth snapshot whose pointer was never written."""
    audited.store.scope(KEY).save({"n": 3})
    audited.point(2)


def second_leftover(audited: Audited) -> None:
    """Leave one more on top of it: no crash leaves two."""
    audited.store.scope(KEY).save({"n": 3})
    leftover(audited)
    audited.point(2)


def leftover_first(audited: Audited) -> None:
    other = Audited(audited.place.parent / "other")
    changed = other.store.scope("notes:else").save({})
    data = changed.data.replace(b'"scope":"notes:else"', b'"scope":"notes:to audit"')
    name = naming.snapshot_name(changed.envelope.created_at, canonical.sha256(data))
    (audited.scope / name).write_bytes(data)


def forked(audited: Audited) -> None:
    """Put a newer snapshot beside the head, as two writers do where a lock does not hold."""
    older = audited.store.scope(KEY).save({"n": 3})
    audited.point(2)
    audited.store.scope(KEY).save({"n": 4})
    audited.files["pointer"].write_bytes(older.pointer.encode())


def leftover_of(size: int) -> Callable[[Audited], None]:
    """Leave a fourth snapshot of that many bytes whose pointer was never written."""

    def change(audited: Audited) -> None:
        saved = audited.store.scope(KEY).save({"n": ""})
        audited.point(2)
        (audited.scope / saved.path).unlink()
        data = saved.data.replace(b'{"n":""}', b'{"n":"' + b"n" * (size - len(saved.data)) + b'"}')
        assert len(data) == size
        name = naming.snapshot_name(saved.envelope.created_at, canonical.sha256(data))
        (audited.scope / name).write_bytes(data)

    return change


def stranger(audited: Audited) -> None:
    other = audited.store.scope("notes:else").save({})
    shutil.copy(audited.place / other.scope / other.path, audited.scope / other.path)


def other_chain(audited: Audited) -> None:
    """Add the head of another store's chain of the same key, without its past."""
    other = Audited(audited.place.parent / "other")
    foreign = [other.store.scope(KEY).save({"n": n}) for n in range(2)][-1]
    (audited.scope / foreign.path).write_bytes(foreign.data)


def again(file: str, label: int) -> Callable[[Audited], None]:
    """Add the same bytes under the name with a longer label."""

    def change(audited: Audited) -> None:
        data = audited.files[file].read_bytes()
        name = audited.files[file].name.rpartition("-")[0]
        (audited.scope / f"{name}-{canonical.sha256(data)[:label]}.json").write_bytes(data)

    return change


def made_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def elsewhere(audited: Audited, directory: Path) -> None:
    """Replace a directory by a symlink to its content outside of the state dir."""
    aside = audited.place.parent / "aside"
    directory.rename(aside)
    directory.symlink_to(aside)


def only_the_first(audited: Audited) -> None:
    """Leave what a crash leaves of a first save."""
    for name in ("pointer", "middle", "head"):
        audited.files[name].unlink()


LONG = "state-2026-11-20T092659.123456Z-00000000.json"
CHANGES: dict[str, tuple[Callable[[Audited], None], str]] = {
    "pointer set back by one": (set_back(1), "intact"),
    "pointer set back by two": (set_back(2), "damage"),
    "pointer to no file": (replace("pointer", b"Z-", b"Y-"), "damage"),
    "pointer with an upper-case digest": (
        lambda audited: replace("pointer", audited.chain[2].sha256.encode(), audited.chain[2].sha256.upper().encode())(
            audited
        ),
        "damage",
    ),
    "pointer with white space": (replace("pointer", b",", b", "), "damage"),
    "pointer of a newer version": (replace("pointer", b'"version":"1"', b'"version":"2"'), "newer"),
    "pointer of a newer minor version": (replace("pointer", b'"version":"1"', b'"version":"1.1"'), "intact"),
    "pointer of a newer minor version with white space": (
        replace("pointer", b',"version":"1"', b', "version":"1.1"'),
        "damage",
    ),
    "pointer of a newer minor version to no file": (point_nowhere, "damage"),
    "pointer with a member of a newer minor version": (
        replace("pointer", b'"version":"1"', b'"signed":true,"version":"1.12"'),
        "intact",
    ),
    "pointer of a version with a letter": (replace("pointer", b'"version":"1"', b'"version":"1.x"'), "damage"),
    "pointer of a version with a dot": (replace("pointer", b'"version":"1"', b'"version":"1."'), "damage"),
    "pointer of a version with two dots": (replace("pointer", b'"version":"1"', b'"version":"1.1.1"'), "damage"),
    "pointer of a version that is a number": (replace("pointer", b'"version":"1"', b'"version":1'), "damage"),
    "pointer without a version": (replace("pointer", b'"version":"1"', b'"version":""'), "damage"),
    "pointer to another directory": (replace("pointer", b'"path":"', b'"path":"../'), "damage"),
    "store file of no format": (replace("store file", b"stateline/1", b"stateline:1"), "damage"),
    "store file of a newer format": (replace("store file", b"stateline/1", b"stateline/2"), "newer"),
    "store file with a member of a newer minor version": (
        replace("store file", b'"store_id"', b'"since":"1.1","store_id"'),
        "intact",
    ),
    "first and middle exchanged": (swap("first", "middle"), "damage"),
    "middle and head exchanged": (swap("middle", "head"), "damage"),
    "two objects exchanged": (swap("value", "artifact"), "damage"),
    "node and value exchanged": (swap("node", "inner value"), "damage"),
    "middle twice": (again("middle", 16), "damage"),
    "head twice": (again("head", 64), "damage"),
    "file named by a star": (add("*"), "damage"),
    "lock a directory": (lambda audited: made_directory(audited.scope / "scope.lock"), "damage"),
    "pointer with a member that is not known": (
        replace("pointer", b'"version":"1"', b'"signed":true,"version":"1"'),
        "damage",
    ),
    "pointer twice in its file": (replace("pointer", b'"version":"1"}', b'"version":"1"}{}'), "damage"),
    "pointer of 5,000 bytes": (
        replace("pointer", b'"version":"1"', b'"version":"1.1","z":"' + b"z" * 5000 + b'"'),
        "damage",
    ),
    "store file without an id": (replace("store file", b'"store_id"', b'"store_ie"'), "damage"),
    "store file with another value behind it": (replace("store file", b'"}', b'"}{"a":1}'), "damage"),
    "store file of a format that is no number": (replace("store file", b"stateline/1", b"stateline/x"), "damage"),
    "objects a symlink": (lambda audited: elsewhere(audited, audited.place / "objects"), "damage"),
    "shelf a symlink": (lambda audited: elsewhere(audited, audited.files["value"].parent), "damage"),
    "all but the first removed": (only_the_first, "intact"),
    "middle under another time": (rename("middle", LONG), "damage"),
    "middle under a foreign name": (rename("middle", "middle.json"), "damage"),
    "number of the middle changed": (replace("middle", b'"seq":1', b'"seq":2'), "damage"),
    "parent of the head changed": (replace("head", b'"prev_sha":"', b'"prev_sha":"0'), "damage"),
    "integer over 2^53 changed": (replace("middle", b"1152921504606846977", b"1152921504606846976"), "damage"),
    "foreign file added": (add("notes.txt"), "damage"),
    "hidden file added": (add(".hidden"), "damage"),
    "extension added": (add("ext-pin.json", b"{}"), "intact"),
    "directory of an extension added": (lambda audited: (audited.scope / "ext-aside").mkdir(), "intact"),
    "link of an extension added": (lambda audited: (audited.scope / "ext-x").symlink_to("/nowhere"), "intact"),
    "name that only holds that of an extension": (add("x-ext-1"), "damage"),
    "temporary file added": (add(".tmp-0123"), "intact"),
    "empty snapshot added": (add(LONG), "damage"),
    "junk snapshot added": (add(LONG, b"{}"), "damage"),
    "snapshot name that is none": (add("state-x-1.json", b"{}"), "damage"),
    "snapshot never acknowledged": (leftover, "intact"),
    "snapshot never acknowledged, as large as may be": (leftover_of(canonical.SNAPSHOT_LIMIT), "intact"),
    "snapshot never acknowledged, one byte too large": (leftover_of(canonical.SNAPSHOT_LIMIT + 1), "damage"),
    "snapshot beside the head, and newer": (forked, "intact"),
    "two snapshots beyond the head": (second_leftover, "damage"),
    "first snapshot never acknowledged": (leftover_first, "intact"),
    "snapshot of another scope": (stranger, "damage"),
    "snapshot of another chain": (other_chain, "damage"),
    "directory added": (lambda audited: (audited.scope / "deep").mkdir(), "damage"),
    "lock removed": (lambda audited: (audited.scope / "scope.lock").unlink(), "intact"),
    "objects removed": (lambda audited: shutil.rmtree(audited.place / "objects"), "damage"),
    "scope removed but for its pointer": (
        lambda audited: [path.unlink() for path in audited.scope.glob("state-*")] and None,
        "damage",
    ),
}


@needs_tools
@pytest.mark.parametrize("part", range(4))
def test_script_and_verify_agree_on_a_changed_store(good: Audited, script: Path, tmp_path: Path, part: int) -> None:
    cases = [(name, change, expected) for name, (change, expected) in CHANGES.items()]
    failures = disagreements(good, script, tmp_path, cases[part::4])
    assert not failures, "\n".join(failures)
