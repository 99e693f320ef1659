"""Tools manifests: their meaning, all mistakes in one, and that an unreadable one is never taken for empty."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical
from stateline.errors import (
    InvalidFileError,
    InvalidManifestError,
    NotFoundError,
    RequestError,
    StatelineError,
    StorageError,
)
from stateline.machine.spec import Tool, Toolset
from stateline.redaction.redactor import Redactor
from stateline.tools.check import DEFAULT_TIMEOUT, KEYS, check_manifest, toolset_hash
from stateline.tools.manifest import Manifest, manifest_digest, read_manifest

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
LEAST = {"name": "search", "description": "Search the notes.", "schema": SCHEMA, "argv": ["./search", "-i"]}
FULL = {**LEAST, "timeout": 2.5, "env": ["NOTES", "LANG"], "repeatable": True}
SECRET = "tok-4f9aQ2/Zr~8s0LwV7bXk1"


def manifest(*tools: Any) -> bytes:
    return json.dumps({"tools": list(tools)}).encode()


def mistakes(data: bytes, **more: Any) -> list[tuple[str, str, str]]:
    """Code, place and hint of every mistake."""
    with pytest.raises(InvalidManifestError) as caught:
        check_manifest(data, **more)
    assert caught.value.hint
    assert all(problem.severity == "error" and problem.message for problem in caught.value.problems)
    return [(problem.code, problem.where, problem.hint) for problem in caught.value.problems]


def mistake(data: bytes, **more: Any) -> tuple[str, str, str]:
    (found,) = mistakes(data, **more)
    return found


def nothing_is_secret(text: bytes | str) -> bool:
    return False


def read(path: Path | str, *secrets: str) -> Manifest:
    return read_manifest(str(path), Redactor([("X", secret) for secret in secrets]).find)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the program of ``LEAST``."""
    directory = tmp_path / "a place"
    directory.mkdir()
    (directory / "search").write_text("#!/bin/sh\ncat\n")
    (directory / "search").chmod(0o755)
    return directory


# --- what it means ---


def test_a_tool_is_read_with_all_its_fields() -> None:
    data = manifest(FULL)
    assert check_manifest(data) == Toolset(
        sha256=canonical.sha256(data),
        tools={
            "search": Tool(
                name="search",
                description="Search the notes.",
                schema=SCHEMA,
                argv=["./search", "-i"],
                timeout=2.5,
                env=["NOTES", "LANG"],
                repeatable=True,
            )
        },
    )


def test_by_default_a_tool_has_thirty_seconds_no_variables_and_is_not_repeatable() -> None:
    tool = check_manifest(manifest(LEAST)).tools["search"]
    assert (tool.timeout, tool.env, tool.repeatable) == (30.0, [], False)
    assert DEFAULT_TIMEOUT == 30.0


def test_a_timeout_of_zero_means_no_limit() -> None:
    assert check_manifest(manifest({**LEAST, "timeout": 0})).tools["search"].timeout == 0.0


def test_tools_stand_in_the_order_of_the_file() -> None:
    names = ["zeta", "alpha", "_m", "a-b"]
    found = check_manifest(manifest(*({**LEAST, "name": name} for name in names)))
    assert list(found.tools) == names


def test_a_manifest_may_have_no_tools() -> None:
    assert check_manifest(b'{"tools": []}').tools == {}


def test_a_name_that_every_provider_takes_is_a_name() -> None:
    def check(name: str) -> None:
        assert name in check_manifest(manifest({**LEAST, "name": name})).tools

    for_each(check, ["a", "_", "Search_2-x", "x" * 64])


# --- what is wrong with it ---


def test_a_malformed_manifest_is_an_error_with_its_place() -> None:
    def check(data: bytes, code: str, where: str, hint: str) -> None:
        found = mistakes(data)
        assert (code, where) in [(each[0], each[1].partition(" [")[0]) for each in found]
        assert any(hint in each[2] for each in found)

    for_each(
        check,
        [
            (b"", "syntax", "1:1", "JSON"),
            (b'{"tools": [', "syntax", "1:12", ""),
            (b"tools: []", "syntax", "1:1", ""),
            (b'{"tools": [],}', "syntax", "1:14", "trailing commas"),
            (b"\xef\xbb\xbf{}", "encoding", "1:1", "BOM"),
            (b'{"tools": "\xff"}', "encoding", "1:12", "UTF-8"),
            (b"[]", "wrong_type", "1:1", ""),
            (b"null", "wrong_type", "1:1", ""),
            (b"{}", "missing_key", "1:1", '"tools": ['),
            (b'{"tools": {}}', "wrong_type", "1:2 tools", ""),
            (b'{"tools": null}', "wrong_type", "1:2 tools", ""),
            (b'{"tools": [[]]}', "wrong_type", "1:12 tools[0]", ""),
            (b'{"tool": [], "tools": []}', "unknown_key", "1:2 tool", "did you mean 'tools'?"),
            (b'{"tools": [],\n "tools": []}', "duplicate_key", "2:2 tools", ""),
            (b"[" * 200, "too_deep", "1:129", ""),
        ],
    )


def test_a_required_key_that_is_missing_is_a_mistake() -> None:
    def check(key: str) -> None:
        tool = {**LEAST}
        del tool[key]
        code, where, hint = mistake(manifest(tool))
        assert (code, where) == ("missing_key", "1:12 tools[0]")
        assert f'"{key}"' in hint

    for_each(check, ["name", "description", "schema", "argv"])


def test_an_unknown_key_is_a_mistake_that_names_the_one_that_was_meant() -> None:
    def check(key: str, meant: str) -> None:
        code, where, hint = mistake(manifest({**FULL, key: 1}))
        assert (code, hint) == ("unknown_key", f"did you mean '{meant}'?")
        assert where.endswith(f"tools[0].{key}")

    for_each(
        check, [("descripton", "description"), ("timeoutSec", "timeout"), ("Repeatable", "repeatable"), ("arg", "argv")]
    )


def test_an_unknown_key_without_a_similar_one_lists_the_known_keys() -> None:
    assert mistake(manifest({**LEAST, "command": ["x"]}))[2] == f"known keys: {', '.join(KEYS)}"


def test_a_key_that_is_there_twice_is_a_mistake() -> None:
    data = manifest(LEAST).replace(b'"argv"', b'"name": "other",\n"argv"')
    code, where, _ = mistake(data)
    assert (code, where.partition(" ")[2]) == ("duplicate_key", "tools[0].name")


def test_two_tools_of_one_name_are_a_mistake_with_the_place_of_the_first() -> None:
    data = json.dumps({"tools": [LEAST, {**LEAST, "name": "b"}, LEAST]}, indent=1).encode()
    with pytest.raises(InvalidManifestError, match="there is already a tool 'search', on line 4") as caught:
        check_manifest(data)
    assert [problem.where.partition(" ")[2] for problem in caught.value.problems] == ["tools[2].name"]


def test_a_value_that_no_tool_can_have_is_a_mistake_at_its_place() -> None:
    def check(change: dict[str, Any], code: str, path: str) -> None:
        found = mistakes(manifest({**LEAST, **change}))
        assert {(each[0], each[1].partition(" ")[2]) for each in found} == {(code, f"tools[0].{path}")}

    for_each(
        check,
        [
            ({"name": ""}, "bad_value", "name"),
            ({"name": 7}, "wrong_type", "name"),
            ({"name": None}, "wrong_type", "name"),
            ({"name": "x" * 65}, "bad_name", "name"),
            ({"name": "9lives"}, "bad_name", "name"),
            ({"name": "-x"}, "bad_name", "name"),
            ({"name": "a.b"}, "bad_name", "name"),
            ({"name": "a b"}, "bad_name", "name"),
            ({"name": "search\n"}, "bad_name", "name"),
            ({"name": "größe"}, "bad_name", "name"),
            ({"description": ""}, "bad_value", "description"),
            ({"description": ["x"]}, "wrong_type", "description"),
            ({"schema": None}, "bad_schema", "schema"),
            ({"schema": True}, "bad_schema", "schema"),
            ({"schema": {}}, "bad_schema", "schema"),
            ({"schema": {"type": "array"}}, "bad_schema", "schema"),
            ({"schema": {"type": ["object", "null"]}}, "bad_schema", "schema"),
            ({"schema": {"type": "objekt"}}, "bad_schema", "schema"),
            ({"schema": {"type": "object", "$ref": "file:///etc/passwd"}}, "bad_schema", "schema"),
            ({"schema": {"type": "object", "properties": {"a": {"pattern": "(?=x)"}}}}, "bad_schema", "schema"),
            ({"argv": "ls -l"}, "wrong_type", "argv"),
            ({"argv": []}, "bad_value", "argv"),
            ({"argv": [""]}, "bad_value", "argv"),
            ({"argv": ["a\0"]}, "bad_value", "argv[0]"),
            ({"argv": ["a", 5]}, "wrong_type", "argv[1]"),
            ({"timeout": -1}, "bad_value", "timeout"),
            ({"timeout": "5"}, "wrong_type", "timeout"),
            ({"timeout": True}, "wrong_type", "timeout"),
            ({"timeout": None}, "wrong_type", "timeout"),
            ({"timeout": 1e300}, "bad_value", "timeout"),
            ({"env": "TOKEN"}, "wrong_type", "env"),
            ({"env": ["A=B"]}, "bad_value", "env[0]"),
            ({"env": ["A", ""]}, "bad_value", "env[1]"),
            ({"env": ["9A"]}, "bad_value", "env[0]"),
            ({"env": ["A-B"]}, "bad_value", "env[0]"),
            ({"env": ["STATELINE_RUN"]}, "bad_value", "env[0]"),
            ({"env": ["STATELINE_IDEMPOTENCY_KEY"]}, "bad_value", "env[0]"),
            ({"repeatable": "yes"}, "wrong_type", "repeatable"),
            ({"repeatable": 1}, "wrong_type", "repeatable"),
        ],
    )


def test_all_mistakes_are_reported_together_in_file_order() -> None:
    data = b"""{"tools": [
      {"name": "a b", "descripton": "x", "schema": {"type": "object"}, "argv": ["x"]},
      {"name": "c", "description": "x", "schema": 5, "argv": []}
    ]}"""
    with pytest.raises(InvalidManifestError) as caught:
        check_manifest(data, name="tools.json")
    found = [(problem.where.partition(":")[0], problem.code) for problem in caught.value.problems]
    assert found == [
        ("2", "missing_key"),
        ("2", "bad_name"),
        ("2", "unknown_key"),
        ("3", "bad_schema"),
        ("3", "bad_value"),
    ]
    assert str(caught.value).startswith("tools.json has 5 mistakes: 2:7 tools[0]: a tool has no 'description'")
    assert caught.value.document()["problems"][0]["code"] == "missing_key"
    assert caught.value.document()["code"] == "manifest_invalid"
    assert isinstance(caught.value, InvalidFileError)


def test_a_message_that_would_be_endless_names_the_first_mistakes_and_counts_the_others() -> None:
    with pytest.raises(InvalidManifestError, match=r"has 80 mistakes.*; and 75 more$"):
        check_manifest(manifest(*({} for _ in range(20))))


def test_too_many_tools_are_one_mistake() -> None:
    assert mistake(manifest(*({} for _ in range(1001))))[0] == "too_many_tools"
    tools = [{**LEAST, "name": f"t{number}"} for number in range(1000)]
    assert len(check_manifest(manifest(*tools)).tools) == 1000


def test_a_message_steers_no_terminal() -> None:
    with pytest.raises(InvalidManifestError) as caught:
        check_manifest(manifest({**LEAST, "name": "\x1b[2J", "\x1b]0;x\x07": 1, "env": ["\u202e="]}))
    assert str(caught.value).isprintable()


def test_bytes_beyond_the_limit_are_refused() -> None:
    assert mistake(b" " * (16 * 2**20 + 1))[0] == "too_large"


def test_programs_are_asked_about_only_when_the_command_can_be_read() -> None:
    asked = []

    def exists(argv: list[str]) -> str | None:
        asked.append(argv)
        return "it is not there" if argv[0] == "b" else None

    data = manifest(
        {**LEAST, "argv": ["a", "1"]},
        {**LEAST, "name": "b", "argv": ["b"]},
        {**LEAST, "name": "c", "argv": [""]},
    )
    assert [each[0] for each in mistakes(data, exists=exists)] == ["program_missing", "bad_value"]
    assert asked == [["a", "1"], ["b"]]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["x", "object"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "type", "properties"]) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)
tools = st.builds(
    lambda tool, changes: {**tool, **changes},
    st.sampled_from([{}, LEAST, FULL]),
    st.dictionaries(st.sampled_from([*KEYS, "x"]), json_values, max_size=2),
)
manifests = st.lists(tools, max_size=3).map(lambda listed: json.dumps({"tools": listed}).encode())


def outcome(read: Callable[[], Toolset]) -> Toolset | StatelineError:
    try:
        return read()
    except StatelineError as error:
        return error


@given(st.binary() | manifests)
def test_any_bytes_are_tools_or_a_typed_error(data: bytes) -> None:
    found = outcome(lambda: check_manifest(data))
    if isinstance(found, StatelineError):
        assert isinstance(found, InvalidManifestError)
        assert found.problems
        assert str(found).isprintable()
        return
    # What is taken means what the standard library reads in it, and can be kept.
    meant = [{"timeout": DEFAULT_TIMEOUT, "env": [], "repeatable": False, **tool} for tool in json.loads(data)["tools"]]
    assert [{key: getattr(tool, key) for key in KEYS} for tool in found.tools.values()] == meant
    assert len(toolset_hash(found)) == 64


# --- the hash of a toolset ---


def test_white_space_and_order_do_not_change_the_hash_of_a_toolset() -> None:
    other = {**LEAST, "name": "other"}
    turned = {key: {**FULL, "timeout": 2.50}[key] for key in reversed(FULL)}
    one, two = manifest(FULL, other), json.dumps({"tools": [other, turned]}, indent=3).encode()
    assert toolset_hash(check_manifest(one)) == toolset_hash(check_manifest(two))
    assert check_manifest(one).sha256 != check_manifest(two).sha256


def test_defaults_written_out_do_not_change_the_hash_of_a_toolset() -> None:
    written = {**LEAST, "timeout": 30, "env": [], "repeatable": False}
    assert toolset_hash(check_manifest(manifest(LEAST))) == toolset_hash(check_manifest(manifest(written)))


def test_each_field_of_a_tool_changes_the_hash_of_its_toolset() -> None:
    def check(change: dict[str, Any]) -> None:
        assert toolset_hash(check_manifest(manifest(FULL))) != toolset_hash(
            check_manifest(manifest({**FULL, **change}))
        )

    for_each(
        check,
        [
            {"name": "other"},
            {"description": "Search."},
            {"schema": {"type": "object"}},
            {"argv": ["./search"]},
            {"timeout": 3},
            {"env": []},
            {"repeatable": False},
        ],
    )


def test_no_manifest_differs_from_a_manifest_without_tools() -> None:
    assert toolset_hash(None) == ""
    assert toolset_hash(check_manifest(b'{"tools": []}')) == canonical.sha256(b"[]")


def test_the_hash_is_what_anybody_can_compute() -> None:
    tool = {**FULL, "timeout": 2.5}
    text = json.dumps([tool], sort_keys=True, separators=(",", ":")).encode()
    assert toolset_hash(check_manifest(manifest(FULL))) == canonical.sha256(text)


# --- reading it ---


def test_a_manifest_is_known_by_its_real_path(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "tools.json").write_bytes(manifest(LEAST))
    (tmp_path / "link.json").symlink_to(place / "tools.json")
    monkeypatch.chdir(tmp_path)
    found = read("link.json")  # the program is looked up beside the file, not beside the link
    assert found.path == str(place / "tools.json")
    assert found.directory == str(place)
    assert found.data == manifest(LEAST)
    assert found.toolset == check_manifest(found.data)


def test_the_digest_of_a_manifest_is_that_of_its_exact_bytes(place: Path) -> None:
    (place / "tools.json").write_bytes(manifest(LEAST))
    assert manifest_digest(str(place / "tools.json")) == read(place / "tools.json").toolset.sha256
    (place / "tools.json").write_bytes(b"\xff")
    assert manifest_digest(str(place / "tools.json")) == canonical.sha256(b"\xff")
    with pytest.raises(NotFoundError):
        manifest_digest(str(place / "missing.json"))
    with pytest.raises(RequestError, match="not a regular file"):
        manifest_digest(str(place))


def test_a_manifest_that_is_not_there_is_an_error_and_never_no_tools(place: Path) -> None:
    def check(name: str) -> None:
        with pytest.raises(NotFoundError, match="there is no tools manifest"):
            read(place / name)

    for_each(check, ["missing.json", "search/tools.json", "nul\0.json"])


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "device"])
def test_a_path_that_is_not_a_file_is_an_error_and_never_waited_for(
    place: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "x"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(place)  # its path may be too long for a socket
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
    else:
        path = Path("/dev/zero")
    before = sorted(os.listdir("/dev/fd"))
    with pytest.raises((RequestError, StorageError), match=r"not a regular file|cannot read"):
        read(path)
    assert sorted(os.listdir("/dev/fd")) == before


def test_a_manifest_that_may_not_be_read_is_an_error_and_never_no_tools(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "tools.json"
    path.write_bytes(manifest(LEAST))
    path.chmod(0)
    if os.geteuid() == 0:  # to whom nothing is forbidden
        denied = PermissionError(13, "Permission denied")

        def refuse(*args: Any) -> int:
            raise denied

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"cannot read the tools manifest .*: Permission denied"):
        read(path)


def test_a_loop_of_links_is_an_error(place: Path) -> None:
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    with pytest.raises(StorageError):
        read(place / "a")


@pytest.mark.skipif(sys.platform != "linux", reason="others do not take such names")
def test_a_path_that_is_not_utf8_is_refused(place: Path) -> None:
    path = os.fsdecode(os.fsencode(place) + b"/\xff.json")
    Path(path).write_bytes(manifest(LEAST))
    with pytest.raises(RequestError, match="is not UTF-8"):
        read(path)


def test_a_file_larger_than_the_limit_is_refused(place: Path) -> None:
    (place / "tools.json").write_bytes(manifest(LEAST).ljust(16 * 2**20 + 1))
    with pytest.raises(RequestError, match="larger than"):
        read(place / "tools.json")
    (place / "tools.json").write_bytes(manifest(LEAST).ljust(16 * 2**20))
    assert read(place / "tools.json").toolset.tools


def test_a_program_that_is_not_there_is_an_error_when_the_manifest_is_read(place: Path) -> None:
    (place / "folder").mkdir()
    (place / "plain").write_text("x")
    argvs = [["./search"], ["./missing"], ["./folder"], ["./plain"], ["no-such-program"], ["sh"]]
    listed = [{**LEAST, "name": f"t{number}", "argv": argv} for number, argv in enumerate(argvs)]
    (place / "tools.json").write_bytes(manifest(*listed))
    with pytest.raises(InvalidManifestError) as caught:
        read(place / "tools.json")
    assert [(problem.where.partition(" ")[2], problem.message) for problem in caught.value.problems] == [
        ("tools[1].argv", 'there is no program "./missing" beside the manifest'),
        ("tools[2].argv", '"./folder" is a directory, not a program'),
        ("tools[3].argv", '"./plain" is not executable; run chmod +x on it'),
        ("tools[4].argv", 'there is no program "no-such-program" on PATH'),
    ]


# --- secrets ---


def test_a_manifest_that_holds_a_secret_is_refused_without_showing_it(place: Path) -> None:
    def check(change: dict[str, Any], spelling: str) -> None:
        text = json.dumps({"tools": [{**LEAST, **change}]})
        if spelling == "escaped":
            text = text.replace(SECRET, "".join(f"\\u{ord(letter):04x}" for letter in SECRET))
        (place / "tools.json").write_text(text)
        with pytest.raises(RequestError, match="holds a secret") as caught:
            read(place / "tools.json", SECRET)
        assert not isinstance(caught.value, InvalidManifestError)
        assert "env" in caught.value.hint
        assert SECRET not in str(caught.value)

    for_each(
        check,
        [
            {"argv": ["./search", f"--token={SECRET}"]},
            {"description": f"Use {SECRET}."},
            {"schema": {**SCHEMA, "description": SECRET}},
            {"schema": {**SCHEMA, "properties": {SECRET: {}}}},
            {"schema": {**SCHEMA, "default": {"a": [SECRET]}}},
            {"env": [SECRET]},
            {"name": f"a {SECRET}"},
            {SECRET: 1},
        ],
        ["plain", "escaped"],
    )


def test_a_manifest_whose_path_holds_a_secret_is_refused(place: Path) -> None:
    path = place / f"{SECRET.replace('/', '_')}.json"
    path.write_bytes(manifest(LEAST))
    with pytest.raises(RequestError, match="or its path holds a secret"):
        read(path, SECRET.replace("/", "_"))


def test_a_known_secret_elsewhere_does_not_refuse_a_manifest(place: Path) -> None:
    (place / "tools.json").write_bytes(manifest(FULL))
    assert read(place / "tools.json", SECRET).toolset.tools


@given(st.binary(max_size=200) | manifests)
def test_reading_any_file_gives_tools_or_a_typed_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    found = outcome(lambda: read_manifest(str(path), nothing_is_secret).toolset)
    assert isinstance(found, Toolset) or found.hint
