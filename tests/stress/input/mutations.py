"""Documents made hostile: a good one is changed in its bytes, or taken apart as JSON and changed in its structure.

All choices come from the ``random.Random`` that is passed in: a seed gives the same documents again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

LONGEST = 64 * 1024
"""Most bytes of a mutated document."""

PIECES = (
    b"", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3",
    "\u2028".encode(), "\u0085".encode(), "\u202e".encode(), "\ufeff".encode(), "é".encode(), "é".encode(),
    b"\r\n", b"\r", b"\t", b"\x1b[2J", b"\x7f", b" ", b"\n", b"\\", b"\\u0000", b"\\ud800", b"\\udc00\\ud800",
    b"\\u003a", b"\\u0022", b"\\/", b"NaN", b"Infinity", b"-Infinity", b"nan", b".nan", b".inf", b"inf", b"-0", b"-0.0",
    b"1e400", b"1E2", b"0x10", b"0o7", b"1_000", b"00", b"+1", b"1.", b".5", b"9007199254740993",
    b"18446744073709551615", b"18446744073709551616", b"-9223372036854775809", b"9" * 30, b"9" * 4400, b"1e-400",
    b"null", b"true", b"false", b"True", b"None", b"~", b"yes", b"{}", b"[]", b'""', b'"', b"'", b"'''", b'"""', b"#",
    b"//", b"/*", b",", b",,", b":", b": ", b"=", b".", b"[", b"[[", b"]]", b"{", b"}", b"[" * 200, b"{" * 200,
    b'{"a":' * 140, b"[" * 126, b"]" * 126, b"(" * 150, b"a." * 150, b"!" * 40, b"- " * 60, b"&a ", b"*a", b"<<: *a",
    b"!!python/object/apply:os.system [id]", b"!!binary aGk=", b"!<%ff> x", b"%YAML 9.9\n--- ", b"%TAG ! x:\n--- ",
    b"---\n", b"...\n", b"2001-01-01", b"2001-01-01T00:00:00Z", b"1:30", b"? ", b"| ", b">+\n", b"../", b"/etc/passwd",
    b'"__proto__":1,', b'"__class__":"os",', b'"$ref":"file:///etc/passwd",', b'"$ref":"#",', b'"lc":1,', b"{{", b"}}",
    b"{{ x }}", b'"pattern":"(a+)+$",', b'"$dynamicRef":"#a",', b"@", b"~1", b"~0", b"~", b"@0", b"^", b"{}@{}",
)  # fmt: skip
"""Bytes that readers have stumbled over somewhere."""

SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, 0.0, -0.0, 0.5,
    1e16, 1e308, 5e-324, "", " ", "x", "a" * 64, "0" * 64, "A" * 64, "f" * 63, "..", "../x", "/x", "a/b", "a\\b", "\0",
    "\x1b[31m", "\ud800", "é", "\u202e", "1", "1.1", "2", "1.0.0", "01", "stateline/2", "run:r1", "run:",
    "state-2026-11-20T092659.123456Z-0a7517db.json", "2026-11-20T09:26:59.123456Z", "2026-02-30T99:99:99.000000Z",
    "application/json", "application/vnd.stateline.node+json", "application/vnd.stateline.list+json",
    "application/vnd.stateline.new+json", "text/plain", "TEXT/plain", "#/$defs/a", "#", "file:///etc/passwd",
    "https://127.0.0.1:9/x", "(a|a)*b", "(?=x)", "\\1", "x{1,100000}", "output.x", "true", "1/0", "state.n + 1",
    "[1].map(a, a)", "{{ input }}", "ready", "started", "waiting", "failed", "done", "running", [], {}, [[]], [None],
    {"": None}, {"a": {}}, ["x"], {"$ref": "#"}, {"type": "object"},
)  # fmt: skip
"""Values that are put in the place of others."""


def mutate(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """``data`` with one to four changes; ``others`` are good documents to take parts from. At most ``LONGEST``."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        changed = _restructured(data, rng, others) if rng.random() < 0.6 else None
        data = (_spliced(data, rng, others) if changed is None else changed)[:LONGEST]
    return data


def _spliced(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """``data`` with some bytes removed, put in, repeated, flipped, or taken from another document."""
    begin = rng.randrange(len(data) + 1)
    end = min(len(data), begin + rng.choice((0, 0, 1, 1, 2, 4, 16, 64, 1024)))
    which = rng.randrange(7)
    if which == 0:
        piece = rng.choice(PIECES)
    elif which == 1:
        piece = b""
    elif which == 2:
        piece = data[begin:end] * rng.choice((2, 3, 20, 200))
    elif which == 3:
        piece = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
    elif which == 4 and others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        piece = other[start : start + rng.choice((1, 8, 64, 1024))]
    elif which == 5:
        piece = rng.choice(PIECES) * rng.choice((1, 2, 8, 64))
    else:
        piece = bytes(byte ^ (1 << rng.randrange(8)) for byte in data[begin:end][:4])
    return data[:begin] + piece + data[end:]


def _restructured(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """``data`` changed as a tree and written canonically (now and then otherwise); None if it is not JSON."""
    try:
        tree = json.loads(data)
        places = _places(tree)
        if not places or len(data) > LONGEST // 4:
            return None
        tree = _changed(tree, places, rng, others)
        spaced = rng.random() < 0.1
        text = json.dumps(
            tree,
            sort_keys=rng.random() < 0.95,
            separators=None if spaced else (",", ":"),
            ensure_ascii=rng.random() < 0.05,
        )
        return text.encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return None


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Each (container, key or index) in ``tree``, at most 2,000."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack and len(found) < 2000:
        item = stack.pop()
        pairs = list(item.items()) if isinstance(item, dict) else list(enumerate(item)) if type(item) is list else []
        found.extend((item, key) for key, _ in pairs)
        stack.extend(child for _, child in pairs)
    return found


def _changed(tree: Any, places: list[tuple[Any, Any]], rng: Random, others: Sequence[bytes]) -> Any:
    container, key = rng.choice(places)
    which = rng.randrange(9)
    if which == 0:
        del container[key]
    elif which == 1:
        container[key] = _nested(container[key], rng)
    elif which == 2:
        source, name = rng.choice(places)
        # A copy: what holds itself has no text.
        container[key] = json.loads(json.dumps(source[name]))
    elif which == 3 and isinstance(container, dict):
        container[_name(rng, key)] = container.pop(key)
    elif which == 4 and isinstance(container, dict):
        container[_name(rng, key)] = rng.choice(SCALARS)
    elif which == 5 and isinstance(container, list):
        container[key:key] = [container[key]] * rng.choice((1, 2, 100))
    elif which == 6 and others:
        container[key] = _part_of(rng.choice(others), rng)
    elif which == 7 and isinstance(container[key], str):
        container[key] = _text(container[key], rng)
    else:
        container[key] = rng.choice(SCALARS)
    return tree


def _name(rng: Random, key: str) -> str:
    return rng.choice((key + "x", key.upper(), f"{key}/0", "", "~1", "0", "-1", "extra", "\0", "constructor", "lc"))


def _text(text: str, rng: Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(PIECES[:40]).decode("utf-8", "replace") + text[at + rng.randrange(2) :]


def _nested(value: Any, rng: Random) -> Any:
    for _ in range(rng.choice((1, 2, 100, 125, 126, 127, 128, 129, 130, 131, 200))):
        value = [value] if rng.random() < 0.7 else {"a": value}
    return value


def _part_of(data: bytes, rng: Random) -> Any:
    """Some value out of a good document, or its bytes as text if it is not JSON."""
    try:
        tree = json.loads(data)
    except ValueError:
        return data[:200].decode("utf-8", "replace")
    places = _places(tree)
    if not places:
        return tree
    container, key = rng.choice(places)
    return container[key]
