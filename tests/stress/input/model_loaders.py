"""Loaders of bytes written by models and their users: tool manifests, recordings, answers in a
model's place, proposals of the pre-stage. Lines of the table in ``loaders.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from stress.oracle import require

from stateline.bundle import canonical
from stateline.contexts import by_model
from stateline.contexts.context import LIMIT, ContextRequest
from stateline.errors import (
    InvalidAnswerError,
    InvalidManifestError,
    InvalidValueError,
    NewerVersionError,
    RequestError,
)
from stateline.machine.expressions import json_schema
from stateline.machine.spec import Toolset
from stateline.model import manual_reply
from stateline.model.protocol import ModelRequest, Reply, ToolSpec
from stateline.model.recordings import exchange
from stateline.tools.check import check_manifest, toolset_hash

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "n": {"type": "integer", "minimum": 1}},
    "required": ["q"],
    "additionalProperties": False,
}
_TOOLS = [ToolSpec("search", "Finds.", _SCHEMA), ToolSpec("now", "Tells the time.", {"type": "object"})]
_ASKED: dict[str, Any] = {
    "model": "openai/m",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rank \u00e9."}],
    "tools": [{"name": "search", "description": "Finds.", "parameters": _SCHEMA}],
    "settings": {"temperature": 0.2},
    "output_schema": None,
}
_REPLY = {"content": "", "tool_calls": [{"id": "a", "name": "search", "arguments": {"q": "x"}}], "finish": "tool_calls"}
_WISHES = ContextRequest(
    model="openai/m", developer=["Be kind."], settings={"top_p": 0.5}, task="What is in the box over there?"
)


def manifest(data: bytes) -> None:
    """A manifest is taken whole or refused with all its mistakes; its tools can be kept, and so can their hash."""
    try:
        toolset = check_manifest(data)
    except InvalidManifestError as refused:
        require(bool(refused.problems), "refused, and no mistake is named")
        require(refused.message.isprintable(), "an error that acts on a terminal")
        return
    kept = canonical.encode(msgspec.to_builtins(toolset), depth=canonical.FILE_DEPTH)
    back = msgspec.convert(canonical.decode(kept), Toolset)
    require(back == toolset and toolset_hash(back) == toolset_hash(toolset), "not kept as it is")
    require(toolset.sha256 == canonical.sha256(data), "the digest of another manifest")
    for name, tool in toolset.tools.items():
        require(name == tool.name and bool(tool.argv) and tool.timeout >= 0, f"the tool {name!r} cannot be called")


def recording(data: bytes) -> None:
    """A recorded exchange is strict JSON of one shape; what is taken can be written and read again."""
    try:
        found = exchange.parse_exchange(7, data, "0007.json")
    except (InvalidValueError, RequestError, NewerVersionError):
        return
    require(found.digest == exchange.digest_of(found.request), "the digest of another request")
    document = {
        "version": exchange.VERSION,
        "purpose": found.purpose,
        "digest": found.digest,
        "request": found.request,
        "refused": found.refused,
        "key": found.key,
    }
    came = {"reply": found.reply, "error": found.error}
    require((found.reply is None) is not (found.error is None), "neither a reply nor an error, or both")
    document |= {name: msgspec.to_builtins(value) for name, value in came.items() if value is not None}
    try:
        written = exchange.render(document)
    except (InvalidValueError, RequestError):
        return  # as large as a file may be, and larger when it is indented
    again = exchange.parse_exchange(7, written, "0007.json")
    require(again == msgspec.structs.replace(found, edited=False), "not written back")


def model_answer(data: bytes) -> None:
    """An answer in a model's place calls only tools that were offered, with arguments that fit, each under its id."""
    try:
        value = canonical.parse(data)
    except InvalidValueError:
        return
    try:
        reply = manual_reply.parse_reply(value, _TOOLS, "r1:1:0:00000000", ["a"])
    except InvalidAnswerError:
        return
    specs = {tool.name: tool.parameters for tool in _TOOLS}
    ids = [call.id for call in reply.tool_calls]
    require(bool(reply.tool_calls or reply.content.strip()), "an answer that says nothing")
    require(len(set(ids)) == len(ids) and "a" not in ids, f"ids that are taken: {ids}")
    for call in reply.tool_calls:
        require(json_schema.violations(specs[call.name], call.arguments) == [], f"{call.name} is called wrongly")
    canonical.encode(msgspec.to_builtins(reply))


def proposed(data: bytes) -> None:
    """A proposal becomes a whole context within its bound, in which the operator's words stay; or it is refused."""
    text = data.decode("utf-8", "surrogateescape")
    for request, take in _pre_stage():
        try:
            context = take(by_model.proposal(request, Reply(content=text)))
        except RequestError:
            continue
        require(len(canonical.encode(context)) <= LIMIT, "a context over the bound")
        require("Be kind." in context["prompts"]["developer"], "the operator's instruction is gone")
        require(context["settings"]["top_p"] == 0.5, "the operator's setting is gone")


def _pre_stage() -> list[tuple[ModelRequest, Callable[[Any], dict[str, Any]]]]:
    """The two calls of the pre-stage, and what is made of their replies."""
    request = by_model.derivation(_WISHES)
    plain = by_model.derive(_WISHES, by_model.proposal(request, Reply(content=_PROPOSALS[0].decode())))
    refining = msgspec.structs.replace(_WISHES, refine="Tighten temperature to 0.2")
    return [
        (request, lambda draft: by_model.derive(_WISHES, draft)),
        (by_model.refinement(plain, refining), lambda draft: by_model.refine(plain, refining, draft)),
    ]


_PROPOSALS = [
    json.dumps({"prompts": {"system": "Be brief.", "developer": ["Cite."]}, "settings": {"temperature": 0.7}}).encode(),
    b'{"prompts":{"system":"","developer":[]},"settings":{}}',
]


def _manifests() -> list[bytes]:
    tool = {"name": "search", "description": "Finds.", "schema": _SCHEMA, "argv": ["./search", "-x"]}
    more = {**tool, "name": "now", "timeout": 5, "env": ["HOME"], "repeatable": True}
    return [json.dumps({"tools": [tool]}).encode(), json.dumps({"tools": [tool, more]}, indent=1).encode()]


def _recordings() -> list[bytes]:
    asked = {
        "version": "1",
        "purpose": "turn",
        "digest": "0" * 64,
        "request": _ASKED,
        "reply": _REPLY,
        "key": "r:1:0:0",
    }
    said = {"content": "Hi.", "usage": {"input": 3, "output": 1}, "model": "m"}
    derived = {**asked, "purpose": "derive", "reply": said, "refused": "it is no JSON"}
    failed = {**asked, "error": {"kind": "model", "message": "status 503", "hint": "later", "sent": False}}
    del failed["reply"]
    return [json.dumps(one, indent=2).encode() for one in (asked, derived, failed)]


def _answers() -> list[bytes]:
    blocks = [
        {"type": "text", "text": "Hi."},
        {"type": "tool_use", "id": "b", "name": "search", "input": {"q": "x"}},
        {"type": "tool_use", "id": "a", "name": "now", "input": {}},
    ]
    whole = {"type": "llm_response", "requestId": "r1:1:0:00000000", "response": {"content": blocks}}
    several: list[Any] = [
        "Paris.",
        {"response": "Paris.", "tools": [{"name": "search", "params": {"q": "x", "n": 2}}]},
        whole,
    ]
    return [json.dumps(one).encode() for one in several]


Parts = tuple[Callable[[bytes], None], Callable[[], list[bytes]], bool]

LOADERS: dict[str, Parts] = {
    "tools manifests": (manifest, _manifests, True),
    "recordings": (recording, _recordings, False),
    "answers in a model's place": (model_answer, _answers, True),
    "proposals of the pre-stage": (proposed, lambda: _PROPOSALS, True),
}
