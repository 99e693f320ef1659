"""Names: what is ours, what is not, and that nothing hostile becomes a path."""

from __future__ import annotations

import hashlib
import re

import pytest
from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st

from stateline.bundle import naming
from stateline.errors import UsageError

SHA = "1a2b3c4d" + "0" * 56
TIME = "2026-11-20T09:26:59.123456Z"

HOSTILE = [
    "",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:x",
    "nul\0byte",
    "line\nbreak",
    "trailing\n",
    "-flag",
    ".hidden",
    "_x",
    "sp ace",
    "ümlaut",
    "٣",
    "x" * 65,
    "x" * 300,
    "a\u202eb",
    "\ud800",
]


def test_a_hostile_id_is_refused_and_shown_harmlessly() -> None:
    def check(text: str) -> None:
        assert not naming.is_id(text)
        with pytest.raises(UsageError, match="nothing was read or written") as caught:
            naming.checked_id(text, "run id")
        assert caught.value.message.isascii()
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 300
        assert caught.value.hint

    for_each(check, HOSTILE)


def test_an_ordinary_id_is_taken_as_it_is() -> None:
    def check(text: str) -> None:
        assert naming.checked_id(text) == text

    for_each(check, ["a", "0", "exec-20261120-092659-1a2b", "A.b_c-d", "x" * 64, "a..b"])


def test_a_hostile_key_is_refused_and_shown_harmlessly() -> None:
    def check(key: str) -> None:
        with pytest.raises(UsageError, match="nothing was read or written") as caught:
            naming.checked_key(key)
        assert caught.value.message.isascii()
        assert len(caught.value.message) < 300

    for_each(
        check,
        [
            "",
            "notes",
            ":x",
            "notes:",
            "Notes:x",
            "no tes:x",
            "1a:x",
            "k" * 33 + ":x",
            "notes:" + "x" * 1025,
            "notes:a\0b",
            "notes:a\nb",
            "notes:\ud800",
            "notes:\u202e",
            "../notes:x",
        ],
    )


def test_a_key_may_hold_any_printable_text() -> None:
    def check(key: str) -> None:
        assert naming.checked_key(key) == key
        assert naming.scope_hash(key) == hashlib.sha256(key.encode()).hexdigest()
        assert naming.is_sha256(naming.scope_hash(key))

    for_each(check, ["run:exec-1", "context:docs demo", "notes:../../etc", "a:b:c", "k:日本", "x-1:" + "y" * 1024])


def test_a_snapshots_name_has_the_time_without_colons_and_a_label() -> None:
    name = naming.snapshot_name(TIME, SHA)
    assert name == "state-2026-11-20T092659.123456Z-1a2b3c4d.json"
    assert naming.snapshot_parts(name) == ("2026-11-20T092659.123456Z", "1a2b3c4d")
    assert not re.search(r'[<>:"/\\|?*]', name), "legal on Windows and in archives"


def test_a_name_fits_its_snapshot_and_no_other() -> None:
    def check(label: int) -> None:
        name = naming.snapshot_name(TIME, SHA, label)
        assert naming.name_fits(name, TIME, SHA)
        assert not naming.name_fits(name, TIME, "ff" + SHA[2:])
        assert not naming.name_fits(name, "2026-11-20T09:26:59.123457Z", SHA)

    for_each(check, [8, 16, 64])


def test_other_names_are_not_names_of_snapshots() -> None:
    def check(name: str) -> None:
        assert naming.snapshot_parts(name) is None
        assert not naming.name_fits(name, TIME, SHA)

    for_each(
        check,
        [
            "",
            "latest.json",
            "scope.lock",
            ".tmp-0011",
            "state-2026-11-20T092659.123456Z-1a2b3c4d.json\n",
            "state-2026-11-20T092659.123456Z-1a2b3c4d.JSON",
            "state-2026-11-20T092659.123456Z-1A2B3C4D.json",
            "state-2026-11-20T092659.123456Z-1a2b3c4.json",
            "state-2026-11-20T092659.123456Z-1a2b3c4d0.json",
            "state-2026-11-20T092659Z-1a2b3c4d.json",
            "state-2026-11-20T092659.123456+0100-1a2b3c4d.json",
            "state-2026-11-20T09:26:59.123456Z-1a2b3c4d.json",
            "state-٢٠٢٦-11-20T092659.123456Z-1a2b3c4d.json",
            "../state-2026-11-20T092659.123456Z-1a2b3c4d.json",
            "x/state-2026-11-20T092659.123456Z-1a2b3c4d.json",
            "state-2026-11-20T092659.123456Z-1a2b3c4d.json.quarantined",
        ],
    )


@given(st.text(max_size=80))
def test_no_text_that_passes_as_a_name_holds_a_separator(text: str) -> None:
    if naming.snapshot_parts(text) or naming.is_id(text) or naming.is_sha256(text):
        assert not set(text) & set("/\\\0:")
        assert text not in (".", "..")


def test_created_at_is_rfc_3339_utc_with_microseconds_only() -> None:
    def check(text: str, good: bool) -> None:
        assert naming.is_created_at(text) is good

    for_each(
        check,
        [
            (TIME, True),
            ("0001-01-01T00:00:00.000000Z", True),
            ("2026-11-20T09:26:59Z", False),
            ("2026-11-20T09:26:59.123Z", False),
            ("2026-11-20T09:26:59.123456+00:00", False),
            ("2026-11-20 09:26:59.123456Z", False),
            ("2026-13-20T09:26:59.123456Z", False),
            ("2026-11-32T09:26:59.123456Z", False),
            ("2026-11-20T24:00:00.000000Z", False),
            ("2026-11-20T09:26:60.000000Z", False),
            ("٢٠٢٦-11-20T09:26:59.123456Z", False),
            ("2026-11-20T09:26:59.123456Z\n", False),
        ],
    )


def test_only_64_lower_case_hex_digits_are_a_digest() -> None:
    def check(text: object) -> None:
        assert not naming.is_sha256(text)

    for_each(check, ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 63 + "\n", None, 7, b"0" * 64])


def test_an_object_lies_under_its_first_two_digits() -> None:
    assert naming.object_path(SHA) == f"objects/1a/{SHA}"
    assert naming.blob_parts(naming.object_path(SHA)) == ("objects/1a", SHA)


def test_a_blobs_name_that_could_lead_out_of_its_place_is_refused() -> None:
    def check(name: str) -> None:
        with pytest.raises(UsageError):
            naming.blob_parts(name)

    for_each(
        check,
        [
            "x",
            "/x",
            "../x",
            f"{SHA}/",
            f"{SHA}/..",
            f"{SHA}/a/b",
            f"{SHA}/a\0",
            f"{SHA}/a\\b",
            f"{SHA}\n/a",
            "objects/1A/x",
        ],
    )
