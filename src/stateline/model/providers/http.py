"""One call's way to its provider and back: HTTP as the official SDKs do it, with the bounds they leave open.

The SDKs retry what may be retried (connections, timeouts, 408, 409, 429, 5xx; twice, with backoff and jitter, or after
``Retry-After``), always with the same headers. Here is added what they do not do: one time limit over all attempts and
not just over each read, a bound on what is read, no redirects (the key goes nowhere but to the base URL), no wait of
more than two minutes, and the knowledge whether a provider may have been paid. Importing this loads an HTTP library.
"""

from __future__ import annotations

import json
import math
import os
import ssl
import time
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import httpx2
import msgspec

from stateline.bundle.canonical import Json
from stateline.errors import RequestError
from stateline.machine.problems import printable
from stateline.model.protocol import WHOLE, ModelFailed, Request, Spent, Usage

CONNECT = 10.0
"""The longest wait for a connection [s]."""
LONGEST = 600.0
"""The longest wait for anything to come, where a request says nothing of time [s]."""
LIMIT = 32 * 1024 * 1024
"""Largest answer of a provider [bytes]: what a reply may hold, and what a stream wraps around its pieces."""
LONGEST_WAIT = 120.0
"""The longest ``Retry-After`` that is waited for [s]."""
UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError, RecursionError, httpx2.InvalidURL)
"""What the SDKs let through of a stream that is none, of JSON that nests too deep, and of a URL that they refuse."""
_LONGEST_MESSAGE = 300
_RETRIES = 2
_CLOSE = 0.1
# The provider gave up waiting, or is at work on a call with the same key: neither says that nothing was done.
_UNDECIDED = (408, 409)
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_OWN_VARIABLES = {"openai": ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"), "anthropic": ("ANTHROPIC_CUSTOM_HEADERS",)}

_HINTS = {
    400: "look at the settings, tools and schema that were sent: the provider does not take all of them",
    401: "check the key",
    402: "check the account at the provider",
    403: "check what the key is allowed to do",
    404: "check the model's name, and the base URL if one is set",
    413: "the conversation is too long for the provider",
    422: "look at the settings, tools and schema that were sent: the provider does not take all of them",
    429: "wait, or ask the provider for higher limits",
}


class Over(BaseException):
    """No attempt may follow. After an ``Exception`` the SDKs wait and try again, whatever it says."""


class Wire:
    """What is known of one call: attempts, answers, and what they may have cost. The request's ``timeout`` [s] bounds
    all attempts and the waits between them together, from the first on (0: ``WHOLE``, and ``LONGEST`` the silence
    between two pieces), and so does its ``left``: none starts after that. ``mask`` takes the secrets out of a text."""

    def __init__(self, provider: str, request: Request, mask: Callable[[str], str]) -> None:
        self.provider = provider
        self.attempts = 0
        self.retries = _RETRIES if request.repeatable else 0
        """How often the SDK may try again."""
        self._timeout = request.timeout
        self._whole = min(request.timeout or WHOLE, request.left or WHOLE)
        self._bounded = 0 < request.left < (request.timeout or WHOLE)
        self._single = request.single
        self._mask = mask
        self._deadline = 0.0
        self._status = 0
        self._wait = 0.0
        self._waits = True
        self._flooded = False
        self._open = False
        self._paid = False
        self._calls = 0
        self._counts = False
        self._came_in = 0
        self._again = False

    @property
    def calls(self) -> int:
        """How many attempts count as calls: something was sent, and no status of an error came back."""
        return self._calls + self._counts

    def spent(self, usage: Usage | None) -> Spent:
        """What the call used; ``usage`` is what the provider said of it."""
        return Spent(calls=self.calls, usage=usage, came=self._came_in if usage is None else 0)

    @property
    def paid(self) -> bool:
        """Whether a provider may have worked on the call: something was sent to it, and it did not refuse."""
        return self._paid or self._open

    def limits(self) -> httpx2.Timeout:
        """The SDK's limits for each single read, write and connection, as of now."""
        longest = self._left()
        return httpx2.Timeout(longest, connect=min(longest, CONNECT))

    def client(self, sdk: Any) -> Any:
        """An SDK's own kind of HTTP client, which keeps to the bounds."""
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [self._going], "response": [self._came]}
        bounds: dict[str, Any] = {"follow_redirects": False, "timeout": self.limits(), "event_hooks": hooks}
        client = sdk.DefaultHttpxClient(verify=_trust(), **bounds)
        send = client.send

        def bounded(*args: Any, **kwargs: Any) -> Any:
            try:
                return send(*args, **kwargs)
            except httpx2.TransportError as error:
                if self._flooded or self.late():
                    raise Over from error
                if self._single and self._counts:
                    self._again = self.retries > 0
                    raise Over from error
                raise

        client.send = bounded
        return client

    def over(self, size: int) -> bool:
        """Note whether ``size`` [bytes] of one answer are too many."""
        self._flooded = self._flooded or size > LIMIT
        return self._flooded

    def took(self, size: int) -> None:
        """Note that ``size`` [bytes] of an answer came."""
        self._came_in += size * self._counts

    def late(self) -> bool:
        """Whether the call's time is over."""
        return bool(self._deadline) and time.monotonic() > self._deadline

    def failed(self, error: BaseException, sdk: ModuleType) -> ModelFailed:
        """What an SDK's error, or one that came through it, means. It holds no key and nothing of the SDK's."""
        if isinstance(error, Over) and error.__cause__ is not None:
            error = error.__cause__
        cause = error.__cause__
        if not self.attempts:
            return self._failure("model", "could not be asked: the call cannot be written as a request")
        if self._flooded:
            return self._failure("reply", f"sent more than {LIMIT} bytes; the reply was not used")
        if isinstance(error, sdk.APITimeoutError | httpx2.TimeoutException):
            return self._too_late(isinstance(error if cause is None else cause, httpx2.ConnectTimeout))
        if isinstance(error, sdk.APIStatusError):
            if error.status_code == 200:  # an error told in the middle of a stream
                return self._failure("model", f"broke the reply off{self._said(error.body)}")
            return self._status_error(error.status_code, error.body)
        if isinstance(error, sdk.APIConnectionError | httpx2.TransportError):
            return self._broken(error if cause is None else cause)
        if isinstance(error, sdk.APIError):
            return self._failure("model", f"broke the reply off{self._said(error.body)}")
        return self._failure("reply", "sent something that cannot be read; the reply was not used")

    def unmade(self, error: Exception) -> RequestError:
        """For an error that kept the call from being made at all: of the environment, as a rule."""
        known = (*_VARIABLES, *_OWN_VARIABLES.get(self.provider, ()))
        found = [name for name in known if os.environ.get(name) or os.environ.get(name.lower())]
        look = f"set of these: {', '.join(found) or 'none'}"
        return RequestError(
            f"{self.provider} cannot be asked: {type(error).__name__}: {self._shown(str(error))}; nothing was sent",
            hint=f"correct the environment, and call again: certificates ({', '.join(_VARIABLES[:3])}), proxies "
            f"({', '.join(_VARIABLES[3:])}), and what the provider's library reads; {look}",
        )

    def told_error(self, body: Json) -> ModelFailed:
        """What an error means that came with status 200 in a reply's place."""
        return self._failure("model", f"answered with an error{self._said(body)}")

    def _going(self, request: httpx2.Request) -> None:
        if self._flooded:
            raise httpx2.ReadError("too much was sent before")
        if self.late():
            unreached = not self._open and not self._status
            raise (httpx2.ConnectTimeout if unreached else httpx2.ReadTimeout)("no time is left for another attempt")
        self._paid = self.paid
        self._calls = self.calls
        self._open = self._counts = False
        self._status = 0
        self.attempts += 1
        if not self._deadline:
            self._deadline = time.monotonic() + self._whole
        request.extensions["timeout"] = self.limits().as_dict()
        request.extensions["trace"] = self._trace

    def _trace(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith(".send_request_headers.started"):
            self._open = self._counts = True

    def _came(self, response: httpx2.Response) -> None:
        self._status = response.status_code
        self._counts = self._counts and response.status_code < 300
        if 300 <= response.status_code < 500 and response.status_code not in _UNDECIDED:
            self._open = False
        # The same object that the reading of the body looks at.
        response.request.extensions["timeout"].update(self.limits().as_dict())
        self._wait = _retry_after(response.headers)
        self._waits = self._wait <= min(LONGEST_WAIT, self._left())
        if not self._waits:
            response.headers["x-should-retry"] = "false"
        stream = response.stream
        if isinstance(stream, httpx2.SyncByteStream):
            response.stream = _Bounded(stream, self)

    def _left(self) -> float:
        """The time that the call may still take [s], never nothing."""
        left = max(self._deadline - time.monotonic(), 0.001) if self._deadline else self._whole
        return left if self._timeout else min(left, LONGEST)

    def _too_late(self, connecting: bool) -> ModelFailed:
        # An SDK's limit on a read is what was left when it began, and may strike a little before our own.
        struck = self._bounded and time.monotonic() > self._deadline - _CLOSE
        longest = self._timeout or (self._whole if self.late() else LONGEST)
        # How much a run has left hangs on a clock, and a failure is part of its state.
        within = f"{'in the time that the run had left' if struck else f'within {longest:g} s'}{self._tried()}"
        what, hint = f"gave no whole reply {within}", "raise the stage's `timeout`, or ask for less"
        if connecting:
            what, hint = f"could not be reached {within}", "check the base URL and the network"
        failure = self._failure("timeout", what, hint)
        failure.bound = "timeout" if struck else ""
        return failure

    def _broken(self, error: BaseException) -> ModelFailed:
        if 200 <= self._status < 300:
            return self._failure("reply", f"broke the connection before the reply was whole{self._tried()}")
        reason = f": {self._shown(str(error))}" if str(error) else ""
        hint = "check the base URL and the network"
        if isinstance(error, httpx2.ConnectError):
            return self._failure("model", f"could not be reached{reason}{self._tried()}", hint)
        return self._failure("model", f"broke the connection{reason}{self._tried()}", hint)

    def _status_error(self, status: int, body: object) -> ModelFailed:
        hint = _HINTS.get(status, "the provider has a problem: try again later" if status >= 500 else "")
        if 300 <= status < 400:
            hint = "redirects are not followed: give the base URL where they end"
        if not self._waits:
            too_long = "" if self._wait > LONGEST_WAIT else ", longer than the call may take"
            hint = f"the provider asks to wait {self._wait:.0f} s{too_long}"
        return self._failure("model", f"answered with status {status}{self._said(body)}{self._tried()}", hint)

    def _failure(self, kind: Any, what: str, hint: str = "") -> ModelFailed:
        failure = ModelFailed(kind, f"{self.provider} {what}", hint, sent=self.paid)
        failure.again = self._again
        return failure

    def _tried(self) -> str:
        return f" (tried {self.attempts} times)" if self.attempts > 1 else ""

    def _said(self, body: object) -> str:
        """The provider's own words, as far as there are any, ready to go on after the message."""
        words: object = body
        for name in ("error", "message", "detail"):
            if isinstance(words, dict) and words.get(name):
                words = words[name]
        if isinstance(words, dict | list) and words:
            words = _encoded(words)
        # A page for browsers says nothing in its first lines.
        if not isinstance(words, str) or not words.strip() or words.lstrip().startswith("<"):
            return ""
        return f": {self._shown(words)}"

    def _shown(self, text: str) -> str:
        """``text`` for a message: no secrets, one line, nothing a terminal would obey, not long."""
        text = " ".join(self._mask(text[: 100 * _LONGEST_MESSAGE]).split())
        return printable(text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…").rstrip(".")


@cache
def _trust() -> ssl.SSLContext:
    """The certificates that servers are checked by, as the SDKs would take them; reading them costs more than a call
    does else."""
    return httpx2.create_ssl_context()


def _encoded(words: object) -> str:
    """JSON for a message, "" for what nests too deep to say anything."""
    try:
        return msgspec.json.encode(words, enc_hook=str).decode()
    except RecursionError:
        return ""


class _Bounded(httpx2.SyncByteStream):
    """The bytes of an answer, as long as they are in time and not too many."""

    def __init__(self, stream: httpx2.SyncByteStream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._stream:
            size += len(piece)
            self._wire.took(len(piece))
            if self._wire.over(size):
                raise httpx2.ReadError("too much was sent")
            if self._wire.late():
                raise httpx2.ReadTimeout("not whole in time")
            yield piece

    def close(self) -> None:
        self._stream.close()


def _retry_after(headers: httpx2.Headers) -> float:
    """The wait [s] that an answer asks for, 0 if it asks for none. One that cannot be is taken out of ``headers``."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            wait = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(wait) and wait >= 0:
            return wait
        del headers[name]  # an SDK would sleep for ever
    from email.utils import mktime_tz, parsedate_tz

    try:
        parsed = parsedate_tz(headers.get("retry-after"))
        return mktime_tz(parsed) - time.time() if parsed else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0
