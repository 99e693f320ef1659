"""Masking secrets in a value before it is hashed. Pure: the environment is passed in by the caller.

Three rules, in this order:

1. *Known values* (8 characters or more) are masked wherever they stand in a string or a key: as they are, and as
   base64 (standard and URL-safe alphabet, at any alignment, so that ``user:VALUE`` is found too), URL-quoted or
   JSON-escaped. A number whose JSON text is a known value is masked as well.
2. Under *key names* that say "secret", every string is masked, however deep in containers; numbers, booleans, null and
   empty strings stay. Names are compared without case, ``-``, ``_``, ``.`` and spaces, by how they end:
   ``X-Api-Key``, ``apiKey``, ``client_secret``, ``session_token``, but not ``max_tokens``, ``token_count``, ``key``.
3. *Formats* of tokens (:mod:`~stateline.redaction.tokens`), private keys (:mod:`~stateline.redaction.private_keys`) and what
   stands in the place of a secret (:mod:`~stateline.redaction.contextual_secrets`) are masked in any string or key.

Where the first and the third overlap they make one mask. What is *not* found: values that nobody named and that have
no format, hex, base64 broken into lines, a token inside base64, encodings within encodings, a secret cut in two, and
pairs such as ``{"name": "Authorization", "value": ...}``, unless the value has a format. Nothing is guessed from how
random it looks, so hashes, paths, base64 and Markdown rules stay as they are.

Names of properties in a JSON Schema are no secrets: an object directly inside ``properties``, ``$defs`` and their like
(``_SCHEMA_NAMES``) is walked as any other value, whatever its key. The price: an object kept under a secret's name
inside something called ``properties`` is not masked for its name; a string there is.

Cost: a value without secrets costs one scan of its encoding per form of each known value, and the quick looks of
:mod:`~stateline.redaction.prefilter` for the third rule, all at the speed of C. Otherwise time is linear in the size of the
value, for each known value and each format.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from stateline.bundle.canonical import DEPTH, Json, escape
from stateline.errors import InvalidValueError
from stateline.redaction.formats import ALL, present
from stateline.redaction.placeholders import is_harmless
from stateline.redaction.tokens import SecretPattern

PLACEHOLDER = "[REDACTED]"
"""Stands where a secret stood. In keys that would collide: ``[REDACTED#2]``, ``[REDACTED#3]`` ..."""
SHORTEST = 8
"""Known values shorter than this [characters] would be found in ordinary text by chance."""

# More than canonical accepts, so that what a caller puts around a value does not count.
_DEEPEST = 2 * DEPTH
# Six digits at most: no known value is short enough to hide in a number.
_MASK = r"\[REDACTED(?:#\d{1,6})?\]"

_LOWER = bytes(range(256)).lower()
_SEPARATORS = b"-_. "
# How squeezed names end (lower case, no separators). Plurals are counts or lists of findings more often than secrets;
# the two plurals here are what the thing itself is called.
_SECRET_NAMES = (
    b"password",
    b"passwd",
    b"passphrase",
    b"secret",
    b"token",
    b"apikey",
    b"accesskey",
    b"accountkey",
    b"encryptionkey",
    b"privatekey",
    b"secretkey",
    b"signingkey",
    b"authorization",
    b"cookie",
    b"cookies",
    b"credential",
    b"credentials",
)
# Tokens that are no secrets: positions in a list of pages, and words of a tokenizer's vocabulary.
_HARMLESS_NAMES = (
    b"pagetoken",
    b"nexttoken",
    b"continuationtoken",
    b"bostoken",
    b"eostoken",
    b"padtoken",
    b"unktoken",
    b"septoken",
    b"clstoken",
    b"masktoken",
    b"stoptoken",
)
# Keys of JSON Schema whose children are named by properties, and what those children are when they are schemas.
_SCHEMA_NAMES: dict[str, type | tuple[type, ...]] = {
    "properties": dict,
    "patternProperties": dict,
    "$defs": dict,
    "definitions": dict,
    "dependentSchemas": dict,
    "dependentRequired": list,
    "dependencies": (dict, list),
}

_SECRET_VARIABLES = ("_KEY", "APIKEY", "_TOKEN", "_SECRET", "_PASS", "_PAT", "_CREDENTIAL", "_CREDENTIALS")
_SECRET_VARIABLE_PARTS = ("PASSWORD", "PASSWD", "PASSPHRASE")
_SECRET_VARIABLE_NAMES = ("TOKEN", "SECRET", "SECRET_KEY_BASE", "MYSQL_PWD")
# These say where a secret is kept, or hold what is published; masking them would destroy paths.
_HARMLESS_VARIABLES = ("_FILE", "_PATH", "_DIR", "_PUBLIC_KEY", "GOOGLE_APPLICATION_CREDENTIALS")

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")

# The place of what a key stands in, and that key; nothing for the whole.
_Place = tuple[Any, ...]
_WHOLE: _Place = ()


class SecretMatch(msgspec.Struct, frozen=True):
    """A secret that was found, without anything of it. ``where`` is a line (``line 3``) or a JSON Pointer (``""`` for
    the whole), ``what`` the kind of token or whose value it is; ``at`` counts the characters before it in its text."""

    where: str
    what: str
    at: int

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class Redactor:
    """Masks the values it knows and the strings under key names that say "secret"."""

    def __init__(self, values: Iterable[tuple[str, str]] = ()) -> None:
        """``values`` are pairs of a name (for messages) and a secret; see :meth:`add`."""
        # By form: the JSON that msgspec writes for it, without quotes, and the name of the value.
        self._forms: dict[str, tuple[bytes, str]] = {}
        for name, value in values:
            self.add(value, name=name)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Redactor:
        """Knows the values of variables named like keys (``*_KEY``, ``*_TOKEN``, ``*PASSWORD*`` ...), and the password
        of ``scheme://user:password@host`` in any variable."""
        redactor = cls()
        for name, value in environ.items():
            if _is_secret_variable(name.upper()):
                redactor.add(value, name=name)
            if "://" in value:
                for password in _passwords(value):
                    redactor.add(password, name=name)
        return redactor

    def add(self, value: str, *, name: str = "a registered value") -> bool:
        """Know ``value`` from now on, white space around it apart.

        False when it is left out: under 8 characters, made of masks (an already masked value is no secret), or not
        text that UTF-8 can carry back to bytes.
        """
        value = value.strip()
        if len(value) < SHORTEST or (PLACEHOLDER[:-1] in value and re.search(_MASK, value)):
            return False
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return False
        for form in _forms(value, raw):
            self._forms.setdefault(form, (_json_escaped(form).encode(), name))
        return True

    def find(self, data: bytes | Json, *, keys: bool = True) -> SecretMatch | None:
        """Where the first known value, in any of its forms, or the first format of a secret stands in ``data``: a
        file's bytes in any syntax, or a value, with its keys or without. Unlike :meth:`redact` it goes by no key's
        name, and leaves alone what :mod:`~stateline.redaction.placeholders` says: what it finds is refused, not masked.

        Raises :class:`InvalidValueError` for nesting far beyond what ``canonical`` accepts, where something may be found."""
        if not isinstance(data, bytes):
            return self._find(data, self._masking(_encode(data)), keys)
        text = data.decode("utf-8", "surrogateescape")
        masking = self._masking(_encode(text))
        # A file may be JSON: then a form is written as JSON writes it.
        written = [(form, escaped.decode()) for form, (escaped, _) in self._forms.items()]
        masking.forms = list(dict.fromkeys(form for pair in written for form in pair if form in text))
        if found := self._find(text, masking, keys):
            return SecretMatch(f"line {text.count(chr(10), 0, found.at) + 1}", found.what, found.at)
        return self._find_escaped(data, keys) if b"\\u" in data else None

    def _find_escaped(self, data: bytes, keys: bool) -> SecretMatch | None:
        """What the escapes of JSON text hide; nothing if it is none, or too deep for anybody to read it."""
        try:
            return self.find(msgspec.json.decode(data), keys=keys)
        except (ValueError, RecursionError, msgspec.MsgspecError, InvalidValueError):
            return None

    def _find(self, value: Json, masking: _Masking, keys: bool) -> SecretMatch | None:
        if masking.forms or masking.formats:
            for place, is_key, text in _texts(value, keys):
                for start, end, kind in masking.spans(text):
                    what = self._known(text, start)
                    if what or not is_harmless(kind, text, start, end):
                        where = masking.pointer(place)
                        return SecretMatch(f"a key of {where or 'the whole'}" if is_key else where, what or kind, start)
        return None

    def _known(self, text: str, start: int) -> str:
        for form, (escaped, name) in self._forms.items():
            if text.startswith((form, escaped.decode()), start):
                return f"the value of {name}"
        return ""

    def redact(self, value: Json, *, encoded: bytes | None = None) -> tuple[Json, int]:
        """``value`` with every secret masked, and how many masks were put in.

        With none, ``value`` itself comes back; else unchanged parts are shared with it, and it is not changed. Leaves
        that are not JSON (objects of the store) are left alone. ``redact(redact(x)) == redact(x)``.

        ``encoded`` is ``canonical.encode(value)``, or that of anything that holds ``value``, if the caller has it;
        otherwise the value is encoded here once, artifacts in it included. Raises :class:`InvalidValueError` for nesting
        far beyond what ``canonical`` accepts.
        """
        if encoded is None:
            encoded = _encode(value)
        masking = self._masking(encoded)
        if encoded and not masking.forms and not masking.formats and not _may_name_a_secret(encoded):
            return value, 0
        try:
            return masking.value(value), masking.count
        except RecursionError:
            raise InvalidValueError(f"nested deeper than {DEPTH} levels", hint="flatten the value") from None

    def _masking(self, encoded: bytes | None) -> _Masking:
        """What masks all that may be in a value with this JSON text; everything for None."""
        if encoded is None:
            return _Masking(list(self._forms), ALL)
        forms = [form for form, (escaped, _) in self._forms.items() if escaped in encoded]
        return _Masking(forms, present(encoded, known=bool(forms)))


class _Masking:
    """One walk through one value. ``count`` is how many masks were put in so far."""

    def __init__(self, forms: list[str], formats: Sequence[SecretPattern]) -> None:
        self.forms = forms
        self.formats = formats
        self.count = 0

    def value(self, value: Json, *, hidden: bool = False, under: str = "") -> Json:
        """``value`` masked, the same object if nothing was. ``hidden``: some key above it says "secret"; ``under`` is
        the key that it stands at, "" for an item of a list."""
        if isinstance(value, str):
            return self.hide(value) if hidden else self.text(value)
        if isinstance(value, dict):
            return self.members(value, hidden, under)
        if isinstance(value, list):
            items = [self.value(item, hidden=hidden) for item in value]
            return items if _differs(items, value) else value
        if isinstance(value, int | float) and not isinstance(value, bool) and self.forms:
            return self.number(value)
        return value

    def members(self, value: dict[Json, Json], hidden: bool, under: str) -> dict[Json, Json]:
        names = self.keys(value)
        schema = _SCHEMA_NAMES.get(under, ())
        result = {}
        for key, item in value.items():
            name: Json = names.get(key, key)
            # The masked name counts too: it is what the next redaction of the same value sees.
            secret = (_is_secret_name(key) or _is_secret_name(name)) and not isinstance(item, schema)
            result[name] = self.value(item, hidden=hidden or secret, under=name)
        return result if names or _differs(result.values(), value.values()) else value

    def keys(self, value: dict[Json, Json]) -> dict[Json, str]:
        """The new names of those keys that hold a secret: all different, and from every key that stays."""
        if not self.forms and not self.formats:
            return {}
        masked = {key: name for key in value if isinstance(key, str) and (name := self.text(key)) != key}
        if not masked:
            return {}
        taken = value.keys() - masked.keys()
        numbers: dict[str, int] = {}
        # Sorted, so that the numbers do not depend on the order in which the keys were put in.
        for key in sorted(masked):
            base = name = masked[key]
            while name in taken:
                numbers[base] = number = numbers.get(base, 1) + 1
                name = f"{PLACEHOLDER[:-1]}#{number}]".join(base.rsplit(PLACEHOLDER, 1))
            taken.add(name)
            masked[key] = name
        return masked

    def hide(self, text: str) -> str:
        if text in ("", PLACEHOLDER):
            return text
        self.count += 1
        return PLACEHOLDER

    def number(self, number: int | float) -> Json:
        encoded = _encode(number)
        return self.hide(str(number)) if encoded and encoded.decode() in self.forms else number

    def text(self, text: str) -> str:
        """``text`` with each stretch covered by secrets replaced; those that overlap make one stretch."""
        # A mask may be what a format needs in front of it, so that more is found beside a new one; rarely, and never
        # for long: what is found takes all that can belong to it.
        while spans := self.spans(text):
            text = self.mask(text, spans)
        return text

    def pointer(self, place: _Place) -> str:
        """The JSON Pointer of a place, with what its keys hold masked: escaped, it would not be found any more."""
        tokens = []
        while place:
            place, key = place
            tokens.append("/" + escape(self.text(str(key))))
        return "".join(reversed(tokens))

    def mask(self, text: str, spans: list[tuple[int, int, str]]) -> str:
        pieces = []
        covered = 0
        for start, end, _ in spans:
            if start >= covered:
                pieces += [text[covered:start], PLACEHOLDER]
                self.count += 1
            covered = max(covered, end)
        pieces.append(text[covered:])
        return "".join(pieces)

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """Where secrets stand in ``text``, sorted, each with its format's name, "" for a known value. Masks are stepped
        over: what reaches into one is part of it, or looks like a secret only because of the mask beside it."""
        spans = []
        for first, last in _between_masks(text):
            for form in self.forms:
                start = text.find(form, first, last)
                while start >= 0:
                    end = start + len(form)
                    spans.append((start, end, ""))
                    start = text.find(form, end, last)
            for format in self.formats:
                spans += [(*span, format.name) for span in format.spans(text, first, last)]
        return sorted(spans)


def _between_masks(text: str) -> Iterable[tuple[int, int]]:
    first = 0
    if PLACEHOLDER[:-1] in text:
        for mask in re.finditer(_MASK, text):
            yield first, mask.start()
            first = mask.end()
    yield first, len(text)


def _texts(value: Json, keys: bool) -> Iterator[tuple[_Place, bool, str]]:
    """The strings in ``value`` with their places; ``keys``, which are told by the bool, with that of their object."""
    levels = [iter([(_WHOLE, value)])]
    while levels:
        for place, item in levels[-1]:
            if isinstance(item, str):
                yield place, False, item
            elif isinstance(item, dict | list):
                if len(levels) > _DEEPEST:
                    raise InvalidValueError(f"nested deeper than {DEPTH} levels", hint="flatten the value")
                if keys and isinstance(item, dict):
                    yield from ((place, True, str(key)) for key in item)
                levels.append(_inside(item, place))
                break
        else:
            levels.pop()


def _inside(value: dict[Json, Json] | list[Json], place: _Place) -> Iterator[tuple[_Place, Json]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield (place, key), item


def _differs(items: Iterable[Json], others: Iterable[Json]) -> bool:
    return any(item is not other for item, other in zip(items, others, strict=True))


def _encode(value: Json) -> bytes | None:
    """Bytes to scan; None for what msgspec cannot write, which ``canonical`` will refuse with its place."""
    try:
        return msgspec.json.encode(value, enc_hook=lambda leaf: None)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None


def _may_name_a_secret(encoded: bytes) -> bool:
    """Whether some key in JSON text ends like a secret's name. In canonical JSON a key ends in ``":``, and a string
    cannot hold that unescaped; so the answer is exact but for the harmless names."""
    # A quote within a key is escaped: of such a key only what follows the last one can be a name.
    ends = (found.start() for found in _key_ends().finditer(encoded))
    names = {encoded[encoded.rfind(b'"', 0, end) + 1 : end] for end in ends}
    return any(name.translate(_LOWER, _SEPARATORS).endswith(_SECRET_NAMES) for name in names)


@cache
def _key_ends() -> re.Pattern[bytes]:
    """Where a key ends that may be such a name: by its last letters, unless there are separators among them."""
    last = b"|".join(sorted({name[-3:] for name in _SECRET_NAMES}))
    return re.compile(rb'":(?<=(?i:%b|[-_. ]..|.[-_. ].|..[-_. ])":)' % last, re.DOTALL)


def names_a_secret(key: str) -> bool:
    """Whether strings under ``key`` are masked, whatever they say."""
    return _is_secret_name(key)


def _is_secret_name(key: Json) -> bool:
    if not isinstance(key, str):
        return False  # for canonical to refuse
    squeezed = key.encode("utf-8", "surrogatepass").translate(_LOWER, _SEPARATORS)
    return squeezed.endswith(_SECRET_NAMES) and not squeezed.endswith(_HARMLESS_NAMES)


def _is_secret_variable(name: str) -> bool:
    """``name`` is in capitals."""
    if name.endswith(_HARMLESS_VARIABLES):
        return False
    return (
        name.endswith(_SECRET_VARIABLES)
        or name in _SECRET_VARIABLE_NAMES
        or any(part in name for part in _SECRET_VARIABLE_PARTS)
    )


def _passwords(text: str) -> list[str]:
    """Passwords of the URLs in ``text`` (RFC 3986, 3.2), as written and percent-decoded."""
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


def _forms(value: str, raw: bytes) -> set[str]:
    """Everything that ``value`` (``raw`` as bytes) may look like inside a string."""
    forms = {value, *_json_forms(value), *_url_forms(raw), *_base64_forms(raw)}
    # A variable that is not UTF-8 cannot stand in JSON text as it is; its encoded forms can.
    return {form for form in forms if form.isascii() or not re.search("[\ud800-\udfff]", form)}


def _json_escaped(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _json_forms(value: str) -> Iterable[str]:
    """As encoders write it: non-ASCII plain or escaped; ``/`` escaped (PHP) or ``<``, ``>``, ``&`` (Go), or not."""
    try:
        plain = _json_escaped(value)
    except UnicodeEncodeError:
        return
    units = (f"{char}" if char < "\x80" else _utf16_escaped(char) for char in plain)
    for form in (plain, "".join(units)):
        yield form
        yield form.replace("/", "\\/")
        yield form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _utf16_escaped(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _url_forms(raw: bytes) -> Iterable[str]:
    """As Python quotes paths, query parts and forms, and as JavaScript's ``encodeURIComponent`` does."""
    for kept in (b"/", b"", b"!'()*"):
        for digits in ("02X", "02x"):
            quoted = "".join(chr(byte) if byte in _UNRESERVED or byte in kept else f"%{byte:{digits}}" for byte in raw)
            yield quoted
            yield quoted.replace("%20", "+")


def _base64_forms(raw: bytes) -> Iterable[str]:
    """The characters that ``raw`` alone decides, for each of the three ways it can stand in what is encoded."""
    for before in range(3):
        encoded = binascii.b2a_base64(bytes(before) + raw, newline=False).decode()
        form = encoded[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        yield form
        yield form.replace("+", "-").replace("/", "_")
