"""Known values: the spellings in which a secret may stand in a text, and the environment variables that hold
secrets."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

SHORTEST = 8
"""Known values shorter than this [characters] would be found in ordinary text by chance."""

_SECRET_VARIABLES = ("_KEY", "APIKEY", "_TOKEN", "_SECRET", "_PASS", "_PAT", "_CREDENTIAL", "_CREDENTIALS")
_SECRET_VARIABLE_PARTS = ("PASSWORD", "PASSWD", "PASSPHRASE")
_SECRET_VARIABLE_NAMES = ("TOKEN", "SECRET", "SECRET_KEY_BASE", "MYSQL_PWD")
# Paths of secrets, and keys that are published; masking them would destroy paths.
_HARMLESS_VARIABLES = ("_FILE", "_PATH", "_DIR", "_PUBLIC_KEY", "GOOGLE_APPLICATION_CREDENTIALS")

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


def environment_secrets(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, secret): the values of variables with a secret's name (``*_KEY``, ``*_TOKEN``, ``*PASSWORD*`` ...),
    and the password of ``scheme://user:password@host`` in any variable."""
    for name, value in environ.items():
        if _is_secret_variable(name.upper()):
            yield name, value
        yield from ((name, password) for password in _passwords(value))


def _is_secret_variable(name: str) -> bool:
    secret = name.endswith(_SECRET_VARIABLES) or name in _SECRET_VARIABLE_NAMES
    secret = secret or any(part in name for part in _SECRET_VARIABLE_PARTS)
    return secret and not name.endswith(_HARMLESS_VARIABLES)


def _passwords(text: str) -> list[str]:
    """Return the passwords of the URLs in ``text`` (RFC 3986, 3.2), as written and percent-decoded."""
    found = []
    for rest in text.split("://")[1:]:
        # A password with a bare "@" in it is not legal but common: the last "@" before the host's end counts.
        user_info, at, _ = re.split(r"[/?#\s]", rest, maxsplit=1)[0].rpartition("@")
        _, colon, password = user_info.partition(":")
        if at and colon:
            found.append(password)
            if "%" in password:
                from urllib.parse import unquote

                found.append(unquote(password))
    return found


def spellings(value: str, raw: bytes) -> set[str]:
    """Return all spellings of ``value`` (``raw`` as bytes) inside a string: plain, JSON, URL-quoted and base64."""
    forms = {value, *_json_forms(value), *_url_forms(raw), *_base64_forms(raw)}
    # A variable that is not UTF-8 cannot stand in JSON text as it is; its encoded forms can.
    return {form for form in forms if form.isascii() or not re.search("[\ud800-\udfff]", form)}


def json_escaped(text: str) -> str:
    """Return ``text`` as msgspec writes it in JSON, without quotes."""
    return msgspec.json.encode(text).decode()[1:-1]


def _json_forms(value: str) -> Iterable[str]:
    """Yield the value as JSON encoders write it: non-ASCII plain or escaped; ``/`` escaped (PHP) or ``<``, ``>``, ``&``
    (Go), or not."""
    try:
        plain = json_escaped(value)
    except UnicodeEncodeError:
        return
    units = (char if char < "\x80" else _utf16_escaped(char) for char in plain)
    for form in (plain, "".join(units)):
        yield form
        yield form.replace("/", "\\/")
        yield form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _utf16_escaped(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _url_forms(raw: bytes) -> Iterable[str]:
    """Yield the value as Python quotes paths, query parts and forms, and as JavaScript's ``encodeURIComponent``
    does."""
    for kept in (b"/", b"", b"!'()*"):
        for digits in ("02X", "02x"):
            quoted = "".join(chr(byte) if byte in _UNRESERVED or byte in kept else f"%{byte:{digits}}" for byte in raw)
            yield quoted
            yield quoted.replace("%20", "+")


def _base64_forms(raw: bytes) -> Iterable[str]:
    """Yield the characters that depend on ``raw`` alone, for each of its three alignments in the encoded data."""
    for before in range(3):
        encoded = binascii.b2a_base64(bytes(before) + raw, newline=False).decode()
        form = encoded[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        yield form
        yield form.replace("+", "-").replace("/", "_")
