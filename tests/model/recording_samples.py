"""Requests, models and recordings for tests of recording and playback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stateline.model.protocol import ModelRequest, Reply, TextListener
from stateline.model.recordings.exchange import Exchange, digest_of, file_name
from stateline.model.recordings.recording import Recording


def ask(text: str, **more: Any) -> ModelRequest:
    """A request with one message."""
    return ModelRequest(**{"model": "test/one", "messages": [{"role": "user", "content": text}], **more})


def talk(turns: int, **more: Any) -> list[ModelRequest]:
    """The requests of a conversation: each holds all that was said before."""
    messages: list[dict[str, Any]] = []
    found = []
    for turn in range(1, turns + 1):
        messages.append({"role": "user", "content": f"question {turn}"})
        found.append(ModelRequest(model="test/one", messages=list(messages), **more))
        messages.append({"role": "assistant", "content": f"answer {turn}"})
    return found


def read_exchanges(directory: Path) -> list[Exchange]:
    """Return all exchanges of a directory by number."""
    recording = Recording(directory)
    return [recording.read(number) for number in recording.numbers]


class Scripted:
    """A model that answers in order, and remembers what it was asked. What is an exception is raised."""

    def __init__(self, answers: Iterable[Reply | BaseException]) -> None:
        self.answers = list(answers)
        self.asked: list[ModelRequest] = []

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        answer = self.answers[len(self.asked)]
        self.asked.append(request)
        if isinstance(answer, BaseException):
            raise answer
        if on_text is not None:
            on_text(answer.content)
        return answer


class ModelRecord:
    """A model whose reply follows from the request."""

    def __init__(self, answer: Callable[[ModelRequest], str] = lambda request: f"to {request.messages[-1]['content']}"):
        self.answer = answer
        self.calls = 0

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        self.calls += 1
        return Reply(content=self.answer(request))


def put(directory: Path, number: int, request: ModelRequest, content: str = "", **changed: Any) -> Path:
    """A file as a person might write it: compact, keys in no order."""
    document = {
        "reply": {"content": content or f"reply {number}"},
        "version": "1",
        "request": request.document(),
        "purpose": request.purpose,
        "digest": digest_of(request.document()),
        **changed,
    }
    directory.mkdir(exist_ok=True)
    path = directory / file_name(number)
    path.write_text(json.dumps(document), "utf-8")
    return path
