"""The formats of access keys and private keys that this audit knows, each anchored by a literal beginning.

No guessing by entropy: what is found here was made to be recognised. Patterns are written so that this file does not
match itself, and so that a mere mention of a prefix does not match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Match(NamedTuple):
    """A match. ``value`` is for the fingerprint only and must not leave this process."""

    rule: str
    literal: str
    start: int
    value: bytes


# rule, literal beginnings, pattern of what follows
FORMATS: list[tuple[str, list[bytes], bytes]] = [
    ("aws-access-key", [b"AKIA", b"ASIA"], rb"[A-Z2-7]{16}(?![A-Za-z0-9])"),
    ("github-token", [b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"], rb"[A-Za-z0-9]{36,}"),
    ("github-token", [b"github_pat_"], rb"[A-Za-z0-9_]{60,}"),
    ("gitlab-token", [b"glpat-", b"glrt-", b"gldt-"], rb"[A-Za-z0-9_-]{20,}"),
    ("slack-token", [b"xoxb-", b"xoxp-", b"xoxa-", b"xoxr-", b"xoxs-", b"xapp-"], rb"[A-Za-z0-9-]{24,}"),
    ("slack-webhook", [b"https://hooks.slack.com/services/"], rb"T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{20,}"),
    ("stripe-key", [b"sk_live_", b"rk_live_"], rb"[A-Za-z0-9]{20,}"),
    ("google-api-key", [b"AIza"], rb"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    ("google-oauth", [b"GOCSPX-"], rb"[A-Za-z0-9_-]{28}"),
    ("openai-key", [b"sk-proj-", b"sk-svcacct-", b"sk-admin-"], rb"[A-Za-z0-9_-]{40,}"),
    ("anthropic-key", [b"sk-ant-"], rb"[A-Za-z0-9_-]{40,}"),
    ("huggingface-token", [b"hf_"], rb"[A-Za-z]{34}(?![A-Za-z0-9])"),
    ("npm-token", [b"npm_"], rb"[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("pypi-token", [b"pypi-AgE"], rb"[A-Za-z0-9_-]{50,}"),
    ("sendgrid-key", [b"SG."], rb"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    ("digitalocean-token", [b"dop_v1_", b"doo_v1_"], rb"[a-f0-9]{64}"),
    ("vault-token", [b"hvs.", b"hvb."], rb"[A-Za-z0-9_-]{24,}"),
    ("azure-storage-key", [b"AccountKey="], rb"[A-Za-z0-9+/]{86}=="),
    ("age-key", [b"AGE-SECRET-KEY-1"], rb"[A-Z0-9]{58}"),
]
PRIVATE_KEY = b"PRIVATE KEY"
# A header, perhaps some lines like "Proc-Type: ...", and then at least 40 characters of base64. Line breaks may be
# escaped, as in JSON. PuTTY's and other formats without such a header are not known here.
PRIVATE = re.compile(
    rb"(-----BEGIN (?:[A-Z0-9]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----)"
    rb"((?:(?!-----)[\s\S]){0,400}?[A-Za-z0-9+/=]{40}(?:(?!-----)[\s\S]){0,20000})"
)
COMPILED = [
    (rule, literal, re.compile(rb"(?<![A-Za-z0-9_])" + re.escape(literal) + b"(?:" + rest + b")"))
    for rule, literals, rest in FORMATS
    for literal in literals
]


def found_in(content: bytes) -> Iterator[Match]:
    """Every access key and private key in ``content``, by place."""
    matches = []
    for rule, literal, pattern in COMPILED:
        if literal in content:  # far quicker than the pattern, and nearly always the end of it
            matches += [Match(rule, literal.decode(), m.start(), m[0]) for m in pattern.finditer(content)]
    if PRIVATE_KEY in content:
        for m in PRIVATE.finditer(content):
            body = re.sub(rb"\\[nr]|\s", b"", m[2])
            matches.append(Match("private-key", m[1].decode(), m.start(), body))
    yield from sorted(matches, key=lambda match: (match.start, match.rule))


def is_placeholder(match: Match) -> bool:
    """Return True for an obvious placeholder: by a word in it, or by too few different characters."""
    rest = match.value[len(match.literal) :] if match.rule != "private-key" else match.value
    return len(set(rest)) < 6 or bool(re.search(rb"EXAMPLE|example|PLACEHOLDER|placeholder|xxxxxx|XXXXXX", rest))
