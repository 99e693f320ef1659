"""Mask secrets in a value before it is hashed, or find them in a file. Pure: the caller passes the environment in.

Three rules, in this order:

1. *Known values* (8 characters or more) are masked anywhere in a string or a key: plain, as base64 (standard and
   URL-safe alphabet, at any alignment, so that ``user:VALUE`` is found too), URL-quoted or JSON-escaped. A number whose
   JSON text is a known value is masked too.
2. Under *key names of secrets*, every string is masked, at any depth; numbers, booleans, null and empty strings stay.
   Names are compared by their ends, without case, ``-``, ``_``, ``.`` and spaces: ``X-Api-Key``, ``apiKey``,
   ``client_secret``, ``session_token``, but not ``max_tokens``, ``token_count``, ``key``.
3. *Formats* are masked in any string or key: tokens (:mod:`~stateline.redaction.tokens`), private keys
   (:mod:`~stateline.redaction.private_keys`) and secrets that are known by their context
   (:mod:`~stateline.redaction.contextual_secrets`).

Matches of the first and the third rule that overlap make one mask. *Not* found: values without a name and a format,
hex, base64 broken into lines, a token inside base64, encodings within encodings, a secret cut in two, and pairs such as
``{"name": "Authorization", "value": ...}``, unless the value has a format. Randomness is not measured, so hashes,
paths, base64 and Markdown rules stay.

Names of properties in a JSON Schema are not secrets: an object directly inside ``properties``, ``$defs`` and the like
(``masking._SCHEMA_NAMES``) is handled like any other value. The price: an object under a secret's name inside something
called ``properties`` is not masked for its name; a string there is.

A value without secrets costs one scan of its encoding per spelling of each known value, and the checks of
:mod:`~stateline.redaction.prefilter`. Otherwise time is linear in its size, for each known value and each format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from stateline.bundle.canonical import DEPTH, Json, too_deep
from stateline.redaction.known_values import SHORTEST, environment_secrets, json_escaped, spellings
from stateline.redaction.masking import MASK, PLACEHOLDER, Masker, Place, encode_to_scan, may_have_secret_name
from stateline.redaction.prefilter import ALL_PATTERNS, present

# More than canonical accepts, so that containers that a caller puts around a value do not count.
_DEEPEST = 2 * DEPTH


class SecretMatch(msgspec.Struct, frozen=True):
    """A secret that was found, without its text. ``where`` is a line (``line 3``) or a JSON Pointer (``""`` for the
    whole), ``what`` the kind of secret, ``at`` the number of characters before it in its text."""

    where: str
    what: str
    at: int

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class Redactor:
    """Masks and finds secrets: known values, strings under key names of secrets, and formats of secrets."""

    def __init__(self, values: Iterable[tuple[str, str]] = ()) -> None:
        """``values`` are pairs of a name (for messages) and a secret; see :meth:`add`."""
        # By spelling: its JSON text without quotes, and the name of the value.
        self._forms: dict[str, tuple[bytes, str]] = {}
        for name, value in values:
            self.add(value, name=name)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Redactor:
        """Return a redactor for the secrets in environment variables; see ``known_values.environment_secrets``."""
        return cls(environment_secrets(environ))

    def add(self, value: str, *, name: str = "a registered value") -> bool:
        """Mask ``value``, without white space around it, from now on.

        False when it is left out: under 8 characters, with a mask in it (an already masked value is not a secret), or
        not text that UTF-8 can carry back to bytes.
        """
        value = value.strip()
        if len(value) < SHORTEST or (PLACEHOLDER[:-1] in value and re.search(MASK, value)):
            return False
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return False
        for form in spellings(value, raw):
            self._forms.setdefault(form, (json_escaped(form).encode(), name))
        return True

    def find(self, data: bytes | Json, *, keys: bool = True) -> SecretMatch | None:
        """Find the first known value, in any spelling, or the first format of a secret in ``data``: a file's bytes in
        any syntax, or a value, with its keys or without. Unlike :meth:`redact` it ignores key names, and the examples
        of :mod:`~stateline.redaction.placeholders`: callers refuse the data, they do not mask it.

        Raises :class:`InvalidValueError` for nesting far beyond the limit of ``canonical``.
        """
        if not isinstance(data, bytes):
            return self._find(data, self._masker(encode_to_scan(data)), keys)
        text = data.decode("utf-8", "surrogateescape")
        masker = self._masker(encode_to_scan(text))
        # A file may be JSON: then a spelling stands there as JSON writes it.
        written = [(form, escaped.decode()) for form, (escaped, _) in self._forms.items()]
        masker.forms = list(dict.fromkeys(form for pair in written for form in pair if form in text))
        if found := self._find(text, masker, keys):
            return SecretMatch(f"line {text.count(chr(10), 0, found.at) + 1}", found.what, found.at)
        try:  # the strings of JSON text, unescaped; it may be another syntax, or too deep
            return self.find(msgspec.json.decode(data), keys=keys) if b"\\u" in data else None
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return None

    def _find(self, value: Json, masker: Masker, keys: bool) -> SecretMatch | None:
        if not masker.forms and not masker.formats:
            return None
        from stateline.redaction.placeholders import is_harmless

        for place, is_key, text in _texts(value, keys):
            for start, end, kind in masker.spans(text):
                names = (
                    f"the value of {name}"
                    for form, (escaped, name) in self._forms.items()
                    if text.startswith((form, escaped.decode()), start)
                )
                what = next(names, "")
                if what or not is_harmless(kind, text, start, end):
                    where = masker.pointer(place)
                    return SecretMatch(f"a key of {where or 'the whole'}" if is_key else where, what or kind, start)
        return None

    def redact(self, value: Json, *, encoded: bytes | None = None) -> tuple[Json, int]:
        """Return ``value`` with every secret masked, and the number of masks.

        Without secrets the result is ``value`` itself; else it shares unchanged parts with ``value``, which is not
        changed. Leaves that are not JSON (objects of the store) are left alone. ``redact(redact(x)) == redact(x)``.

        ``encoded`` is ``canonical.encode(value)``, or that of a container of ``value``, if the caller has it; otherwise
        the value is encoded here once, including artifacts. Raises :class:`InvalidValueError` for nesting far beyond
        the limit of ``canonical``.
        """
        if encoded is None:
            encoded = encode_to_scan(value)
        masker = self._masker(encoded)
        if encoded and not masker.forms and not masker.formats and not may_have_secret_name(encoded):
            return value, 0
        try:
            return masker.value(value), masker.count
        except RecursionError:
            raise too_deep() from None

    def _masker(self, encoded: bytes | None) -> Masker:
        """Return a masker for all secrets that a value with this JSON text may hold; for all of them if it is None."""
        if encoded is None:
            return Masker(list(self._forms), ALL_PATTERNS)
        forms = [form for form, (escaped, _) in self._forms.items() if escaped in encoded]
        return Masker(forms, present(encoded, known=bool(forms)))


def _texts(value: Json, keys: bool, place: Place = (), level: int = 0) -> Iterator[tuple[Place, bool, str]]:
    """Yield (place, is a key, text) for the strings in ``value``; the place of a key is that of its object."""
    if isinstance(value, str):
        yield place, False, value
    elif isinstance(value, dict | list):
        if level >= _DEEPEST:
            raise too_deep()
        if keys and isinstance(value, dict):
            yield from ((place, True, str(key)) for key in value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, keys, (place, key), level + 1)
