"""Canonical bytes of a JSON value, and a strict reader of JSON text.

The canonical form (``docs/format.md``, section "Canonical form"): UTF-8 JSON, keys sorted by code point, no white
space, no trailing newline, integers exact from -2^63 to 2^64-1, floats in the shortest form that reads back, as
msgspec writes them. Everything here is pure; sizes are in [bytes].
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from stateline.errors import IntegrityError, InvalidValueError

Json = Any
"""A JSON value: None, bool, int, float, str, list of Json, dict of str to Json; nothing else."""
Typed = TypeVar("Typed")

DEPTH = 128
"""Deepest nesting of containers in a value: every reader's stack is bounded, and jq stops at 256."""
FILE_DEPTH = DEPTH + 2
"""A file nests its value at most two levels deeper (envelope or node, and the table of objects)."""
OUTSIDE_DEPTH = DEPTH - 2
"""Deepest nesting of values from outside (an output, an answer): they lie two levels down in a run's state."""
SNAPSHOT_LIMIT = 16 * 1024 * 1024
"""Largest snapshot [bytes]."""
OBJECT_LIMIT = 1024 * 1024 * 1024
"""Largest object [bytes]."""
TEXT_LIMIT = 16 * 1024 * 1024
"""Largest JSON text taken from outside: task output, input, manifests [bytes]."""
INT_MIN = -(2**63)
INT_MAX = 2**64 - 1

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder()
# Deleted from a text to keep only brackets, quotes and numbers: little is left of a long text.
_not_skeleton = bytes(sorted(set(range(256)) - set(b'[]{}",:-.0123456789')))
_not_brackets = bytes(sorted(set(range(256)) - set(b'[]{}"')))
# Maps the characters in front of an integer to ":", and its digits and sign to "0".
_to_digits = bytes.maketrans(b"123456789-[,", b"0000000000::")
_twenty = b"0" * 20
_round_brackets = bytes.maketrans(b"[]{}", b"()()")


def sha256(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in lower-case hex, as ``sha256sum`` prints it."""
    return hashlib.sha256(data).hexdigest()


def encode(value: Json, *, depth: int = DEPTH) -> bytes:
    """Return the canonical bytes of ``value``.

    Raises :class:`InvalidValueError`, with the place, for values that do not survive a round trip: NaN and infinities,
    integers out of range, lone surrogates, keys that are not strings, tuples, bytes and other types, and nesting over
    ``depth``.
    """
    try:
        data = _encoder.encode(value)
        # msgspec writes NaN as null and accepts types that JSON does not have. Reading back and comparing finds all of
        # that at the speed of C; the slow walk is only for the place.
        skeleton = _skeleton(data)
        if not _may_be_wide(skeleton) and not _nests_deeper(skeleton, depth) and _decoder.decode(data) == value:
            return data
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass
    check(value, depth=depth)
    return _encoder.encode(value)


def encode_unchecked(value: Json) -> bytes | None:
    """Return the bytes of ``value`` like :func:`encode`, without its checks; None if the encoder itself refuses. Types
    that JSON does not have give arbitrary bytes."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def encode_as(
    decoder: msgspec.json.Decoder[Typed], document: dict[str, Json], *, depth: int
) -> tuple[bytes, Typed] | None:
    """Return the canonical bytes of ``document`` and their decoded value, or None if anything may be wrong: the caller
    compares, or calls :func:`encode`, which reports the reason. Values may be ``msgspec.Raw``."""
    try:
        data = _encoder.encode(document)
        skeleton = _skeleton(data)
        if _nests_deeper(skeleton, depth) or _may_be_wide(skeleton):
            return None
        return data, decoder.decode(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def check(value: Json, *, depth: int = DEPTH) -> None:
    """Raise :class:`InvalidValueError` with the JSON Pointer of the first place that format 1 cannot hold."""
    # An explicit stack: the value may be nested deeper than the interpreter's.
    stack: list[tuple[Json, str, int]] = [(value, "", 0)]
    while stack:
        item, where, level = stack.pop()
        # Exact types: the additions of a subclass (an enum's name, a unit) would be lost silently.
        if item is None or type(item) in (str, int, float, bool):
            _check_scalar(item, where)
        elif isinstance(item, list | dict):
            if level >= depth:
                # Cut: the whole pointer would be as long as the value is deep.
                message = f"nested deeper than {depth} levels (limit `depth`, the default)"
                raise InvalidValueError(message, where=where[:80], hint="flatten the value")
            if isinstance(item, list):
                stack.extend((child, f"{where}/{index}", level + 1) for index, child in enumerate(item))
            else:
                for key, child in item.items():
                    if not isinstance(key, str):
                        message = f"a key is a {type(key).__name__}, not a string"
                        raise InvalidValueError(message, where=where, hint="use string keys")
                    _check_scalar(key, where)
                    stack.append((child, f"{where}/{escape(key)}", level + 1))
        else:
            hint = "use None, bool, int, float, str, list and dict"
            raise InvalidValueError(f"a {type(item).__name__} is not a JSON value", where=where, hint=hint)


def _check_scalar(item: Json, where: str) -> None:
    if isinstance(item, str):
        try:
            item.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidValueError(
                "a string holds a lone surrogate, which UTF-8 cannot hold",
                where=where.encode("utf-8", "backslashreplace").decode(),
                hint="decode the bytes with errors='replace'",
            ) from None
    elif isinstance(item, int) and not INT_MIN <= item <= INT_MAX:
        raise InvalidValueError("an integer is outside -2^63 .. 2^64-1", where=where, hint="store it as a string")
    elif isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
        raise InvalidValueError(f"{item!r} is not a JSON number", where=where, hint="use null or a string")


def escape(key: str) -> str:
    """Return ``key`` as one reference token of a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def unescape(token: str) -> str:
    """Return the key of a reference token of a JSON Pointer (RFC 6901)."""
    return token.replace("~1", "/").replace("~0", "~")


def deeper_than(data: bytes, depth: int) -> bool:
    """Return true if JSON text nests deeper than ``depth``. Linear in the text for a fixed depth, never recursive.

    The answer for text that is not JSON is arbitrary; the decoder refuses it afterwards.
    """
    return _nests_deeper(_skeleton(data), depth)


def too_deep() -> InvalidValueError:
    """Return the error for a value that nests too deep."""
    return InvalidValueError(
        f"nested deeper than {DEPTH} levels (limit `depth`, the default)", hint="flatten the value"
    )


def _skeleton(data: bytes) -> bytes:
    """Return JSON text with nothing but brackets, quotes and the characters of numbers; strings keep those characters,
    except quotes."""
    if b"\\" in data:
        # From the left, like a reader: the rest of a string then ends at its next quote.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return data.translate(None, _not_skeleton)


def _nests_deeper(skeleton: bytes, depth: int) -> bool:
    if skeleton.count(b"[") + skeleton.count(b"{") <= depth:
        return False
    rest = skeleton.translate(None, _not_brackets)
    # Two adjacent quotes do not matter. If other quotes are left, strings hold brackets: every other piece is outside.
    rest = rest.replace(b'""', b"")
    if b'"' in rest:
        rest = b"".join(rest.split(b'"')[::2])
    # Each replacement removes exactly one level, from the inside.
    rest = rest.translate(_round_brackets)
    too_many = b"(" * (depth + 1)
    for _ in range(depth):
        # The plain bomb is detected at once; removing its levels would scan it ``depth`` times.
        if too_many in rest:
            return True
        reduced = rest.replace(b"()", b"")
        if len(reduced) == len(rest):
            break
        rest = reduced
    return bool(rest)


def decode(data: bytes, *, depth: int = FILE_DEPTH) -> Json:
    """Return the value whose canonical form is exactly ``data``.

    Raises :class:`IntegrityError` for anything else: not JSON, duplicate keys, white space, another spelling of a
    number, a key order that is not sorted, nesting over ``depth``.
    """
    skeleton = _skeleton(data)
    if _nests_deeper(skeleton, depth):
        raise IntegrityError(f"the file nests deeper than {depth} levels", finding="not_canonical")
    try:
        value = _decoder.decode(data)
        again = _encoder.encode(value)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise IntegrityError(f"the file is not JSON: {error}", finding="not_json") from None
    if again != data or (_may_be_wide(skeleton) and not _integers_fit(value)):
        raise IntegrityError("the file is JSON but not in canonical form", finding="not_canonical")
    return value


def decode_as(decoder: msgspec.json.Decoder[Typed], data: bytes, *, depth: int = FILE_DEPTH) -> Typed | None:
    """Return the value of the decoder's type whose canonical form is exactly ``data``, or None: :func:`decode` reports
    the reason. Nearly every file fits its type, and a typed decoder avoids the detour over a dict."""
    skeleton = _skeleton(data)
    if _nests_deeper(skeleton, depth) or _may_be_wide(skeleton):
        return None
    try:
        value = decoder.decode(data)
        # Unknown fields and repeated keys are not written again.
        return value if _encoder.encode(value) == data else None
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _may_be_wide(skeleton: bytes) -> bool:
    """Return true if an integer in JSON text may be out of range, and always if one is. True is rare (a double in
    canonical form has at most 16 digits before its point); then each integer is checked."""
    # An integer out of range has at least nineteen digits and a sign, or twenty digits.
    text = skeleton.translate(_to_digits)
    return b":" + _twenty in text or text.startswith(_twenty)


def _integers_fit(value: Json) -> bool:
    try:
        check(value, depth=FILE_DEPTH)
    except InvalidValueError:
        return False
    return True


def parse(data: bytes, *, limit: int = TEXT_LIMIT, what: str = "the text") -> Json:
    """Read JSON text from outside (a task's output, ``--input``) in any spelling.

    ``what`` names the text in messages. Raises :class:`InvalidValueError` for text over ``limit`` [bytes], not UTF-8,
    not JSON, with duplicate keys, NaN or infinities, lone surrogates, integers out of range, or nested over
    ``OUTSIDE_DEPTH``.
    """
    if len(data) > limit:
        raise InvalidValueError(f"{what} is larger than {limit} bytes", hint="write large data to a file and name it")
    skeleton = _skeleton(data)
    if _nests_deeper(skeleton, OUTSIDE_DEPTH):
        less = f"limit `depth` less {DEPTH - OUTSIDE_DEPTH}, the default"
        raise InvalidValueError(f"{what} nests deeper than {OUTSIDE_DEPTH} levels ({less})", hint="flatten the value")
    try:
        value = _decoder.decode(data)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        # msgspec calls several mistakes "truncated"; the slow reader reports the place.
        _parse_slowly(data, what, str(error))
    # A repeated key vanishes in the decoded value, and a colon with it. An escaped colon could hide that.
    if _may_be_wide(skeleton) or b"\\u003" in data or data.count(b":") != _encoder.encode(value).count(b":"):
        _parse_slowly(data, what, "")
    return value


def _parse_slowly(data: bytes, what: str, reason: str) -> None:
    """Raise for the mistake that the fast reader saw or could not see; return if the text is valid."""
    import json

    def pairs(items: list[tuple[str, Json]]) -> dict[str, Json]:
        seen = dict(items)
        if len(seen) != len(items):
            keys = sorted(key for key, _ in items)
            twice = next(key for number, key in enumerate(keys) if key == keys[number + 1])
            raise InvalidValueError(f"{what} holds the key {twice!r} twice in one object", hint="keys must be unique")
        return seen

    def constant(name: str) -> NoReturn:
        raise InvalidValueError(f"{what} holds {name}, which is not JSON", hint="use null or a string")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{what} is not UTF-8 (byte {error.start})", hint="write UTF-8") from None
    except InvalidValueError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{what} is not JSON: {error}", hint="write one JSON document") from None
    check(value)
    if reason:
        raise InvalidValueError(f"{what} is not JSON: {reason}", hint="write one JSON document")


def map_leaves(value: Json, visit: Callable[[Json], Json]) -> Json:
    """Return a copy of ``value`` with ``visit`` applied to every leaf."""
    if type(value) is dict:
        return {key: map_leaves(child, visit) for key, child in value.items()}
    if type(value) is list:
        return [map_leaves(child, visit) for child in value]
    return visit(value)
