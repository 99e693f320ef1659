"""Valid media types, and readers of unknown ones."""

from __future__ import annotations

import pytest
from each_case import for_each

from stateline.bundle.envelope import JSON_TYPE, NODE_TYPE, Ref
from stateline.bundle.objects import Artifact, artifact_ref, references, resolve, split
from stateline.errors import InvalidValueError, NewerVersionError

LATER = "application/vnd.stateline.chunks+json"


def test_a_media_type_that_no_table_can_hold_is_refused_before_anything_is_written() -> None:
    """A snapshot that named it could not be read again."""

    def check(media_type: str) -> None:
        with pytest.raises(InvalidValueError):
            artifact_ref(Artifact(b"x", media_type))
        with pytest.raises(InvalidValueError):
            split({"a": [Artifact(b"x", media_type)]})

    for_each(check, ["text/plain; charset=utf-8", "Text/Plain", "text", "", "a/b/c", "text/\n", "é/x"])


def test_an_artifact_cannot_pass_for_a_value() -> None:
    def check(media_type: str) -> None:
        with pytest.raises(InvalidValueError, match="read as a value"):
            split({"a": Artifact(b'{"a": 1}', media_type)})

    for_each(check, [JSON_TYPE, NODE_TYPE, LATER])


def test_other_media_types_are_kept() -> None:
    def check(media_type: str) -> None:
        assert split({"a": Artifact(b"x", media_type)}).objects["/a"].media_type == media_type

    for_each(check, ["application/octet-stream", "text/plain", "image/svg+xml"])


def test_a_ref_that_no_table_can_hold_is_refused() -> None:
    def check(ref: Ref) -> None:
        with pytest.raises(InvalidValueError):
            split({"a": ref})

    for_each(check, [Ref("zz", 1), Ref("A" * 64, 1), Ref("0" * 64, -1), Ref("0" * 64, 2**63)])


def test_an_object_of_a_type_of_a_later_version_asks_for_an_upgrade() -> None:
    ref = Ref("0" * 64, 1, LATER)
    with pytest.raises(NewerVersionError) as caught:
        resolve({"a": ref}, lambda _: b"?")
    assert caught.value.hint == "upgrade stateline"
    with pytest.raises(NewerVersionError):
        references(b"?", ref)


def test_an_artifact_stays_a_reference_when_values_are_put_back() -> None:
    ref = Ref("0" * 64, 1, "text/plain")
    assert resolve({"a": ref}, lambda _: b"?") == {"a": ref}
