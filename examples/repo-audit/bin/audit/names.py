"""File names are bytes in git and text in JSON: a way to write any of them, and back."""

from __future__ import annotations

import hashlib
import re
import unicodedata

ESCAPED = re.compile(rb"\\(?:x([0-9a-f]{2})|(\\))")


def shown(path: bytes) -> str:
    r"""Text for a file name: what is not UTF-8 or would disturb a terminal is ``\xNN``, a backslash is doubled.

    >>> shown(b"caf\xe9\n.txt")
    'caf\\xe9\\x0a.txt'
    """
    text = path.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(escaped(char) if unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"} else char for char in text)


def escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


def raw(text: str) -> bytes:
    """The file name that :func:`shown` wrote as ``text``."""
    return ESCAPED.sub(lambda found: b"\\" if found[2] else bytes([int(found[1], 16)]), text.encode())


def identity(kind: str, *parts: bytes) -> str:
    """A short name for a finding that is the same in every run: ``kind`` and 12 hex digits of what it is about."""
    digest = hashlib.sha256(b"\0".join((kind.encode(), *parts))).hexdigest()
    return f"{kind}-{digest[:12]}"
