"""The head of a request: what is written, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.errors import ConfigError
from evenly.http1.head import request_head

Headers = list[tuple[str | bytes, str | bytes]]


def head(
    method: str = "GET",
    target: str = "/",
    headers: Headers | None = None,
    *,
    host: str = "search.test",
    body_length: int | None = None,
    is_chunked: bool = False,
) -> bytes:
    return request_head(
        method, target, headers or [], host=host, body_length=body_length, is_chunked=is_chunked
    )


def test_a_request_without_a_body_says_nothing_of_one() -> None:
    assert head() == b"GET / HTTP/1.1\r\nHost: search.test\r\n\r\n"


def test_headers_keep_their_order_and_their_spelling() -> None:
    given: Headers = [("X-One", "1"), (b"x-two", b"2"), ("x-ONE", "\u00e9\tb")]

    assert head(headers=given, target="/a?b=c%20d") == (
        b"GET /a?b=c%20d HTTP/1.1\r\nHost: search.test\r\n"
        b"X-One: 1\r\nx-two: 2\r\nx-ONE: \xe9\tb\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("method", "body_length", "expected"),
    [
        pytest.param("POST", 5, b"Content-Length: 5\r\n", id="a body"),
        pytest.param("POST", 0, b"Content-Length: 0\r\n", id="none where one is expected"),
        pytest.param("GET", 0, b"", id="none where none is expected"),
        pytest.param("GET", 5, b"Content-Length: 5\r\n", id="one where none is expected"),
        pytest.param("POST", None, b"", id="the caller says nothing"),
    ],
)
def test_the_length_of_a_body(method: str, body_length: int | None, expected: bytes) -> None:
    start = method.encode() + b" / HTTP/1.1\r\nHost: search.test\r\n"

    assert head(method, body_length=body_length) == start + expected + b"\r\n"


def test_a_chunked_body_says_so() -> None:
    assert head("POST", is_chunked=True).endswith(b"\r\nTransfer-Encoding: chunked\r\n\r\n")


def test_what_is_given_is_not_added_again() -> None:
    sized: Headers = [("content-length", "3"), ("HOST", "other.test")]
    assert head("PUT", headers=sized, body_length=3) == (
        b"PUT / HTTP/1.1\r\nHost: other.test\r\ncontent-length: 3\r\n\r\n"
    )
    chunked: Headers = [("transfer-encoding", "Chunked")]
    assert head("PUT", headers=chunked, is_chunked=True) == (
        b"PUT / HTTP/1.1\r\nHost: search.test\r\ntransfer-encoding: Chunked\r\n\r\n"
    )


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("a", "b\r\nc: d")], id="a second header"),
        pytest.param([("a", "b\nc")], id="a line feed"),
        pytest.param([("a", "b\rc")], id="a carriage return"),
        pytest.param([("a", "b\0c")], id="a zero"),
        pytest.param([("a", "b\x7fc")], id="a delete"),
        pytest.param([("a", "\u20ac")], id="no Latin-1"),
        pytest.param([("a", "b\u2028c")], id="a line separator"),
        pytest.param([("", "b")], id="no name"),
        pytest.param([("a b", "c")], id="a space in a name"),
        pytest.param([("a:", "c")], id="a colon in a name"),
        pytest.param([("a\r\nb", "c")], id="a line break in a name"),
        pytest.param([(b"a\n", b"c")], id="a line break at a name's end"),
        pytest.param([(b"a", b"c\n")], id="a line break at a value's end"),
        pytest.param([("\u00e4", "c")], id="a letter that is no token"),
        pytest.param([("Host", "a"), ("host", "b")], id="two hosts"),
        pytest.param([("Content-Length", "0"), ("content-length", "0")], id="two lengths"),
        pytest.param([("Content-Length", "5")], id="a length without a body"),
        pytest.param([("Content-Length", "-1")], id="a negative length"),
        pytest.param([("Content-Length", "")], id="an empty length"),
        pytest.param([("Transfer-Encoding", "chunked")], id="chunked, but the body is not"),
    ],
)
def test_headers_that_are_none_are_refused(headers: Headers) -> None:
    with pytest.raises(ConfigError, match="must"):
        head(headers=headers)


def test_lengths_that_contradict_the_body_are_refused() -> None:
    with pytest.raises(ConfigError, match="Content-Length"):
        head("POST", headers=[("content-length", "4")], body_length=5)
    with pytest.raises(ConfigError, match="Content-Length"):
        head("POST", headers=[("content-length", "4")], is_chunked=True)
    with pytest.raises(ConfigError, match="Transfer-Encoding"):
        head("POST", headers=[("transfer-encoding", "gzip, chunked")], is_chunked=True)
    with pytest.raises(ConfigError, match="body_length"):
        head("POST", body_length=1, is_chunked=True)


@pytest.mark.parametrize("method", ["", "GE T", "GET\r\n", "G\u00c9T", "CONNECT"])
def test_methods_that_are_none_are_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="method"):
        head(method)


@pytest.mark.parametrize("target", ["", "/ HTTP/1.1", "/a b", "/\r\n", "/\u00e4", "/\x7f", "/\0"])
def test_targets_that_are_none_are_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="target"):
        head(target=target)


@pytest.mark.parametrize("host", ["", "a b", "a\r\nb: c"])
def test_hosts_that_are_none_are_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="host"):
        head(host=host)


def test_the_refusal_names_the_value_and_stays_short() -> None:
    with pytest.raises(ConfigError) as refusal:
        head(headers=[("x-token", "secret\n" * 1000)])

    assert "x-token" in str(refusal.value)
    assert len(str(refusal.value)) < 250


def test_names_that_are_made_up_do_not_pile_up() -> None:
    for number in range(2000):
        assert f"x-{number}: 1".encode() in head(headers=[(f"x-{number}", "1")])


names = st.one_of(st.text(max_size=12), st.sampled_from(["a", "X-B", "host", "cookie"]))


@given(method=st.text(max_size=6), target=st.text(max_size=8), name=names, value=st.text())
def test_whatever_it_is_given_a_head_has_the_lines_that_were_asked_for(
    method: str, target: str, name: str, value: str
) -> None:
    try:
        written = head(method, target, [(name, value)])
    except ConfigError:
        return
    expected = 3 if name.lower() == "host" else 4  # The two line ends at the end are one more.
    assert written.count(b"\r\n") == expected
    assert written.count(b"\n") == written.count(b"\r") == expected
    assert written.endswith(b"\r\n\r\n")
    assert b"\0" not in written
