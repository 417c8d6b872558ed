"""What HTTP/1.1 allows a server to answer, as five servers say it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import ssl
from collections.abc import AsyncIterator

import pytest

from evenly.http1.connection import Lost, NotSent
from tests.conformance.app import pattern
from tests.conformance.asking import Asking, asking, pieces, settled
from tests.conformance.servers import KEEP_ALIVE_REQUESTS, KEEP_ALIVE_SECONDS, Servers

EVERY = ["uvicorn", "uvicorn h11", "granian", "nginx", "haproxy"]
LENGTHS = [0, 1, 65_536, 1_000_003]
# What is sent while nobody reads fills socket buffers: the sender's 4 MiB (Linux: tcp_wmem), of the
# receiver little, since it grows with what is read; behind a proxy twice that.  Half is far above.
LARGE = 64 * 1024 * 1024
MUCH = LARGE // 2


@pytest.fixture(params=EVERY)
async def server(request: pytest.FixtureRequest, running: Servers) -> AsyncIterator[Asking]:
    """Give a client of each server in turn."""
    async with asyncio.timeout(60.0), asking(running.addresses[request.param]) as client:
        yield client


def said(body: bytes) -> dict[str, object]:
    """Return what `/count` says of a body that arrived whole."""
    return {"length": len(body), "digest": hashlib.sha256(body).hexdigest()}


@pytest.mark.parametrize("kind", ["sized", "chunked"])
async def test_bodies_of_any_length_come_down_one_connection(server: Asking, kind: str) -> None:
    for length in LENGTHS:
        assert await server.read("GET", f"/{kind}/{length}") == (200, pattern(length))

    assert len(set(server.connections)) == 1


@pytest.mark.parametrize("kind", ["sized", "chunked"])
async def test_bodies_of_any_length_go_up_one_connection(server: Asking, kind: str) -> None:
    for length in LENGTHS:
        body = pattern(length)
        sent = body if kind == "sized" else pieces(body)
        status, answer = await server.read("POST", "/count", body=sent)
        assert (status, json.loads(answer)) == (200, said(body))

    assert len(set(server.connections)) == 1


async def test_an_answer_to_head_ends_with_its_head(server: Asking) -> None:
    response = await server.ask("HEAD", "/sized/1000")
    assert (response.status, response.get(b"content-length")) == (200, b"1000")
    assert await response.read() == b""
    assert await server.read("HEAD", "/chunked/1000") == (200, b"")
    assert await server.read("GET", "/sized/3") == (200, pattern(3))

    assert len(set(server.connections)) == 1


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_that_never_have_a_body_end_with_their_head(
    server: Asking, status: int
) -> None:
    assert await server.read("GET", f"/status/{status}") == (status, b"")
    assert await server.read("GET", "/sized/3") == (200, pattern(3))

    assert len(set(server.connections)) == 1


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_failures_are_answers_and_keep_the_connection(server: Asking, status: int) -> None:
    assert await server.read("GET", f"/status/{status}") == (status, b"so be it")
    assert await server.read("GET", "/sized/3") == (200, pattern(3))

    assert len(set(server.connections)) == 1


async def test_a_hundred_continue_is_not_the_answer(server: Asking) -> None:
    for _ in range(2):
        status, answer = await server.read(
            "POST", "/count", ("expect", "100-continue"), body=pieces(pattern(100_000))
        )
        assert (status, json.loads(answer)) == (200, said(pattern(100_000)))


async def test_early_hints_are_not_the_answer(running: Servers) -> None:
    async with asking(running.addresses["haproxy"]) as client:
        assert await client.read("GET", "/hinted/sized/3") == (200, pattern(3))
        assert await client.read("HEAD", "/hinted/sized/3") == (200, b"")
        assert await client.read("GET", "/hinted/chunked/3") == (200, pattern(3))

        assert len(set(client.connections)) == 1


async def test_after_connection_close_another_one_is_opened(server: Asking) -> None:
    for _ in range(3):
        # The whole answer is there, and read later: the peer has closed by then.
        response = await server.ask("GET", "/sized/1000", ("connection", "close"))
        await asyncio.sleep(0.02)
        assert await response.read() == pattern(1000)

    assert len(set(server.connections)) == 3
    assert server.pool.idle == 0


@pytest.mark.parametrize("name", ["uvicorn", "uvicorn h11", "granian"])
async def test_a_server_that_says_connection_close_is_believed(running: Servers, name: str) -> None:
    async with asking(running.addresses[name]) as client:
        for _ in range(3):
            assert await client.read("GET", "/close") == (200, b"the last")

        assert len(set(client.connections)) == 3


async def test_a_response_that_nobody_reads_holds_the_server_up(server: Asking) -> None:
    response = await server.ask("GET", f"/chunked/{LARGE}")
    first = await response.next_chunk()

    async def sent() -> AsyncIterator[int]:
        while True:
            yield int((await server.read("GET", "/sent"))[1])
            await asyncio.sleep(0.05)

    assert await settled(sent()) < MUCH
    digest = hashlib.sha256(first)
    while piece := await response.next_chunk():
        digest.update(piece)
    assert digest.digest() == hashlib.sha256(pattern(LARGE)).digest()


async def test_a_server_that_does_not_read_holds_the_request_up(server: Asking) -> None:
    body, taken = pattern(LARGE), 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal taken
        async for piece in pieces(body, 65_536):
            taken += len(piece)
            yield piece

    async def numbers() -> AsyncIterator[int]:
        while True:
            await asyncio.sleep(0.05)
            yield taken

    sending = asyncio.create_task(server.read("POST", "/count-later", body=counted()))
    assert 0 < await settled(numbers()) < MUCH
    assert (await server.read("GET", "/go"))[0] == 200
    status, answer = await sending
    assert (status, json.loads(answer)) == (200, said(body))


async def test_a_response_given_up_half_way_costs_its_connection_only(server: Asking) -> None:
    response = await server.ask("GET", f"/chunked/{LARGE}")
    await response.next_chunk()
    response.close()

    assert server.pool.active == 0
    assert await server.read("GET", "/sized/3") == (200, pattern(3))
    assert len(set(server.connections)) == 2


async def test_fifty_requests_at_once_are_answered_each_with_its_own(server: Asking) -> None:
    lengths = [1000 * number for number in range(50)]
    kinds = ["sized", "chunked"]
    answers = await asyncio.gather(
        *(server.read("GET", f"/{kinds[length % 2]}/{length}") for length in lengths)
    )

    assert answers == [(200, pattern(length)) for length in lengths]


async def test_a_head_that_is_too_large_is_answered_and_the_pool_goes_on(server: Asking) -> None:
    # uvicorn on httptools and hyper take any.  The others answer 400 and close with most of it
    # unread, upon which the kernel may take back what they said.
    with contextlib.suppress(Lost):
        status, _ = await server.read("GET", "/sized/3", ("x-large", "x" * 300_000))
        assert status in {200, 400}

    assert await server.read("GET", "/sized/3") == (200, pattern(3))


async def test_a_stream_that_is_refused_early_is_not_sent_to_its_end(running: Servers) -> None:
    taken = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal taken
        async for piece in pieces(pattern(LARGE), 65_536):
            taken += len(piece)
            yield piece

    async with asking(running.addresses["nginx"]) as client:
        status, _ = await client.read("POST", "/small", body=counted())
        assert status == 413
        assert taken < LARGE
        assert await client.read("GET", "/sized/3") == (200, pattern(3))
        assert len(set(client.connections)) == 2


async def test_a_body_that_is_refused_early_costs_its_connection_only(running: Servers) -> None:
    async with asking(running.addresses["nginx"]) as client:
        status, _ = await client.read("POST", "/small", body=pattern(LARGE))
        assert status == 413
        assert await client.read("GET", "/sized/3") == (200, pattern(3))
        assert len(set(client.connections)) == 2


async def test_a_limit_of_requests_for_each_connection_costs_none(running: Servers) -> None:
    async with asking(running.addresses["nginx few"]) as client:
        for _ in range(10):
            assert await client.read("GET", "/sized/3") == (200, pattern(3))
        in_order = [client.connections.index(connection) for connection in client.connections]

    assert KEEP_ALIVE_REQUESTS == 3
    assert in_order == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]


async def test_a_limit_of_requests_costs_none_of_many_at_once(running: Servers) -> None:
    async with asking(running.addresses["nginx few"]) as client:
        for _ in range(10):
            answers = await asyncio.gather(*(client.read("GET", "/sized/3") for _ in range(20)))
            assert answers == [(200, pattern(3))] * 20


async def test_a_connection_is_given_up_before_the_server_does(running: Servers) -> None:
    async with asking(running.addresses["nginx short"]) as client:
        assert await client.read("GET", "/sized/3") == (200, pattern(3))
        assert await client.read("GET", "/sized/3") == (200, pattern(3))
        # Half-way between our end of it, a second before the server's, and the server's.
        await asyncio.sleep(KEEP_ALIVE_SECONDS - 0.5)
        assert await client.read("GET", "/sized/3") == (200, pattern(3))
        in_order = [client.connections.index(connection) for connection in client.connections]

    assert in_order == [0, 0, 2]


@pytest.mark.parametrize("name", ["uvicorn", "nginx", "haproxy"])
async def test_a_socket_in_the_file_system_is_an_address(running: Servers, name: str) -> None:
    async with asking(running.addresses[f"unix {name}"]) as client:
        for length in LENGTHS:
            assert await client.read("GET", f"/chunked/{length}") == (200, pattern(length))
            status, answer = await client.read("POST", "/count", body=pieces(pattern(length)))
            assert (status, json.loads(answer)) == (200, said(pattern(length)))

        assert len(set(client.connections)) == 1


async def test_tls_carries_the_same(running: Servers) -> None:
    tls = ssl.create_default_context(cafile=running.certificate)
    async with asking(running.addresses["nginx tls"], tls=tls) as client:
        for length in LENGTHS:
            assert await client.read("GET", f"/chunked/{length}") == (200, pattern(length))
            status, answer = await client.read("POST", "/count", body=pieces(pattern(length)))
            assert (status, json.loads(answer)) == (200, said(pattern(length)))

        assert len(set(client.connections)) == 1


@pytest.mark.parametrize(
    ("is_known", "host"),
    [
        pytest.param(False, "localhost", id="a certificate that nobody vouches for"),
        pytest.param(True, "elsewhere.example", id="a certificate of somebody else"),
    ],
)
async def test_nothing_is_sent_to_whom_the_certificate_does_not_name(
    running: Servers, is_known: bool, host: str
) -> None:
    tls = ssl.create_default_context(cafile=running.certificate if is_known else None)
    async with asking(running.addresses["nginx tls"], tls=tls, host=host) as client:
        with pytest.raises(NotSent):
            await client.ask("GET", "/sized/3")
