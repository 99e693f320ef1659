#!/usr/bin/env python3
"""Survey the repository: files by language, history, and the parts that the audit cannot read."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Iterable

from audit import task
from audit.names import shown
from audit.repository import EXECUTABLE, SUBMODULE, SYMLINK, Commit, Entry, Repository, is_binary

TOP = 10

LANGUAGES = {
    "Assembly": "asm s",
    "C": "c h",
    "C#": "cs",
    "C++": "cc cpp cxx hh hpp hxx",
    "CSS": "css less sass scss",
    "Clojure": "clj cljc cljs",
    "Configuration": "cfg conf ini properties",
    "Dart": "dart",
    "Data": "csv parquet tsv",
    "Elixir": "ex exs",
    "Erlang": "erl hrl",
    "Fortran": "f f90 f95",
    "Go": "go",
    "HTML": "htm html",
    "Haskell": "hs lhs",
    "Images": "gif ico jpeg jpg png svg webp",
    "JSON": "json jsonl",
    "Java": "java",
    "JavaScript": "cjs js jsx mjs",
    "Julia": "jl",
    "Kotlin": "kt kts",
    "Lua": "lua",
    "Markdown": "markdown md",
    "Nix": "nix",
    "OCaml": "ml mli",
    "Objective-C": "m mm",
    "PHP": "php",
    "Perl": "pl pm t",
    "PowerShell": "ps1 psm1",
    "Protocol Buffers": "proto",
    "Python": "py pyi pyx",
    "R": "r rmd",
    "Ruby": "gemspec rake rb",
    "Rust": "rs",
    "SQL": "sql",
    "Scala": "sc scala",
    "Shell": "bash fish sh zsh",
    "Swift": "swift",
    "TOML": "toml",
    "TeX": "bib cls sty tex",
    "Text": "adoc rst txt",
    "TypeScript": "cts mts ts tsx",
    "XML": "xml xsd xsl",
    "YAML": "yaml yml",
    "Zig": "zig",
}
BY_EXTENSION = {extension: language for language, line in LANGUAGES.items() for extension in line.split()}
BY_NAME = {"dockerfile": "Dockerfile", "makefile": "Makefile", "gnumakefile": "Makefile", "cmakelists.txt": "CMake"}
BY_PROGRAM = {"bash": "Shell", "sh": "Shell", "zsh": "Shell", "python": "Python", "perl": "Perl", "ruby": "Ruby"}
BY_PROGRAM |= {"node": "JavaScript"}


def survey(document: task.Json) -> dict[str, task.Json]:
    repository = Repository(document["input"]["repository"])
    entries = repository.entries()
    files = described_files(repository, entries)
    history = described_history(repository)
    return {
        "name": os.path.basename(os.path.normpath(repository.path)),
        "head": repository.head or None,
        "bare": repository.bare,
        "shallow": repository.shallow,
        "partial": repository.partial,
        "files": files,
        "history": history,
        "cut": repository.cut,
    }


def described_files(repository: Repository, entries: list[Entry]) -> dict[str, task.Json]:
    plain = [entry for entry in entries if entry.mode not in (SYMLINK, SUBMODULE)]
    facts = {oid: facts_of(content) for oid, content in repository.contents((e.oid, e.size) for e in plain)}
    languages: dict[str, Counter[str]] = {}
    binary = 0
    for entry in plain:
        lines, is_text, program = facts.get(entry.oid, (0, True, ""))
        binary += not is_text
        counts = languages.setdefault(language(entry.path, program), Counter())
        counts.update(files=1, lines=lines, bytes=max(entry.size, 0))
    links = [entry for entry in entries if entry.mode == SYMLINK]
    targets = dict(repository.contents((entry.oid, entry.size) for entry in links))
    return {
        "count": len(entries),
        "bytes": sum(max(entry.size, 0) for entry in plain),
        "lines": sum(counts["lines"] for counts in languages.values()),
        "binary": binary,
        "executable": sum(entry.mode == EXECUTABLE for entry in entries),
        "symlinks": len(links),
        "symlinks_leading_out": [shown(e.path) for e in links if leads_out(e.path, targets.get(e.oid, b""))][:TOP],
        "submodules": [shown(entry.path) for entry in entries if entry.mode == SUBMODULE],
        "odd_names": sum(shown(entry.path) != entry.path.decode("utf-8", "replace") for entry in entries),
        "not_here": sum(entry.size < 0 for entry in entries if entry.mode != SUBMODULE),
        "languages": {name: dict(counts) for name, counts in sorted(languages.items())},
    }


def facts_of(content: bytes) -> tuple[int, bool, str]:
    """Lines, whether it is text, and the program that a first line ``#!`` names."""
    if is_binary(content):
        return 0, False, ""
    lines = content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))
    words = content[:200].split(b"\n", 1)[0][2:].split() if content.startswith(b"#!") else []
    named = words[1] if len(words) > 1 and words[0].endswith(b"/env") else words[0] if words else b""
    return lines, True, named.rsplit(b"/", 1)[-1].decode("ascii", "replace").rstrip("0123456789.")


def language(path: bytes, program: str) -> str:
    name = path.rsplit(b"/", 1)[-1].decode("utf-8", "replace").lower()
    extension = name.rsplit(".", 1)[1] if "." in name.lstrip(".") else ""
    return BY_NAME.get(name) or BY_EXTENSION.get(extension) or BY_PROGRAM.get(program) or "Other"


def leads_out(path: bytes, target: bytes) -> bool:
    """Return True if a symlink points outside the repository, by its text alone."""
    joined = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return target.startswith(b"/") or joined == b".." or joined.startswith(b"../")


def described_history(repository: Repository) -> dict[str, task.Json]:
    commits = list(repository.commits())
    by_time = sorted((commit for commit in commits if commit.day), key=lambda commit: commit.time)
    touched, added, deleted = churn(repository.commits(changes="lines"))
    return {
        "commits": len(commits),
        "authors": len({commit.author.lower() for commit in commits}),
        "first": by_time[0].day if by_time else None,
        "last": by_time[-1].day if by_time else None,
        "branches": refs(repository, "refs/heads"),
        "tags": refs(repository, "refs/tags"),
        "lines_added": added,
        "lines_deleted": deleted,
        "most_changed": [{"path": shown(path), "commits": count} for path, count in touched[:TOP]],
    }


def refs(repository: Repository, where: str) -> int:
    with repository.stream("for-each-ref", "--format=.", where) as lines:
        return sum(1 for _ in lines)


def churn(commits: Iterable[Commit]) -> tuple[list[tuple[bytes, int]], int, int]:
    """Paths by the number of commits that touched them, and all lines added and deleted."""
    touched: Counter[bytes] = Counter()
    added = deleted = 0
    for commit in commits:
        touched.update(commit.changes.keys())
        added += sum(max(lines[0], 0) for lines in commit.changes.values())
        deleted += sum(max(lines[1], 0) for lines in commit.changes.values())
    return sorted(touched.items(), key=lambda item: (-item[1], item[0])), added, deleted


if __name__ == "__main__":
    task.run(survey)
