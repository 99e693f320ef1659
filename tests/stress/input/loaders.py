"""Table of everything that reads bytes from outside: each loader takes any bytes and checks its promises.

To add a loader, write what feeds it and add a line to ``LOADERS``; the campaign and the tests take it from there. A
``feed`` returns quietly for what is read and for what is refused with a typed error, raises ``ViolationError`` where a
promise is broken, and lets every other exception through: that is the finding.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from stress.input import model_loaders, run_loaders
from stress.oracle import require

from stateline.bundle import canonical, envelope, naming, objects, repair_record
from stateline.bundle.envelope import JSON_TYPE, LIST_TYPE, NODE_TYPE, Chunk, Envelope, Link, Pointer, Ref
from stateline.cli import inputs
from stateline.errors import (
    IntegrityError,
    InvalidValueError,
    NewerVersionError,
    NotFoundError,
    StatelineError,
    UsageError,
)
from stateline.history import revision
from stateline.service.answers import parse_answer
from stateline.store.snapshot import parse_snapshot
from stateline.store.store import Store

SHA = "ab" * 32
NAME = "state-2026-11-20T092659.123456Z-abababab.json"
TABLE = {"/t": Ref(SHA, 5000, "text/plain"), "/list": Ref("cd" * 32, 70, LIST_TYPE)}


class Loader(msgspec.Struct, frozen=True):
    """``feed`` reads bytes; ``seeds`` gives good documents to begin with. ``native``: other people's compiled code does
    the reading, which may end the process, so that hostile input is tried in a child only."""

    feed: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    native: bool = False


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal in value and in type: 1 is not 1.0, and 0.0 is not -0.0."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def strict_json(data: bytes, depth: int) -> tuple[bool, Any]:
    """(True, value) for text that the standard library reads and format 1 can hold, else (False, None). Shares no code
    with what it is compared with."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            raise ValueError("a key twice")
        return dict(items)

    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError):
        return False, None
    return (True, value) if _can_be_held(value, depth) else (False, None)


def _can_be_held(value: Any, depth: int) -> bool:
    if isinstance(value, dict | list):
        inside = [*value, *value.values()] if isinstance(value, dict) else value
        return depth > 0 and all(_can_be_held(item, depth - 1) for item in inside)
    if isinstance(value, str):
        return not any("\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def canonical_file(data: bytes) -> None:
    """Accept exactly the canonical form of values that the standard library reads."""
    good, value = strict_json(data, canonical.FILE_DEPTH)
    try:
        found = canonical.decode(data)
    except IntegrityError:
        require(not good or canonical.encode(value, depth=canonical.FILE_DEPTH) != data, "refused although canonical")
        return
    require(good and same(found, value), "read otherwise than by the standard library")
    require(canonical.encode(found, depth=canonical.FILE_DEPTH) == data, "not written back")


def json_text(data: bytes) -> None:
    """Text from outside is taken exactly if the standard library takes it and format 1 can hold it."""
    good, value = strict_json(data, canonical.OUTSIDE_DEPTH)
    try:
        found = canonical.parse(data)
    except InvalidValueError as refused:
        require(not good, f"refused: {refused}")
        return
    require(good and same(found, value), "read otherwise than by the standard library")
    kept = canonical.encode(found)
    require(same(canonical.decode(kept), found), "not kept as it is")


def answer(data: bytes) -> None:
    """An answer is JSON, a text, or nothing; never a value that cannot be kept."""
    try:
        found = parse_answer(data)
    except InvalidValueError:
        return
    if found is not msgspec.UNSET:
        canonical.encode(found)
        try:
            require(same(canonical.parse(data), found), "JSON, and taken for something else")
        except InvalidValueError:
            require(found == data.decode().removesuffix("\n").removesuffix("\r"), "a text, and changed")
    else:
        require(not data.strip(), "taken for nothing")


def _outcome(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Return the result of ``read``, or the type of the typed error and the damage that it names."""
    try:
        return read(data)
    except (IntegrityError, NewerVersionError) as error:
        return type(error), getattr(error, "finding", "")


def snapshot(data: bytes) -> None:
    """The quick reader and the slow one agree, and what is read is written back byte for byte."""
    found = _outcome(envelope.read_envelope, data)
    slow = _outcome(lambda bad: envelope._read_envelope(bad, "the snapshot"), data)
    require(found == slow and repr(found) == repr(slow), "the two readers differ")
    if isinstance(found, Envelope):
        written, seen = envelope.write_envelope(found)
        # What a link holds besides its own members is let be by readers, and nobody writes a snapshot again.
        document = canonical.decode(data)
        links = [document.get(name, {}) for name in ("origin", "merged")]
        plain = all(link.keys() <= set(Link.__struct_fields__) for link in links)
        require(seen == found and (written == data or not plain), "not written back")
        text = canonical.encode_unchecked(found.state)
        require(envelope.write_envelope(found, text)[0] == written, "written otherwise from a draft")
        objects.with_refs(found.state, found.objects)
        repair_record.DeclaredLosses().add(found.event)
        _file_in_store(data, found)
    else:
        _file_in_store(data, None)


def _file_in_store(data: bytes, read: Envelope | None) -> None:
    sha = canonical.sha256(data)
    created = read.created_at if read else "2026-11-20T09:26:59.123456Z"
    scope = naming.scope_hash(read.scope) if read else SHA
    try:
        found = parse_snapshot(scope, naming.snapshot_name(created, sha), data)
    except (IntegrityError, NewerVersionError):
        require(read is None, "refused although its name and its scope fit")
    else:
        require(found.data == data and found.envelope == read, "the store reads another snapshot")


def declaration(data: bytes) -> None:
    """Check that declared losses apply only if their whole shape is valid and they lead down."""
    try:
        event = canonical.decode(data)
    except IntegrityError:
        return
    losses = repair_record.DeclaredLosses()
    losses.add({repair_record.MEMBER: event})
    for sha, gap in list(losses.gaps.items()):
        below = gap.resumes
        require(naming.is_sha256(sha), "a gap without a digest")
        require(below is None or naming.snapshot_parts(below.path) is not None, "a gap leads to no snapshot's name")
        require(below is None or below.seq <= gap.lost.seq, "a gap leads up")
        require(losses.take_gap(sha) is gap and losses.take_gap(sha) is None, "a gap can be taken twice")


def pointer(data: bytes) -> None:
    """A pointer names a file of a snapshot's name and nothing else."""
    try:
        found = envelope.read_pointer(data)
    except (IntegrityError, NewerVersionError):
        return
    require(naming.snapshot_parts(found.path) is not None and "/" not in found.path, "a path, not a name")
    require(naming.is_sha256(found.sha256), "no digest")
    if canonical.decode(data)["version"] == envelope.VERSION:
        require(found.encode() == data, "not written back")


def kept_object(data: bytes) -> None:
    """An object read as a value, a node and a chunk: what one of them takes is written back, and can be expanded."""
    value = _outcome(lambda read: (envelope.read_node(read),), data)
    if isinstance(value[0], tuple):
        inside, table = value[0]
        document = {"value": inside, "objects": {place: ref.document() for place, ref in table.items()}}
        require(canonical.encode(document, depth=canonical.FILE_DEPTH) == data, "a node is not written back")
    chunk = _outcome(envelope.read_chunk, data)
    if isinstance(chunk, Chunk):
        require(chunk.encode() == data, "a chunk is not written back")
    for media_type in (JSON_TYPE, NODE_TYPE, LIST_TYPE, "application/vnd.stateline.new+json", "text/plain"):
        _expand(data, Ref(canonical.sha256(data), len(data), media_type))


def _expand(data: bytes, ref: Ref) -> None:
    shelf = {ref.sha256: data, **_shelf()}

    def fetch(wanted: Ref) -> bytes:
        found = shelf.get(wanted.sha256)
        if found is None or len(found) != wanted.size:
            raise IntegrityError("it is not there, or has another size", finding="missing")
        return found

    try:
        objects.references(data, ref)
        whole = objects.resolve({"a": ref}, fetch)
    except (IntegrityError, NewerVersionError):
        return
    if objects.is_json(ref):
        again = objects.split(whole)
        shelf.update({part.sha256: content for part, content in again.contents.items()})
        require(objects.resolve(objects.with_refs(again.value, again.objects), fetch) == whole, "not kept as it is")
        try:
            objects.extend(ref, data, [1])
        except InvalidValueError:
            require(not isinstance(whole["a"], list), "a list that cannot grow")


@cache
def _shelf() -> dict[str, bytes]:
    """Sound objects that a hostile one may name: a text, a value, a node, a list of two chunks."""
    parts = objects.split({"node": {"t": "a" * 5000, "n": 1}, "list": ["b" * 3000, "b" * 3000, 7, {"c": "d" * 4094}]})
    return {ref.sha256: data for ref, data in parts.contents.items()}


def store_file(data: bytes) -> None:
    """``stateline.json``: a store that is opened with any bytes there says a typed error, or works."""
    root = _state_dir()
    with open(f"{root}/{naming.STORE_FILE}", "wb") as file:
        file.write(data)
    try:
        head = Store.open(root).scope("notes:a").head()
    except StatelineError as error:
        require(error.exit_code in (1, 5, 6), f"exit code {error.exit_code}")
    else:
        document = canonical.decode(data)
        require(head is None and document["format"] == envelope.FORMAT, "a store of no known format is read")
        require(naming.is_store_id(document["store_id"]), "a store without an id is read")


@cache
def _state_dir() -> str:
    import atexit
    import shutil
    import tempfile

    root = tempfile.mkdtemp(prefix="fuzzed-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def _word(data: bytes) -> str:
    """Bytes as they would be a word of the command line; the system ends a word at NUL."""
    return os.fsdecode(data.replace(b"\0", b""))


def setting(data: bytes) -> None:
    """``--set KEY=VALUE`` and ``--label``: values that can be kept, or a usage error."""
    for parsed in (True, False):
        try:
            found = inputs.pairs([_word(data)], "--set", parsed=parsed)
        except UsageError:
            continue
        canonical.encode(found)
        require(len(found) == 1, "one word, several settings")


def input_word(data: bytes) -> None:
    """``--input JSON``: a value that can be kept, or a usage error. No file is named: that would be the user's."""
    try:
        found = inputs.read_json(_word(data.lstrip(b"@\0")), "--input")
    except UsageError:
        return
    canonical.encode(found)
    require(same(found, canonical.parse(data.lstrip(b"@\0").replace(b"\0", b""))), "another value")


@cache
def _history() -> Store:
    store = Store.in_memory()
    for key in ("notes:a", "notes:a@1", "notes:a~1", "run:r1", "context:é"):
        scope, parent = store.scope(key), None
        for number in range(3):
            parent = scope.save({"n": number}, kind="notes", event={}, parent=parent)
    return store


def revision_word(data: bytes) -> None:
    """A revision names a snapshot or nothing; what it names is what it says."""
    text = _word(data)
    try:
        found = revision.find(_history(), text)
    except StatelineError as error:
        require(error.message.isprintable(), "an error that acts on a terminal")
        return
    key = found.envelope.scope
    require(found.sha256.startswith(text.lower()) or text.startswith(key), "it named another snapshot")


def name_word(data: bytes) -> None:
    """Ids, keys and places: what is taken leads nowhere but into the state dir, and what is not is refused in words
    that can be printed."""
    text = data.decode("utf-8", "surrogateescape")
    for take in (
        naming.checked_id,
        naming.checked_key,
        naming.checked_scope,
        naming.checked_directory,
        naming.blob_parts,
    ):
        try:
            taken = take(text)
        except UsageError as error:
            require(error.message.isprintable(), "an error that acts on a terminal")
            continue
        if take is naming.checked_key:
            path = naming.scope_hash(text)
        else:
            path = "/".join(taken) if isinstance(taken, tuple) else str(taken)
        whole = os.path.normpath(os.path.join("/state", path))
        require(whole.startswith("/state/") and "\0" not in path, f"it leads to {whole!r}")
        if take is not naming.blob_parts:
            require(whole == f"/state/{path}", "it has several spellings")
    if naming.snapshot_parts(text) is not None:
        require(text.isascii() and "/" not in text and not text.startswith("."), "a snapshot's name that is a path")
    try:
        Store.in_memory().scope(text).head()
    except (UsageError, NotFoundError):
        pass


def _snapshots() -> list[bytes]:
    base: dict[str, Any] = {
        "created_at": "2026-11-20T09:26:59.123457Z", "tool_version": "0.1.0", "scope": "notes:demo", "kind": "notes",
        "event": {"durability": "full"},
    }  # fmt: skip
    link = Link("notes:other", 3, SHA)
    several = [
        Envelope(**base, seq=0, prev=None, prev_sha=None, state={"n": 1, "t": "é\n"}),
        Envelope(**base, seq=1, prev=NAME, prev_sha=SHA, state={"t": None, "list": None, "n": 1.5}, objects=TABLE),
        Envelope(**base, seq=0, prev=None, prev_sha=SHA, state=[1, {"a": []}], origin=link, merged=link),
        Envelope(**base, seq=7, prev=NAME, prev_sha=SHA, state=None, version="1.3", extra={"new": [1]}),
    ]
    return [canonical.encode(one.document(), depth=canonical.FILE_DEPTH) for one in several]


def _objects() -> list[bytes]:
    parts = objects.split({"node": {"t": "a" * 5000, "n": 1}, "list": ["b" * 3000, "b" * 3000, 7, {"c": "d" * 4094}]})
    table = {place: ref.document() for place, ref in parts.objects.items()}
    node = {"value": {"x": [1], "list": None, "node": {"t": None}}, "objects": table}
    chunks = [
        Chunk(None, ["a", 1, {"b": None}], {"/2/b": TABLE["/t"]}),
        Chunk(parts.objects["/list"], [None], {"/0": parts.objects["/node/t"]}),
    ]
    return [canonical.encode(node), *(chunk.encode() for chunk in chunks), b'["a",1.5]']


def _declarations() -> list[bytes]:
    gap = {"lost": {"seq": 4, "sha256": SHA}, "resumes": {"path": NAME, "seq": 3, "sha256": "cd" * 32}}
    return [
        canonical.encode({"gaps": [gap, {"lost": {"seq": 1, "sha256": "ef" * 32}, "resumes": None}], "objects": [SHA]})
    ]


def _texts() -> list[bytes]:
    return [
        b'{"a":[1,2.5,-0.0,1e16,null,true,"x\\n\\u00e9"],"b":{"":{}}}', b" [1 , 2]\n", b'"yes"', b"yes\n",
        b"18446744073709551615",
        '"\u00e9\U0001f600"'.encode(), b'{"requestId":"r1:1:0:00000000","answer":{"ok":true}}', b"-1.5e-7", b"[[[[]]]]",
    ]  # fmt: skip


def _words() -> list[bytes]:
    return [
        b"notes:a", b"notes:a~1", b"notes:a@2", b"run:r1~99", b"../../x", b"r1.2_x-9", b"run:../../etc/passwd",
        b"a" * 65,
        SHA.encode(), b"objects/ab", f"{SHA}/{NAME}".encode(), NAME.encode(), b"context:\xc3\xa9", b"a:b\nc", b"0a75",
        b"limit=3", b'k={"a":[1]}', b"k==", b"k=NaN", b"k=text",
    ]  # fmt: skip


LOADERS: dict[str, Loader] = {
    "canonical files": Loader(canonical_file, lambda: [*_snapshots(), *_objects(), b"-0.0", b"1e16"]),
    "JSON text": Loader(json_text, _texts),
    "answers": Loader(answer, _texts),
    "snapshots": Loader(snapshot, _snapshots),
    "declarations of loss": Loader(declaration, _declarations),
    "pointers": Loader(pointer, lambda: [Pointer(NAME, SHA).encode()]),
    "objects": Loader(kept_object, _objects),
    "the store file": Loader(
        store_file,
        lambda: [canonical.encode({"format": "stateline/1", "store_id": "ab" * 16}), b'{"format":"stateline/2"}'],
    ),
    "--set": Loader(setting, _words),
    "--input": Loader(input_word, _texts),
    "revisions": Loader(revision_word, _words),
    "ids and keys": Loader(name_word, _words),
    **{name: Loader(*parts) for name, parts in (run_loaders.LOADERS | model_loaders.LOADERS).items()},
}
"""By name."""
