"""Secrets that are told by where they stand in a text: behind a header's name, in a URL, in a line of an env file.

What stands there may be anything, so the place has to be unmistakable, and what is plainly no secret is left alone:
words (``Authorization: Bearer your-api-key``), templates (``$TOKEN``, ``{token}``, ``<token>``), what somebody has
shortened (``abc...xyz``) or masked (``****``). So a password that reads as words stays, except in a URL and a cookie.
"""

from __future__ import annotations

import binascii
import re

from stateline.redaction.tokens import Format

# Between a name and its value, in JSON, JSON inside JSON, YAML, code, shell and URL-quoted forms.
# Nothing that JSON text writes longer is counted, or what is found would depend on where it is looked for.
_CLOSING = r"""["'`\\\])]*+"""
_OPENING = r"""["'`\\\[(]*+(?:b\\*["'])?"""
_BLANKS = r"(?:[ \t+]|%20|\\++t|(?<=\\)t)*+"
# A comma only behind a quote: `("Authorization", "...")`.
_GAP = rf"(?:{_CLOSING}{_BLANKS}(?:=>|[:=>]|%3[ADad])|[\"'`\\]++{_BLANKS},){_BLANKS}{_OPENING}"
_VALUE = r"""[^\s\x00-\x20\x7f"'`\\<>{}()\[\]$,;&]"""
_SLASHED = r"\\++/"  # JSON of PHP

_LONG_VALUE = rf"(?:{_VALUE}++|{_SLASHED})++"
_SCHEMES = r"(?ai:bearer|basic|token|api-?key|key|oauth|bot|jwt|negotiate|ntlm|splunk)"

# Words apart by anything but letters and digits: lower case, Capitalized, camelCase or CAPITALS. A longer row of
# letters is no word.
_PIECE = r"(?:[a-z]{0,24}+(?:[A-Z][a-z]{1,24}+)*+|[A-Z]{1,24})"
_WORDS = rf"{_PIECE}(?:[^A-Za-z0-9]{_PIECE})*"
_HARMLESS_TOKENS = ("PAGE", "NEXT", "CONTINUATION", "BOS", "EOS", "PAD", "UNK", "SEP", "CLS", "MASK", "STOP", "SPECIAL")


def is_plain(value: str) -> bool:
    """Whether ``value`` is words, or what was shortened or masked by somebody else so that next to nothing is left."""
    head = re.split(r"\.\.\.|\*\*\*|xxxx|XXXX", value, maxsplit=1)[0]
    return len(head) < min(8, len(value)) or re.fullmatch(_WORDS, head) is not None


def _is_mixed(value: str) -> bool:
    return re.search("[A-Za-z]", value) is not None and re.search("[0-9]", value) is not None


def _is_credential(found: re.Match[str]) -> bool:
    """Whether what stands behind a scheme (group 1), or without one that would tell (group 2), may be a credential."""
    value = found[found.lastindex or 0]
    if is_plain(value) or len(value) < (8 if found.lastindex == 1 else 20):
        return False
    return found.lastindex == 1 or (_is_mixed(value) and not found.string.startswith(("(", "["), found.end()))


def _is_user_and_password(found: re.Match[str]) -> bool:
    """Whether Basic credentials (RFC 7617) begin like text with a colon in it."""
    text = re.sub("%2[Bb]", "+", re.sub("%2[Ff]", "/", found[1].replace("\\", ""))).partition("=")[0].partition("%")[0]
    try:
        data = binascii.a2b_base64(text[: len(text) // 4 * 4])
    except ValueError:
        return False
    user, colon, _ = data.partition(b":")
    return bool(user and colon) and all(0x20 <= byte < 0x7F for byte in user)


def _has_a_long_cookie(found: re.Match[str]) -> bool:
    """Whether one of the cookies may be a session. Short values and words are flags: a theme, a language."""
    values = [re.split("=|%3[Dd]", pair, maxsplit=1)[-1] for pair in found[1].split(";")]
    return any(len(value) >= 8 and not is_plain(value) for value in values)


def _is_password(found: re.Match[str]) -> bool:
    password = found[1]
    if re.fullmatch(
        r"\$\{?\w+\}?|\$\(.*\)|\{.*\}|%\(?\w*\)?s?|\*+|x+|\.+|pass|passw(?:or)?d|pwd?|PASSW(?:OR)?D", password
    ):
        return False
    # `docker://image:tag@sha256:...` names a digest, and no host.
    return not found.string.startswith("sha256:", found.end())


def _is_assigned(found: re.Match[str]) -> bool:
    """Whether the name in front is a secret's: in a URL's query, in capitals as in an env file, or of an Azure
    connection string."""
    value = found[1]
    before = found.string[max(0, found.start() - 64) : found.start()]
    if before.endswith(("AccountKey", "SharedAccessKey")):
        return len(value) >= 40
    if not _is_mixed(value) or is_plain(value):
        return False
    if name := re.search(_QUERY_NAME, before):
        squeezed = re.sub("[_.-]", "", name[1]).lower()
        if squeezed in _QUERY:
            return len(value) >= (16 if squeezed in ("sig", "signature") else 8)
    name = re.search(_VARIABLE, before)
    if not name or value.startswith(("/", "./", "../", "~", "0x", "arn:")) or "://" in value:
        return False
    squeezed = name[0].replace("_", "")
    if squeezed.endswith("KEY"):
        return squeezed.endswith(KEY_NAMES) and len(value) >= 16
    if squeezed.endswith("TOKEN"):
        return not squeezed[:-5].endswith(_HARMLESS_TOKENS) and len(value) >= 16
    return squeezed.endswith(_PASSWORDS) and len(value) >= 8


_QUERY_NAME = r"(?:[?&;]|\\u0026|%26|%3[Ff])([A-Za-z_.-]{2,40})$"
_VARIABLE = "[A-Z][A-Z0-9_]*$"
_QUERY = frozenset(
    [
        "apikey", "accesskey", "token", "accesstoken", "authtoken", "idtoken", "refreshtoken", "secret",
        "clientsecret", "password", "passwd", "pwd", "sig", "signature", "xamzsignature", "xamzsecuritytoken",
        "xgoogsignature",
    ]
)  # fmt: skip
KEY_NAMES = ("APIKEY", "ACCESSKEY", "SECRETKEY", "PRIVATEKEY", "ENCRYPTIONKEY", "SIGNINGKEY", "ACCOUNTKEY", "MASTERKEY")
_PASSWORDS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "PWD")
NAMES = (
    "key", "KEY", "Key", "token", "TOKEN", "Token", "secret", "SECRET", "Secret", "password", "PASSWORD", "passwd",
    "PASSWD", "pwd", "PASSPHRASE", "_PASS", "_PWD", "sig", "ignature",
)  # fmt: skip

_PAIR = r"[A-Za-z0-9_.!#&*+^|~-]{1,128}(?:=|%3[Dd])"
_COOKIE_VALUE = rf"""(?:[^\s\x00-\x20\x7f"'`\\<>{{}}()\[\];,$]++|{_SLASHED})"""
_SLASH = r"(?:\\*+/|%2[Ff])"
# Not beyond "/", so that no text is looked at from two beginnings.
USER = r"""[^\s\x00-\x20\x7f/?#:@"'`<>\\\[]*+"""
PASSWORD = r"""[^\s\x00-\x20\x7f/?#"'`<>\\]+"""
QUOTED = r"(?:[A-Za-z0-9._~!*'()+-]++|%(?!2[Ff]|3[Ff]|23|40|3[Aa])[0-9A-Fa-f]{2})"

HEADERS = (
    Format(
        "Authorization header",
        ("uthorization", "UTHORIZATION"),
        rf"(?ai:uthorization){_GAP}"
        rf"(?:{_SCHEMES}(?:[ \t+]|%20|\\++t)++(?:(?ai:token)={_OPENING})?({_LONG_VALUE})|({_LONG_VALUE}))",
        holds=_is_credential,
    ),
    Format(
        "bearer token",
        ("Bearer ", "bearer ", "Bearer%20", "bearer%20"),
        r"[Bb]earer(?: {1,8}|%20)()([A-Za-z0-9._~+/=-]{20,})",
        holds=_is_credential,
    ),
    Format(
        "Basic credentials",
        ("Basic ", "basic ", "Basic%20", "basic%20"),
        r"[Bb]asic(?: {1,8}|%20)((?:[A-Za-z0-9+=]|%(?!20)|\\*+/){8,2048})",
        holds=_is_user_and_password,
        inside=True,
    ),
    Format(
        "cookie",
        ("ookie", "OOKIE"),
        rf"(?ai:ookies?){_GAP}({_PAIR}{_COOKIE_VALUE}++(?:;(?: |%20)?(?:{_PAIR}{_COOKIE_VALUE}*+|[A-Za-z]{{1,32}}))*+)",
        holds=_has_a_long_cookie,
    ),
    Format(
        "AWS secret key",
        ("ecret", "ECRET"),
        rf"(?ai:ecret[_-]?(?:access[_-]?)?key){_GAP}((?:[A-Za-z0-9+%=]++|\\*+/)++)",
        holds=lambda found: len(found[1]) >= 40,
    ),
)
"""Found behind a name."""

URLS = (
    Format(
        "password in a URL",
        ("://", ":\\"),
        rf":\\*+/\\*+/{USER}:({PASSWORD})@",
        holds=_is_password,
        inside=True,
    ),
    Format(
        "password in a URL",
        ("%3A%2F%2F", "%3a%2f%2f"),
        rf"(?i:%3A%2F%2F){QUOTED}*+%3[Aa]({QUOTED}++)%40",
        holds=_is_password,
        inside=True,
    ),
)
"""User info of a URL: there is an ``@`` (``%40``) too."""

HOOKS = (
    Format(
        "Slack webhook",
        ("hooks.slack",),
        rf"hooks\.slack(?:-gov)?\.com{_SLASH}(?:services|workflows|triggers){_SLASH}"
        rf"((?:[A-Za-z0-9_-]++|{_SLASH})++)",
        holds=lambda found: len(found[1]) >= 20,
    ),
    Format("Discord webhook", ("webhooks",), rf"webhooks{_SLASH}[0-9]{{15,20}}{_SLASH}([A-Za-z0-9_-]{{40,}})"),
)
"""URLs that are secrets as a whole: who has one may post."""

# Over no more than three "=", so that no text is looked at from many beginnings.
_PART = rf"(?:{_VALUE.replace('[^', '[^=%')}++|%(?!3[Dd])|{_SLASHED})*+"

ASSIGNED = Format(
    "assigned secret",
    ("=", "%3D", "%3d"),
    rf"(?:{'|'.join(f'(?<={name})' for name in NAMES)})(?:=|%3[Dd])"
    rf"{_OPENING}({_PART}(?:(?:=|%3[Dd]){{1,4}}{_PART}){{0,3}})",
    holds=_is_assigned,
    inside=True,
)
