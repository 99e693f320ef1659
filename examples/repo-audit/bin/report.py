#!/usr/bin/env python3
"""Writes the report in Markdown. It holds no time of its own and no path of this machine: two audits of the same
repository (same index, same refs) under the same limits give the same bytes."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any

from audit import task

NAME = "audit-report.md"
KINDS = {"leak": "Keys", "large-file": "Large files", "licence": "Licence"}


def report(document: task.Json) -> dict[str, task.Json]:
    summary = summarised(document)
    text = written(document, summary)
    directory = document["input"].get("report")
    path = save(directory, text) if directory else None
    return {"path": path, "summary": summary, "text": text}


def summarised(document: task.Json) -> dict[str, task.Json]:
    state, outputs = document["state"], document["outputs"]
    left_out = sum(outputs[stage]["left_out"] for stage in ("licence", "sizes", "leaks"))
    findings = state["findings"].values()
    return {
        "verdict": verdict(state, left_out),
        "findings": len(state["findings"]) + left_out,
        "explained": len(state["explained"]),
        "unexplained": len(state["unexplained"]) + left_out,
        "by_kind": {kind: sum(finding["kind"] == kind for finding in findings) for kind in sorted(KINDS)},
        "looks": state["depth"],
        "max_file_bytes": state["limits"]["max_file_bytes"],
    }


def verdict(state: task.Json, left_out: int) -> str:
    if not state["unexplained"] and not left_out:
        return "clean"
    decision = state.get("decision")
    return {"accept": "accepted", "reject": "rejected"}[decision["decision"]] if decision else "unexplained"


def written(document: task.Json, summary: dict[str, Any]) -> str:
    outputs, state = document["outputs"], document["state"]
    lines = [f"# Audit of {plain(outputs['survey']['name'])}", ""]
    lines += [f"- Verdict: **{summary['verdict']}**", f"- Commit: {code(outputs['survey']['head'] or 'none yet')}"]
    lines += [f"- Findings: {summary['findings']}, of which {summary['unexplained']} nobody has explained"]
    lines += [f"- Limit for one file: {summary['max_file_bytes']:,} bytes", f"- Closer looks: {summary['looks']}"]
    lines += purpose(document.get("context")) + decided(state.get("decision"))
    lines += ["", "## Not explained", "", *listed(state, state["unexplained"])]
    lines += ["", "## Explained", "", *listed(state, sorted(state["explained"]))]
    lines += ["", "## Files", "", *files(outputs["survey"])]
    lines += ["", "## History", "", *history(outputs["survey"])]
    lines += ["", "## Licence", "", *licence(outputs["licence"])]
    lines += ["", "## What this audit did not see", "", *unseen(outputs)]
    return "\n".join(lines) + "\n"


def purpose(context: task.Json) -> list[str]:
    """Return the line with the context's system prompt, if any."""
    prompts = context.get("prompts") if isinstance(context, dict) else None
    said = prompts.get("system") if isinstance(prompts, dict) else None
    return [f"- Policy: {plain(said)}"] if isinstance(said, str) and said.strip() else []


def decided(decision: task.Json) -> list[str]:
    if not decision:
        return []
    reason = decision.get("reason")
    return [f"- Decision: {decision['decision']}" + (f" ({plain(reason)})" if reason else "")]


def listed(state: task.Json, names: list[str]) -> list[str]:
    findings = [state["findings"][name] for name in names if name in state["findings"]]
    lines: list[str] = []
    for kind, title in KINDS.items():
        of_kind = sorted((f for f in findings if f["kind"] == kind), key=lambda f: (f["path"], f["id"]))
        lines += [line for f in of_kind for line in described(title, f, state)]
    return lines or ["None."]


def described(title: str, finding: task.Json, state: task.Json) -> list[str]:
    numbers = ", ".join(str(number) for number in finding.get("lines", []))
    place = code(finding["path"]) if finding["path"] else "the repository"
    place += f", line {numbers}" if numbers else ""
    lines = [f"- {title}: {place}: {plain(finding['message'])} ({finding['id']})"]
    if "fingerprint" in finding:
        lines.append(f"  - fingerprint {finding['fingerprint']}")
    commits = state["evidence"].get(finding["id"], {}).get("commits")
    if commits:
        oldest = commits["oldest"]
        lines.append(f"  - touched by {commits['count']} commits, first by {oldest['commit'][:12]} on {oldest['day']}")
    reason = state["explained"].get(finding["id"])
    return [*lines, f"  - explained: {plain(reason)}"] if reason else lines


def files(survey: task.Json) -> list[str]:
    found = survey["files"]
    lines = [f"{found['count']:,} tracked files, {found['lines']:,} lines, {found['bytes']:,} bytes.", ""]
    rows = sorted(found["languages"].items(), key=lambda row: (-row[1]["bytes"], row[0]))
    if rows:
        lines += ["| language | files | lines | bytes |", "|---|---:|---:|---:|"]
        lines += [f"| {name} | {n['files']:,} | {n['lines']:,} | {n['bytes']:,} |" for name, n in rows]
        lines.append("")
    lines.append(
        f"{found['binary']} binary, {found['executable']} executable, {found['symlinks']} symlinks, "
        f"{len(found['submodules'])} submodules, {found['odd_names']} names with unprintable bytes."
    )
    lines += [f"- a symlink that leads out of the repository: {code(path)}" for path in found["symlinks_leading_out"]]
    return lines + [f"- submodule (not audited): {code(path)}" for path in found["submodules"]]


def history(survey: task.Json) -> list[str]:
    found = survey["history"]
    if not found["commits"]:
        return ["No commits yet."]
    shallow = " The clone is shallow: what is older is not here." if survey["shallow"] else ""
    return [
        f"{found['commits']:,} commits by {found['authors']:,} authors, {found['first']} to {found['last']}; "
        f"{found['branches']} branches, {found['tags']} tags.{shallow}",
        f"Lines added: {found['lines_added']:,}; deleted: {found['lines_deleted']:,}. Changed most often:",
        "",
        *[f"- {code(top['path'])}: {top['commits']} commits" for top in found["most_changed"]],
    ]


def licence(found: task.Json) -> list[str]:
    lines = [f"- text {code(path)}: {name or 'not recognised'}" for path, name in sorted(found["texts"].items())]
    lines += [f"- SPDX header {code(text)}: {count} files" for text, count in sorted(found["spdx"].items())]
    for path, said in sorted(found["metadata"].items()):
        lines.append(f"- metadata {code(path)}: {', '.join(code(s) for s in said) if said else 'says nothing'}")
    return lines or ["Nothing is said about a licence."]


def unseen(outputs: task.Json) -> list[str]:
    lines = ["- changes that are not staged, files that git does not track, contents of submodules"]
    for stage in ("survey", "licence", "sizes", "leaks", "inspect"):
        for what, count in sorted(outputs.get(stage, {}).get("cut", {}).items()):
            lines.append(f"- {stage}: {what}: {count:,}")
        left_out = outputs.get(stage, {}).get("left_out", 0)
        if left_out:
            lines.append(f"- {stage}: {left_out:,} more findings")
    if outputs["survey"]["files"]["not_here"]:
        lines.append(f"- {outputs['survey']['files']['not_here']:,} files whose contents are not in this clone")
    allow_file = outputs["explain"]["allow_file"]
    lines += [f"- .audit-allow, {plain(mistake)}" for mistake in allow_file["mistakes"]]
    return lines + [f"- .audit-allow, line {number} covers no finding" for number in allow_file["covering_nothing"]]


def plain(text: str) -> str:
    """Text from the repository or an operator on one line, without meaning in Markdown."""
    return re.sub(r"([\\`*_<>\[\]|#])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Format text as code, with enough backticks around it."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def save(directory: str, text: str) -> str:
    """Put the report into ``directory``, atomically: a reader sees the old report or the new one."""
    if not os.path.isabs(directory):
        raise task.Problem(f"report: {directory!r} is not an absolute path; give the full path of a directory")
    path = os.path.join(directory, NAME)
    temporary = None
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=directory, delete=False) as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise task.Problem(
            f"the report could not be written to {path}: {error.strerror}; an older one is as it was"
        ) from None
    return path


if __name__ == "__main__":
    task.run(report)
