"""The audit's programs one by one, on real git repositories with repository findings, and the whole machine."""

from __future__ import annotations

import io
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import for_each

from stateline.cli.main import run

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


class SampleRepository:
    """A git repository with fixed names and dates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.path), "-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"]
        done = subprocess.run([*command, *arguments], env=environment(), capture_output=True, text=True, check=False)
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
        env = environment() | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        command = ["git", "-C", str(self.path), "-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m"]
        subprocess.run([*command, subject], env=env, check=True)
        return self.git("rev-parse", "HEAD")


def environment() -> dict[str, str]:
    """Return the environment of git and the programs: no other configuration, and `python3` is this Python."""
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


def in_process(start: Callable[[], Any], env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run what a process would do with this environment; ``start`` returns or raises its exit code."""
    streams = [io.TextIOWrapper(io.BytesIO(data), write_through=True) for data in (stdin.encode(), b"", b"")]
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - env.keys():
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            code = start()
        except SystemExit as end:
            code = end.code
    if isinstance(code, str):
        streams[2].write(code)
        code = 1
    out, err = (stream.buffer.getvalue().decode() for stream in streams[1:])  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([], code or 0, out, err)


def call(program: str, document: Any, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one program on its own, in this process; the whole machine starts it as a process."""

    def start() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [str(PROGRAMS), *sys.path])
            runpy.run_path(str(PROGRAMS / f"{program}.py"), run_name="__main__")

    return in_process(start, env or environment(), document if isinstance(document, str) else json.dumps(document))


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
    """Return state and outputs after running the programs in the machine's order, with the routing written by hand."""
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
    """Return the explanation of each finding by its path; None without one."""
    return {f["path"]: state["explained"].get(name) for name, f in state["findings"].items() if f["kind"] != "licence"}


def run_case(directory: Path, case: Callable[[Path], None]) -> None:
    case(directory)


@pytest.fixture
def repository(tmp_path: Path) -> SampleRepository:
    return SampleRepository(tmp_path / "a repository")


# survey


def test_the_survey_describes_any_kind_of_repository(tmp_path: Path) -> None:
    def the_survey_counts_files_by_language_and_the_history(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.write("src/a.py", "one\ntwo\n")
        repository.write("tool", "#!/usr/bin/env python3\nthree")
        repository.write("Makefile", "all:\n")
        repository.write("data.bin", b"\0\1\2")
        repository.commit("first", day=1)
        repository.write("src/a.py", "one\n2\n3\n")
        head = repository.commit("second", day=3)
        found = output_of("survey", repository.path)
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

    def a_repository_without_a_commit_is_surveyed_by_what_is_staged(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        assert output_of("survey", repository.path)["files"]["count"] == 0
        repository.write("a.py", "x\n")
        repository.git("add", "a.py")
        found = output_of("survey", repository.path)
        assert (found["head"], found["files"]["lines"], found["history"]["commits"]) == (None, 1, 0)
        assert found["history"]["first"] is None

    def a_bare_clone_is_surveyed_as_its_checkout_is(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"a.py": "x\n", "dir/b.go": "y\n"})
        repository.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
        checkout, bare = output_of("survey", repository.path), output_of("survey", tmp_path / "bare.git")
        assert (checkout["bare"], bare["bare"]) == (False, True)
        assert {**checkout, "name": "", "bare": None} == {**bare, "name": "", "bare": None}

    def a_shallow_clone_is_reported(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(a="1\n")
        repository.commit(a="2\n")
        repository.git("clone", "-q", "--depth", "1", repository.path.as_uri(), str(tmp_path / "shallow"))
        found = output_of("survey", tmp_path / "shallow")
        assert (found["shallow"], found["history"]["commits"]) == (True, 1)

    for_each(
        run_case,
        [
            the_survey_counts_files_by_language_and_the_history,
            a_repository_without_a_commit_is_surveyed_by_what_is_staged,
            a_bare_clone_is_surveyed_as_its_checkout_is,
            a_shallow_clone_is_reported,
        ],
        root=tmp_path,
    )


def test_odd_names_symlinks_and_submodules_are_reported_and_never_followed(tmp_path: Path) -> None:
    def odd_file_names_stay_distinct(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        names = [b"tab\tnew\nline", b"back\\slash", "caf\u00e9".encode(), "rtl\u202eoverride".encode(), b"-rf"]
        if sys.platform != "darwin":  # its file systems demand UTF-8
            names.append(b"latin1-\xe9")
        for name in names:
            with open(os.path.join(os.fsencode(repository.path), name), "w") as file:
                file.write(f"key: {GITHUB}\n" + "x" * 100)
        repository.commit()
        paths = {finding["path"] for finding in leaks_of(repository.path)}
        assert {r"tab\x09new\x0aline", r"back\\slash", "caf\u00e9", r"rtl\xe2\x80\xaeoverride", "-rf"} <= paths
        assert len(paths) == len(names)
        state, _ = audited(repository.path, limit=50)
        assert len(state["unexplained"]) == 2 * len(names) + 1  # and no licence
        evidence = [state["evidence"][name] for name in state["unexplained"] if not name.startswith("licence")]
        assert all(found["commits"]["count"] == 1 for found in evidence)

    def symlinks_are_described_and_never_followed(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        outside = tmp_path / "outside"
        outside.write_text(GITHUB)
        os.symlink(outside, repository.path / "absolute")
        os.symlink("../outside", repository.path / "up")
        os.symlink("absolute", repository.path / "inside")
        repository.commit()
        found = output_of("survey", repository.path)["files"]
        assert (found["symlinks"], found["symlinks_leading_out"]) == (3, ["absolute", "up"])
        assert leaks_of(repository.path) == []

    def a_submodule_is_named_and_not_entered(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        other = SampleRepository(tmp_path / "other")
        other.commit(leak=GITHUB)
        repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "vendored")
        repository.commit()
        assert output_of("survey", repository.path)["files"]["submodules"] == ["vendored"]
        assert leaks_of(repository.path) == []
        assert sizes_of(repository.path, 10_000) == []

    for_each(
        run_case,
        [odd_file_names_stay_distinct, symlinks_are_described_and_never_followed, a_submodule_is_named_and_not_entered],
        root=tmp_path,
    )


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_repository_is_refused_with_the_way_to_trust_it(repository: SampleRepository) -> None:
    repository.commit()
    for path in [repository.path, repository.path / ".git"]:
        os.chown(path, 12345, -1)
    done = call("survey", {"input": {"repository": str(repository.path)}})
    assert done.returncode == 1
    assert "user id 12345" in done.stderr
    assert f"safe.directory '{repository.path}'" in done.stderr


def test_an_audit_neither_runs_nor_changes_nor_fetches_anything(tmp_path: Path) -> None:
    def programs_that_a_repository_configures_are_never_run(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"a.txt": "x\n", ".gitattributes": "*.txt diff=evil filter=evil\n"})
        repository.commit(**{"a.txt": "y\n" * 40})
        program, marker = tmp_path / "program", tmp_path / "marker"
        program.write_text(f"#!/bin/sh\ntouch '{marker}'\ncat\n")
        program.chmod(0o755)
        for key in ["core.fsmonitor", "core.pager", "diff.external", "diff.evil.textconv", "diff.evil.command"]:
            repository.git("config", key, f"'{program}'")
        for key in ["filter.evil.clean", "filter.evil.smudge", "gpg.program"]:
            repository.git("config", key, f"'{program}'")
        repository.git("config", "log.showSignature", "true")
        marker.unlink(missing_ok=True)
        audited(repository.path, limit=10)
        assert not marker.exists()

    def an_audit_changes_nothing_in_the_repository(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(a=f"{GITHUB}\n" * 3, LICENSE=MIT)
        os.utime(repository.path / "a", (1, 1))  # makes the index look stale, which git would refresh

        def everything() -> dict[str, tuple[int, bytes]]:
            files = [path for path in repository.path.rglob("*") if path.is_file()]
            return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

        before = everything()
        audited(repository.path, limit=10)
        assert everything() == before

    def a_partial_clone_is_audited_without_fetching_what_it_lacks(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(a=f"{GITHUB}\n")
        repository.git("config", "uploadpack.allowFilter", "true")
        clone = tmp_path / "partial"
        repository.git("clone", "-q", "--no-checkout", "--filter=blob:none", repository.path.as_uri(), str(clone))
        before = sorted(clone.rglob("*.pack"))
        state, outputs = audited(clone)
        assert (outputs["survey"]["partial"], outputs["survey"]["files"]["not_here"]) == (True, 1)
        assert "1 files whose contents are not in this clone" in rendered(clone, state, outputs)["text"]
        assert sorted(clone.rglob("*.pack")) == before

    for_each(
        run_case,
        [
            programs_that_a_repository_configures_are_never_run,
            an_audit_changes_nothing_in_the_repository,
            a_partial_clone_is_audited_without_fetching_what_it_lacks,
        ],
        root=tmp_path,
    )


# licences


def licence_rules(repository: Path) -> dict[str, str]:
    return {f["path"]: f["rule"] for f in output_of("licences", repository)["findings"].values()}


def test_licences_are_recognised_and_contradictions_are_findings(tmp_path: Path) -> None:
    def a_consistent_licence_is_not_a_finding(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        header = "# SPDX-License-" + "Identifier: MIT\n"
        repository.write("pyproject.toml", '[project]\nname = "x"\nlicense = "MIT"\n')
        repository.write("package.json", '{"license": "(MIT OR GPL-3.0-or-later)"}')
        repository.commit(**{"LICENSE": MIT, "a.py": header})
        output = output_of("licences", repository.path)
        assert output["findings"] == {}
        assert (output["texts"], output["spdx"]) == ({"LICENSE": "MIT"}, {"MIT": 1})

    def this_projects_own_licence_is_recognised(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"COPYING.txt": (EXAMPLE.parents[1] / "LICENSE").read_bytes()})
        assert output_of("licences", repository.path)["texts"] == {"COPYING.txt": "Apache-2.0"}

    def missing_unknown_and_contradicting_licences_are_findings(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"a.py": "x\n"})
        assert licence_rules(repository.path) == {"": "no-licence"}
        repository.write("LICENSE", MIT)
        repository.write("docs/LICENCE.md", "You may read this on Sundays.\n")
        repository.write(
            "pyproject.toml", '[project]\nclassifiers = ["License :: OSI Approved :: Apache Software License"]\n'
        )
        repository.write("package.json", '{"license": {"type": "ISC"}}')
        repository.write("Cargo.toml", "[package\n")
        repository.commit(**{"b.c": "/* SPDX-License-" + "Identifier: GPL-2.0-only */\n"})
        assert licence_rules(repository.path) == {
            "docs/LICENCE.md": "unknown-licence",
            "pyproject.toml": "metadata-disagrees",
            "package.json": "metadata-disagrees",
            "Cargo.toml": "unreadable-metadata",
            "b.c": "header-disagrees",
        }

    def the_nearest_licence_text_governs_a_file(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        apache = "Apache License\nVersion 2.0, January 2004\nSubject to the terms, each Contributor grants ...\n"
        repository.write("vendor/x/LICENSE", apache)
        repository.write("vendor/x/deep/Cargo.toml", '[package]\nlicense = "Apache-2.0"\n')
        repository.commit(LICENSE=MIT)
        assert licence_rules(repository.path) == {}

    for_each(
        run_case,
        [
            a_consistent_licence_is_not_a_finding,
            this_projects_own_licence_is_recognised,
            missing_unknown_and_contradicting_licences_are_findings,
            the_nearest_licence_text_governs_a_file,
        ],
        root=tmp_path,
    )


# large files


def test_large_files_are_found_wherever_git_keeps_them(tmp_path: Path) -> None:
    def large_files_are_found_in_the_tree_and_in_history(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"old.bin": b"\0" * 3000, "kept.bin": b"\1" * 2000, "small": b"x" * 1000})
        (repository.path / "old.bin").unlink()
        repository.commit("remove it")
        found = {f["path"]: (f["where"], f["bytes"]) for f in sizes_of(repository.path, 1000)}
        assert found == {"kept.bin": ("tracked", 2000), "old.bin": ("history", 3000)}
        assert sizes_of(repository.path, 3000) == []

    def a_large_file_on_another_branch_only_is_found(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(a="x")
        repository.git("checkout", "-q", "-b", "other")
        repository.commit(big=b"y" * 500)
        repository.git("checkout", "-q", "main")
        assert [(f["path"], f["where"]) for f in sizes_of(repository.path, 100)] == [("big", "history")]

    def the_number_of_findings_is_bounded_and_the_rest_counted(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        for number in range(510):
            repository.write(f"f{number:03}", f"{number:03}" * 10)
        repository.commit()
        output = output_of("sizes", repository.path, state={"limits": {"max_file_bytes": 20}})
        assert (len(output["findings"]), output["left_out"]) == (500, 10)

    for_each(
        run_case,
        [
            large_files_are_found_in_the_tree_and_in_history,
            a_large_file_on_another_branch_only_is_found,
            the_number_of_findings_is_bounded_and_the_rest_counted,
        ],
        root=tmp_path,
    )


# leaks


def test_keys_are_found_with_their_place_and_never_shown(repository: SampleRepository) -> None:
    repository.write("config.ini", f"a = 1\ntoken = {GITHUB}\n")
    repository.write("deploy.sh", f"export AWS_ACCESS_KEY_ID={AWS}\n\nSTRIPE={STRIPE}\nagain {STRIPE}\n")
    repository.write("id_rsa", PRIVATE)
    repository.write("key.json", json.dumps({"private_key": PRIVATE}))
    repository.commit()
    output = json.dumps(output_of("leaks", repository.path))
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


def test_keys_are_found_in_history_and_false_positives_are_not(tmp_path: Path) -> None:
    def the_same_key_has_the_same_fingerprint_in_every_file(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(a=GITHUB, b=f"x {GITHUB} y", c=STRIPE, k1=PRIVATE, k2=json.dumps(PRIVATE))
        prints = {f["path"]: f["fingerprint"] for f in leaks_of(repository.path)}
        assert prints["a"] == prints["b"] != prints["c"]
        assert prints["k1"] == prints["k2"]

    def a_key_that_was_removed_is_found_in_history(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(a=f"\n{GITHUB}\n", moved=STRIPE)
        repository.commit("better", a="nothing\n")
        repository.git("mv", "moved", "now-here")
        repository.write("now-here", f"# changed\n{STRIPE}\n")
        repository.commit()
        found = {f["path"]: (f["where"], f["lines"]) for f in leaks_of(repository.path)}
        assert found == {"now-here": ("tracked", [2]), "a": ("history", [2])}

    def lookalikes_are_not_findings(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        beginnings = ["gh" + "p_", "AK" + "IA", "-----BEGIN " + "RSA PRIVATE KEY-----", "sk_" + "live_"]
        repository.write("docs.md", "Keys begin with " + ", ".join(beginnings) + ".\n")
        repository.write("prefixed", "x" + GITHUB + "\n" + AWS + "x\n")
        repository.write("public.pem", "-----BEGIN " + f"PUBLIC KEY-----\n{BODY}\n")
        repository.write("binary", b"\0" + GITHUB.encode())
        repository.commit()
        assert leaks_of(repository.path) == []

    def the_example_itself_has_no_findings(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        shutil.copytree(EXAMPLE, repository.path / "audit", ignore=shutil.ignore_patterns("__pycache__"))
        repository.write("test.py", Path(__file__).read_bytes())
        repository.commit()
        assert leaks_of(repository.path) == []
        assert output_of("licences", repository.path)["spdx"] == {}

    for_each(
        run_case,
        [
            the_same_key_has_the_same_fingerprint_in_every_file,
            a_key_that_was_removed_is_found_in_history,
            lookalikes_are_not_findings,
            the_example_itself_has_no_findings,
        ],
        root=tmp_path,
    )


# explanations


def test_findings_are_explained_by_the_repository_only(tmp_path: Path) -> None:
    def the_allow_file_explains_and_its_mistakes_are_reported(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.write("a.key", GITHUB)
        repository.write("b.key", STRIPE)
        allow = (
            "# reviewed\n\nleak *.key revoked in May, see the log\nlarge-file a.key wrong kind\nleak x\nsecret x y z\n"
        )
        repository.commit(**{".audit-allow": allow})
        state, outputs = audited(repository.path)
        assert reasons(state) == dict.fromkeys(["a.key", "b.key"], ".audit-allow, line 3: revoked in May, see the log")
        allow_file = outputs["explain"]["allow_file"]
        assert (allow_file["lines"], allow_file["covering_nothing"]) == (2, [4])
        assert [mistake.split(" is")[0] for mistake in allow_file["mistakes"]] == ["line 5", "line 6"]

    def an_allow_file_that_is_not_staged_explains_nothing(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"a.key": GITHUB})
        repository.write(".audit-allow", "leak * because\n")
        assert reasons(audited(repository.path)[0]) == {"a.key": None}

    def tests_examples_and_placeholders(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.write("tests/fixtures/k.txt", GITHUB)
        repository.write("src/Examples/k.txt", STRIPE)
        repository.write("docs.md", "AK" + "IA" + "IOSFODNN7" + "EXAMPLE")
        repository.write("examples.txt", STRIPE)
        repository.commit(LICENSE=MIT)
        state, _outputs = audited(repository.path)
        assert reasons(state) == {
            "tests/fixtures/k.txt": "it is in a directory named tests",
            "src/Examples/k.txt": "it is in a directory named Examples",
            "docs.md": "the value is a placeholder",
            "examples.txt": "a copy is in src/Examples/k.txt, where it is expected",
        }
        assert state["depth"] == 3  # the copy is found by the deepest look only

    def each_closer_look_explains_more(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.write("near.txt", f"# a fake one\nkey={GITHUB}\n")
        repository.write("half.txt", f"# fake\n{STRIPE}\n\n\n\n\n\n{STRIPE}\n")
        repository.write("gen.dat", "g" * 600)
        repository.write(".gitattributes", "gen.dat linguist-generated\n")
        repository.commit("start", LICENSE=MIT)
        commit = repository.commit("add a dummy key for the docs", **{"dummy.txt": AWS})
        state, outputs = audited(repository.path, limit=500)
        assert reasons(state) == {
            "near.txt": 'line 1 near it says "fake"',
            "gen.dat": ".gitattributes says linguist-generated=set",
            "dummy.txt": f'commit {commit[:12]} says "dummy"',
            "half.txt": None,
        }
        assert (state["depth"], outputs["explain"]["remaining"], len(state["unexplained"])) == (3, 1, 1)

    def a_commit_that_touched_many_files_explains_none_of_them(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        others = {f"file{number}": f"{number}" for number in range(10)}
        repository.commit("add the first example", LICENSE=MIT, key=GITHUB, **others)
        assert reasons(audited(repository.path)[0]) == {"key": None}

    for_each(
        run_case,
        [
            the_allow_file_explains_and_its_mistakes_are_reported,
            an_allow_file_that_is_not_staged_explains_nothing,
            tests_examples_and_placeholders,
            each_closer_look_explains_more,
            a_commit_that_touched_many_files_explains_none_of_them,
        ],
        root=tmp_path,
    )


# report


def rendered(repository: Path, state: Any, outputs: Any, **document: Any) -> Any:
    given = {"repository": str(repository), **document.pop("input", {})}
    document = {"input": given, "state": state, "outputs": outputs, "context": None, **document}
    done = call("report", document)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_input_that_cannot_be_audited_is_refused_with_the_reason(tmp_path: Path) -> None:
    def not_a_repository(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"dir/a": "x"})
        (tmp_path / "empty").mkdir()
        places = {
            tmp_path / "empty": "is not a git repository",
            tmp_path / "missing": "is not a directory",
            repository.path / "dir": "only a part of the repository",
            repository.path / ".git" / "refs": "inside a repository's git directory",
            Path("relative"): "not an absolute path",
        }
        for place, reason in places.items():
            done = call("survey", {"input": {"repository": str(place)}})
            assert (done.returncode, done.stdout) == (1, "")
            assert reason in done.stderr
            assert "Traceback" not in done.stderr

    def without_git(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        env = environment() | {"PATH": str(tmp_path)}
        done = call("survey", {"input": {"repository": str(repository.path)}}, env=env)
        assert (done.returncode, "git was not found" in done.stderr) == (1, True)

    def malformed_stdin(tmp_path: Path) -> None:
        for text in ["", "{", "[]"]:
            done = call("survey", text)
            assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False)

    def a_limit_that_is_not_a_size(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        for limit in ["1000", 0, -1, 1.5, True, None]:
            document = {"input": {"repository": str(repository.path)}, "state": {"limits": {"max_file_bytes": limit}}}
            done = call("sizes", document)
            assert (done.returncode, "whole number of bytes" in done.stderr) == (1, True)

    def a_fourth_inspection(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        state = {"findings": {}, "unexplained": [], "depth": 3}
        done = call("look_closer", {"input": {"repository": str(repository.path)}, "state": state})
        assert (done.returncode, "no look number 4" in done.stderr) == (1, True)

    def a_report_that_cannot_be_written(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(LICENSE=MIT)
        (tmp_path / "file").write_text("")
        state, outputs = audited(repository.path)
        document = {"input": {"repository": "/", "report": str(tmp_path / "file")}, "state": state, "outputs": outputs}
        done = call("report", document)
        assert (done.returncode, "could not be written" in done.stderr) == (1, True)

    for_each(
        run_case,
        [
            not_a_repository,
            without_git,
            malformed_stdin,
            a_limit_that_is_not_a_size,
            a_fourth_inspection,
            a_report_that_cannot_be_written,
        ],
        root=tmp_path,
    )


def test_the_report_is_reproducible_and_replaced_atomically(tmp_path: Path) -> None:
    def the_report_is_the_same_bytes_for_the_same_commit(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(**{"a`b|c": GITHUB, "LICENSE": MIT})
        clone = tmp_path / "elsewhere" / repository.path.name
        repository.git("clone", "-q", "--no-hardlinks", ".", str(clone))
        first, second = (rendered(place, *audited(place)) for place in (repository.path, clone))
        assert first == second
        assert first["path"] is None
        assert first["summary"]["verdict"] == "unexplained"
        assert "``a`b|c``, line 1: github-token" in first["text"]
        assert GITHUB[8:] not in first["text"]

    def the_report_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(LICENSE=MIT)
        other_file = tmp_path / "other_file"
        other_file.write_text("untouched")
        directory = tmp_path / "new" / "reports"
        directory.mkdir(parents=True)
        os.symlink(other_file, directory / "audit-report.md")
        output = rendered(repository.path, *audited(repository.path), input={"report": str(directory)})
        assert output["path"] == str(directory / "audit-report.md")
        assert (directory / "audit-report.md").read_text() == output["text"]
        assert [path.name for path in directory.iterdir()] == ["audit-report.md"]
        assert other_file.read_text() == "untouched"
        assert output["summary"]["verdict"] == "clean"

    def decision_policy_and_bounds_are_in_the_report(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        repository.commit(a=GITHUB, LICENSE=MIT)
        state, outputs = audited(repository.path, decision={"decision": "reject", "reason": "rotate *it*"})
        outputs["leaks"]["cut"] = {"contents not looked into": 5}
        context = {"prompts": {"system": "Be strict.", "developer": []}, "settings": {}}
        output = rendered(repository.path, state, outputs, context=context)
        assert output["summary"]["verdict"] == "rejected"
        for line in [
            r"- Decision: reject (rotate \*it\*)",
            "- Policy: Be strict.",
            "- leaks: contents not looked into: 5",
        ]:
            assert line in output["text"]

    for_each(
        run_case,
        [
            the_report_is_the_same_bytes_for_the_same_commit,
            the_report_replaces_an_older_one_and_leaves_nothing_else,
            decision_policy_and_bounds_are_in_the_report,
        ],
        root=tmp_path,
    )


# The whole machine, by the command line


class Operator:
    """Calls the command line with a separate state dir."""

    def __init__(self, tmp_path: Path) -> None:
        self.state_dir = tmp_path / "state dir"
        self.reports = tmp_path / "reports"
        passed = {name: os.environ[name] for name in ("PYTHONPATH", "HOME", "TMPDIR") if name in os.environ}
        self.env = environment() | passed | {"STATELINE_STATE_DIR": str(self.state_dir)}

    def __call__(self, *arguments: str, expect: int = 0) -> Any:
        done = in_process(lambda: run(["--format", "json", *arguments]), self.env)
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


def test_what_stays_unexplained_ends_the_loop_and_not_the_run(
    repository: SampleRepository, stateline: Operator
) -> None:
    repository.commit(LICENSE=MIT, key=GITHUB, big="y" * 300_000)
    document = stateline.audit(repository.path)
    state = stateline.state(document["run"])
    assert (state["visits"]["inspect"], state["visits"]["explain"], state["status"]) == (3, 4, "complete")
    assert (state["state"]["depth"], len(state["state"]["unexplained"])) == (3, 1)
    assert state["state"]["summary"]["verdict"] == "unexplained"
    by_hand, _ = audited(repository.path)
    assert {key: state["state"][key] for key in by_hand} == by_hand


def test_no_file_of_the_state_dir_holds_a_key_that_was_found(repository: SampleRepository, stateline: Operator) -> None:
    repository.commit(a=GITHUB, b=STRIPE, c=PRIVATE)
    assert stateline.audit(repository.path)["outputs"]["report"]["summary"]["by_kind"]["leak"] == 3
    written = b"".join(path.read_bytes() for path in stateline.state_dir.rglob("*") if path.is_file())
    assert b"github-token" in written
    for value in [GITHUB, STRIPE, BODY]:
        assert value[8:].encode() not in written


def test_turn_by_turn_ends_in_the_same_state_as_one_call(repository: SampleRepository, stateline: Operator) -> None:
    repository.commit(LICENSE=MIT, key=GITHUB)
    at_once = stateline.audit(repository.path)
    turns = 1
    document = stateline.audit(repository.path, "-i", "--id", "stepwise")
    while document["status"] == "advanced":
        turns += 1
        code = 2 if turns == 12 else 0
        document = stateline("execute", "-i", str(EXAMPLE / "audit.yaml"), "--id", "stepwise", expect=code)
    assert (document["status"], document["turn"], turns) == ("complete", 12, 12)
    assert stateline.state("stepwise") == stateline.state(at_once["run"])


def test_a_person_is_asked_only_if_told_to_and_decides(repository: SampleRepository, stateline: Operator) -> None:
    repository.commit(LICENSE=MIT, key=GITHUB)
    waiting = stateline.audit(repository.path, ask=True, expect=3)["waiting"]
    assert (waiting["type"], waiting["stage"]) == ("human", "ask")
    assert waiting["prompt"].startswith("1 findings remain")
    assert "- key: github-token" in waiting["prompt"]
    machine = str(EXAMPLE / "audit.yaml")
    refused = stateline("execute", machine, "--answer", '{"decision": "perhaps"}', expect=1)
    assert refused["error"]["message"]
    done = stateline("execute", machine, "--answer", '{"decision": "accept", "reason": "a honeypot"}')
    assert done["outputs"]["report"]["summary"]["verdict"] == "accepted"
    assert "- Decision: accept (a honeypot)" in done["outputs"]["report"]["text"]


def test_a_clean_repository_needs_neither_inspection_nor_an_answer(tmp_path: Path) -> None:
    def the_machine_has_no_mistakes(tmp_path: Path) -> None:
        stateline = Operator(tmp_path)
        document = stateline("machine", "check", str(EXAMPLE / "audit.yaml"))
        assert (document["ok"], document["problems"]) == (True, [])

    def a_clean_repository_is_audited_without_a_closer_look(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        stateline = Operator(tmp_path)
        repository.commit(LICENSE=MIT)
        document = stateline.audit(repository.path)
        assert (document["status"], document["waiting"]) == ("complete", None)
        assert "inspect" not in document["outputs"]
        summary = document["outputs"]["report"]["summary"]
        assert (summary["verdict"], summary["findings"], summary["looks"]) == ("clean", 0, 0)
        assert (stateline.reports / "audit-report.md").read_text() == document["outputs"]["report"]["text"]

    def nobody_is_asked_without_findings(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        stateline = Operator(tmp_path)
        repository.commit(LICENSE=MIT)
        assert stateline.audit(repository.path, ask=True)["outputs"]["report"]["summary"]["verdict"] == "clean"

    for_each(
        run_case,
        [
            the_machine_has_no_mistakes,
            a_clean_repository_is_audited_without_a_closer_look,
            nobody_is_asked_without_findings,
        ],
        root=tmp_path,
    )


def test_settings_and_input_are_checked_before_they_are_used(tmp_path: Path) -> None:
    def a_run_obeys_the_limit_of_its_context(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        stateline = Operator(tmp_path)
        repository.commit(**{"LICENSE": MIT, "middling.txt": "x" * 5000})
        large = []
        stateline("run", "--state-scope", "audit", "--system", "Small files only.", "--set", "max_file_bytes=9000")
        for refinement in ["max_file_bytes=9000", "max_file_bytes=4000"]:
            stateline("run", "--state-scope", "audit", "--refine-text", "as I say", "--set", refinement)
            document = stateline.audit(repository.path, "--state-scope", "audit")
            large.append(document["outputs"]["report"]["summary"]["by_kind"]["large-file"])
            assert "- Policy: Small files only." in document["outputs"]["report"]["text"]
        assert large == [0, 1]

    def a_limit_that_is_no_number_fails_the_run_with_the_reason(tmp_path: Path) -> None:
        repository = SampleRepository(tmp_path / "a repository")
        stateline = Operator(tmp_path)
        repository.commit(LICENSE=MIT)
        stateline("run", "--state-scope", "audit", "--set", "max_file_bytes=plenty")
        document = stateline.audit(repository.path, "--state-scope", "audit", expect=1)
        assert (document["status"], document["stage"]) == ("error", "sizes")
        assert "whole number of bytes" in json.dumps(document)

    def not_a_repository(tmp_path: Path) -> None:
        stateline = Operator(tmp_path)
        document = stateline.audit(tmp_path, expect=1)
        assert (document["status"], document["stage"]) == ("error", "survey")
        assert "is not a git repository" in json.dumps(document)

    def input_that_does_not_fit_starts_no_run(tmp_path: Path) -> None:
        stateline = Operator(tmp_path)
        machine = str(EXAMPLE / "audit.yaml")
        for given in ["{}", '{"repository": "relative"}', '{"repository": "/x", "unknown": 1}', "[]"]:
            assert stateline("execute", machine, "--input", given, expect=1)["error"]["message"]
        assert stateline("exec", "list")["runs"] == []

    for_each(
        run_case,
        [
            a_run_obeys_the_limit_of_its_context,
            a_limit_that_is_no_number_fails_the_run_with_the_reason,
            not_a_repository,
            input_that_does_not_fit_starts_no_run,
        ],
        root=tmp_path,
    )


def test_runs_of_the_audit_leave_a_store_that_verifies(repository: SampleRepository, stateline: Operator) -> None:
    repository.commit(**{"LICENSE": MIT, "key": GITHUB, "README.md": "x\n" * 9000})
    stateline.audit(repository.path)
    document = stateline("verify")
    assert (document["ok"], document["findings"]) == (True, [])
