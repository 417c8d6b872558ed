from __future__ import annotations

import asyncio
import socket

import pytest

from evenly.context import current_request, request_context
from evenly.core.balancing.backend import Backend
from evenly.core.report import LoadReport
from evenly.probe.prober import Prober, ProberSnapshot
from evenly.probe.responder import ProbeResponder
from evenly.testing import ManualClock
from evenly.wire.datagram import answer
from tests.probe.ends import (
    REPORT,
    V4,
    Heard,
    State,
    address_of,
    has_ipv6,
    next_datagram,
    nonce_of,
    open_files,
    probing,
    report_icmp_errors,
    responding,
    stranger,
    turns,
    until,
)


@pytest.mark.parametrize(
    "host", [V4, pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6"))]
)
async def test_a_probe_brings_the_report_and_then_the_answer_is_told(host: str) -> None:
    heard, order = Heard(), []
    responder = ProbeResponder(State())

    def on_report(backend: Backend, report: LoadReport, is_probe: bool) -> None:
        order.append("report")
        heard(backend, report, is_probe)

    with responding(responder, host) as backend, probing(Prober(on_report)) as prober:
        prober.probe(backend, lambda: order.append("answer"))
        await until(lambda: len(order) == 2)
        assert prober.snapshot() == ProberSnapshot(
            asked=1,
            answered=1,
            notices=0,
            not_asked=0,
            dropped_malformed=0,
            dropped_unknown=0,
            send_errors=0,
            receive_errors=0,
            peers=1,
            questions=1,
        )

    assert heard.reports == [(backend, REPORT, True)]
    assert order == ["report", "answer"]


async def test_a_silent_backend_costs_at_most_64_questions_of_memory(
    backend_socket: socket.socket,
) -> None:
    backend = Backend(address_of(backend_socket))
    with probing(Prober(Heard())) as prober:
        for _ in range(1_000):
            prober.probe(backend)

        assert prober.snapshot().asked == 1_000
        assert prober.snapshot().questions == 64
        prober.forget(backend)
        assert prober.snapshot().questions == prober.snapshot().peers == 0


async def test_the_report_names_the_backend_as_it_was_last_given(
    backend_socket: socket.socket,
) -> None:
    heard = Heard()
    address = address_of(backend_socket)
    with probing(Prober(heard)) as prober:
        prober.probe(Backend(address, index=1))
        prober.probe(Backend(address, index=2))
        data, source = await next_datagram(backend_socket)
        backend_socket.sendto(answer(nonce_of(data), REPORT, None), source)
        await until(lambda: len(heard.reports) == 1)

    assert heard.reports[0][0] == Backend(address, index=2)
    assert prober.snapshot().peers == 0


async def test_a_port_where_nobody_listens_is_just_silent() -> None:
    clock = ManualClock()
    with stranger() as sock:
        closed = Backend(address_of(sock))
    with probing(Prober(Heard(), clock=clock)) as prober:
        for _ in range(10):
            prober.probe(closed, pytest.fail)
            await turns()
            clock.advance(1.0)

        assert prober.snapshot().asked == 10
        assert not prober.is_answering(closed)


async def test_an_icmp_error_is_counted_and_the_next_answer_heard() -> None:
    heard = Heard()
    responder = ProbeResponder(State())
    with responding(responder) as backend, probing(Prober(heard)) as prober:
        prober.probe(backend)
        report_icmp_errors(prober._sockets[socket.AF_INET])
        with stranger() as sock:
            closed = Backend(address_of(sock))
        prober.probe(closed)
        await until(lambda: prober.snapshot().receive_errors == 1)

        # It may also be the next sending that reports it, whomever that is for.
        prober.probe(closed)
        prober.probe(backend)
        await until(lambda: prober.snapshot().receive_errors + prober.snapshot().send_errors == 2)
        count = len(heard.reports)
        prober.probe(backend)
        await until(lambda: len(heard.reports) > count)


async def test_what_cannot_be_sent_is_counted_and_makes_the_backend_silent() -> None:
    clock = ManualClock()
    with probing(Prober(Heard(), clock=clock)) as prober:
        # Broadcasts are refused by the kernel unless a socket asks for them.
        for _ in range(10):
            prober.probe(Backend("255.255.255.255:9"))
            clock.advance(1.0)

        assert prober.snapshot().send_errors == 10
        assert not prober.is_answering(Backend("255.255.255.255:9"))


async def test_is_answering_follows_what_happens() -> None:
    clock, heard = ManualClock(), Heard()
    responder = ProbeResponder(State())
    with responding(responder) as backend, probing(Prober(heard, clock=clock)) as prober:
        assert not prober.is_answering(backend)
        prober.probe(backend)
        await until(lambda: len(heard.reports) == 1)
        assert prober.is_answering(backend)

        responder.stop()
        is_answering = []
        for _ in range(6):
            clock.advance(1.0)
            is_answering.append(prober.is_answering(backend))
            prober.probe(backend)
            await turns()

        # The answered one is among the last four until four later ones, asked after 1, 2, 3 and
        # 4 s, have had half a second each.
        assert is_answering == [True, True, True, True, False, False]


async def test_a_callback_that_raises_is_reported_and_the_rest_is_still_read() -> None:
    loop = asyncio.get_running_loop()
    failures: list[type] = []
    loop.set_exception_handler(lambda _, context: failures.append(type(context["exception"])))
    answers: list[int] = []
    reports = 0

    def on_report(*_: object) -> None:
        nonlocal reports
        reports += 1
        if reports % 2:
            raise ZeroDivisionError

    responder = ProbeResponder(State())
    with responding(responder) as backend, probing(Prober(on_report)) as prober:
        for number in range(10):
            prober.probe(backend, lambda number=number: answers.append(number))  # type: ignore[misc]
        await until(lambda: len(answers) == 10)

    # A request may wait for the answer: it is told all the same.
    assert answers == list(range(10))
    assert failures == [ZeroDivisionError] * 5


async def test_nothing_is_told_after_stop_also_when_a_callback_stops_it() -> None:
    responder = ProbeResponder(State())
    reports = 0

    def on_report(*_: object) -> None:
        nonlocal reports
        reports += 1
        prober.stop()

    prober = Prober(on_report)
    with responding(responder) as backend, probing(prober):
        for _ in range(10):
            prober.probe(backend, pytest.fail)
        await until(lambda: reports == 1 and responder.snapshot().answered == 10)
        await turns()

        assert reports == 1
        assert prober.snapshot().receive_errors == 0


async def test_a_probe_before_start_and_after_stop_does_nothing() -> None:
    prober = Prober(Heard())
    prober.probe(Backend(f"{V4}:1"), pytest.fail)
    with probing(prober):
        pass
    prober.probe(Backend("localhost:1"), pytest.fail)
    prober.probe(Backend(f"{V4}:1"), pytest.fail)

    shown = prober.snapshot()
    assert (shown.asked, shown.not_asked, shown.peers, shown.send_errors) == (0, 0, 0, 0)


async def test_start_and_stop_may_be_repeated_and_release_everything() -> None:
    loop = asyncio.get_running_loop()
    before = open_files()
    heard = Heard()
    responder = ProbeResponder(State())
    prober = Prober(heard)
    for count in (1, 2):
        with responding(responder) as backend:
            for _ in range(2):
                prober.start(loop)
            prober.probe(backend)
            await until(lambda count=count: len(heard.reports) == count)  # type: ignore[misc]
            for _ in range(2):
                prober.stop()
        assert open_files() == before
        assert prober.snapshot().peers == prober.snapshot().questions == 0


async def test_reports_are_not_told_in_the_context_of_the_request_that_asked_first() -> None:
    customers: list[str] = []
    responder = ProbeResponder(State())
    prober = Prober(lambda *_: customers.append(current_request().customer))
    with responding(responder) as backend, probing(prober):
        with request_context(customer="indexer"):
            prober.probe(backend)
        await until(lambda: len(customers) == 1)

    assert customers == [""]
