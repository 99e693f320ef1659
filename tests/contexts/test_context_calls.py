"""The call of a model for a context: errors, and the recording of a refused reply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from each_case import each
from model.recording_samples import Scripted

from stateline.contexts.by_model import call, derivation, refinement
from stateline.contexts.context import ContextRequest
from stateline.contexts.context import derive as literal
from stateline.errors import RequestError
from stateline.model.protocol import ModelCallError, ModelRequest, Reply
from stateline.model.recordings.recorder import Recorder

DERIVE = derivation(ContextRequest(model="m"))
REFINE = refinement(literal(ContextRequest()), ContextRequest(model="m", refine="R"))


def refused(request: ModelRequest, failed: ModelCallError) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(Scripted([failed]), request, lambda reply: "")
    return caught.value


@each(
    "request_, words",
    [
        (DERIVE, "to derive the context failed (model): it is down; no context was saved"),
        (REFINE, "to refine the context failed (model): it is down; the context was not refined"),
    ],
)
def test_a_call_that_failed_says_what_was_left_as_it_was(request_: ModelRequest, words: str) -> None:
    assert refused(request_, ModelCallError("model", "it is down")).message == f"the call of the model {words}"


def test_the_hint_of_a_failed_call_is_kept_and_never_missing() -> None:
    assert refused(DERIVE, ModelCallError("model", "it is down", "see the firewall")).hint == "see the firewall"
    assert refused(DERIVE, ModelCallError("model", "it is down")).hint == "repeat the call"


def test_where_a_model_cannot_reply_as_it_is_asked_there_is_a_way_without_one() -> None:
    hint = refused(DERIVE, ModelCallError("reply", "half", "raise max_tokens")).hint
    assert "--system TEXT" in hint
    assert "without a model" in hint


@each("word", ["", "it is no context"])
def test_a_recording_is_told_what_a_reply_was_worth(tmp_path: Path, word: str) -> None:
    heard: list[Reply] = []

    def judge(reply: Reply) -> str:
        heard.append(reply)
        return word

    reply = call(Recorder(Scripted([Reply(content="{}")]), tmp_path), DERIVE, judge)
    assert heard == [reply]
    assert json.loads((tmp_path / "0001.json").read_text()).get("refused", "") == word
