"""Mask the secrets in one value: known values, strings under key names of secrets, and formats of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec

from stateline.bundle.canonical import Json, escape
from stateline.redaction.private_keys import SecretPattern

PLACEHOLDER = "[REDACTED]"
"""Replaces a secret. In keys that would collide: ``[REDACTED#2]``, ``[REDACTED#3]`` ..."""

# Six digits at most: no known value is short enough to hide in a number.
MASK = r"\[REDACTED(?:#\d{1,6})?\]"

_LOWER = bytes(range(256)).lower()
_SEPARATORS = b"-_. "
# Ends of names in lower case without separators. Plurals are counts or lists of findings more often than secrets; the
# two plurals here are the usual names of the thing itself.
_SECRET_NAMES = (
    b"password", b"passwd", b"passphrase", b"secret", b"token", b"apikey", b"accesskey", b"accountkey",
    b"encryptionkey", b"privatekey", b"secretkey", b"signingkey", b"authorization", b"cookie", b"cookies",
    b"credential", b"credentials",
)  # fmt: skip
# Tokens that are not secret: positions in a list of pages, and words of a tokenizer's vocabulary.
_HARMLESS_NAMES = (
    b"pagetoken", b"nexttoken", b"continuationtoken", b"bostoken", b"eostoken", b"padtoken", b"unktoken", b"septoken",
    b"clstoken", b"masktoken", b"stoptoken",
)  # fmt: skip
# Keys of JSON Schema whose children are named like properties, and the type of those children if they are schemas.
_SCHEMA_NAMES: dict[str, type | tuple[type, ...]] = {
    "properties": dict,
    "patternProperties": dict,
    "$defs": dict,
    "definitions": dict,
    "dependentSchemas": dict,
    "dependentRequired": list,
    "dependencies": (dict, list),
}

# The place of a key's object, and that key; empty for the whole.
Place = tuple[Any, ...]


class Masker:
    """One walk through one value, for these spellings of known values and these formats. ``count`` is the number of
    masks put in so far."""

    def __init__(self, forms: list[str], formats: Sequence[SecretPattern]) -> None:
        self.forms = forms
        self.formats = formats
        self.count = 0

    def value(self, value: Json, *, hidden: bool = False, under: str = "") -> Json:
        """Return ``value`` masked, or ``value`` itself if it holds no secret. ``hidden``: it lies under the key name of
        a secret; ``under`` is its key, "" for an item of a list."""
        if isinstance(value, str):
            return self._hidden(value) if hidden else self.text(value)
        if isinstance(value, dict):
            return self._members(value, hidden, under)
        if isinstance(value, list):
            items = [self.value(item, hidden=hidden) for item in value]
            return items if _differs(items, value) else value
        if isinstance(value, int | float) and not isinstance(value, bool) and self.forms:
            encoded = encode_to_scan(value)
            return self._hidden(str(value)) if encoded and encoded.decode() in self.forms else value
        return value

    def _members(self, value: dict[Json, Json], hidden: bool, under: str) -> dict[Json, Json]:
        names = self._masked_keys(value)
        schema = _SCHEMA_NAMES.get(under, ())
        result = {}
        for key, item in value.items():
            name: Json = names.get(key, key)
            # The masked name counts too: it is what the next redaction of the same value sees.
            secret = (is_secret_name(key) or is_secret_name(name)) and not isinstance(item, schema)
            result[name] = self.value(item, hidden=hidden or secret, under=name)
        return result if names or _differs(result.values(), value.values()) else value

    def _masked_keys(self, value: dict[Json, Json]) -> dict[Json, str]:
        """Return the new names of the keys that hold a secret: unique, and different from every key that stays."""
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

    def _hidden(self, text: str) -> str:
        if text in ("", PLACEHOLDER):
            return text
        self.count += 1
        return PLACEHOLDER

    def text(self, text: str) -> str:
        """Return ``text`` with a mask in place of each secret; those that overlap make one mask."""
        # A mask may complete the context of a format, so that more is found beside a new one. That is rare and ends
        # soon: each match takes all that can belong to it.
        while spans := self.spans(text):
            text = self._mask(text, spans)
        return text

    def pointer(self, place: Place) -> str:
        """Return the JSON Pointer of a place. Its keys are masked before they are escaped: later no secret would be
        found."""
        tokens = []
        while place:
            place, key = place
            tokens.append("/" + escape(self.text(str(key))))
        return "".join(reversed(tokens))

    def _mask(self, text: str, spans: list[tuple[int, int, str]]) -> str:
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
        """Return (start, end, name of the format) of the secrets in ``text``, sorted; the name of a known value is "".
        Masks are skipped: text that reaches into one is part of it, or looks like a secret only because of it."""
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
        for mask in re.finditer(MASK, text):
            yield first, mask.start()
            first = mask.end()
    yield first, len(text)


def _differs(items: Iterable[Json], others: Iterable[Json]) -> bool:
    return any(item is not other for item, other in zip(items, others, strict=True))


def encode_to_scan(value: Json) -> bytes | None:
    """Return the bytes to scan; None for what msgspec cannot write, and ``canonical`` will refuse with its place."""
    try:
        return msgspec.json.encode(value, enc_hook=lambda leaf: None)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None


def may_have_secret_name(encoded: bytes) -> bool:
    """Return true if some key in JSON text ends like a secret's name. In canonical JSON a key ends in ``":``, which a
    string cannot hold unescaped; so the answer is exact except for the harmless names."""
    # A quote within a key is escaped: of such a key only the part after the last one can be a name.
    ends = (found.start() for found in _key_ends().finditer(encoded))
    names = {encoded[encoded.rfind(b'"', 0, end) + 1 : end] for end in ends}
    return any(name.translate(_LOWER, _SEPARATORS).endswith(_SECRET_NAMES) for name in names)


@cache
def _key_ends() -> re.Pattern[bytes]:
    """Match the end of a key that may be a secret's name: its last letters, or separators among them."""
    last = b"|".join(sorted({name[-3:] for name in _SECRET_NAMES}))
    return re.compile(rb'":(?<=(?i:%b|[-_. ]..|.[-_. ].|..[-_. ])":)' % last, re.DOTALL)


def is_secret_name(key: Json) -> bool:
    """Return true if all strings under ``key`` are masked."""
    if not isinstance(key, str):
        return False  # canonical will refuse it
    squeezed = key.encode("utf-8", "surrogatepass").translate(_LOWER, _SEPARATORS)
    return squeezed.endswith(_SECRET_NAMES) and not squeezed.endswith(_HARMLESS_NAMES)
