"""A real HTTP server on loopback that answers as model providers do: what is said, and what goes wrong, is scripted.

    with ModelServer(Say("Hello."), Say(calls=[("search", {"q": "x"})]), Say(status=429)) as server:
        ... base URL: server.url (OpenAI's SDK), server.origin (Anthropic's) ...
        assert server.count == 3
        assert server.requests[0]["messages"][-1]["content"] == "Hi"

Each request takes the next of the script, a retry of a client included; when the script is over, ``otherwise`` answers,
or status 400 tells so. The path decides the format: ``/v1/chat/completions`` or ``/v1/messages``; plain, or streamed if
the request says ``"stream": true``. The server runs in threads of the test's process, so that programs can be its
clients as well, and be killed while it keeps its count.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


@dataclass(frozen=True)
class Say:
    """One answer: ``text``, and ``calls`` as pairs of a tool's name and its arguments (a string: sent as it is).

    ``finish`` is the provider's word (default ``stop``/``tool_calls``, ``end_turn``/``tool_use``; "": left out).
    ``ids`` are those of the calls (default ``call_N``, over all that this server said). ``status`` other than 200 is an
    error whose message is ``text``. ``delay`` [s] before the first byte, ``pause`` [s] before each piece of a stream,
    and in the middle of a plain body; ``drip`` [s] before each byte of a plain body;
    ``until`` holds the answer back until the event is set. ``cut``: the connection breaks after so many bytes of a
    body, or pieces of a stream; with ``silent`` it ends there as if that were all. ``body`` replaces the whole body.
    ``unstreamed``: a request for a stream is answered plainly, by a server that knows none.
    """

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any] | str]] = ()
    finish: str | None = None
    ids: Sequence[str] | None = None
    model: str = "model-1"
    usage: tuple[int, int] | None = (7, 3)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    pause: float = 0.0
    drip: float = 0.0
    until: threading.Event | None = None
    cut: int | None = None
    silent: bool = False
    unstreamed: bool = False
    body: bytes | None = None


class ModelServer:
    """Serves from ``with`` on, on a free port of 127.0.0.1. ``otherwise`` (an answer, or a function of the request's
    document that gives one) serves when the script is over."""

    def __init__(self, *script: Say, otherwise: Say | Callable[[dict[str, Any]], Say] | None = None) -> None:
        self.script = list(script)
        self.otherwise = otherwise
        self.requests: list[dict[str, Any]] = []
        """The documents that came, in order."""
        self.headers: list[dict[str, str]] = []
        """The headers that came with them; names in lower case."""
        self.paths: list[str] = []
        self.over = threading.Event()
        self._came = threading.Condition()
        self._called = 0
        self._http = _Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT/v1``."""
        return f"{self.origin}/v1"

    @property
    def count(self) -> int:
        """Number of requests so far."""
        with self._came:
            return len(self.requests)

    def wait(self, count: int, seconds: float = 30.0) -> None:
        """Return once ``count`` requests have come. Raises ``TimeoutError`` after ``seconds`` [s]."""
        with self._came:
            if not self._came.wait_for(lambda: len(self.requests) >= count, seconds):
                raise TimeoutError(f"{len(self.requests)} of {count} requests came in {seconds} s")

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, path: str, headers: dict[str, str], document: dict[str, Any]) -> Say:
        """Note a request; the answer to it."""
        with self._came:
            self.requests.append(document)
            self.headers.append(headers)
            self.paths.append(path)
            self._came.notify_all()
            if self.script:
                return self.script.pop(0)
        if callable(self.otherwise):
            return self.otherwise(document)
        return self.otherwise or Say(f"the script is over; this is request {self.count}", status=400)

    def new_ids(self, count: int) -> list[str]:
        """Ids for so many calls, that this server has not given yet."""
        with self._came:
            self._called += count
            return [f"call_{number}" for number in range(self._called - count + 1, self._called + 1)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True

    def __init__(self, address: tuple[str, int], owner: ModelServer) -> None:
        super().__init__(address, _Handler)
        self.owner = owner

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about; anything else is told."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test's output is its own."""

    def do_POST(self) -> None:
        self.close_connection = True  # one request a connection: closing the server waits for nobody
        document = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        said = self.server.owner.take(self.path, headers, document)
        self._rest(said.delay)
        while said.until is not None and not said.until.wait(0.02) and not self.server.owner.over.is_set():
            pass
        if self.path not in (CHAT, MESSAGES):
            self._send(Say(status=404), json.dumps({"error": {"message": f"no such path: {self.path}"}}).encode())
        elif said.body is not None:
            self._send(said, said.body)
        elif said.status != 200:
            self._send(said, json.dumps(_error(said, self.path)).encode())
        elif document.get("stream") and not said.unstreamed:
            self._stream(said, self._pieces(said, document))
        else:
            self._send(said, json.dumps(self._whole(said)).encode())

    def _rest(self, seconds: float) -> None:
        if seconds:
            self.server.owner.over.wait(seconds)

    def _send(self, said: Say, body: bytes) -> None:
        part = body if said.cut is None else body[: said.cut]
        self.send_response(said.status)
        for name, value in {"content-type": "application/json", **said.headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(part if said.silent else body)))
        self.send_header("connection", "close")
        self.end_headers()
        for byte in part if said.drip else b"":
            self._rest(said.drip)
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
        if said.drip:
            return
        half = len(part) // 2 if said.pause else 0
        self.wfile.write(part[:half])
        self.wfile.flush()
        self._rest(said.pause)
        self.wfile.write(part[half:])

    def _stream(self, said: Say, pieces: list[tuple[str, Any]]) -> None:
        self.send_response(200)
        for name, value in {"content-type": "text/event-stream", **said.headers}.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        for event, data in pieces[: said.cut]:
            self._rest(said.pause)
            head = f"event: {event}\n" if event else ""
            text = f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()
        if said.cut is None or said.silent:
            self.wfile.write(b"0\r\n\r\n")

    def _calls(self, said: Say) -> list[tuple[str, str, str]]:
        ids = self.server.owner.new_ids(len(said.calls)) if said.ids is None else list(said.ids)
        texts = [value if isinstance(value, str) else json.dumps(value) for _, value in said.calls]
        return [(one, name, text) for one, (name, _), text in zip(ids, said.calls, texts, strict=True)]

    def _whole(self, said: Say) -> dict[str, Any]:
        return (_chat if self.path == CHAT else _message)(said, self._calls(said))

    def _pieces(self, said: Say, document: dict[str, Any]) -> list[tuple[str, Any]]:
        if self.path == MESSAGES:
            return _message_pieces(said, self._calls(said))
        wants_usage = (document.get("stream_options") or {}).get("include_usage")
        return _chat_pieces(said, self._calls(said), bool(wants_usage))


def written(said: Say, path: str, *, stream: bool) -> bytes:
    """The bytes of the body that answers so at ``path``, for a test that breaks them; the ids of calls are given."""
    calls = [(one, name, json.dumps(value)) for one, (name, value) in zip(said.ids or (), said.calls, strict=True)]
    if not stream:
        return json.dumps((_chat if path == CHAT else _message)(said, calls)).encode()
    pieces = _chat_pieces(said, calls, wants_usage=True) if path == CHAT else _message_pieces(said, calls)
    lines = [
        f"{f'event: {event}' + chr(10) if event else ''}data: {data if isinstance(data, str) else json.dumps(data)}"
        for event, data in pieces
    ]
    return "".join(f"{line}\n\n" for line in lines).encode()


def _error(said: Say, path: str) -> dict[str, Any]:
    error = {"message": said.text or f"status {said.status}", "type": "scripted_error"}
    return {"type": "error", "error": error} if path == MESSAGES else {"error": {**error, "code": None, "param": None}}


def _words(text: str) -> list[str]:
    """``text`` in pieces as a stream brings it."""
    return [text[start : start + 5] for start in range(0, len(text), 5)]


def _finish(said: Say, plain: str, calling: str) -> str | None:
    return (said.finish or None) if said.finish is not None else (calling if said.calls else plain)


def _chat_usage(said: Say) -> dict[str, int] | None:
    if said.usage is None:
        return None
    went, came = said.usage
    return {"prompt_tokens": went, "completion_tokens": came, "total_tokens": went + came}


def _chat(said: Say, calls: list[tuple[str, str, str]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
    if calls:
        message["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": text}} for one, name, text in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(said, "stop", "tool_calls"), "logprobs": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": int(time.time()), "model": said.model}
    return {**head, "choices": [choice], "usage": _chat_usage(said)}


def _chat_pieces(said: Say, calls: list[tuple[str, str, str]], wants_usage: bool) -> list[tuple[str, Any]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": int(time.time()), "model": said.model}

    def piece(delta: dict[str, Any], finish: str | None = None) -> tuple[str, Any]:
        return "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}

    pieces = [piece({"role": "assistant", "content": ""})]
    pieces += [piece({"content": part}) for part in _words(said.text)]
    for index, (one, name, text) in enumerate(calls):
        begin = {"index": index, "id": one, "type": "function", "function": {"name": name, "arguments": ""}}
        pieces.append(piece({"tool_calls": [begin]}))
        for part in _words(text):
            pieces.append(piece({"tool_calls": [{"index": index, "function": {"arguments": part}}]}))
    finish = _finish(said, "stop", "tool_calls")
    if finish is not None:
        pieces.append(piece({}, finish))
    if wants_usage and said.usage is not None:
        pieces.append(("", {**head, "choices": [], "usage": _chat_usage(said)}))
    return [*pieces, ("", "[DONE]")]


def _message(said: Say, calls: list[tuple[str, str, str]]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": said.text}] if said.text else []
    content += [{"type": "tool_use", "id": one, "name": name, "input": _loaded(text)} for one, name, text in calls]
    usage = None if said.usage is None else {"input_tokens": said.usage[0], "output_tokens": said.usage[1]}
    stop = _finish(said, "end_turn", "tool_use")
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": said.model}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _message_pieces(said: Say, calls: list[tuple[str, str, str]]) -> list[tuple[str, Any]]:
    went, came = said.usage or (0, 0)
    begin = {**_message(Say(model=said.model), []), "stop_reason": None}
    begin["usage"] = {"input_tokens": went, "output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begin}]
    blocks = [({"type": "text", "text": ""}, "text_delta", "text", said.text)] if said.text else []
    for one, name, text in calls:
        block = {"type": "tool_use", "id": one, "name": name, "input": {}}
        blocks.append((block, "input_json_delta", "partial_json", text))
    for index, (block, kind, key, text) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        for part in _words(text):
            events.append({"type": "content_block_delta", "index": index, "delta": {"type": kind, key: part}})
        events.append({"type": "content_block_stop", "index": index})
    finish = _finish(said, "end_turn", "tool_use")
    if finish is not None:
        delta = {"stop_reason": finish, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": came}})
    events.append({"type": "message_stop"})
    return [(event["type"], event) for event in events]
