"""Responses from bytes, without a connection: framing, limits, and every way to split them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from evenly.http1.reader import HEAD_MAX_BYTES, HEADERS_MAX, Reader
from evenly.http1.reply import BadResponse, End, Reply

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class NoSource:
    """Be where the responses here come from: nothing is read, and nothing is closed."""

    def __init__(self) -> None:
        self.loop = cast("asyncio.AbstractEventLoop", None)
        self.awaited: Reply | None = None

    def resume(self) -> None: ...

    def abandon(self) -> None: ...


@dataclass
class Result:
    """Be what a reader made of some bytes."""

    status: int
    reason: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_complete: bool
    can_reuse: bool
    trailers: list[tuple[bytes, bytes]] | None = field(default=None)


def parse(*pieces: bytes, is_head: bool = False, reader: Reader | None = None) -> Result | None:
    """Feed one response; return it, or `None` if its head did not end."""
    reader = reader or Reader(NoSource())
    reader.begin(is_head=is_head)
    try:
        for piece in pieces:
            # After the end a connection feeds no more: it closes.
            assert not reader.is_complete
            reader.feed(piece)
    finally:
        response = reader.response
        if response is not None:
            response.finish(End.COMPLETE)
    if response is None:
        return None
    reading = response.read()
    with pytest.raises(StopIteration) as done:
        reading.send(None)
    return Result(
        response.status,
        response.reason,
        response.headers,
        done.value.value,
        reader.is_complete,
        reader.can_reuse,
        response.trailers,
    )


def parsed(data: bytes, *, is_head: bool = False) -> Result:
    """Feed a response at once, in every two pieces and byte by byte: always the same comes out."""
    whole = parse(data, is_head=is_head)
    assert whole is not None
    for at in range(1, len(data)):
        assert parse(data[:at], data[at:], is_head=is_head) == whole
    assert parse(*(bytes([byte]) for byte in data), is_head=is_head) == whole
    return whole


def fault(data: bytes, *, is_head: bool = False) -> str:
    """Feed what is no response: it is refused however it is split; return why."""
    with pytest.raises(BadResponse) as error:
        parse(data, is_head=is_head)
    for size in (1, 2, 7):
        with pytest.raises(BadResponse):
            parse(*(data[at : at + size] for at in range(0, len(data), size)), is_head=is_head)
    return str(error.value)


def test_a_sized_body() -> None:
    result = parsed(HEAD + b"Content-Length: 5\r\nX-a: b\r\n\r\nhello")

    assert result == Result(
        200, "OK", [(b"Content-Length", b"5"), (b"X-a", b"b")], b"hello", True, True
    )


def test_a_chunked_body_with_extensions_and_trailers() -> None:
    result = parsed(CHUNKED + b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 6\r\nX-Two: 2\r\n\r\n")

    assert (result.body, result.is_complete, result.can_reuse) == (b"hello!", True, True)
    assert result.trailers == [(b"X-Sum", b"6"), (b"X-Two", b"2")]
    assert result.headers == [(b"Transfer-Encoding", b"chunked")]


def test_trailers_are_not_headers_of_the_next_response() -> None:
    reader = Reader(NoSource())
    parse(CHUNKED + b"0\r\nX-Sum: 6\r\n\r\n", reader=reader)

    following = parse(HEAD + b"Content-Length: 0\r\n\r\n", reader=reader)

    assert following is not None
    assert following.headers == [(b"Content-Length", b"0")]
    assert following.trailers is None


def test_a_body_until_the_end_is_not_complete_by_itself() -> None:
    result = parsed(HEAD + b"\r\nhello")

    assert (result.body, result.is_complete, result.can_reuse) == (b"hello", False, False)


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("framing", [b"", b"Content-Length: 5\r\n"])
def test_statuses_without_a_body(status: int, framing: bytes) -> None:
    result = parsed(b"HTTP/1.1 %d X\r\n" % status + framing + b"\r\n")

    assert (result.status, result.body) == (status, b"")
    assert result.is_complete
    assert result.can_reuse


@pytest.mark.parametrize(
    "framing",
    [b"", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n"],
)
def test_a_response_to_head_has_no_body_whatever_it_says(framing: bytes) -> None:
    result = parsed(HEAD + framing + b"\r\n", is_head=True)

    assert result.body == b""
    assert result.is_complete
    assert result.can_reuse


def test_a_connection_serves_on_after_head() -> None:
    reader = Reader(NoSource())
    for _ in range(3):
        headed = parse(HEAD + b"Content-Length: 5\r\n\r\n", is_head=True, reader=reader)
        got = parse(HEAD + b"Content-Length: 5\r\n\r\nhello", reader=reader)
        assert headed is not None
        assert got is not None
        assert (headed.body, got.body) == (b"", b"hello")


@pytest.mark.parametrize(
    "surplus", [b"h", b"0", b"5\r\n", b"0\r\n\r\n", b"\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
)
@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_body_after_the_response_to_head_ends_the_connection(
    framing: bytes, surplus: bytes
) -> None:
    result = parse(HEAD + framing + b"\r\n" + surplus, is_head=True)

    assert result is not None
    assert (result.body, result.is_complete, result.can_reuse) == (b"", True, False)


def test_head_with_connection_close_is_not_used_again() -> None:
    result = parsed(HEAD + b"Connection: Close\r\n\r\n", is_head=True)

    assert result.is_complete
    assert not result.can_reuse


def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    strange = b"HTTP/1.1 199 What\r\nX: y\r\n\r\n"

    result = parsed(interim + interim + strange + HEAD + b"Content-Length: 2\r\n\r\nok")

    assert (result.status, result.reason, result.body) == (200, "OK", b"ok")
    assert result.headers == [(b"Content-Length", b"2")]
    assert parsed(interim + HEAD + b"Content-Length: 2\r\n\r\n", is_head=True).is_complete


def test_interim_responses_alone_are_no_response() -> None:
    assert parse(b"HTTP/1.1 100 Continue\r\n\r\n") is None


@pytest.mark.parametrize(
    ("head", "can_reuse"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: close", False, id="close"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: x, CLOSE", False, id="close in a list"),
        pytest.param(b"HTTP/1.1 200 OK\r\nConnection: keep-alive", True, id="keep-alive"),
        pytest.param(b"HTTP/1.0 200 OK\r\nX: y", False, id="1.0"),
        pytest.param(b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", True, id="1.0 keep-alive"),
    ],
)
def test_who_may_be_asked_again(head: bytes, can_reuse: bool) -> None:
    result = parsed(head + b"\r\nContent-Length: 2\r\n\r\nok")

    assert (result.body, result.is_complete, result.can_reuse) == (b"ok", True, can_reuse)


def test_chunks_in_http_1_0_are_read_but_not_trusted() -> None:
    result = parsed(
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n"
    )

    assert (result.body, result.is_complete, result.can_reuse) == (b"ok", True, False)


@pytest.mark.parametrize("surplus", [b"H", b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
@pytest.mark.parametrize(
    "response", [HEAD + b"Content-Length: 2\r\n\r\nok", CHUNKED + b"2\r\nok\r\n0\r\n\r\n"]
)
def test_bytes_after_the_response_end_the_connection(response: bytes, surplus: bytes) -> None:
    result = parse(response + surplus)

    assert result is not None
    assert (result.body, result.is_complete, result.can_reuse) == (b"ok", True, False)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
        pytest.param(b"\x16\x03\x01\x02\x00", id="TLS"),
        pytest.param(HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 0\r\n\r\n", id="bare LF"),
        pytest.param(HEAD + b"Content-Length: 0\nA: b\r\n\r\n", id="bare LF in the head"),
        pytest.param(HEAD + b"A: b\0c\r\n\r\n", id="NUL"),
        pytest.param(HEAD + b"A: b\r\n c\r\n\r\n", id="a folded line"),
        pytest.param(HEAD + b"A : b\r\n\r\n", id="a space before the colon"),
        pytest.param(HEAD + b": b\r\n\r\n", id="no name"),
        pytest.param(HEAD + b"Content-Length: -1\r\n\r\n", id="negative"),
        pytest.param(HEAD + b"Content-Length: +1\r\n\r\na", id="signed"),
        pytest.param(HEAD + b"Content-Length: 0x1\r\n\r\na", id="hexadecimal"),
        pytest.param(HEAD + b"Content-Length:\r\n\r\n", id="empty length"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
        pytest.param(HEAD + b"Content-Length: 1, 2\r\n\r\nab", id="two lengths in one"),
        pytest.param(HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", id="overflow"),
        pytest.param(
            HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="a length and chunks",
        ),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
            id="chunks and a length",
        ),
        pytest.param(CHUNKED + b"Z\r\n", id="a chunk size that is none"),
        pytest.param(CHUNKED + b"-1\r\n", id="a negative chunk size"),
        pytest.param(CHUNKED + b"f" * 17 + b"\r\n", id="a chunk size too large"),
        pytest.param(CHUNKED + b"1\r\nab\r\n", id="a chunk that is longer than it says"),
        pytest.param(CHUNKED + b"1\na\n0\n\n", id="chunks with bare LF"),
        pytest.param(b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", id="101"),
        pytest.param(b"HTTP/1.1 101 S\r\n\r\n", id="101 to what?"),
        pytest.param(b"HTTP/1.1 099 S\r\nContent-Length: 0\r\n\r\n", id="status 99"),
        pytest.param(b"HTTP/1.1 20 OK\r\n\r\n", id="two digits"),
        pytest.param(b"HTTP/1.1 2000 OK\r\n\r\n", id="four digits"),
        pytest.param(b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", id="version 2"),
        pytest.param(b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n", id="version 0.9"),
        pytest.param(b"HTTP/1.1 150 X\r\nContent-Length: 1\r\n\r\na" + HEAD, id="interim body"),
        pytest.param(HEAD + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n", id="too many headers"),
    ],
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    assert fault(data)


def test_a_head_is_as_long_as_it_may_be_and_no_longer() -> None:
    # "HTTP/1.1 200 OK", "A: ", the three line ends.
    fits = HEAD_MAX_BYTES - 15 - 3 - 6
    assert parse(HEAD + b"A: " + b"b" * fits + b"\r\n\r\n") is not None
    assert "bytes" in fault(HEAD + b"A: " + b"b" * (fits + 1) + b"\r\n\r\n")
    assert "bytes" in fault(HEAD + b"A: " + b"b" * (HEAD_MAX_BYTES + 10))
    assert "bytes" in fault(b"HTTP/1.1 200 " + b"b" * (HEAD_MAX_BYTES + 10))
    assert "bytes" in fault(b"HTTP/1.1 102 Processing\r\n\r\n" * 4000)


def test_a_large_body_is_no_large_head() -> None:
    result = parse(HEAD + b"Content-Length: 200000\r\n\r\n" + b"b" * 200_000)

    assert result is not None
    assert len(result.body) == 200_000


def test_trailers_and_chunk_extensions_do_not_go_on_for_ever() -> None:
    for endless in (b"0\r\nX: ", b"1;"):
        with pytest.raises(BadResponse, match="around"):
            parse(CHUNKED + endless, *([b"x" * 1000] * (HEAD_MAX_BYTES // 1000 + 1)))
    with pytest.raises(BadResponse, match="around"):
        parse(CHUNKED + b"0\r\n", *([b"a: b\r\n"] * (HEADERS_MAX + 2)))


def test_small_chunks_may_go_on_for_ever() -> None:
    pieces = [b"1\r\n", b"a\r\n"] * HEAD_MAX_BYTES

    result = parse(CHUNKED, *pieces)

    assert result is not None
    assert len(result.body) == HEAD_MAX_BYTES


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"timeout=5", 5),
        (b"timeout=5, max=100", 5),
        (b"max=100, Timeout = 75", 75),
        (b"max=100", None),
        (b"xtimeout=5", None),
        (b"timeout=soon", None),
    ],
)
def test_the_server_says_how_long_it_waits(value: bytes, seconds: int | None) -> None:
    reader = Reader(NoSource())

    parse(HEAD + b"Keep-Alive: " + value + b"\r\nContent-Length: 0\r\n\r\n", reader=reader)

    assert reader.keep_alive_seconds == seconds


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param(b"", True, id="nothing said"),
        pytest.param(b"Transfer-Encoding: gzip\r\n", True, id="a coding that is not chunked"),
        pytest.param(b"Content-Length: 9\r\n", False, id="sized"),
        pytest.param(b"Connection: close\r\nContent-Length: 9\r\n", False, id="sized, and closed"),
        pytest.param(b"Transfer-Encoding: gzip, Chunked\r\n", False, id="chunked"),
        pytest.param(
            b"Connection: close\r\nTransfer-Encoding: chunked\r\n", False, id="chunked, and closed"
        ),
    ],
)
def test_which_bodies_last_until_the_connection_ends(headers: bytes, expected: bool) -> None:
    reader = Reader(NoSource())
    reader.begin(is_head=False)
    reader.feed(HEAD + headers + b"\r\n")
    response = reader.response
    assert response is not None

    assert reader.ends_with_connection(response) is expected
    response.finish(End.COMPLETE)
