"""A session keeps no more of a body in memory than it was told to."""

from __future__ import annotations

import contextlib

import pytest

from evenly.core.request import Outcome
from evenly.errors import ConfigError
from evenly.http.client.errors import BodyTooLong, OverloadedHttpError
from evenly.http.client.session import Session
from tests.http.raw_backend import OVERLOADED, Arrival, reply, served

LIMIT = 1_000


async def exactly(arrival: Arrival) -> bytes:
    """Answer with as many bytes as the path says."""
    return reply(200, b"x" * int(arrival.target[1:]))


async def endless(arrival: Arrival) -> None:
    """Send chunks until the client has gone."""
    arrival.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            arrival.writer.write(b"400\r\n" + b"x" * 0x400 + b"\r\n")
            await arrival.writer.drain()


async def refusing(_: Arrival) -> bytes:
    return reply(503, b"x" * 2 * LIMIT, OVERLOADED)


async def test_a_body_of_the_limit_is_kept_and_one_more_byte_is_an_error() -> None:
    async with served(handler=exactly, body_max_bytes=LIMIT) as (_, session, counts):
        assert len((await session.get(f"/{LIMIT}")).content) == LIMIT
        with pytest.raises(BodyTooLong, match=r"1000 bytes that are taken: raise body_max_bytes"):
            await session.get(f"/{LIMIT + 1}")
        assert len((await session.get("/5")).content) == 5
        # The backend did all that it was asked.
        assert counts.finished == [Outcome.OK] * 3


async def test_a_length_beyond_the_limit_is_an_error_before_the_body_comes() -> None:
    async with served(handler=exactly, body_max_bytes=LIMIT) as (_, session, _):
        with pytest.raises(BodyTooLong, match="has 10000000 bytes, and 1000 are taken"):
            await session.get("/10000000")


async def test_an_endless_body_is_given_up_at_the_limit() -> None:
    async with served(handler=endless, body_max_bytes=10 * LIMIT) as (_, session, counts):
        with pytest.raises(BodyTooLong, match="more than the 10000 bytes"):
            await session.get("/")
        async with session.stream("GET", "/") as response:
            with pytest.raises(BodyTooLong, match="more than the 10000 bytes"):
                await response.read()
        assert counts.finished == [Outcome.OK, Outcome.CANCELLED]


async def test_a_stream_in_chunks_has_no_limit() -> None:
    async with (
        served(handler=exactly, body_max_bytes=LIMIT) as (_, session, _),
        session.stream("GET", f"/{100 * LIMIT}") as response,
    ):
        assert sum([len(chunk) async for chunk in response]) == 100 * LIMIT


async def test_who_wants_no_limit_has_none() -> None:
    async with served(handler=exactly, body_max_bytes=None) as (_, session, _):
        assert len((await session.get("/300000")).content) == 300_000


async def test_a_refusal_is_a_refusal_however_long() -> None:
    async with served(handler=refusing, body_max_bytes=LIMIT) as (_, session, _):
        with pytest.raises(OverloadedHttpError):
            async with session.stream("GET", "/"):
                pass


@pytest.mark.parametrize("value", [0, -1, 1.5])
async def test_a_wrong_limit_is_refused(value: int) -> None:
    with pytest.raises(ConfigError, match="body_max_bytes"):
        Session("static:127.0.0.1:1", body_max_bytes=value)
