"""What every model behind an official SDK does alike: ask, read what came, and ask again without what an endpoint does
not know. What is peculiar to a provider is said by a class of its own (``openai``, ``anthropic``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from stateline.bundle.canonical import Json
from stateline.errors import RequestError, StatelineError
from stateline.model.protocol import ModelFailed, Reply, Request, Told
from stateline.model.providers import request_parts
from stateline.model.reply_validation import Draft, Finish, refused, whole

if TYPE_CHECKING:
    from stateline.model.providers.http import Wire


class SdkModel:
    """The model of one name behind one endpoint, whatever name a request gives it. ``mask`` takes the secrets out of a
    text. An option that an endpoint says it does not know is left out from then on."""

    PROVIDER: ClassVar[str]
    PATH: ClassVar[str]
    FINISHES: ClassVar[dict[str, Finish]]
    OPTIONS: ClassVar[dict[str, tuple[str, ...]]]
    """What an endpoint may not know, and the words by which its refusal is told."""
    FORMAT: ClassVar[str]
    """The one of them that binds a reply to a schema."""

    def __init__(self, name: str, base_url: str, mask: Callable[[str], str]) -> None:
        self._name = name
        self._base_url = base_url
        self._mask = mask
        self._unknown: frozenset[str] = frozenset()

    def reply(self, request: Request, told: Told | None = None) -> Reply:
        """As ``protocol.Model``. Loads the SDK."""
        import httpx2

        from stateline.model.providers.http import UNREADABLE, Over, Wire

        request_parts.refuse_settings(request, self.PROVIDER)
        sdk, error_of_sdk = self.sdk()
        wire = Wire(self.PROVIDER, request, self._mask)
        while True:
            sent = self._sent(request, told is not None)
            draft, attempts, unknown = Draft(told), wire.attempts, ""
            failure: ModelFailed | RequestError
            try:
                return self._once(sdk, request, draft, wire)
            except ModelFailed as failed:
                failure = failed
            except StatelineError:  # some of them are ValueErrors
                raise
            except (Over, error_of_sdk, httpx2.HTTPError, httpx2.StreamError, *UNREADABLE) as error:
                unknown = self._refused(error, sent)
                failure = wire.failed(error, sdk)
            except (OSError, ValueError, ImportError) as error:
                if wire.attempts > attempts:
                    raise
                failure = wire.unmade(error)
            # Out of the block, so that the failure does not carry the SDK's error, which holds the request's headers.
            if not unknown:
                if isinstance(failure, ModelFailed):
                    failure.spent = wire.spent(draft.usage)
                raise failure
            self._unknown |= {unknown}

    # -- what is peculiar to a provider --------------------------------------------------------------------------------

    def sdk(self) -> tuple[ModuleType, type[Exception]]:
        """The SDK, and what all of its errors are."""
        raise NotImplementedError

    def client(self, sdk: Any, wire: Wire) -> Any:
        """A client of the SDK, to be closed by whoever asked for it."""
        raise NotImplementedError

    def body(self, request: Request, sent: list[str]) -> dict[str, Json]:
        """What is posted, with these options, but for what makes it a stream."""
        raise NotImplementedError

    def options(self, request: Request, streamed: bool) -> list[str]:
        """The options that are sent because of the call, and not because the settings hold them."""
        raise NotImplementedError

    def read(self, answer: dict[str, Any], draft: Draft) -> None:
        """Take in a whole answer."""
        raise NotImplementedError

    def hear(self, pieces: Iterable[object], draft: Draft) -> None:
        """Take in an answer while it comes."""
        raise NotImplementedError

    # -- what is alike -------------------------------------------------------------------------------------------------

    def _once(self, sdk: Any, request: Request, draft: Draft, wire: Wire) -> Reply:
        import httpx2

        sent = self._sent(request, draft.heard)
        body = self.body(request, sent) | ({"stream": True} if draft.heard else {})
        options: Any = {"headers": _headers(request, body), "timeout": wire.limits()}
        with self.client(sdk, wire) as client:
            if not draft.heard:
                response = client.post(self.PATH, cast_to=httpx2.Response, body=body, options=options)
                self.read(_answer(response.content, wire), draft)
            else:
                streaming = {"stream": True, "stream_cls": sdk.Stream[object]}
                stream = client.post(self.PATH, cast_to=object, body=body, options=options, **streaming)
                with stream:
                    content = request_parts.unstreamed(stream.response)
                    if content is None:
                        self.hear(stream, draft)
                    else:
                        self.read(_answer(content, wire), draft)
        reply = msgspec.structs.replace(whole(draft, self.FINISHES, request), calls=wire.calls)
        if request.output_schema is not None and self.FORMAT not in sent:
            reply = msgspec.structs.replace(reply, content=request_parts.unfenced(reply.content))
        return reply

    def _sent(self, request: Request, streamed: bool) -> list[str]:
        return [name for name in self.options(request, streamed) if name not in self._unknown]

    def _refused(self, error: BaseException, sent: list[str]) -> str:
        """The option of those that were sent that an endpoint says it does not know, or ""."""
        if getattr(error, "status_code", 0) not in (400, 422):
            return ""
        try:
            said = str(getattr(error, "body", "")).lower() + str(error).lower()
        except RecursionError:
            return ""
        return next((name for name in sent if any(word in said for word in self.OPTIONS[name])), "")


def _headers(request: Request, body: dict[str, Json]) -> dict[str, str]:
    """The header by which a server that keeps keys tells a call that it knows. Another body is another call to it."""
    if not request.key:
        return {}
    digest = hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16]
    return {"Idempotency-Key": ":".join([request.key, *([request.mark] if request.mark else []), digest])}


def _answer(content: bytes, wire: Wire) -> dict[str, Any]:
    """The object that a body is. Raises ``ModelFailed`` for one that is none, or that tells an error."""
    try:
        answer = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        raise refused("is no JSON: it was cut, or the base URL is not that of a model") from None
    if not isinstance(answer, dict):
        raise refused("is not of the form that it must have")
    if answer.get("type") == "error" or answer.get("error"):
        raise wire.told_error(answer)
    return answer
