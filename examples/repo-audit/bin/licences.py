#!/usr/bin/env python3
"""Which licence the repository has: its texts, the SPDX lines of its files, and what its package metadata says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator

from audit import task
from audit.licences import is_licence_file, named, recognised
from audit.names import identity, shown
from audit.repository import SUBMODULE, SYMLINK, Entry, Repository, is_binary

# In two parts, so that this line is not taken for a statement about this file.
SPDX = re.compile(rb"SPDX-License-" + rb"Identifier:[ \t]*([A-Za-z0-9(][A-Za-z0-9 .+()-]*)")
HEAD = 4096  # [bytes] of a file in which an SPDX line counts as its header
METADATA = (b"pyproject.toml", b"Cargo.toml", b"package.json", b"composer.json")


def licences(document: task.Json) -> dict[str, task.Json]:
    repository = Repository(document["input"]["repository"])
    entries = [entry for entry in repository.entries() if entry.mode not in (SYMLINK, SUBMODULE)]
    paths: dict[str, list[bytes]] = {}
    for entry in entries:
        paths.setdefault(entry.oid, []).append(entry.path)
    texts: dict[bytes, str | None] = {}
    headers: dict[bytes, str] = {}
    metadata: dict[bytes, list[str] | None] = {}
    for oid, content in repository.contents(most_telling_first(entries)):
        spdx = None if is_binary(content) else SPDX.search(content[:HEAD])
        for path in paths[oid]:
            if is_licence_file(path):
                texts[path] = recognised(content.decode("utf-8", "replace"))
            elif spdx:
                headers[path] = spdx[1].decode().strip()
            if path.rpartition(b"/")[2] in METADATA:
                metadata[path] = said_by(path, content)
    findings = [*about_texts(entries, texts), *about_metadata(texts, metadata), *about_headers(texts, headers)]
    return {
        "texts": {shown(path): text for path, text in sorted(texts.items())},
        "spdx": counted(headers),
        "metadata": {shown(path): names for path, names in sorted(metadata.items())},
        "cut": repository.cut,
        **task.keep(findings),
    }


def most_telling_first(entries: list[Entry]) -> list[tuple[str, int]]:
    """Licence texts and metadata before the rest, so that a bound never cuts them off."""
    ordered = sorted(entries, key=lambda e: not (is_licence_file(e.path) or e.path.rpartition(b"/")[2] in METADATA))
    return [(entry.oid, entry.size) for entry in ordered]


def counted(headers: dict[bytes, str]) -> dict[str, int]:
    return {text: sum(other == text for other in headers.values()) for text in sorted(set(headers.values()))}


def said_by(path: bytes, content: bytes) -> list[str] | None:
    """Return the licence in a package's metadata; None if the file cannot be parsed."""
    name = path.rpartition(b"/")[2]
    try:
        text = content.decode()
        document = tomllib.loads(text) if name.endswith(b".toml") else json.loads(text)
        return sorted(set(statements(name, document)))
    except (ValueError, RecursionError):  # not UTF-8, not TOML, not JSON
        return None


def statements(name: bytes, document: task.Json) -> Iterator[str]:
    if not isinstance(document, dict):
        return
    section = {b"pyproject.toml": "project", b"Cargo.toml": "package"}.get(name)
    package = document.get(section, {}) if section else document
    if not isinstance(package, dict):
        return
    licence = package.get("license")
    for said in licence if isinstance(licence, list) else [licence]:
        text = said.get("text", said.get("type")) if isinstance(said, dict) else said
        if isinstance(text, str) and text.strip():
            # Some put the whole text where its name belongs.
            yield recognised(text) or text.strip()[:200]
    classifiers = package.get("classifiers")
    for classifier in classifiers if isinstance(classifiers, list) else []:
        if isinstance(classifier, str) and classifier.startswith("License ::"):
            yield classifier.removeprefix("License :: ").removeprefix("OSI Approved :: ")


def governing(path: bytes, texts: dict[bytes, str | None]) -> set[str]:
    """The recognised licences nearest to ``path``: of its directory, or of the nearest one above that has any."""
    directory = path.rpartition(b"/")[0]
    while True:
        found = {text for place, text in texts.items() if text and home(place) == directory}
        if found or not directory:
            return found
        directory = directory.rpartition(b"/")[0]


def home(place: bytes) -> bytes:
    """The directory that a licence text speaks for; texts in ``LICENSES/`` speak for the directory above it."""
    directory = place.rpartition(b"/")[0]
    return directory.removesuffix(b"LICENSES").removesuffix(b"/") if directory.endswith(b"LICENSES") else directory


def finding(rule: str, path: bytes, message: str) -> dict[str, task.Json]:
    name = identity("licence", rule.encode(), path)
    return {"id": name, "kind": "licence", "rule": rule, "path": shown(path), "message": message}


def about_texts(entries: list[Entry], texts: dict[bytes, str | None]) -> Iterator[dict[str, task.Json]]:
    if entries and not any(home(path) == b"" for path in texts):
        yield finding("no-licence", b"", "there is no licence text at the top of the repository")
    for path, text in sorted(texts.items()):
        if text is None:
            yield finding("unknown-licence", path, "the text is none of the licences that this audit knows")


def about_metadata(
    texts: dict[bytes, str | None], metadata: dict[bytes, list[str] | None]
) -> Iterator[dict[str, task.Json]]:
    for path, said in sorted(metadata.items()):
        if said is None:
            yield finding("unreadable-metadata", path, "the file cannot be parsed, so its licence is not known")
            continue
        there = governing(path, texts)
        meant = set().union(*(named(text) for text in said)) if said else set()
        if there and meant and not meant & there:
            message = f"the metadata says {', '.join(sorted(meant))}, the licence text is {', '.join(sorted(there))}"
            yield finding("metadata-disagrees", path, message)


def about_headers(texts: dict[bytes, str | None], headers: dict[bytes, str]) -> Iterator[dict[str, task.Json]]:
    for path, text in sorted(headers.items()):
        there = governing(path, texts)
        if there and not named(text) & there:
            yield finding(
                "header-disagrees", path, f"the header says {text}, the licence text is {', '.join(sorted(there))}"
            )


if __name__ == "__main__":
    task.run(licences)
