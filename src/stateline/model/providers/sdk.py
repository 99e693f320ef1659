"""Base class of models behind an official SDK. The modules ``openai`` and ``anthropic`` add what differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from stateline.bundle import canonical
from stateline.bundle.canonical import Json
from stateline.errors import RequestError
from stateline.machine.problems import quoted
from stateline.model.protocol import CALL_MEMBERS, ModelCallError, ModelRequest, Reply, TextListener
from stateline.model.reply_validation import Finish, PartialReply, complete_reply, invalid_reply

if TYPE_CHECKING:
    from stateline.model.providers.http import Attempts
    from stateline.model.providers.sdk_errors import ErrorTranslator

_INSTRUCTION = (
    "Answer with exactly one JSON value that is valid under the JSON Schema below. Write nothing before or after it, "
    "and no code fence around it.\n\n"
)
_FENCED = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*?)\n[ \t]*```\s*", re.DOTALL)


class SdkModel:
    """One model at one endpoint, whatever name a request contains. ``mask`` removes secrets from a text. An option that
    an endpoint rejects is not sent again."""

    PROVIDER: ClassVar[str]
    PATH: ClassVar[str]
    FINISHES: ClassVar[dict[str, Finish]]
    OPTIONS: ClassVar[dict[str, tuple[str, ...]]]
    """Options that an endpoint may reject, each with the words that identify the rejection."""
    FORMAT: ClassVar[str]
    """The option that binds a reply to a schema."""

    def __init__(self, name: str, base_url: str, mask: Callable[[str], str]) -> None:
        self._name = name
        self._base_url = base_url
        self._mask = mask
        self._rejected: frozenset[str] = frozenset()

    def reply(self, request: ModelRequest, on_text: TextListener | None = None) -> Reply:
        """Call the model, as ``protocol.Model.reply``. Loads the SDK."""
        import httpx2

        from stateline.model.providers.http import Attempts, StopRetrying
        from stateline.model.providers.sdk_errors import ErrorTranslator

        _refuse_settings(request, self.PROVIDER)
        sdk, sdk_error = self.sdk()
        attempts = Attempts(request)
        errors = ErrorTranslator(self.PROVIDER, attempts, self._mask)
        while True:
            sent = self._sent(request, on_text is not None)
            partial, before, rejected = PartialReply(on_text), attempts.count, ""
            failure: ModelCallError | RequestError
            # RecursionError: JSON that nests too deep.
            unusable = (
                StopRetrying,
                sdk_error,
                httpx2.HTTPError,
                httpx2.StreamError,
                httpx2.InvalidURL,
                RecursionError,
            )
            try:
                return self._call(sdk, request, partial, (attempts, errors))
            except ModelCallError as error:
                failure = error
            except unusable as error:
                rejected = self._rejected_option(error, sent)
                failure = errors.failure(error, sdk)
            except (OSError, ValueError, ImportError) as error:
                if attempts.count > before:
                    raise
                failure = errors.setup_error(error)
            # Outside the block, so that the failure does not carry the SDK's error, which holds the request's headers.
            if not rejected:
                if isinstance(failure, ModelCallError):
                    failure.cost, failure.partial = attempts.cost(partial.usage), partial.document()
                raise failure
            self._rejected |= {rejected}

    # -- what differs between providers --------------------------------------------------------------------------------

    def sdk(self) -> tuple[ModuleType, type[Exception]]:
        """Return the SDK and the base class of its errors."""
        raise NotImplementedError

    def client(self, sdk: Any, attempts: Attempts, http_client: Any) -> Any:
        """Return a client of the SDK; the caller closes it."""
        raise NotImplementedError

    def body(self, request: ModelRequest, sent: list[str]) -> dict[str, Json]:
        """Return the body with the options ``sent``, without what makes it a stream."""
        raise NotImplementedError

    def options(self, request: ModelRequest, streamed: bool) -> list[str]:
        """Return the options that the call needs, as opposed to those of the settings."""
        raise NotImplementedError

    def read(self, answer: dict[str, Any], partial: PartialReply) -> None:
        """Add a whole answer to ``partial``."""
        raise NotImplementedError

    def read_stream(self, pieces: Iterable[object], partial: PartialReply) -> None:
        """Add an answer to ``partial`` while it arrives."""
        raise NotImplementedError

    # -- what is common ------------------------------------------------------------------------------------------------

    def _call(
        self, sdk: Any, request: ModelRequest, partial: PartialReply, state: tuple[Attempts, ErrorTranslator]
    ) -> Reply:
        import httpx2

        from stateline.model.providers.http import headers, http_client

        attempts, errors = state
        sent = self._sent(request, partial.streamed)
        body = self.body(request, sent) | ({"stream": True} if partial.streamed else {})
        options: Any = {"headers": headers(request, body), "timeout": attempts.timeouts()}
        http = http_client(sdk, attempts, streamed=partial.streamed)
        with self.client(sdk, attempts, http) as client:
            if not partial.streamed:
                response = client.post(self.PATH, cast_to=httpx2.Response, body=body, options=options)
                self.read(_answer(response.content, errors), partial)
            else:
                streaming = {"stream": True, "stream_cls": sdk.Stream[object]}
                stream = client.post(self.PATH, cast_to=object, body=body, options=options, **streaming)
                with stream:
                    content = _unstreamed(stream.response)
                    if content is None:
                        self.read_stream(stream, partial)
                    else:
                        self.read(_answer(content, errors), partial)
        reply = msgspec.structs.replace(complete_reply(partial, self.FINISHES, request), calls=attempts.calls)
        if request.output_schema is not None and self.FORMAT not in sent:
            reply = msgspec.structs.replace(reply, content=unfenced(reply.content))
        return reply

    def _sent(self, request: ModelRequest, streamed: bool) -> list[str]:
        return [name for name in self.options(request, streamed) if name not in self._rejected]

    def _rejected_option(self, error: BaseException, sent: list[str]) -> str:
        """Return the option, of those that were sent, that the endpoint rejects, or ""."""
        if getattr(error, "status_code", 0) not in (400, 422):
            return ""
        try:
            message = str(getattr(error, "body", "")).lower() + str(error).lower()
        except RecursionError:
            return ""
        return next((name for name in sent if any(word in message for word in self.OPTIONS[name])), "")


def _answer(content: bytes, errors: ErrorTranslator) -> dict[str, Any]:
    """Parse a body. Raises ``ModelCallError`` unless it is an object, and for an error document."""
    try:
        answer = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        raise invalid_reply("is not JSON: it was truncated, or the base URL is not that of a model") from None
    if not isinstance(answer, dict):
        raise invalid_reply("is not a JSON object")
    if answer.get("type") == "error" or answer.get("error"):
        raise errors.error_document(answer)
    return answer


def _refuse_settings(request: ModelRequest, provider: str) -> None:
    for name in CALL_MEMBERS:
        if name in request.settings:
            message = f"the setting {quoted(name)} belongs to the call itself and was not sent to {provider}"
            raise ModelCallError("model", message, "remove it from the context's settings or from --set", sent=False)


def arguments_schema(parameters: dict[str, Json]) -> dict[str, Json]:
    """Return the JSON Schema of a tool's arguments as providers require it: an object that lists its properties."""
    return {"type": "object", "properties": {}, **parameters}


def text_of(content: Json) -> str:
    """Return a tool's result as text: a string unchanged, anything else as canonical JSON."""
    return content if isinstance(content, str) else canonical.encode(content, depth=canonical.FILE_DEPTH).decode()


def instruction(schema: Json) -> str:
    """Return the prompt that asks for JSON where a provider does not support schemas."""
    return _INSTRUCTION + canonical.encode(schema, depth=canonical.FILE_DEPTH).decode()


def unfenced(text: str) -> str:
    """Return ``text`` without the Markdown fence that models put around JSON."""
    match = _FENCED.fullmatch(text)
    return match[1] if match else text


def closed(schema: Json) -> bool:
    """Return whether each object in ``schema`` lists its properties and allows no others. Structured outputs require
    that."""
    if isinstance(schema, list):
        return all(closed(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" and not (
        schema.get("properties") and schema.get("additionalProperties") is False
    ):
        return False
    return all(closed(item) for item in schema.values())


def _unstreamed(response: Any) -> bytes | None:
    """Return the body of a response that is a JSON document instead of a stream, from a server that does not stream;
    None for a stream. Raises as reading the response does."""
    if response.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return None
    content: bytes = response.read()
    # Some servers send events with that type too: the body can still be read as a stream.
    return content if content.lstrip()[:1] in (b"{", b"[", b"") else None
