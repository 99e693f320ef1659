"""Contexts made of flags alone, and warnings about calls that differ from them."""

from __future__ import annotations

from typing import Any

import pytest
from each_case import each

from stateline.bundle import canonical
from stateline.contexts.by_model import with_flags
from stateline.contexts.context import (
    LIMIT,
    ContextContent,
    ContextRequest,
    derive,
    drift,
    merge_settings,
    refine,
)
from stateline.contexts.prepare import removed
from stateline.contexts.settings import require_settings
from stateline.errors import RequestError
from stateline.model.protocol import CALL_MEMBERS, ToolSpec

MADE = ContextRequest(model="m", base_url="u", toolset="t")


def made(**context_request: Any) -> dict[str, Any]:
    return derive(ContextRequest(**context_request))


def unlike(what: str, was: str, said: str) -> str:
    return f"the context was made with {was}, this call has {said}".replace("@", f"the {what} ")


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_null_takes_out_what_is_there_and_leaves_nothing_behind_where_nothing_was() -> None:
    assert merge_settings({"seed": 1, "top_p": 0.5}, {"seed": None, "top_k": None}) == {"top_p": 0.5}


def test_a_null_that_is_there_already_stays_until_its_name_is_said() -> None:
    assert merge_settings({"stop": None, "seed": 1}, {"seed": 2}) == {"stop": None, "seed": 2}
    assert merge_settings({"stop": None}, {"stop": None}) == {}
    assert merge_settings({"stop": None}, {"stop": "x"}) == {"stop": "x"}


@each("name", CALL_MEMBERS)
@each("value", ["evil", 0, False, "", []])
def test_what_each_call_says_itself_is_no_setting_whatever_its_value(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"the setting {name}:"):
        require_settings({"seed": 1, name: value})


@each("name", CALL_MEMBERS)
def test_what_each_call_says_itself_may_be_taken_out_of_a_context_that_has_it(name: str) -> None:
    require_settings({name: None})
    old = {**made(), "settings": {name: "x", "seed": 1}}
    assert refine(old, ContextRequest(settings={name: None}))["settings"] == {"seed": 1}


# -- prompts and their size --------------------------------------------------------------------------------------------


def test_a_refinement_follows_the_instructions_that_are_there() -> None:
    first = refine(made(system="S", developer=["A"]), ContextRequest(refine="B"))
    second = refine(first, ContextRequest(refine="C", settings={"seed": 1}))
    assert second["prompts"] == {"system": "S", "developer": ["A", "B", "C"]}
    assert second["refinements"] == {"count": 2, "last": {"text": "C", "settings": {"seed": 1}}}
    third = refine(second, ContextRequest(settings={"seed": None}))
    assert third["prompts"] == second["prompts"]
    assert third["refinements"] == {"count": 3, "last": {"text": None, "settings": {"seed": None}}}


def test_what_others_keep_among_the_prompts_outlives_a_refinement() -> None:
    old = made(system="S")
    old["prompts"]["notes"] = "by hand"
    assert refine(old, ContextRequest(refine="R"))["prompts"] == {"system": "S", "developer": ["R"], "notes": "by hand"}


def test_without_tools_a_context_names_none() -> None:
    assert made()["tool_caps"] == {}
    assert made(tools=[ToolSpec("t", "d", {})])["tool_caps"]["tools"][0]["name"] == "t"


def test_an_empty_system_prompt_that_is_said_stands_over_a_proposed_one() -> None:
    assert with_flags(ContextContent("M", [], {}), ContextRequest(system="")).system == ""
    assert with_flags(ContextContent("M", [], {}), ContextRequest()).system == "M"


def test_a_context_of_exactly_the_limit_can_be_made_and_none_of_a_byte_more() -> None:
    state = made(system="")
    kept = {name: value for name, value in state.items() if name != "refinements"}
    room = LIMIT - len(canonical.encode(kept))
    assert len(made(system="x" * room)["prompts"]["system"]) == room
    with pytest.raises(RequestError, match=f"{LIMIT + 1} bytes"):
        made(system="x" * (room + 1))


# -- what a refinement left out ----------------------------------------------------------------------------------------


def test_what_a_refinement_left_out_is_told_in_the_order_of_the_context() -> None:
    before = ContextContent("S", ["A", "B"], {"seed": 1, "top_p": 0.5})
    assert removed(before, ContextContent(None, [], {}), {}) == [
        ("system prompt", "S"),
        *(("developer instruction", text) for text in ("A", "B")),
        *(("setting", name) for name in ("seed", "top_p")),
    ]
    assert removed(before, before, {}) == []
    assert removed(ContextContent(None, [], {}), before, {}) == []


@each("system", [None, ""])
def test_a_system_prompt_that_said_nothing_is_no_loss(system: str | None) -> None:
    assert removed(ContextContent(system, [], {}), ContextContent(None, [], {}), {}) == []


def test_a_system_prompt_that_became_another_was_changed_and_not_left_out() -> None:
    assert removed(ContextContent("S", [], {}), ContextContent("Other.", [], {}), {}) == []


def test_a_prompt_that_stands_within_another_is_there_still() -> None:
    before = ContextContent("Be kind.", ["Cite."], {})
    assert removed(before, ContextContent(None, ["Be kind. Cite."], {}), {}) == []
    assert removed(before, ContextContent("Cite. Be kind.", [], {}), {}) == []
    assert removed(before, ContextContent("Be", ["kind."], {}), {}) == [("developer instruction", "Cite.")]


def test_a_setting_that_changed_or_that_the_operator_took_out_is_no_loss() -> None:
    before = ContextContent(None, [], {"seed": 1, "top_p": 0.5, "top_k": 3})
    assert removed(before, ContextContent(None, [], {"top_p": 0.1}), {"seed": None}) == [("setting", "top_k")]


# -- drift -------------------------------------------------------------------------------------------------------------


@each("task", [None, "x"])
def test_a_call_like_the_one_that_made_the_context_is_told_nothing(task: str | None) -> None:
    for context_request in ({}, {"model": "m"}, {"base_url": "u"}, {"model": "m", "base_url": "u", "toolset": "t"}):
        assert drift(made(**context_request), ContextRequest(**context_request, task=task)) == []


@each("task", [None, "x"])
def test_each_thing_that_is_said_otherwise_is_told(task: str | None) -> None:
    assert drift(derive(MADE), ContextRequest(model="n", base_url="v", toolset="s", task=task)) == [
        unlike("model", "@m", "@n"),
        unlike("base URL", "@u", "@v"),
        unlike("toolset", "@t", "@s"),
    ]


def test_without_a_task_a_call_is_asked_only_about_what_it_says() -> None:
    assert drift(derive(MADE), ContextRequest()) == []
    assert drift(derive(MADE), ContextRequest(model="m")) == []


def test_a_task_for_the_same_model_elsewhere_and_without_tools_is_told_of_both() -> None:
    assert drift(derive(MADE), ContextRequest(model="m", task="x")) == [
        unlike("base URL", "@u", "no base URL"),
        unlike("toolset", "@t", "no toolset"),
    ]


def test_a_task_for_no_model_is_told_nothing_of_models_and_where_they_are() -> None:
    assert drift(made(model="m", base_url="u"), ContextRequest(task="x")) == []
    assert drift(derive(MADE), ContextRequest(task="x")) == [unlike("toolset", "@t", "no toolset")]


def test_a_context_that_was_made_for_no_model_fits_any_but_not_any_tools() -> None:
    said = ContextRequest(model="m", base_url="u", toolset="s", task="x")
    assert drift(made(), said) == [unlike("toolset", "no toolset", "@s")]


@each("task", [None, "x"])
def test_a_context_that_was_made_for_an_endpoint_without_a_name_of_a_model_fits_only_that(task: str | None) -> None:
    assert drift(made(base_url="u"), ContextRequest(model="m", base_url="v", task=task)) == [
        unlike("model", "no model", "@m"),
        unlike("base URL", "@u", "@v"),
    ]


def test_a_context_that_says_nothing_of_tools_was_made_without_any() -> None:
    context = made(model="m")
    del context["toolset_hash"]
    assert drift(context, ContextRequest(model="m", task="x")) == []
    assert drift(context, ContextRequest(model="m", toolset="s")) == [unlike("toolset", "no toolset", "@s")]
