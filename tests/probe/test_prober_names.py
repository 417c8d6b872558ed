"""Where a prober sends its questions: names, ports, and what UDP cannot reach."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from evenly.core.balancing.backend import Backend
from evenly.core.report import LoadReport
from evenly.errors import ConfigError
from evenly.probe.prober import Prober
from evenly.probe.responder import ProbeResponder
from evenly.testing import ManualClock
from evenly.wire.datagram import SIZE, answer
from tests.probe.ends import (
    REPORT,
    V4,
    Heard,
    State,
    next_datagram,
    nonce_of,
    open_files,
    probing,
    responding,
    stranger,
    turns,
    until,
)

LUCK = 20


async def test_the_port_of_a_report_is_used_from_then_on() -> None:
    heard, state = Heard(), State()
    responder = ProbeResponder(state)
    with responding(responder) as backend, probing(Prober(heard)) as prober, stranger() as moved:
        state.report = LoadReport(probe_port=moved.getsockname()[1])
        prober.probe(backend)
        await until(lambda: len(heard.reports) == 1)

        prober.probe(backend)
        await next_datagram(moved)
        prober.announce_port(backend, None)
        prober.probe(backend)
        await until(lambda: len(heard.reports) == 2)


async def test_an_announced_port_is_used_from_the_first_question(
    backend_socket: socket.socket,
) -> None:
    backend = Backend(f"{V4}:1")
    with probing(Prober(Heard())) as prober:
        prober.announce_port(backend, backend_socket.getsockname()[1])
        prober.probe(backend)
        await next_datagram(backend_socket)


async def test_a_backend_that_announces_its_usual_port_need_not_be_remembered() -> None:
    with probing(Prober(Heard())) as prober:
        prober.announce_port(Backend(f"{V4}:1"), None)

        assert prober.snapshot().peers == 0


async def test_a_port_out_of_its_range_is_the_callers_mistake() -> None:
    with pytest.raises(ConfigError, match="port"):
        Prober(Heard()).announce_port(Backend(f"{V4}:1"), 65536)


async def test_a_name_is_looked_up_in_the_background_and_then_asked() -> None:
    heard = Heard()
    responder = ProbeResponder(State())
    with responding(responder) as numeric, probing(Prober(heard)) as prober:
        backend = Backend(numeric.address.replace(V4, "localhost"))
        prober.probe(backend, pytest.fail)
        assert prober.snapshot().not_asked == 1  # and the call has returned

        def answered() -> bool:
            # localhost may be ::1 first, where nobody listens: the questions go to both in turn.
            prober.probe(backend)
            return len(heard.reports) > 0

        await until(answered)
        assert heard.reports[0][0] == backend


async def test_a_name_that_does_not_exist_is_never_asked_and_seldom_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_ups = 0
    clock = ManualClock()

    async def unknown(*_: object, **__: object) -> list[object]:
        nonlocal look_ups
        look_ups += 1
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with probing(Prober(Heard(), clock=clock, rng=random.Random(LUCK))) as prober:
        for _ in range(600):  # a minute of ten probes a second
            prober.probe(Backend("search.prod:1"), pytest.fail)
            await turns(3)
            clock.advance(0.1)

        # After 1, 3, 7, 15 and 31 s and at the start, each ± 20 %.
        assert 5 <= look_ups <= 7
        assert prober.snapshot().not_asked == 600
        assert prober.snapshot().asked == 0


async def test_a_name_is_looked_up_again_when_five_probes_in_a_row_went_unanswered(
    monkeypatch: pytest.MonkeyPatch, backend_socket: socket.socket
) -> None:
    clock, heard = ManualClock(), Heard()
    port = backend_socket.getsockname()[1]
    found = [("127.0.0.9", port)]
    look_ups = 0

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        nonlocal look_ups
        look_ups += 1
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", address) for address in found]

    async def probe_and_count() -> int:
        prober.probe(backend)
        await turns()
        clock.advance(1.0)
        return look_ups

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    backend = Backend(f"search.prod:{port}")
    with probing(Prober(heard, clock=clock, rng=random.Random(LUCK))) as prober:
        # The first finds no address and is not sent.  Five are; the next one finds that all five
        # have had their time, looks up, and is itself the first of the next five.
        counts = [await probe_and_count() for _ in range(1 + 5 + 5 + 1)]
        assert counts == [1] * (1 + 5) + [2] * 5 + [3]

        found[:] = [(V4, port)]  # It has moved.
        assert [await probe_and_count() for _ in range(5)] == [3] * 4 + [4]
        with pytest.raises(BlockingIOError):
            backend_socket.recv(SIZE)
        prober.probe(backend)
        data, source = await next_datagram(backend_socket)
        backend_socket.sendto(answer(nonce_of(data), REPORT, None), source)
        await until(lambda: len(heard.reports) == 1)


@pytest.mark.parametrize("address", ["unix:/run/search.sock", "search.prod", "dns:///search:1"])
async def test_what_udp_cannot_reach_never_answers(address: str) -> None:
    before = open_files()
    with probing(Prober(Heard())) as prober:
        for _ in range(10):
            prober.probe(Backend(address), pytest.fail)

        assert prober.snapshot().not_asked == 10
        assert not prober.is_answering(Backend(address))
        assert open_files() == before  # sockets are opened when they are needed


async def test_stop_ends_a_look_up_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.get_running_loop().create_future()

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        await never
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    tasks = len(asyncio.all_tasks())
    with probing(Prober(Heard())) as prober:
        prober.probe(Backend("search.prod:1"))
        await turns()
        assert len(asyncio.all_tasks()) == tasks + 1
    await turns()

    assert len(asyncio.all_tasks()) == tasks
