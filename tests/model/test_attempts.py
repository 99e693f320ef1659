"""Attempts of a call: their number, their time limits, and their cost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from each_case import each
from model.provider_requests import QUICK, Opened, ask, asked, refusal
from model_server import ModelServer, Say

from stateline.model.providers import http
from stateline.model.providers.selection import PROVIDERS, Choice, open_model


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_the_key_and_the_idempotency_key_are_sent_again_with_each_retry(
    opened: Opened, provider: str, streamed: bool
) -> None:
    faults = [Say(status=429, headers=QUICK), Say(status=500, headers=QUICK)]
    with ModelServer(*faults, Say("At last.")) as server:
        reply = ask(opened(provider, server), asked(key="run:3:0:birth"), streamed)
        assert reply.content == "At last."
        (key,) = {headers["idempotency-key"] for headers in server.headers}
        assert key.startswith("run:3:0:birth")
        assert [headers["x-stainless-retry-count"] for headers in server.headers] == ["0", "1", "2"]
        assert server.requests[0] == server.requests[1] == server.requests[2]


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_call_that_is_not_repeatable_is_sent_once(opened: Opened, provider: str, streamed: bool) -> None:
    """A refusal after which the provider may have worked on the call."""
    with ModelServer(Say(status=500, headers=QUICK), otherwise=Say("Yes.")) as server:
        failure = refusal(opened(provider, server), asked(repeatable=False), streamed)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("model", True)


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_retry_after_is_honoured(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(Say(status=429, headers={"retry-after": "0.3"}), Say("Yes.")) as server:
        begin = time.monotonic()
        assert ask(opened(provider, server), asked(), streamed).content == "Yes."
        # Without the header the wait is a hundredth of a second here, see ``backoff``.
        assert time.monotonic() - begin >= 0.3


@each("provider", PROVIDERS)
def test_a_wait_of_more_than_two_minutes_is_told_and_not_waited_for(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Too many.", status=429, headers={"retry-after": "3600"})) as server:
        failure = refusal(opened(provider, server), asked(), False)
        assert server.count == 1
    assert failure.message == f"{provider} answered with status 429: Too many"
    assert failure.hint == "the provider asks to wait 3600 s, which is too long"


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_refusal_is_not_tried_again_and_was_not_paid(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(Say("no such thing \x1b[31mred\nhere", status=400)) as server:
        failure = refusal(opened(provider, server), asked(), streamed)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("model", False)
    assert failure.message == f"{provider} answered with status 400: no such thing \\x1b[31mred here"
    assert "settings" in failure.hint


@each("provider", PROVIDERS)
@each("status", http.PERMANENT)
def test_a_refusal_is_final_even_if_the_server_asks_for_a_retry(opened: Opened, provider: str, status: int) -> None:
    with ModelServer(otherwise=Say("no", status=status, headers={"x-should-retry": "true", **QUICK})) as server:
        assert refusal(opened(provider, server), asked(), False).permanent
        assert server.count == 1
    with ModelServer(otherwise=Say("no", status=429, headers=QUICK)) as server:
        assert not refusal(opened(provider, server), asked(), False).permanent


@each("provider", PROVIDERS)
@each("status, sent", [(401, False), (408, True), (409, True), (413, False), (429, False), (500, True)])
def test_a_status_says_whether_the_call_may_have_been_paid(
    opened: Opened, provider: str, status: int, sent: bool
) -> None:
    with ModelServer(otherwise=Say("no", status=status, headers=QUICK)) as server:
        assert refusal(opened(provider, server), asked(), False).sent is sent


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_errors_that_stay_are_told_with_how_often_it_was_tried(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(otherwise=Say("on fire", status=503, headers=QUICK)) as server:
        failure = refusal(opened(provider, server), asked(), streamed)
        assert server.count == 3
    assert (failure.kind, failure.sent) == ("model", True)
    assert failure.message == f"{provider} answered with status 503: on fire (tried 3 times)"


@each("provider", PROVIDERS)
def test_a_message_of_a_provider_is_cut(opened: Opened, provider: str) -> None:
    with ModelServer(Say("long " * 10_000, status=400)) as server:
        failure = refusal(opened(provider, server), asked(), False)
    assert len(failure.message) < 400


@each("provider", PROVIDERS)
def test_a_page_for_browsers_is_no_message(opened: Opened, provider: str) -> None:
    page = Say(status=404, body=b"<html><body>Not here</body></html>", headers={"content-type": "text/html"})
    with ModelServer(page) as server:
        failure = refusal(opened(provider, server), asked(), False)
    assert failure.message == f"{provider} answered with status 404"
    assert "base URL" in failure.hint


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_nothing_that_listens_is_told_and_was_not_paid(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer() as server:
        model = opened(provider, server)
    failure = refusal(model, asked(), streamed)
    assert (failure.kind, failure.sent) == ("model", False)
    assert "could not be reached" in failure.message
    assert "base URL" in failure.hint


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_timeout_bounds_the_call_and_not_each_attempt(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(Say("Late.", delay=30), otherwise=Say("Too late.")) as server:
        failure = refusal(opened(provider, server), asked(timeout=0.2), streamed)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("timeout", True)
    assert failure.message == f"{provider} gave no complete reply within 0.2 s"


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_a_call_whose_time_is_over_does_not_wait_for_another_attempt(
    opened: Opened, provider: str, streamed: bool, backoff: Callable[[float], None]
) -> None:
    backoff(8.0)
    with ModelServer(Say("Late.", delay=30), otherwise=Say("Too late.")) as server:
        begin = time.monotonic()
        failure = refusal(opened(provider, server), asked(timeout=0.1), streamed)
        # The shortest wait of the SDKs would be six seconds.
        assert time.monotonic() - begin < 5.0
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("timeout", True)


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_an_attempt_has_the_time_that_the_ones_before_have_left(opened: Opened, provider: str, streamed: bool) -> None:
    with ModelServer(Say(status=500, headers=QUICK), Say("Late.", delay=30), otherwise=Say("Too late.")) as server:
        failure = refusal(opened(provider, server), asked(timeout=0.5), streamed)
        assert server.count == 2
    assert (failure.kind, failure.sent) == ("timeout", True)
    assert failure.message == f"{provider} gave no complete reply within 0.5 s (tried 2 times)"


@each("provider", PROVIDERS)
@each("streamed", [False, True])
def test_no_attempt_starts_after_the_time_of_the_call(
    opened: Opened, provider: str, streamed: bool, backoff: Callable[[float], None]
) -> None:
    # The wait before another attempt is more than what is left.
    backoff(0.5)
    with ModelServer(Say(status=500, delay=0.2), otherwise=Say("Too late.")) as server:
        failure = refusal(opened(provider, server), asked(timeout=0.3), streamed)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("timeout", True)


@each("provider", PROVIDERS)
def test_a_wait_that_outlasts_the_call_is_told_and_not_waited_for(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Too many.", status=429, headers={"retry-after": "50"})) as server:
        failure = refusal(opened(provider, server), asked(timeout=20.0), False)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("model", False)
    assert failure.hint == "the provider asks to wait 50 s, which is too long"


@each("provider", PROVIDERS)
def test_a_stream_that_drips_for_ever_ends_with_its_time(opened: Opened, provider: str) -> None:
    # Each piece comes in time for a limit on single reads.
    with ModelServer(Say("drip " * 1000, pause=0.1)) as server:
        failure = refusal(opened(provider, server), asked(timeout=0.5), True)
        assert server.count == 1
    assert (failure.kind, failure.sent) == ("timeout", True)


@each("provider", PROVIDERS)
def test_a_stall_in_a_stream_is_a_timeout(opened: Opened, provider: str) -> None:
    with ModelServer(Say("Half a reply", pause=20)) as server:
        failure = refusal(opened(provider, server), asked(timeout=0.3), True)
        assert server.count == 1
    assert failure.kind == "timeout"


@each("provider", PROVIDERS)
def test_a_server_that_takes_a_call_and_hangs_up_may_have_been_paid(provider: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)

        def hang_up() -> None:
            for _ in range(3):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        failure = refusal(open_model(Choice(provider, "model-1", url), environ={}), asked(), False)
        thread.join()
    assert (failure.kind, failure.sent) == ("model", True)


@each("provider", PROVIDERS)
def test_a_call_that_was_paid_once_stays_paid_when_the_server_goes_away(provider: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)

        def half_an_answer() -> None:
            connection, _ = listening.accept()
            listening.close()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")

        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=half_an_answer)
        thread.start()
        failure = refusal(open_model(Choice(provider, "model-1", url), environ={}), asked(), False)
        thread.join()
    assert (failure.kind, failure.sent) == ("model", True)
    assert "could not be reached" in failure.message


# -- the three limits of time ------------------------------------------------------------------------------------------


@each(
    "own, left, silence",
    [
        (0.0, 0.0, 600.0),
        (0.0, 1500.0, 600.0),
        (0.0, 4000.0, 600.0),
        (0.0, 20.0, 20.0),
        (900.0, 0.0, 900.0),
        (900.0, 1500.0, 900.0),
        (900.0, 20.0, 20.0),
        (7.0, 20.0, 7.0),
    ],
)
def test_what_a_run_has_left_shortens_the_longest_silence_and_never_lengthens_it(
    own: float, left: float, silence: float
) -> None:
    limits = http.Attempts(asked(timeout=own, left=left)).timeouts()
    assert (limits.read, limits.connect) == (silence, min(silence, http.CONNECT_TIMEOUT))


@each("provider", PROVIDERS)
@each("streamed", [False, True])
@each("own, left, bound", [(0.0, 0.3, "timeout"), (30.0, 0.3, "timeout"), (0.3, 30.0, "")])
def test_a_call_that_is_too_late_says_whose_time_was_over(
    opened: Opened, provider: str, streamed: bool, own: float, left: float, bound: str
) -> None:
    with ModelServer(Say("Late.", delay=30), otherwise=Say("Too late.")) as server:
        failure = refusal(opened(provider, server), asked(timeout=own, left=left), streamed)
        assert server.count == 1
    within = "in the time that the run had left" if bound else "within 0.3 s"
    assert (failure.kind, failure.bound, failure.message) == (
        "timeout",
        bound,
        f"{provider} gave no complete reply {within}",
    )
