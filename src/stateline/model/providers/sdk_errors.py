"""Translate errors of the SDKs and of HTTP into ``ModelCallError``, without keys and without the SDK's objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

import httpx2
import msgspec

from stateline.bundle.canonical import Json
from stateline.errors import RequestError
from stateline.machine.problems import printable
from stateline.model.protocol import FailureKind, ModelCallError
from stateline.model.providers.http import ANSWER_LIMIT, PERMANENT, READ_TIMEOUT, Attempts, StopRetrying

_MESSAGE_LIMIT = 300
_CLOSE = 0.1
"""The SDK's limit on a read is the time that was left when it began, and may end a call this much early [s]."""
_NETWORK = "check the base URL and the network"
_NOT_SUPPORTED = "look at the settings, tools and schema that were sent: the provider does not support all of them"
_HINTS = {
    400: _NOT_SUPPORTED,
    401: "check the key",
    402: "check the account at the provider",
    403: "check what the key is allowed to do",
    404: "check the model's name, and the base URL if one is set",
    413: "the conversation is too long for the provider",
    422: _NOT_SUPPORTED,
    429: "wait, or ask the provider for higher limits",
}


class ErrorTranslator:
    """Errors of one call to ``provider``. ``mask`` removes secrets from a text."""

    def __init__(self, provider: str, attempts: Attempts, mask: Callable[[str], str]) -> None:
        self._provider = provider
        self._attempts = attempts
        self._mask = mask

    def failure(self, error: BaseException, sdk: ModuleType) -> ModelCallError:
        """Translate an error of the SDK, or one that came through it."""
        if isinstance(error, StopRetrying) and error.__cause__ is not None:
            error = error.__cause__
        cause = error if error.__cause__ is None else error.__cause__
        if not self._attempts.count:
            return self._failure("model", "could not be called: the request cannot be encoded")
        if self._attempts.too_large:
            return self._failure("reply", f"sent more than {ANSWER_LIMIT} bytes; the reply was not used")
        if isinstance(error, sdk.APITimeoutError | httpx2.TimeoutException):
            return self._timeout(isinstance(cause, httpx2.ConnectTimeout))
        if isinstance(error, sdk.APIStatusError):
            if error.status_code == 200:  # an error event in the middle of a stream
                return self._failure("model", f"broke the reply off{self._detail(error.body)}")
            return self._status_error(error.status_code, error.body)
        if isinstance(error, sdk.APIConnectionError | httpx2.TransportError):
            return self._connection_error(cause)
        if isinstance(error, sdk.APIError):
            return self._failure("model", f"broke the reply off{self._detail(error.body)}")
        return self._failure("reply", "sent something that cannot be read; the reply was not used")

    def error_document(self, body: Json) -> ModelCallError:
        """Translate an error that arrived with status 200 instead of a reply."""
        return self._failure("model", f"answered with an error{self._detail(body)}")

    def setup_error(self, error: Exception) -> RequestError:
        """Translate an error before the first attempt, as a rule one of the environment."""
        return RequestError(
            f"{self._provider} cannot be called: {type(error).__name__}: {self._shown(str(error))}; nothing was sent",
            hint="correct the environment, and call again: SSL_CERT_FILE, SSL_CERT_DIR, HTTPS_PROXY, ALL_PROXY, or the "
            "variables of the provider's library",
        )

    def _timeout(self, connecting: bool) -> ModelCallError:
        attempts = self._attempts
        run_limit = attempts.run_limit_is_first and time.monotonic() > attempts.deadline - _CLOSE
        longest = attempts.timeout or (attempts.whole_timeout if attempts.is_late() else READ_TIMEOUT)
        # A failure is part of the run's state: it must not contain the time that was left, which depends on a clock.
        within = f"{'in the time that the run had left' if run_limit else f'within {longest:g} s'}{self._tried()}"
        problem, hint = f"gave no complete reply {within}", "raise the stage's `timeout`, or ask for less"
        if connecting:
            problem, hint = f"could not be reached {within}", _NETWORK
        failure = self._failure("timeout", problem, hint)
        failure.bound = "timeout" if run_limit else ""
        return failure

    def _connection_error(self, error: BaseException) -> ModelCallError:
        if 200 <= self._attempts.status < 300:
            return self._failure("reply", f"broke the connection before the reply was complete{self._tried()}")
        reason = f": {self._shown(str(error))}" if str(error) else ""
        problem = "could not be reached" if isinstance(error, httpx2.ConnectError) else "broke the connection"
        return self._failure("model", f"{problem}{reason}{self._tried()}", _NETWORK)

    def _status_error(self, status: int, body: object) -> ModelCallError:
        hint = _HINTS.get(status, "the provider has a problem: try again later" if status >= 500 else "")
        if 300 <= status < 400:
            hint = "redirects are not followed: give the base URL where they end"
        if self._attempts.too_long_wait:
            wait = self._attempts.retry_after
            hint = f"the provider asks to wait {wait:.0f} s, which is too long"
        failure = self._failure("model", f"answered with status {status}{self._detail(body)}{self._tried()}", hint)
        failure.permanent = status in PERMANENT
        return failure

    def _failure(self, kind: FailureKind, problem: str, hint: str = "") -> ModelCallError:
        failure = ModelCallError(kind, f"{self._provider} {problem}", hint, sent=self._attempts.sent)
        failure.retryable = self._attempts.retryable
        return failure

    def _tried(self) -> str:
        return f" (tried {self._attempts.count} times)" if self._attempts.count > 1 else ""

    def _detail(self, body: object) -> str:
        """Return the provider's own message with a colon before it, or ""."""
        detail: object = body
        for name in ("error", "message", "detail"):
            if isinstance(detail, dict) and detail.get(name):
                detail = detail[name]
        if isinstance(detail, dict | list) and detail:
            with suppress(RecursionError):
                detail = msgspec.json.encode(detail, enc_hook=str).decode()
        # The first lines of an HTML page say nothing.
        if not isinstance(detail, str) or not detail.strip() or detail.lstrip().startswith("<"):
            return ""
        return f": {self._shown(detail)}"

    def _shown(self, text: str) -> str:
        """Return ``text`` for a message: without secrets and control characters, on one line, shortened."""
        text = " ".join(self._mask(text[: 100 * _MESSAGE_LIMIT]).split())
        return printable(text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "…").rstrip(".")
