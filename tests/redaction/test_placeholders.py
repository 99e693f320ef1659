"""Examples that ``find`` ignores, and real secrets that it finds with anything glued to them."""

from __future__ import annotations

import random

from each_case import for_each
from hypothesis import given
from hypothesis import strategies as st
from redaction.corpus import KINDS, TOKENS, some
from redaction.test_formats import made

from stateline.redaction.redactor import Redactor

FIND = Redactor().find
ALNUM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def drawn(length: int) -> str:
    """Letters and digits, the same in every run, both among them."""
    return some(random.Random(f"drawn {length}"), ALNUM, length - 2) + "a7"


GITHUB = "ghp_" + drawn(36)
AWS_ID = "AKIA" + "IOSFODNN7EXAMPLE"
REAL = {
    "a cookie beside a domain": f"Cookie: session={drawn(24)}; site=example.com",
    "a cookie behind a domain": f"Cookie: site=example.com; session={drawn(24)}",
    "a cookie behind an example": f"Cookie: site=example1234; session={drawn(24)}",
    "a cookie beside a row": f"Cookie: session={drawn(24)}; pad={'0' * 16}",
    "a short cookie": "Cookie: sid=a1B2c3D4; site=example.com",
    "a token and a word": f"{GITHUB}_EXAMPLE",
    "a token and a word with nothing between": f"{GITHUB}EXAMPLE",
    "a word in front within the run": f"sk-example-{drawn(40)}",
    "a token and a row": f"{GITHUB}{'0' * 20}",
    "a token and a host": f"{GITHUB}.{drawn(10)}example{drawn(8)}",
    "a token behind an example": f"{AWS_ID}{GITHUB}",
    "a token behind a row": f"sk-{'x' * 30}-{drawn(40)}",
    "a token with a row in it": f"hf_{drawn(20)}{'a' * 16}{drawn(10)}",
    "a Slack webhook": f"https://hooks.slack.com/services/{drawn(9)}/{drawn(11)}/{drawn(24)}/example",
    "a parameter": f"https://h/?token={drawn(30)}#example",
    "an assignment with =": f"API_KEY={drawn(20)}=example",
    "an assignment with :": f"DB_PASSWORD={drawn(20)}:example",
    "an assignment with a host": f"API_KEY={drawn(30)}.example.com",
    "a header": f"Authorization: Bearer {drawn(40)}/example",
    "the password of a URL": f"postgres://u:Example-{drawn(10)}@db",
    "letters that read as words": "glpat-mycD90_qImqxlqs_-bAl_EXAMPLE",
    "letters with capitals among them": "glpat-a_TexhnOlvlRzfzldr_5_EXAMPLE",
    "short pieces": "DB_PASSWORD=aB3-x9y-k2w-p5q.example",
}


def test_a_real_secret_is_found_with_anything_glued_to_it() -> None:
    def check(case: str) -> None:
        text = REAL[case]
        for data in (text, text.encode(), f"stages: [{text!r}]\n".encode(), {"a": [text]}, {text: 1}):
            assert FIND(data), data

    for_each(check, REAL)


def test_a_token_of_each_kind_is_found_with_an_example_glued_to_it() -> None:
    def check(glued: str, kind: str) -> None:
        text, _ = made(kind)
        assert FIND(text + glued)

    for_each(check, ["EXAMPLE", "-example", "_EXAMPLE", ".example", "/example", "x" * 24, "0" * 40], TOKENS)


@given(st.sampled_from(list(KINDS)), st.integers(0, 50))
def test_a_secret_of_each_kind_is_found_right_behind_an_example(kind: str, number: int) -> None:
    text, _ = made(kind, number)
    assert FIND(f"{AWS_ID} {text}")
    assert FIND(f"ghp_{'x' * 36};{text}")


def test_a_value_that_is_an_example_in_all_its_parts_does_not_refuse_a_file() -> None:
    def check(text: str) -> None:
        assert FIND(text) is None
        assert FIND(f"task: [echo, '{text}']\n".encode()) is None

    for_each(
        check,
        [
            AWS_ID,
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
            "https://hooks.slack.com/services/T00000000/B00000000/" + "X" * 24,
            "sk-ant-api03-" + "x" * 80,
            "xoxb-" + "0" * 12 + "-" + "0" * 12 + "-" + "x" * 24,
            "ghp_EXAMPLE" + drawn(30),
            "Cookie: session=example1234; site=example.com",
            "API_KEY=your_example_key_1234",
            "Authorization: Bearer example-token-1234",
        ],
    )


def test_names_of_headers_links_and_local_passwords_do_not_refuse_a_file() -> None:
    def check(text: str) -> None:
        assert FIND(text) is None
        assert FIND(f"env: [{text}]\n".encode()) is None

    for_each(
        check,
        [
            "authorization,x-amz-content-sha256,x-amz-date",
            '("authorization", "x-amz-content-sha256", "x-amz-date")',
            "Authorization: https://tools.ietf.org/html/rfc6749#section-7",
            "postgres://postgres:postgres@localhost:5432/test",
            "postgres://app1:app1@db/test",
            "postgres://app:hunter22@localhost/test",
            "redis://:hunter22@127.0.0.1:6379",
            "http://user:p4ssw0rd@db.example.com:8080/x",
            "mongodb://root:example@mongo",
            "redis://default:secret@cache",
            "http%3A%2F%2Fann%3Ahunter22%40localhost%2Fx",
        ],
    )


def test_values_that_only_look_like_examples_are_found() -> None:
    def check(text: str) -> None:
        assert FIND(text)

    for_each(
        check,
        [
            "Authorization: https://h/?key=" + drawn(30),
            "Authorization: " + drawn(30),
            "postgres://app:hunter22@db/test",
            "postgres://app:hunter22@localhost.evil.org/test",
            "postgres://app:hunter22@example/test",
            "redis://:hunter22@127.0.0.10:6379",
            "postgres://app:hunter22@localhost@db",
        ],
    )


def test_a_known_value_is_found_even_as_the_password_of_ones_own_machine() -> None:
    redactor = Redactor([("DB", "postgres1")])
    assert str(redactor.find("postgres://postgres1:postgres1@localhost/x")) == "the value of DB"


def test_the_kind_is_reported_of_a_secret_that_is_part_of_a_longer_match() -> None:
    def check(text: str, what: str) -> None:
        assert str(FIND(text)) == what

    for_each(
        check,
        [
            ("postgres://u:hunter2xx@h", "password in a URL"),
            (f"Authorization: Bearer {drawn(40)}", "Authorization header"),
            (f"https://h/?token={drawn(30)}", "assigned secret"),
            (f"Cookie: a={drawn(30)}", "cookie"),
            (f"https://hooks.slack.com/services/{drawn(9)}/{drawn(11)}/{drawn(24)}", "Slack webhook"),
            (f"1//0{drawn(40)}", "Google refresh token"),
            (f"12345678:AA{drawn(34)}", "Telegram bot token"),
        ],
    )
