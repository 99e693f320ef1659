"""Canonical bytes of a JSON value, and strict reading of JSON text.

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
"""How deep containers may nest in a value: every reader's stack is bounded, and jq stops at 256."""
FILE_DEPTH = DEPTH + 2
"""A file nests its value at most two levels deeper (envelope or node, and the table of objects)."""
OUTSIDE_DEPTH = DEPTH - 2
"""What comes from outside (an output, an answer) lies two levels down in a run's state, which must still be kept."""
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
# What is left of a text when only brackets, quotes and numbers are asked about; it is short where the text is long.
_not_skeleton = bytes(sorted(set(range(256)) - set(b'[]{}",:-.0123456789')))
_not_brackets = bytes(sorted(set(range(256)) - set(b'[]{}"')))
# Of an integer in text: what stands before it, and its sign and digits.
_to_digits = bytes.maketrans(b"123456789-[,", b"0000000000::")
_twenty = b"0" * 20
_round_brackets = bytes.maketrans(b"[]{}", b"()()")


def sha256(data: bytes) -> str:
    """The SHA-256 of ``data`` in lower-case hex, as ``sha256sum`` prints it."""
    return hashlib.sha256(data).hexdigest()


def encode(value: Json, *, depth: int = DEPTH) -> bytes:
    """The canonical bytes of ``value``.

    Raises :class:`InvalidValueError`, naming the place, for whatever does not survive a round trip: NaN and infinities,
    integers out of range, lone surrogates, keys that are not strings, tuples, bytes and other types, and nesting
    over ``depth``.
    """
    return encode_and_read(value, depth=depth)[0]


def draft(value: Json) -> bytes | None:
    """The bytes of ``value`` as :func:`encode` would give them, but for the checks, which are left for later; None for
    what the encoder refuses itself. Types that JSON does not have are written somehow."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def encode_as(
    decoder: msgspec.json.Decoder[Typed], document: dict[str, Json], *, depth: int
) -> tuple[bytes, Typed] | None:
    """The canonical bytes of ``document``, and what the decoder makes of them, or None for whatever may not be right:
    the caller compares, or calls :func:`encode`, which tells what. Values may be ``msgspec.Raw``."""
    try:
        data = _encoder.encode(document)
        skeleton = _skeleton(data)
        if _nests_deeper(skeleton, depth) or _may_be_wide(skeleton):
            return None
        return data, decoder.decode(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def encode_and_read(value: Json, *, depth: int = DEPTH) -> tuple[bytes, Json]:
    """The canonical bytes of ``value``, and what a reader makes of them: it shares nothing with ``value``. Raises as
    :func:`encode`, which reads its own bytes back in any case."""
    try:
        data = _encoder.encode(value)
        # msgspec writes NaN as null and takes types that JSON does not have. Reading back and comparing finds all of
        # that at the speed of C; the slow walk is left for telling the place.
        skeleton = _skeleton(data)
        if not _may_be_wide(skeleton) and not _nests_deeper(skeleton, depth):
            back = _decoder.decode(data)
            if back == value:
                return data, back
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass
    check(value, depth=depth)
    data = _encoder.encode(value)
    return data, _decoder.decode(data)


def check(value: Json, *, depth: int = DEPTH) -> None:
    """Raise :class:`InvalidValueError` with the JSON Pointer of the first place that format 1 cannot hold."""
    # An explicit stack: the value may be nested deeper than the interpreter's.
    stack: list[tuple[Json, str, int]] = [(value, "", 0)]
    while stack:
        item, where, level = stack.pop()
        # Exact types: what a subclass adds (an enum's name, a unit) would silently be lost.
        if item is None or type(item) in (str, int, float, bool):
            _check_scalar(item, where)
        elif isinstance(item, list | dict):
            if level >= depth:
                # The whole pointer would be as long as the bomb is deep.
                raise InvalidValueError(
                    f"nested deeper than {depth} levels", where=where[:80], hint="flatten the value"
                )
            if isinstance(item, list):
                stack.extend((child, f"{where}/{index}", level + 1) for index, child in enumerate(item))
            else:
                for key, child in item.items():
                    if not isinstance(key, str):
                        raise InvalidValueError(
                            f"a key is a {type(key).__name__}, not a string", where=where, hint="use string keys"
                        )
                    _check_scalar(key, where)
                    stack.append((child, f"{where}/{escape(key)}", level + 1))
        else:
            raise InvalidValueError(
                f"a {type(item).__name__} is not a JSON value",
                where=where,
                hint="use None, bool, int, float, str, list and dict",
            )


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
    """``key`` as one reference token of a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def unescape(token: str) -> str:
    """The key that a reference token of a JSON Pointer stands for (RFC 6901)."""
    return token.replace("~1", "/").replace("~0", "~")


def deeper_than(data: bytes, depth: int) -> bool:
    """Whether JSON text nests deeper than ``depth``. Linear in the text for a fixed depth, never recursive.

    Text that is not JSON gets some answer; the decoder refuses it afterwards.
    """
    return _nests_deeper(_skeleton(data), depth)


def too_deep() -> InvalidValueError:
    """What is said of a value that nests deeper than it may."""
    return InvalidValueError(f"nested deeper than {DEPTH} levels", hint="flatten the value")


def _skeleton(data: bytes) -> bytes:
    """JSON text without all that neither nests nor belongs to a number; strings keep such characters, but no quotes."""
    if b"\\" in data:
        # From the left, as a reader takes them: what is left of a string then ends at its next quote.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return data.translate(None, _not_skeleton)


def _nests_deeper(skeleton: bytes, depth: int) -> bool:
    if skeleton.count(b"[") + skeleton.count(b"{") <= depth:
        return False
    rest = skeleton.translate(None, _not_brackets)
    # Two quotes side by side change nothing for what is around them. If any are left, strings hold brackets: every
    # other piece is outside.
    rest = rest.replace(b'""', b"")
    if b'"' in rest:
        rest = b"".join(rest.split(b'"')[::2])
    # Each replacement peels exactly one level, from the inside.
    rest = rest.translate(_round_brackets)
    too_many = b"(" * (depth + 1)
    for _ in range(depth):
        # The plain bomb is known at once; peeling it would scan it as often as it is allowed to be deep.
        if too_many in rest:
            return True
        peeled = rest.replace(b"()", b"")
        if len(peeled) == len(rest):
            break
        rest = peeled
    return bool(rest)


def decode(data: bytes, *, depth: int = FILE_DEPTH) -> Json:
    """The value whose canonical form is exactly ``data``.

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
    """The value of the decoder's type whose canonical form is exactly ``data``, or None if there is none for whatever
    reason: :func:`decode` tells it. A typed decoder spares the detour over a dict where nearly every file fits."""
    skeleton = _skeleton(data)
    if _nests_deeper(skeleton, depth) or _may_be_wide(skeleton):
        return None
    try:
        value = decoder.decode(data)
        # What the type does not know, and what stands there twice, is not written again.
        return value if _encoder.encode(value) == data else None
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _may_be_wide(skeleton: bytes) -> bool:
    """Whether an integer in JSON text may be out of range: never False if one is. True is rare (a double in canonical
    form has at most 16 digits before its point), and then each integer is looked at."""
    # Nineteen digits and a sign, or twenty digits, are where an integer can first leave the range.
    text = skeleton.translate(_to_digits)
    return b":" + _twenty in text or text.startswith(_twenty)


def _integers_fit(value: Json) -> bool:
    try:
        check(value, depth=FILE_DEPTH)
    except InvalidValueError:
        return False
    return True


def parse(data: bytes, *, limit: int = TEXT_LIMIT, what: str = "the text") -> Json:
    """Read JSON text from outside (a task's output, ``--input``), however it is spelled.

    ``what`` names the text in messages. Raises :class:`InvalidValueError` for text over ``limit`` [bytes], not UTF-8, not
    JSON, with duplicate keys, NaN or infinities, lone surrogates, integers out of range, or nested over
    ``OUTSIDE_DEPTH``.
    """
    if len(data) > limit:
        raise InvalidValueError(f"{what} is larger than {limit} bytes", hint="write large data to a file and name it")
    skeleton = _skeleton(data)
    if _nests_deeper(skeleton, OUTSIDE_DEPTH):
        raise InvalidValueError(f"{what} nests deeper than {OUTSIDE_DEPTH} levels", hint="flatten the value")
    try:
        value = _decoder.decode(data)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        # msgspec calls several mistakes "truncated"; the slow reader knows the place.
        _parse_slowly(data, what, str(error))
    # A repeated key vanishes in the decoded value, and with it a colon. An escaped colon could hide that.
    if _may_be_wide(skeleton) or b"\\u003" in data or data.count(b":") != _encoder.encode(value).count(b":"):
        _parse_slowly(data, what, "")
    return value


def _parse_slowly(data: bytes, what: str, reason: str) -> None:
    """Find the mistake that the fast reader saw or could not see; return when there is none."""
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


def walk(value: Json, visit: Callable[[Json], Json]) -> Json:
    """``value`` with ``visit`` applied to every leaf; containers are copied."""
    if type(value) is dict:
        return {key: walk(child, visit) for key, child in value.items()}
    if type(value) is list:
        return [walk(child, visit) for child in value]
    return visit(value)
