"""Secrets that are known by their context: behind a header's name, in a URL, in a line of an env file.

The value may look like anything, so the context must be unmistakable, and values that are clearly not secret stay:
words (``Authorization: Bearer your-api-key``), templates (``$TOKEN``, ``{token}``, ``<token>``), shortened
(``abc...xyz``) and masked values (``****``). So a password that reads as words stays, except in a URL and a cookie.
"""

from __future__ import annotations

import binascii
import re

from stateline.redaction.tokens import RegexPattern

# Between a name and its value, in JSON, JSON inside JSON, YAML, code, shell and URL-quoted forms.
# Nothing that is longer in JSON text is counted, or matches would depend on the level of JSON that is searched.
_CLOSING = r"""["'`\\\])]*+"""
_OPENING = r"""["'`\\\[(]*+(?:b\\*["'])?"""
_BLANKS = r"(?>(?:[ \t+]|%20|\\++t|(?<=\\)t)*)"
# A comma only behind a quote: `("Authorization", "...")`.
_GAP = rf"(?:{_CLOSING}{_BLANKS}(?:=>|[:=>]|%3[ADad])|[\"'`\\]++{_BLANKS},){_BLANKS}{_OPENING}"
_VALUE = r"""[^\s\x00-\x20\x7f"'`\\<>{}()\[\]$,;&]"""
_SLASHED = r"\\++/"  # JSON of PHP

_LONG_VALUE = rf"(?>(?:{_VALUE}++|{_SLASHED})+)"
_SCHEMES = r"(?ai:bearer|basic|token|api-?key|key|oauth|bot|jwt|negotiate|ntlm|splunk)"

# Words separated by anything but letters and digits: lower case, Capitalized, camelCase or CAPITALS. A longer row of
# letters is not a word.
_PIECE = r"(?:[a-z]{0,24}+(?>(?:[A-Z][a-z]{1,24}+)*)|[A-Z]{1,24})"
_WORDS = rf"{_PIECE}(?:[^A-Za-z0-9]{_PIECE})*"
_HARMLESS_TOKENS = ("PAGE", "NEXT", "CONTINUATION", "BOS", "EOS", "PAD", "UNK", "SEP", "CLS", "MASK", "STOP", "SPECIAL")


def is_plain(value: str) -> bool:
    """Return true if ``value`` is words, or was shortened or masked so that next to nothing is left."""
    head = re.split(r"\.\.\.|\*\*\*|xxxx|XXXX", value, maxsplit=1)[0]
    return len(head) < min(8, len(value)) or re.fullmatch(_WORDS, head) is not None


def _is_mixed(value: str) -> bool:
    return re.search("[A-Za-z]", value) is not None and re.search("[0-9]", value) is not None


def _is_credential(found: re.Match[str]) -> bool:
    """Check the value behind a scheme (group 1) or without a known scheme (group 2)."""
    value = found[found.lastindex or 0]
    if is_plain(value) or len(value) < (8 if found.lastindex == 1 else 20):
        return False
    return found.lastindex == 1 or (_is_mixed(value) and not found.string.startswith(("(", "["), found.end()))


def _is_user_and_password(found: re.Match[str]) -> bool:
    """Check that Basic credentials (RFC 7617) decode to the beginning of a text with a colon."""
    text = re.sub("%2[Bb]", "+", re.sub("%2[Ff]", "/", found[1].replace("\\", ""))).partition("=")[0].partition("%")[0]
    try:
        data = binascii.a2b_base64(text[: len(text) // 4 * 4])
    except ValueError:
        return False
    user, colon, _ = data.partition(b":")
    return bool(user and colon) and all(0x20 <= byte < 0x7F for byte in user)


def _has_session_cookie(found: re.Match[str]) -> bool:
    """Return true if one of the cookies may be a session. Short values and words are flags: a theme, a language."""
    values = [re.split("=|%3[Dd]", pair, maxsplit=1)[-1] for pair in found[1].split(";")]
    return any(len(value) >= 8 and not is_plain(value) for value in values)


def _is_password(found: re.Match[str]) -> bool:
    password = found[1]
    if re.fullmatch(
        r"\$\{?\w+\}?|\$\(.*\)|\{.*\}|%\(?\w*\)?s?|\*+|x+|\.+|pass|passw(?:or)?d|pwd?|PASSW(?:OR)?D", password
    ):
        return False
    # `docker://image:tag@sha256:...` names a digest, not a host.
    return not found.string.startswith("sha256:", found.end())


def _has_secret_name(found: re.Match[str]) -> bool:
    """Check the name in front of the value: in a URL's query, in capitals as in an env file, or of an Azure connection
    string."""
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
        return squeezed.endswith(KEY_NAME_ENDS) and len(value) >= 16
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
KEY_NAME_ENDS = (
    "APIKEY", "ACCESSKEY", "SECRETKEY", "PRIVATEKEY", "ENCRYPTIONKEY", "SIGNINGKEY", "ACCOUNTKEY", "MASTERKEY",
)  # fmt: skip
_PASSWORDS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "PWD")
NAME_ENDS = (
    "key", "KEY", "Key", "token", "TOKEN", "Token", "secret", "SECRET", "Secret", "password", "PASSWORD", "passwd",
    "PASSWD", "pwd", "PASSPHRASE", "_PASS", "_PWD", "sig", "ignature",
)  # fmt: skip

_PAIR = r"[A-Za-z0-9_.!#&*+^|~-]{1,128}(?:=|%3[Dd])"
_COOKIE_VALUE = rf"""(?:[^\s\x00-\x20\x7f"'`\\<>{{}}()\[\];,$]++|{_SLASHED})"""
_SLASH = r"(?:\\*+/|%2[Ff])"
# Not beyond "/", so that no text is read from two beginnings.
USER = r"""[^\s\x00-\x20\x7f/?#:@"'`<>\\\[]*+"""
PASSWORD = r"""[^\s\x00-\x20\x7f/?#"'`<>\\]+"""
QUOTED = r"(?:[A-Za-z0-9._~!*'()+-]++|%(?!2[Ff]|3[Ff]|23|40|3[Aa])[0-9A-Fa-f]{2})"

HEADERS = (
    RegexPattern(
        "Authorization header",
        ("uthorization", "UTHORIZATION"),
        rf"(?ai:uthorization){_GAP}"
        rf"(?:{_SCHEMES}(?>(?:[ \t+]|%20|\\++t)+)(?:(?ai:token)={_OPENING})?({_LONG_VALUE})|({_LONG_VALUE}))",
        accepts=_is_credential,
    ),
    RegexPattern(
        "bearer token",
        ("Bearer ", "bearer ", "Bearer%20", "bearer%20"),
        r"[Bb]earer(?: {1,8}|%20)()([A-Za-z0-9._~+/=-]{20,})",
        accepts=_is_credential,
    ),
    RegexPattern(
        "Basic credentials",
        ("Basic ", "basic ", "Basic%20", "basic%20"),
        r"[Bb]asic(?: {1,8}|%20)((?:[A-Za-z0-9+=]|%(?!20)|\\*+/){8,2048})",
        accepts=_is_user_and_password,
        nested=True,
    ),
    RegexPattern(
        "cookie",
        ("ookie", "OOKIE"),
        rf"(?ai:ookies?){_GAP}({_PAIR}(?>{_COOKIE_VALUE}+)"
        rf"(?>(?:;(?: |%20)?(?:{_PAIR}(?>{_COOKIE_VALUE}*)|[A-Za-z]{{1,32}}))*))",
        accepts=_has_session_cookie,
    ),
    RegexPattern(
        "AWS secret key",
        ("ecret", "ECRET"),
        rf"(?ai:ecret[_-]?(?:access[_-]?)?key){_GAP}((?>(?:[A-Za-z0-9+%=]++|\\*+/)+))",
        accepts=lambda found: len(found[1]) >= 40,
    ),
)
"""Values behind a name."""

URLS = (
    RegexPattern(
        "password in a URL",
        ("://", ":\\"),
        rf":\\*+/\\*+/{USER}:({PASSWORD})@",
        accepts=_is_password,
        nested=True,
    ),
    RegexPattern(
        "password in a URL",
        ("%3A%2F%2F", "%3a%2f%2f"),
        rf"(?i:%3A%2F%2F)(?>{QUOTED}*)%3[Aa]((?>{QUOTED}+))%40",
        accepts=_is_password,
        nested=True,
    ),
)
"""User info of a URL: followed by an ``@`` (``%40``)."""

WEBHOOKS = (
    RegexPattern(
        "Slack webhook",
        ("hooks.slack",),
        rf"hooks\.slack(?:-gov)?\.com{_SLASH}(?:services|workflows|triggers){_SLASH}"
        rf"((?>(?:[A-Za-z0-9_-]++|{_SLASH})+))",
        accepts=lambda found: len(found[1]) >= 20,
    ),
    RegexPattern("Discord webhook", ("webhooks",), rf"webhooks{_SLASH}[0-9]{{15,20}}{_SLASH}([A-Za-z0-9_-]{{40,}})"),
)
"""URLs that are secret as a whole: they allow to post."""

# Over at most three "=", so that no text is read from many beginnings.
_PART = rf"(?>(?:{_VALUE.replace('[^', '[^=%')}++|%(?!3[Dd])|{_SLASHED})*)"

ASSIGNED = RegexPattern(
    "assigned secret",
    ("=", "%3D", "%3d"),
    rf"(?:{'|'.join(f'(?<={name})' for name in NAME_ENDS)})(?:=|%3[Dd])"
    rf"{_OPENING}({_PART}(?:(?:=|%3[Dd]){{1,4}}{_PART}){{0,3}})",
    accepts=_has_secret_name,
    nested=True,
)
