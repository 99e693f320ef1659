"""Canonical bytes: the vectors of the format, an independent oracle (the standard library's json), and refusals."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import time
from typing import Any

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import canonical
from stateline.errors import IntegrityError, InvalidValueError

VECTORS: list[tuple[Any, bytes]] = [
    (None, b"null"),
    (True, b"true"),
    ([], b"[]"),
    ({}, b"{}"),
    ({"b": 1, "a": [True, None]}, b'{"a":[true,null],"b":1}'),
    # By code point: U+FB33 before U+1F600, which UTF-16 order would turn round.
    ({"\U0001f600": 1, "\ufb33": 2, "z": 3, "": 4}, b'{"":4,"z":3,"\xef\xac\xb3":2,"\xf0\x9f\x98\x80":1}'),
    ('\b\t\n\f\r"\\/\x00\x1f\x7f\u2028é', b'"\\b\\t\\n\\f\\r\\"\\\\/\\u0000\\u001f\x7f\xe2\x80\xa8\xc3\xa9"'),
    (2**64 - 1, b"18446744073709551615"),
    (-(2**63), b"-9223372036854775808"),
    (0, b"0"),
    (0.0, b"0.0"),
    (-0.0, b"-0.0"),
    (1.0, b"1.0"),
    (0.1, b"0.1"),
    (1e15, b"1000000000000000.0"),
    (1e16, b"1e16"),
    (1e-5, b"0.00001"),
    (1e-7, b"1e-7"),
    (5e-324, b"5e-324"),
    (1.7976931348623157e308, b"1.7976931348623157e308"),
    (9007199254740993, b"9007199254740993"),
]


def nested(levels: int, inside: Any = 0) -> Any:
    for _ in range(levels):
        inside = [inside]
    return inside


def test_a_value_has_exactly_these_bytes_and_they_read_back() -> None:
    def check(value: Any, data: bytes) -> None:
        assert canonical.encode(value) == data
        back = canonical.decode(data)
        assert back == value
        assert type(back) is type(value)
        assert math.copysign(1, back) == math.copysign(1, value) if isinstance(value, float) else True

    for_each(check, VECTORS)


def test_the_digest_is_that_of_the_bytes() -> None:
    assert canonical.sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert canonical.sha256(b"{}") == hashlib.sha256(b"{}").hexdigest()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=5) | st.dictionaries(TEXT, v, max_size=5), max_leaves=25)


def same(one: Any, other: Any) -> bool:
    """Equal and of the same types, keys in the same order where ``one`` was sorted."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


@given(VALUES)
def test_the_standard_library_reads_the_same_value_from_the_bytes(value: Any) -> None:
    data = canonical.encode(value)
    assert same(json.loads(data), value)
    assert same(canonical.decode(data), value)
    assert same(canonical.parse(data), value)


@given(VALUES)
def test_the_structure_is_that_of_the_standard_librarys_sorted_compact_form(value: Any) -> None:
    # Floats and control characters have several spellings; everything else must be the same byte for byte.
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if all(not isinstance(token, float) for token in leaves(value)) and "\\u" not in plain:
        assert canonical.encode(value) == plain.encode()


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in leaves(child)]
    if isinstance(value, list):
        return [leaf for child in value for leaf in leaves(child)]
    return [value]


@given(VALUES)
def test_any_spelling_of_the_same_json_parses_to_the_same_bytes(value: Any) -> None:
    loose = json.dumps(value, indent=2, ensure_ascii=True).encode()
    data = canonical.encode(value)
    assert canonical.encode(canonical.parse(loose)) == data
    if loose != data:
        with pytest.raises(IntegrityError):
            canonical.decode(loose)


# -- what is refused on the way in -------------------------------------------------------------------------------------


class Label(str):
    pass


class Colour(enum.IntEnum):
    RED = 1


class Money(float):
    pass


def test_a_value_that_is_not_json_is_refused_with_its_place() -> None:
    def check(bad: Any, reason: str) -> None:
        for value, where in (({"a": [0, {"x/y~": bad}]}, "/a/1/x~1y~0"), ([bad], "/0")):
            for refuse in (canonical.encode, canonical.check):
                with pytest.raises(InvalidValueError, match=reason) as caught:
                    refuse(value)
                assert caught.value.where == where
                assert caught.value.hint
                str(caught.value).encode()
        with pytest.raises(InvalidValueError, match=reason):
            canonical.encode(bad)

    for_each(
        check,
        [
            (float("nan"), "nan is not a JSON number"),
            (float("inf"), "inf is not a JSON number"),
            (float("-inf"), "-inf is not a JSON number"),
            (2**64, "outside"),
            (-(2**63) - 1, "outside"),
            (1 << 20000, "outside"),
            ("\ud800", "lone surrogate"),
            ("\udfff x", "lone surrogate"),
            ((1, 2), "a tuple"),
            (b"bytes", "a bytes"),
            (bytearray(b"x"), "a bytearray"),
            ({1, 2}, "a set"),
            (1j, "a complex"),
            (Ellipsis, "a ellipsis"),
            (Money(1.5), "a Money"),
            (Label("x"), "a Label"),
            ({1: "int key"}, "a key is a int"),
            ({None: 1}, "a key is a NoneType"),
            ({"\ud800": 1}, "lone surrogate"),
            ({("a", "b"): 1}, "a key is a tuple"),
        ],
    )


def test_an_integer_that_is_too_wide_is_refused_among_many_that_are_not() -> None:
    def check(wide: int) -> None:
        with pytest.raises(InvalidValueError) as caught:
            canonical.encode({"fits": [2**64 - 1, "1234567890123456789012345"], "wide": wide})
        assert caught.value.where == "/wide"

    for_each(check, [2**64, -(2**63) - 1, 10**25])


def test_digits_in_strings_are_not_integers() -> None:
    value = {"k" + "9" * 30: "1" * 40, "n": 10**18, "f": 1.2345678901234567}
    assert canonical.decode(canonical.encode(value)) == value


def test_the_deepest_value_is_128_levels() -> None:
    for wrap in (lambda v: [v], lambda v: {"k": v}):
        value: Any = 0
        for _ in range(128):
            value = wrap(value)
        assert canonical.decode(canonical.encode(value)) == value
        with pytest.raises(InvalidValueError, match="128 levels"):
            canonical.encode(wrap(value))
        with pytest.raises(InvalidValueError, match="128 levels"):
            canonical.check(wrap(value))


def test_text_from_outside_nests_no_deeper_than_its_own_limit() -> None:
    deepest = nested(canonical.OUTSIDE_DEPTH)
    assert canonical.OUTSIDE_DEPTH <= 128
    assert canonical.parse(canonical.encode(deepest)) == deepest
    with pytest.raises(InvalidValueError, match=f"{canonical.OUTSIDE_DEPTH} levels"):
        canonical.parse(canonical.encode([deepest]))


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidValueError, match="128 levels"):
        canonical.encode(loop)


def test_brackets_in_strings_do_not_count_as_levels() -> None:
    value = ["[" * 1000, '"' * 50 + "{" * 300, "\\" * 3 + "]" * 500, {"[{" * 200: '\\"['}]
    assert canonical.parse(canonical.encode(value)) == value
    assert canonical.decode(canonical.encode(value)) == value


# -- reading text from outside -----------------------------------------------------------------------------------------


def test_any_json_text_is_read_as_the_standard_library_reads_it() -> None:
    def check(text: bytes) -> None:
        assert same(canonical.parse(text), json.loads(text))

    for_each(
        check,
        [
            b' {"a": 1} \n',
            b"\t[1,\r\n2]",
            b'"\\u0041\\/\\ud83d\\ude00"',
            b"1E5",
            b"-0",
            b'{"a":{"a":1},"b":{"a":1}}',
            b'{"a:":":","b":"::\\u003a"}',
            b"123456789012345678",
            b"12345678901234567890",
            b'{"k":1e-3,"n":-9223372036854775808}',
        ],
    )


def test_text_that_is_not_strict_json_is_refused_by_name() -> None:
    def check(text: bytes, reason: str) -> None:
        with pytest.raises(InvalidValueError, match=reason) as caught:
            canonical.parse(text, what="the output of build")
        assert "the output of build" in caught.value.message or caught.value.hint
        with pytest.raises(IntegrityError):
            canonical.decode(text)

    for_each(
        check,
        [
            (b'{"a":1,"a":2}', "the key 'a' twice"),
            (b'{"a":1,"\\u0061":1}', "the key 'a' twice"),
            (b'[{"b":{"k":1,"k":1}}]', "the key 'k' twice"),
            (b'{"a":"\\u003a","a":"\\u003A"}', "the key 'a' twice"),
            (b'{"a\\u003a":1,"a:":2}', "the key 'a:' twice"),
            (b'{"x":12345678901234567890,"x":1}', "the key 'x' twice"),
            (b"\xef\xbb\xbf{}", "not JSON"),
            (b"\xff\xfe{\x00}\x00", "not UTF-8"),
            (b'{"a":"\xc3"}', r"not UTF-8 \(byte 6\)"),
            (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
            (b"{} {}", "not JSON"),
            (b"1 2", "not JSON"),
            (b"nul", "not JSON"),
            (b"", "not JSON"),
            (b"  ", "not JSON"),
            (b"[1,]", "not JSON"),
            (b"{'a':1}", "not JSON"),
            (b"// c\n1", "not JSON"),
            (b"01", "not JSON"),
            (b"+1", "not JSON"),
            (b".5", "not JSON"),
            (b"0x10", "not JSON"),
            (b'"a\nb"', "not JSON"),
            (b'"\\x41"', "not JSON"),
            (b"NaN", "NaN"),
            (b"[-Infinity]", "-Infinity"),
            (b"1e400", "inf is not a JSON number"),
            (b'["\\ud800"]', "lone surrogate"),
            (b'{"\\udc00":1}', "lone surrogate"),
            (b"18446744073709551616", "outside"),
            (b"-9223372036854775809", "outside"),
            (b"9" * 5000, "outside|not JSON"),
        ],
    )


def test_text_over_the_limit_is_refused_unread() -> None:
    assert canonical.parse(b"[1]", limit=3) == [1]
    with pytest.raises(InvalidValueError, match="larger than 3 bytes"):
        canonical.parse(b"[10]", limit=3)


HUGE = 1_000_000


def test_a_bomb_is_refused_in_no_time() -> None:
    def check(bomb: bytes) -> None:
        began = time.perf_counter()
        for read, refused in ((canonical.parse, InvalidValueError), (canonical.decode, IntegrityError)):
            with pytest.raises(refused):
                read(bomb)
        # A quadratic scan of a megabyte takes minutes.
        assert time.perf_counter() - began < 10

    for_each(
        check,
        [
            b"[" * HUGE,
            b"]" * HUGE,
            b"[" * HUGE + b"]" * HUGE,
            b'{"":' * (HUGE // 4),
            b"[]" * HUGE,
            b"][" * HUGE,
            b'"' + b'\\"' * HUGE,
            b'["' + b'\\"' * HUGE + b"[" * 200,
            b"[" * 200 + b'"' + b"\\" * HUGE,
            b'"\\' * (HUGE // 2) + b"[" * 200,
            b'{"a":1,' * (HUGE // 8),
            b"[" + b"1" * HUGE,
            b"[1" + b",1" * HUGE,
        ],
    )


def test_a_repeated_key_is_found_in_no_time_among_many() -> None:
    pairs = ",".join(f'"{number}":0' for number in range(200_000))
    began = time.perf_counter()
    with pytest.raises(InvalidValueError, match="the key '199999' twice"):
        canonical.parse(f'{{{pairs},"199999":1}}'.encode())
    assert time.perf_counter() - began < 10


@given(st.binary(max_size=200) | TEXT.map(str.encode))
def test_text_that_parses_is_read_the_same_by_the_standard_library(data: bytes) -> None:
    try:
        value = canonical.parse(data)
    except InvalidValueError:
        return
    assert same(json.loads(data), value)


# -- reading files: one spelling only ----------------------------------------------------------------------------------


def test_every_other_spelling_is_refused_in_files() -> None:
    def check(data: bytes) -> None:
        with pytest.raises(IntegrityError) as caught:
            canonical.decode(data)
        assert caught.value.finding in ("not_json", "not_canonical")

    for_each(
        check,
        [
            b'{"b":1,"a":2}',
            b'{"a": 1}',
            b'{"a":1}\n',
            b" 1",
            b'{"a":1,"a":1}',
            b'"\\u0041"',
            b'"\\/"',
            b'"\\u001F"',
            b'"\\u0008"',
            b'"\\u00e9"',
            b"1E16",
            b"1e5",
            b"1.50",
            b"-0",
            b"0.0000001",
            b"18446744073709551616",
            b"18446744073709552000",
            b"1e400",
            b"",
            b"\xef\xbb\xbf1",
            b'"\xff"',
        ],
    )


def test_a_file_may_nest_its_value_two_levels_deeper_and_no_more() -> None:
    deep = b"[" * 130 + b"]" * 130
    assert canonical.encode(canonical.decode(deep), depth=130) == deep
    with pytest.raises(IntegrityError, match="130 levels"):
        canonical.decode(b"[" + deep + b"]")


@given(VALUES, st.data())
def test_no_altered_byte_goes_unnoticed_as_the_same_value(value: Any, data: st.DataObject) -> None:
    original = canonical.encode(value)
    at = data.draw(st.integers(0, len(original) - 1))
    byte = data.draw(st.integers(0, 255))
    altered = original[:at] + bytes([byte]) + original[at + 1 :]
    if altered != original:
        try:
            read = canonical.decode(altered)
        except IntegrityError:
            return
        assert not same(read, value)


@given(st.text(max_size=30))
def test_a_pointers_token_is_escaped_and_unescaped_without_loss(key: str) -> None:
    token = canonical.escape(key)
    assert "/" not in token
    assert canonical.unescape(token) == key


def test_walk_visits_every_leaf_and_copies_the_containers() -> None:
    value = {"a": [1, {"b": "x"}], "c": None}
    copy = canonical.map_leaves(value, lambda leaf: leaf)
    assert copy == value
    assert copy["a"] is not value["a"]
    assert canonical.map_leaves(value, str) == {"a": ["1", {"b": "x"}], "c": "None"}


@given(VALUES)
def test_how_deep_a_text_nests_is_counted_right(value: Any) -> None:
    def depth(item: Any) -> int:
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else None
        return 0 if children is None else 1 + max(map(depth, children), default=0)

    data = canonical.encode(value)
    for limit in range(4):
        assert canonical.deeper_than(data, limit) == (depth(value) > limit)


# -- the quick looks at the bytes, against the slow rules that they stand for ------------------------------------------

TRICKY = st.text(st.sampled_from('[]{}"\\\n,:-0189 x\u20ac'), max_size=12)
EDGES = [2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**18, 10**19, -(10**18), -(10**19), 10**25, -(10**25)]
NUMBERS = st.sampled_from(EDGES) | st.integers(-(2**66), 2**66) | st.floats(allow_nan=False, allow_infinity=False)
HOSTILE = st.recursive(
    NUMBERS | TRICKY | st.sampled_from(["9" * 20, ":" + "9" * 20, "[-" + "9" * 19, '"' * 3]),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(TRICKY, v, max_size=4),
    max_leaves=12,
)


def slowly_counted(data: bytes) -> int:
    """Count the levels of JSON text byte by byte."""
    deepest = level = 0
    inside = escaped = False
    for byte in data:
        if inside:
            inside = escaped or byte != 0x22
            escaped = not escaped and byte == 0x5C
        elif byte == 0x22:
            inside = True
        elif byte in b"[{":
            level += 1
            deepest = max(deepest, level)
        elif byte in b"]}":
            level -= 1
    return deepest


@given(HOSTILE)
def test_nesting_depth_agrees_with_a_reader_of_single_bytes(value: Any) -> None:
    for data in (json.dumps(value).encode(), json.dumps(value, indent=1, ensure_ascii=False).encode()):
        depth = slowly_counted(data)
        assert [canonical.deeper_than(data, limit) for limit in range(depth + 2)] == [True] * depth + [False] * 2


@given(HOSTILE)
def test_an_integer_out_of_range_is_found_wherever_it_stands_and_nothing_else_is(value: Any) -> None:
    fits = all(type(leaf) is not int or -(2**63) <= leaf < 2**64 for leaf in leaves(value))
    # Doubles have another spelling in the standard library, which alone would be refused.
    plain = json.loads(json.dumps(value), parse_float=lambda text: text)
    data = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    for spelled in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, indent="\t")):
        assert is_taken(canonical.parse, spelled.encode(), InvalidValueError) == fits
    assert is_taken(canonical.decode, data, IntegrityError) == fits
    assert is_taken(canonical.encode, value, InvalidValueError) == fits


def is_taken(read: Any, given: Any, refused: type[Exception]) -> bool:
    try:
        read(given)
    except refused:
        return False
    return True
