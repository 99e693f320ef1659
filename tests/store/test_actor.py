"""The member ``actor`` that the store adds to every event."""

from __future__ import annotations

import os
import pwd

import pytest
from each_case import Failures

from stateline import Redactor, Store, UsageError
from stateline.store.actor import user_name

SELF = {"user": pwd.getpwuid(os.geteuid()).pw_name, "host": os.uname().nodename}
SECRET = "correct horse battery"


def test_an_event_names_the_process_and_whom_it_acts_for_unless_the_caller_does() -> None:
    scope = Store.in_memory(actor="Ada Lovelace").scope("notes:x")
    assert scope.save(1, event={"why": "test"}).event == {
        "why": "test",
        "durability": "full",
        "actor": {**SELF, "name": "Ada Lovelace"},
    }
    assert scope.save(2, event={"actor": "a cron job"}).event["actor"] == "a cron job"
    assert Store.in_memory().scope("notes:x").save(1).event["actor"] == SELF


def test_a_user_without_an_entry_is_named_by_number() -> None:
    assert user_name(3_999_999_999) == "3999999999"


def test_a_secret_in_the_actors_name_is_masked_and_counted() -> None:
    redactor = Redactor()
    redactor.add(SECRET)
    failures = Failures()
    for masked in (False, True):
        with failures.case(f"masked={masked}"):
            scope = Store.in_memory(redactor=redactor, actor=f"Ada {SECRET}").scope("notes:x")
            event = scope.save({"n": 1}, masked=masked).event
            assert event["actor"]["name"] == "Ada [REDACTED]"
            assert event["redactions"] == 1
    failures.check()


def test_a_name_that_is_not_a_line_of_text_is_refused() -> None:
    failures = Failures()
    for name in ("", " ", "a\nb", "\x1b[31m", "\udc80", "a" * 257):
        with failures.case(name), pytest.raises(UsageError):
            Store.in_memory(actor=name)
    failures.check()
