"""HTTP for the official SDKs: a transport that adds the limits which they lack.

The SDKs retry what may be retried (connections, timeouts, 408, 409, 429, 5xx; twice, with backoff and jitter, or after
``Retry-After``), always with the same headers. The transport adds one time limit over all attempts and not only over
each read, a limit on the size of an answer, no redirects (the key goes only to the base URL), no wait of more than two
minutes, and the number of attempts that a provider may charge. Importing this module loads an HTTP library.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import httpx2
import msgspec

from stateline.bundle.canonical import Json
from stateline.model.protocol import CALL_TIMEOUT, CallCost, ModelRequest, Usage

CONNECT_TIMEOUT = 10.0
"""Longest wait for a connection [s]."""
READ_TIMEOUT = 600.0
"""Longest wait for the next bytes, where the request has no timeout [s]."""
ANSWER_LIMIT = 32 * 1024 * 1024
"""Largest answer of a provider [bytes]: the largest reply, and what a stream wraps around its pieces."""
RETRY_AFTER_LIMIT = 120.0
"""Longest ``Retry-After`` that is followed [s]."""
_RETRIES = 2
# The provider gave up waiting, or is working on a call with the same key: the call may have been executed.
_UNDECIDED = (408, 409)
PERMANENT = (400, 401, 403, 404)
"""Statuses of refusals that another attempt would only repeat, whatever headers come with them."""


class StopRetrying(BaseException):
    """No attempt may follow. After any ``Exception`` the SDKs wait and retry."""


class Attempts:
    """The attempts of one call: their limits, and what they may have cost.

    The request's ``timeout`` [s] limits all attempts and the waits between them, from the first one on (0:
    ``CALL_TIMEOUT``, with at most ``READ_TIMEOUT`` between two pieces), and so does its ``left``.
    """

    def __init__(self, request: ModelRequest) -> None:
        self.count = 0
        self.retries = _RETRIES if request.repeatable else 0
        """Number of retries by the SDK."""
        self.status = 0
        """Status of the last answer, 0 before one."""
        self.retry_after = 0.0
        """Wait that the last answer asked for [s]."""
        self.too_long_wait = False
        self.too_large = False
        self.retryable = False
        """The answer to a ``single`` call was lost on its way."""
        self.timeout = request.timeout
        self.whole_timeout = min(request.timeout or CALL_TIMEOUT, request.left or CALL_TIMEOUT)
        self.run_limit_is_first = 0 < request.left < (request.timeout or CALL_TIMEOUT)
        self.deadline = 0.0
        self._single = request.single
        self._open = False
        self._earlier_sent = False
        self._earlier_calls = 0
        self._counts = False
        self._received = 0

    @property
    def calls(self) -> int:
        """Number of attempts that count as calls: something was sent, and no error status came back."""
        return self._earlier_calls + self._counts

    @property
    def sent(self) -> bool:
        """True if a provider may have executed the call: it was sent and not refused."""
        return self._earlier_sent or self._open

    def cost(self, usage: Usage | None) -> CallCost:
        """Return the cost of the call, given the provider's report."""
        return CallCost(calls=self.calls, usage=usage, received=self._received if usage is None else 0)

    def timeouts(self) -> httpx2.Timeout:
        """Return the limits of each single read, write and connection, as of now."""
        longest = self._time_left()
        return httpx2.Timeout(longest, connect=min(longest, CONNECT_TIMEOUT))

    def is_late(self) -> bool:
        """Return whether the time for the call is over."""
        return bool(self.deadline) and time.monotonic() > self.deadline

    def begin(self, request: httpx2.Request) -> None:
        """Count an attempt. Raises ``httpx2.TransportError`` if none may follow."""
        if self.too_large:
            raise httpx2.ReadError("an earlier answer was too large")
        if self.is_late():
            unreached = not self._open and not self.status
            raise (httpx2.ConnectTimeout if unreached else httpx2.ReadTimeout)("no time is left for another attempt")
        self._earlier_sent, self._earlier_calls = self.sent, self.calls
        self._open = self._counts = False
        self.status = 0
        self.count += 1
        if not self.deadline:
            self.deadline = time.monotonic() + self.whole_timeout
        request.extensions["timeout"] = self.timeouts().as_dict()
        request.extensions["trace"] = self._trace

    def answered(self, response: httpx2.Response) -> None:
        """Note the status line and the headers of an answer."""
        self.status = response.status_code
        self._counts = self._counts and response.status_code < 300
        if 300 <= response.status_code < 500 and response.status_code not in _UNDECIDED:
            self._open = False
        # The same object limits the reading of the body.
        response.request.extensions["timeout"].update(self.timeouts().as_dict())
        self.retry_after = _retry_after(response.headers)
        self.too_long_wait = self.retry_after > min(RETRY_AFTER_LIMIT, self._time_left())
        if self.too_long_wait or self.status in PERMANENT:
            response.headers["x-should-retry"] = "false"

    def received(self, size: int, total: int) -> None:
        """Note a piece of ``size`` of an answer, of which ``total`` [bytes] have arrived. Raises
        ``httpx2.TransportError`` over the limits of size and time."""
        self._received += size * self._counts
        self.too_large = self.too_large or total > ANSWER_LIMIT
        if self.too_large:
            raise httpx2.ReadError("the answer is too large")
        if self.is_late():
            raise httpx2.ReadTimeout("the answer was not complete in time")

    def stop_if_final(self, error: httpx2.TransportError) -> None:
        """Raise :class:`StopRetrying` from an error after which the SDK must not retry."""
        if self.too_large or self.is_late():
            raise StopRetrying from error
        if self._single and self._counts:
            self.retryable = self.retries > 0
            raise StopRetrying from error

    def _trace(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith(".send_request_headers.started"):
            self._open = self._counts = True

    def _time_left(self) -> float:
        """Return the time that the call may still take [s], always more than 0."""
        left = max(self.deadline - time.monotonic(), 0.001) if self.deadline else self.whole_timeout
        return left if self.timeout else min(left, READ_TIMEOUT)


class BoundedTransport(httpx2.BaseTransport):
    """Sends each attempt through an HTTP client of the SDK's own kind, which knows proxies, certificates and socket
    options, and applies the limits. A transport cannot see whether the SDK reads a body at once or as a stream, so it
    is told: errors within a stream reach the caller, and the SDK does not retry after them."""

    def __init__(self, client: httpx2.Client, attempts: Attempts, *, streamed: bool) -> None:
        self._client = client
        self._attempts = attempts
        self._streamed = streamed

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one attempt. Raises ``httpx2.TransportError``, :class:`StopRetrying` if none may follow."""
        try:
            self._attempts.begin(request)
            response = self._client.send(request, stream=True)
        except httpx2.TransportError as error:
            self._attempts.stop_if_final(error)
            raise
        self._attempts.answered(response)
        stream = response.stream
        if isinstance(stream, httpx2.SyncByteStream):
            response.stream = _BoundedStream(stream, self._attempts, self._streamed)
        return response

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class _BoundedStream(httpx2.SyncByteStream):
    """The bytes of an answer within the limits of size and time."""

    def __init__(self, stream: httpx2.SyncByteStream, attempts: Attempts, streamed: bool) -> None:
        self._stream = stream
        self._attempts = attempts
        self._streamed = streamed

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        try:
            for piece in self._stream:
                total += len(piece)
                self._attempts.received(len(piece), total)
                yield piece
        except httpx2.TransportError as error:
            if not self._streamed:
                self._attempts.stop_if_final(error)
            raise

    def close(self) -> None:
        self._stream.close()


def http_client(sdk: Any, attempts: Attempts, *, streamed: bool) -> Any:
    """Return an HTTP client for ``sdk`` that keeps to the limits of ``attempts``."""
    options: dict[str, Any] = {"follow_redirects": False, "timeout": attempts.timeouts()}
    inner = sdk.DefaultHttpxClient(verify=_certificates(), **options)
    return sdk.DefaultHttpxClient(transport=BoundedTransport(inner, attempts, streamed=streamed), **options)


def headers(request: ModelRequest, body: dict[str, Json]) -> dict[str, str]:
    """Return the headers that a call adds to the SDK's: the idempotency key, if the request has one. It contains a
    digest of the body, because a server treats another body under the same key as an error."""
    if not request.key:
        return {}
    digest = hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16]
    return {"Idempotency-Key": ":".join([request.key, *([request.mark] if request.mark else []), digest])}


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates that the SDKs would use; reading them takes longer than the rest of a call."""
    return httpx2.create_ssl_context()


def _retry_after(headers: httpx2.Headers) -> float:
    """Return the wait that an answer asks for [s], 0 for none."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            return float(headers[name]) / unit
    from email.utils import mktime_tz, parsedate_tz

    try:
        parsed = parsedate_tz(headers.get("retry-after"))
        return mktime_tz(parsed) - time.time() if parsed else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0
