"""The audit's programs one by one, on real git repositories with planted findings, and the whole machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "repo-audit"
PROGRAMS = EXAMPLE / "bin"
STAGES = [("survey", "survey"), ("licence", "licences"), ("sizes", "sizes"), ("leaks", "leaks")]

# Put together here, so that no scanner of this repository takes them for real ones.
GITHUB = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
AWS = "AK" + "IA" + "J7QX3M5PLW2ZRV6T"
STRIPE = "sk_" + "live_" + "9mQ4xV7nB2kL5wR8tY1cE6hU"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
PRIVATE = "-----BEGIN " + "RSA PRIVATE" + " KEY-----\n" + BODY + "\n" + BODY + "\n-----END " + "RSA PRIVATE KEY-----\n"
MIT = """MIT License

Permission is hereby granted, free of charge, to any person obtaining a copy of this software, to deal in it, provided
that the above notice is included in all copies or substantial portions of the Software.
"""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="the audit reads repositories with git")


class Planted:
    """A git repository in the making, with fixed names and dates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), "-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"]
        done = subprocess.run([*command, *arguments], env=surroundings(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def write(self, path: str, content: str | bytes) -> None:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, subject: str = "a change", *, day: int = 1, **files: str | bytes) -> str:
        for path, content in files.items():
            self.write(path, content)
        self.git("add", "--all", "--force")
        date = f"2024-05-{day:02}T12:00:00Z"
        env = surroundings() | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        command = ["git", "-C", str(self.path), "-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m"]
        subprocess.run([*command, subject], env=env, check=True)
        return self.git("rev-parse", "HEAD")


def surroundings() -> dict[str, str]:
    """The environment in which git and the programs run: no configuration but this, and `python3` is this Python."""
    return {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@localhost",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@localhost",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "error",
    }


def call(program: str, document: Any, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    text = document if isinstance(document, str) else json.dumps(document)
    command = [sys.executable, str(PROGRAMS / f"{program}.py")]
    return subprocess.run(
        command, input=text, env=env or surroundings(), capture_output=True, text=True, check=False, timeout=60
    )


def output_of(program: str, repository: Path, **document: Any) -> Any:
    done = call(program, {"input": {"repository": str(repository)}, **document})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sizes_of(repository: Path, limit: Any) -> list[Any]:
    output = output_of("sizes", repository, state={"limits": {"max_file_bytes": limit}})
    return list(output["findings"].values())


def leaks_of(repository: Path) -> list[Any]:
    return list(output_of("leaks", repository)["findings"].values())


def audited(repository: Path, *, limit: int = 1_000_000, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and outputs after the programs ran in the machine's order; the routing is written out by hand here."""
    state: dict[str, Any] = {"limits": {"max_file_bytes": limit}, "findings": {}, "evidence": {}, "depth": 0}
    outputs: dict[str, Any] = {}
    for stage, program in STAGES:
        outputs[stage] = output_of(program, repository, state=state)
        state["findings"] |= outputs[stage].get("findings", {})
    while True:
        outputs["explain"] = output_of("explain", repository, state=state)
        state |= {key: outputs["explain"][key] for key in ("explained", "unexplained")}
        if not state["unexplained"] or state["depth"] == 3:
            break
        outputs["inspect"] = output_of("look_closer", repository, state=state)
        for name, evidence in outputs["inspect"]["evidence"].items():
            state["evidence"].setdefault(name, {}).update(evidence)
        state["depth"] += 1
    state |= more
    return state, outputs


def reasons(state: dict[str, Any]) -> dict[str, str | None]:
    """Why each finding is fine, by its path; None where nothing explains it."""
    return {f["path"]: state["explained"].get(name) for name, f in state["findings"].items() if f["kind"] != "licence"}


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "a repository")


# survey


def test_the_survey_counts_files_by_language_and_the_history(planted: Planted) -> None:
    planted.write("src/a.py", "one\ntwo\n")
    planted.write("tool", "#!/usr/bin/env python3\nthree")
    planted.write("Makefile", "all:\n")
    planted.write("data.bin", b"\0\1\2")
    planted.commit("first", day=1)
    planted.write("src/a.py", "one\n2\n3\n")
    head = planted.commit("second", day=3)
    found = output_of("survey", planted.path)
    assert found["head"] == head
    assert found["files"]["languages"]["Python"] == {"files": 2, "lines": 5, "bytes": 36}
    assert found["files"]["languages"]["Makefile"]["files"] == 1
    assert (found["files"]["count"], found["files"]["binary"]) == (4, 1)
    history = found["history"]
    assert (history["commits"], history["authors"], history["first"], history["last"]) == (
        2,
        1,
        "2024-05-01",
        "2024-05-03",
    )
    assert history["most_changed"][0] == {"path": "src/a.py", "commits": 2}
    assert (history["lines_added"], history["lines_deleted"]) == (7, 1)


def test_a_repository_without_a_commit_is_surveyed_by_what_is_staged(planted: Planted) -> None:
    assert output_of("survey", planted.path)["files"]["count"] == 0
    planted.write("a.py", "x\n")
    planted.git("add", "a.py")
    found = output_of("survey", planted.path)
    assert (found["head"], found["files"]["lines"], found["history"]["commits"]) == (None, 1, 0)
    assert found["history"]["first"] is None


def test_a_bare_clone_is_surveyed_as_its_checkout_is(planted: Planted, tmp_path: Path) -> None:
    planted.commit(**{"a.py": "x\n", "dir/b.go": "y\n"})
    planted.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    checkout, bare = output_of("survey", planted.path), output_of("survey", tmp_path / "bare.git")
    assert (checkout["bare"], bare["bare"]) == (False, True)
    assert {**checkout, "name": "", "bare": None} == {**bare, "name": "", "bare": None}


def test_a_shallow_clone_says_that_it_is_one(planted: Planted, tmp_path: Path) -> None:
    planted.commit(a="1\n")
    planted.commit(a="2\n")
    planted.git("clone", "-q", "--depth", "1", planted.path.as_uri(), str(tmp_path / "shallow"))
    found = output_of("survey", tmp_path / "shallow")
    assert (found["shallow"], found["history"]["commits"]) == (True, 1)


def test_a_partial_clone_is_audited_without_fetching_what_it_lacks(planted: Planted, tmp_path: Path) -> None:
    planted.commit(a=f"{GITHUB}\n")
    planted.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    planted.git("clone", "-q", "--no-checkout", "--filter=blob:none", planted.path.as_uri(), str(clone))
    before = sorted(clone.rglob("*.pack"))
    state, outputs = audited(clone)
    assert (outputs["survey"]["partial"], outputs["survey"]["files"]["not_here"]) == (True, 1)
    assert "1 files whose contents are not in this clone" in rendered(clone, state, outputs)["text"]
    assert sorted(clone.rglob("*.pack")) == before


def test_odd_file_names_survive_and_can_be_told_apart(planted: Planted) -> None:
    names = [b"tab\tnew\nline", b"back\\slash", "caf\u00e9".encode(), "rtl\u202eoverride".encode(), b"-rf"]
    if sys.platform != "darwin":  # its file systems demand UTF-8
        names.append(b"latin1-\xe9")
    for name in names:
        with open(os.path.join(os.fsencode(planted.path), name), "w") as file:
            file.write(f"key: {GITHUB}\n" + "x" * 100)
    planted.commit()
    paths = {finding["path"] for finding in leaks_of(planted.path)}
    assert {r"tab\x09new\x0aline", r"back\\slash", "caf\u00e9", r"rtl\xe2\x80\xaeoverride", "-rf"} <= paths
    assert len(paths) == len(names)
    state, _ = audited(planted.path, limit=50)
    assert len(state["unexplained"]) == 2 * len(names) + 1  # and no licence
    evidence = [state["evidence"][name] for name in state["unexplained"] if not name.startswith("licence")]
    assert all(found["commits"]["count"] == 1 for found in evidence)


def test_symlinks_are_described_and_never_followed(planted: Planted, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(GITHUB)
    os.symlink(outside, planted.path / "absolute")
    os.symlink("../outside", planted.path / "up")
    os.symlink("absolute", planted.path / "inside")
    planted.commit()
    found = output_of("survey", planted.path)["files"]
    assert (found["symlinks"], found["symlinks_leading_out"]) == (3, ["absolute", "up"])
    assert leaks_of(planted.path) == []


def test_a_submodule_is_named_and_not_entered(planted: Planted, tmp_path: Path) -> None:
    other = Planted(tmp_path / "other")
    other.commit(leak=GITHUB)
    planted.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "vendored")
    planted.commit()
    assert output_of("survey", planted.path)["files"]["submodules"] == ["vendored"]
    assert leaks_of(planted.path) == []
    assert sizes_of(planted.path, 10_000) == []


def test_what_is_no_repository_is_refused_with_the_reason(planted: Planted, tmp_path: Path) -> None:
    planted.commit(**{"dir/a": "x"})
    (tmp_path / "empty").mkdir()
    places = {
        tmp_path / "empty": "is not a git repository",
        tmp_path / "missing": "is not a directory",
        planted.path / "dir": "only a part of the repository",
        planted.path / ".git" / "refs": "inside a repository's git directory",
        Path("relative"): "not an absolute path",
    }
    for place, reason in places.items():
        done = call("survey", {"input": {"repository": str(place)}})
        assert (done.returncode, done.stdout) == (1, "")
        assert reason in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_repository_is_refused_with_the_way_to_trust_it(planted: Planted) -> None:
    planted.commit()
    for path in [planted.path, planted.path / ".git"]:
        os.chown(path, 12345, -1)
    done = call("survey", {"input": {"repository": str(planted.path)}})
    assert done.returncode == 1
    assert "user id 12345" in done.stderr
    assert f"safe.directory '{planted.path}'" in done.stderr


def test_without_git_the_audit_says_so(planted: Planted, tmp_path: Path) -> None:
    env = surroundings() | {"PATH": str(tmp_path)}
    done = call("survey", {"input": {"repository": str(planted.path)}}, env=env)
    assert (done.returncode, "git was not found" in done.stderr) == (1, True)


def test_stdin_that_is_no_task_document_is_refused() -> None:
    for text in ["", "{", "[]"]:
        done = call("survey", text)
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False)


def test_programs_that_a_repository_configures_are_never_run(planted: Planted, tmp_path: Path) -> None:
    planted.commit(**{"a.txt": "x\n", ".gitattributes": "*.txt diff=evil filter=evil\n"})
    planted.commit(**{"a.txt": "y\n" * 40})
    trap, sprung = tmp_path / "trap", tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch '{sprung}'\ncat\n")
    trap.chmod(0o755)
    for key in ["core.fsmonitor", "core.pager", "diff.external", "diff.evil.textconv", "diff.evil.command"]:
        planted.git("config", key, f"'{trap}'")
    for key in ["filter.evil.clean", "filter.evil.smudge", "gpg.program"]:
        planted.git("config", key, f"'{trap}'")
    planted.git("config", "log.showSignature", "true")
    sprung.unlink(missing_ok=True)
    audited(planted.path, limit=10)
    assert not sprung.exists()


def test_an_audit_changes_nothing_in_the_repository(planted: Planted) -> None:
    planted.commit(a=f"{GITHUB}\n" * 3, LICENSE=MIT)
    os.utime(planted.path / "a", (1, 1))  # makes the index look stale, which git would like to mend

    def everything() -> dict[str, tuple[int, bytes]]:
        files = [path for path in planted.path.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = everything()
    audited(planted.path, limit=10)
    assert everything() == before


# licences


def licence_rules(repository: Path) -> dict[str, str]:
    return {f["path"]: f["rule"] for f in output_of("licences", repository)["findings"].values()}


def test_a_recognised_licence_that_everything_agrees_with_is_no_finding(planted: Planted) -> None:
    header = "# SPDX-License-" + "Identifier: MIT\n"
    planted.write("pyproject.toml", '[project]\nname = "x"\nlicense = "MIT"\n')
    planted.write("package.json", '{"license": "(MIT OR GPL-3.0-or-later)"}')
    planted.commit(**{"LICENSE": MIT, "a.py": header})
    output = output_of("licences", planted.path)
    assert output["findings"] == {}
    assert (output["texts"], output["spdx"]) == ({"LICENSE": "MIT"}, {"MIT": 1})


def test_this_projects_own_licence_is_recognised(planted: Planted) -> None:
    planted.commit(**{"COPYING.txt": (EXAMPLE.parents[1] / "LICENSE").read_bytes()})
    assert output_of("licences", planted.path)["texts"] == {"COPYING.txt": "Apache-2.0"}


def test_missing_unknown_and_contradicting_licences_are_findings(planted: Planted) -> None:
    planted.commit(**{"a.py": "x\n"})
    assert licence_rules(planted.path) == {"": "no-licence"}
    planted.write("LICENSE", MIT)
    planted.write("docs/LICENCE.md", "You may read this on Sundays.\n")
    planted.write("pyproject.toml", '[project]\nclassifiers = ["License :: OSI Approved :: Apache Software License"]\n')
    planted.write("package.json", '{"license": {"type": "ISC"}}')
    planted.write("Cargo.toml", "[package\n")
    planted.commit(**{"b.c": "/* SPDX-License-" + "Identifier: GPL-2.0-only */\n"})
    assert licence_rules(planted.path) == {
        "docs/LICENCE.md": "unknown-licence",
        "pyproject.toml": "metadata-disagrees",
        "package.json": "metadata-disagrees",
        "Cargo.toml": "unreadable-metadata",
        "b.c": "header-disagrees",
    }


def test_the_nearest_licence_text_governs_a_file(planted: Planted) -> None:
    apache = "Apache License\nVersion 2.0, January 2004\nSubject to the terms, each Contributor grants ...\n"
    planted.write("vendor/x/LICENSE", apache)
    planted.write("vendor/x/deep/Cargo.toml", '[package]\nlicense = "Apache-2.0"\n')
    planted.commit(LICENSE=MIT)
    assert licence_rules(planted.path) == {}


# large files


def test_large_files_are_found_in_the_tree_and_in_history(planted: Planted) -> None:
    planted.commit(**{"old.bin": b"\0" * 3000, "kept.bin": b"\1" * 2000, "small": b"x" * 1000})
    (planted.path / "old.bin").unlink()
    planted.commit("remove it")
    found = {f["path"]: (f["where"], f["bytes"]) for f in sizes_of(planted.path, 1000)}
    assert found == {"kept.bin": ("tracked", 2000), "old.bin": ("history", 3000)}
    assert sizes_of(planted.path, 3000) == []


def test_a_large_file_on_another_branch_only_is_found(planted: Planted) -> None:
    planted.commit(a="x")
    planted.git("checkout", "-q", "-b", "other")
    planted.commit(big=b"y" * 500)
    planted.git("checkout", "-q", "main")
    assert [(f["path"], f["where"]) for f in sizes_of(planted.path, 100)] == [("big", "history")]


def test_a_limit_that_is_no_size_is_refused(planted: Planted) -> None:
    for limit in ["1000", 0, -1, 1.5, True, None]:
        document = {"input": {"repository": str(planted.path)}, "state": {"limits": {"max_file_bytes": limit}}}
        done = call("sizes", document)
        assert (done.returncode, "whole number of bytes" in done.stderr) == (1, True)


def test_the_number_of_findings_is_bounded_and_the_rest_counted(planted: Planted) -> None:
    for number in range(510):
        planted.write(f"f{number:03}", f"{number:03}" * 10)
    planted.commit()
    output = output_of("sizes", planted.path, state={"limits": {"max_file_bytes": 20}})
    assert (len(output["findings"]), output["left_out"]) == (500, 10)


# leaks


def test_keys_are_found_with_their_place_and_never_shown(planted: Planted) -> None:
    planted.write("config.ini", f"a = 1\ntoken = {GITHUB}\n")
    planted.write("deploy.sh", f"export AWS_ACCESS_KEY_ID={AWS}\n\nSTRIPE={STRIPE}\nagain {STRIPE}\n")
    planted.write("id_rsa", PRIVATE)
    planted.write("key.json", json.dumps({"private_key": PRIVATE}))
    planted.commit()
    output = json.dumps(output_of("leaks", planted.path))
    found = [(f["path"], f["rule"], f["lines"]) for f in json.loads(output)["findings"].values()]
    assert sorted(found) == [
        ("config.ini", "github-token", [2]),
        ("deploy.sh", "aws-access-key", [1]),
        ("deploy.sh", "stripe-key", [3, 4]),
        ("id_rsa", "private-key", [1]),
        ("key.json", "private-key", [1]),
    ]
    for value in [GITHUB, AWS, STRIPE, BODY]:
        body = value[8:]
        assert not any(body[i : i + 6] in output for i in range(len(body) - 5))


def test_the_same_key_has_the_same_fingerprint_in_every_file(planted: Planted) -> None:
    planted.commit(a=GITHUB, b=f"x {GITHUB} y", c=STRIPE, k1=PRIVATE, k2=json.dumps(PRIVATE))
    prints = {f["path"]: f["fingerprint"] for f in leaks_of(planted.path)}
    assert prints["a"] == prints["b"] != prints["c"]
    assert prints["k1"] == prints["k2"]


def test_a_key_that_was_removed_is_found_in_history(planted: Planted) -> None:
    planted.commit(a=f"\n{GITHUB}\n", moved=STRIPE)
    planted.commit("better", a="nothing\n")
    planted.git("mv", "moved", "now-here")
    planted.write("now-here", f"# changed\n{STRIPE}\n")
    planted.commit()
    found = {f["path"]: (f["where"], f["lines"]) for f in leaks_of(planted.path)}
    assert found == {"now-here": ("tracked", [2]), "a": ("history", [2])}


def test_what_only_looks_like_a_key_is_no_finding(planted: Planted) -> None:
    beginnings = ["gh" + "p_", "AK" + "IA", "-----BEGIN " + "RSA PRIVATE KEY-----", "sk_" + "live_"]
    planted.write("docs.md", "Keys begin with " + ", ".join(beginnings) + ".\n")
    planted.write("prefixed", "x" + GITHUB + "\n" + AWS + "x\n")
    planted.write("public.pem", "-----BEGIN " + f"PUBLIC KEY-----\n{BODY}\n")
    planted.write("binary", b"\0" + GITHUB.encode())
    planted.commit()
    assert leaks_of(planted.path) == []


def test_the_example_itself_holds_nothing_that_it_would_report(planted: Planted) -> None:
    shutil.copytree(EXAMPLE, planted.path / "audit", ignore=shutil.ignore_patterns("__pycache__"))
    planted.write("test.py", Path(__file__).read_bytes())
    planted.commit()
    assert leaks_of(planted.path) == []
    assert output_of("licences", planted.path)["spdx"] == {}


# explanations


def test_the_allow_file_explains_and_its_mistakes_are_told(planted: Planted) -> None:
    planted.write("a.key", GITHUB)
    planted.write("b.key", STRIPE)
    allow = "# reviewed\n\nleak *.key revoked in May, see the log\nlarge-file a.key wrong kind\nleak x\nsecret x y z\n"
    planted.commit(**{".audit-allow": allow})
    state, outputs = audited(planted.path)
    assert reasons(state) == dict.fromkeys(["a.key", "b.key"], ".audit-allow, line 3: revoked in May, see the log")
    told = outputs["explain"]["allow_file"]
    assert (told["lines"], told["covering_nothing"]) == (2, [4])
    assert [mistake.split(" is")[0] for mistake in told["mistakes"]] == ["line 5", "line 6"]


def test_an_allow_file_that_is_not_staged_explains_nothing(planted: Planted) -> None:
    planted.commit(**{"a.key": GITHUB})
    planted.write(".audit-allow", "leak * because\n")
    assert reasons(audited(planted.path)[0]) == {"a.key": None}


def test_tests_examples_and_placeholders_explain_themselves(planted: Planted) -> None:
    planted.write("tests/fixtures/k.txt", GITHUB)
    planted.write("src/Examples/k.txt", STRIPE)
    planted.write("docs.md", "AK" + "IA" + "IOSFODNN7" + "EXAMPLE")
    planted.write("examples.txt", STRIPE)
    planted.commit(LICENSE=MIT)
    state, _outputs = audited(planted.path)
    assert reasons(state) == {
        "tests/fixtures/k.txt": "it stands in a directory named tests",
        "src/Examples/k.txt": "it stands in a directory named Examples",
        "docs.md": "the value is a placeholder",
        "examples.txt": "the same stands in src/Examples/k.txt, a directory where it is expected",
    }
    assert state["depth"] == 3  # the copy is found by the deepest look only


def test_each_closer_look_explains_more(planted: Planted) -> None:
    planted.write("near.txt", f"# a fake one\nkey={GITHUB}\n")
    planted.write("half.txt", f"# fake\n{STRIPE}\n\n\n\n\n\n{STRIPE}\n")
    planted.write("gen.dat", "g" * 600)
    planted.write(".gitattributes", "gen.dat linguist-generated\n")
    planted.commit("start", LICENSE=MIT)
    told = planted.commit("add a dummy key for the docs", **{"dummy.txt": AWS})
    state, outputs = audited(planted.path, limit=500)
    assert reasons(state) == {
        "near.txt": 'line 1 near it says "fake"',
        "gen.dat": ".gitattributes says linguist-generated=set",
        "dummy.txt": f'commit {told[:12]} says "dummy"',
        "half.txt": None,
    }
    assert (state["depth"], outputs["explain"]["remaining"], len(state["unexplained"])) == (3, 1, 1)


def test_a_commit_that_touched_many_files_explains_none_of_them(planted: Planted) -> None:
    others = {f"file{number}": f"{number}" for number in range(10)}
    planted.commit("add the first example", LICENSE=MIT, key=GITHUB, **others)
    assert reasons(audited(planted.path)[0]) == {"key": None}


def test_a_fourth_look_is_refused(planted: Planted) -> None:
    state = {"findings": {}, "unexplained": [], "depth": 3}
    done = call("look_closer", {"input": {"repository": str(planted.path)}, "state": state})
    assert (done.returncode, "no look number 4" in done.stderr) == (1, True)


# report


def rendered(repository: Path, state: Any, outputs: Any, **document: Any) -> Any:
    given = {"repository": str(repository), **document.pop("input", {})}
    document = {"input": given, "state": state, "outputs": outputs, "context": None, **document}
    done = call("report", document)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_report_is_the_same_bytes_for_the_same_commit(planted: Planted, tmp_path: Path) -> None:
    planted.commit(**{"a`b|c": GITHUB, "LICENSE": MIT})
    clone = tmp_path / "elsewhere" / planted.path.name
    planted.git("clone", "-q", "--no-hardlinks", ".", str(clone))
    first, second = (rendered(place, *audited(place)) for place in (planted.path, clone))
    assert first == second
    assert first["path"] is None
    assert first["summary"]["verdict"] == "unexplained"
    assert "``a`b|c``, line 1: github-token" in first["text"]
    assert GITHUB[8:] not in first["text"]


def test_the_report_replaces_an_older_one_and_leaves_nothing_else(planted: Planted, tmp_path: Path) -> None:
    planted.commit(LICENSE=MIT)
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    directory = tmp_path / "new" / "reports"
    directory.mkdir(parents=True)
    os.symlink(victim, directory / "audit-report.md")
    output = rendered(planted.path, *audited(planted.path), input={"report": str(directory)})
    assert output["path"] == str(directory / "audit-report.md")
    assert (directory / "audit-report.md").read_text() == output["text"]
    assert [path.name for path in directory.iterdir()] == ["audit-report.md"]
    assert victim.read_text() == "untouched"
    assert output["summary"]["verdict"] == "clean"


def test_a_report_that_cannot_be_written_says_so(planted: Planted, tmp_path: Path) -> None:
    planted.commit(LICENSE=MIT)
    (tmp_path / "file").write_text("")
    state, outputs = audited(planted.path)
    document = {"input": {"repository": "/", "report": str(tmp_path / "file")}, "state": state, "outputs": outputs}
    done = call("report", document)
    assert (done.returncode, "could not be written" in done.stderr) == (1, True)


def test_decision_policy_and_bounds_stand_in_the_report(planted: Planted) -> None:
    planted.commit(a=GITHUB, LICENSE=MIT)
    state, outputs = audited(planted.path, decision={"decision": "reject", "reason": "rotate *it*"})
    outputs["leaks"]["cut"] = {"contents not looked into": 5}
    context = {"prompts": {"system": "Be strict.", "developer": []}, "settings": {}}
    output = rendered(planted.path, state, outputs, context=context)
    assert output["summary"]["verdict"] == "rejected"
    for line in [r"- Decision: reject (rotate \*it\*)", "- Policy: Be strict.", "- leaks: contents not looked into: 5"]:
        assert line in output["text"]


# The whole machine, by the command line


class Operator:
    """Calls the command line with a state dir of its own, as a shell would."""

    def __init__(self, tmp_path: Path) -> None:
        self.state_dir = tmp_path / "state dir"
        self.reports = tmp_path / "reports"
        passed = {name: os.environ[name] for name in ("PYTHONPATH", "HOME", "TMPDIR") if name in os.environ}
        self.env = surroundings() | passed | {"STATELINE_STATE_DIR": str(self.state_dir)}

    def __call__(self, *arguments: str, expect: int = 0) -> Any:
        command = [sys.executable, "-m", "stateline", "--format", "json", *arguments]
        done = subprocess.run(
            command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return json.loads(done.stdout)

    def audit(self, repository: Path, *options: str, expect: int = 0, **more: Any) -> Any:
        given = {"repository": str(repository), "report": str(self.reports), **more}
        machine = str(EXAMPLE / "audit.yaml")
        return self("execute", machine, "--input", json.dumps(given), *options, expect=expect)

    def state(self, run: str) -> Any:
        return self("show", "--resolve", f"run:{run}")["state"]


@pytest.fixture
def stateline(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def test_the_machine_has_no_mistakes(stateline: Operator) -> None:
    document = stateline("machine", "check", str(EXAMPLE / "audit.yaml"))
    assert (document["ok"], document["problems"]) == (True, [])


def test_a_clean_repository_is_audited_without_a_closer_look(planted: Planted, stateline: Operator) -> None:
    planted.commit(LICENSE=MIT)
    document = stateline.audit(planted.path)
    assert (document["status"], document["waiting"]) == ("complete", None)
    assert "inspect" not in document["outputs"]
    summary = document["outputs"]["report"]["summary"]
    assert (summary["verdict"], summary["findings"], summary["looks"]) == ("clean", 0, 0)
    assert (stateline.reports / "audit-report.md").read_text() == document["outputs"]["report"]["text"]


def test_what_stays_unexplained_ends_the_loop_and_not_the_run(planted: Planted, stateline: Operator) -> None:
    planted.commit(LICENSE=MIT, key=GITHUB, big="y" * 300_000)
    document = stateline.audit(planted.path)
    state = stateline.state(document["run"])
    assert (state["visits"]["inspect"], state["visits"]["explain"], state["status"]) == (3, 4, "complete")
    assert (state["state"]["depth"], len(state["state"]["unexplained"])) == (3, 1)
    assert state["state"]["summary"]["verdict"] == "unexplained"
    by_hand, _ = audited(planted.path)
    assert {key: state["state"][key] for key in by_hand} == by_hand


def test_no_file_of_the_state_dir_holds_a_key_that_was_found(planted: Planted, stateline: Operator) -> None:
    planted.commit(a=GITHUB, b=STRIPE, c=PRIVATE)
    assert stateline.audit(planted.path)["outputs"]["report"]["summary"]["by_kind"]["leak"] == 3
    written = b"".join(path.read_bytes() for path in stateline.state_dir.rglob("*") if path.is_file())
    assert b"github-token" in written
    for value in [GITHUB, STRIPE, BODY]:
        assert value[8:].encode() not in written


def test_turn_by_turn_ends_in_the_same_state_as_one_call(planted: Planted, stateline: Operator) -> None:
    planted.commit(LICENSE=MIT, key=GITHUB)
    at_once = stateline.audit(planted.path)
    turns = 1
    document = stateline.audit(planted.path, "-i", "--id", "stepwise")
    while document["status"] == "advanced":
        turns += 1
        code = 2 if turns == 12 else 0
        document = stateline("execute", "-i", str(EXAMPLE / "audit.yaml"), "--id", "stepwise", expect=code)
    assert (document["status"], document["turn"], turns) == ("complete", 12, 12)
    assert stateline.state("stepwise") == stateline.state(at_once["run"])


def test_a_person_is_asked_only_if_told_to_and_decides(planted: Planted, stateline: Operator) -> None:
    planted.commit(LICENSE=MIT, key=GITHUB)
    waiting = stateline.audit(planted.path, ask=True, expect=3)["waiting"]
    assert (waiting["type"], waiting["stage"]) == ("human", "ask")
    assert waiting["prompt"].startswith("1 findings remain")
    assert "- key: github-token" in waiting["prompt"]
    machine = str(EXAMPLE / "audit.yaml")
    refused = stateline("execute", machine, "--input", '{"decision": "perhaps"}', expect=1)
    assert refused["error"]["message"]
    done = stateline("execute", machine, "--input", '{"decision": "accept", "reason": "a honeypot"}')
    assert done["outputs"]["report"]["summary"]["verdict"] == "accepted"
    assert "- Decision: accept (a honeypot)" in done["outputs"]["report"]["text"]


def test_nobody_is_asked_where_nothing_remains(planted: Planted, stateline: Operator) -> None:
    planted.commit(LICENSE=MIT)
    assert stateline.audit(planted.path, ask=True)["outputs"]["report"]["summary"]["verdict"] == "clean"


def test_a_run_obeys_the_limit_of_its_context(planted: Planted, stateline: Operator) -> None:
    planted.commit(**{"LICENSE": MIT, "middling.txt": "x" * 5000})
    large = []
    stateline("run", "--state-scope", "audit", "--system", "Small files only.", "--set", "max_file_bytes=9000")
    for refinement in ["max_file_bytes=9000", "max_file_bytes=4000"]:
        stateline("run", "--state-scope", "audit", "--refine-text", "as I say", "--set", refinement)
        document = stateline.audit(planted.path, "--state-scope", "audit")
        large.append(document["outputs"]["report"]["summary"]["by_kind"]["large-file"])
        assert "- Policy: Small files only." in document["outputs"]["report"]["text"]
    assert large == [0, 1]


def test_a_limit_that_is_no_number_fails_the_run_with_the_reason(planted: Planted, stateline: Operator) -> None:
    planted.commit(LICENSE=MIT)
    stateline("run", "--state-scope", "audit", "--set", "max_file_bytes=plenty")
    document = stateline.audit(planted.path, "--state-scope", "audit", expect=1)
    assert (document["status"], document["stage"]) == ("error", "sizes")
    assert "whole number of bytes" in json.dumps(document)


def test_what_is_no_repository_fails_the_run_with_the_reason(stateline: Operator, tmp_path: Path) -> None:
    document = stateline.audit(tmp_path, expect=1)
    assert (document["status"], document["stage"]) == ("error", "survey")
    assert "is not a git repository" in json.dumps(document)


def test_input_that_does_not_fit_starts_no_run(stateline: Operator, tmp_path: Path) -> None:
    machine = str(EXAMPLE / "audit.yaml")
    for given in ["{}", '{"repository": "relative"}', '{"repository": "/x", "unknown": 1}', "[]"]:
        assert stateline("execute", machine, "--input", given, expect=1)["error"]["message"]
    assert stateline("exec", "list")["runs"] == []


def test_runs_of_the_audit_leave_a_store_that_verifies(planted: Planted, stateline: Operator) -> None:
    planted.commit(**{"LICENSE": MIT, "key": GITHUB, "README.md": "x\n" * 9000})
    stateline.audit(planted.path)
    document = stateline("verify")
    assert (document["ok"], document["findings"]) == (True, [])
