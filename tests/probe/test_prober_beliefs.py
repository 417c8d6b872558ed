"""What a prober believes: answers and notices, keys and nonces, and forgeries."""

from __future__ import annotations

import asyncio
import socket

import pytest

from evenly.core.balancing.backend import Backend
from evenly.core.report import LoadReport
from evenly.probe.prober import Prober
from evenly.probe.responder import ProbeResponder
from evenly.testing import ManualClock
from evenly.wire.datagram import Kind, answer, question
from tests.probe.ends import (
    KEY,
    OTHER_KEY,
    REPORT,
    Heard,
    State,
    address_of,
    next_datagram,
    nonce_of,
    probing,
    responding,
    stranger,
    until,
)


@pytest.mark.parametrize(
    ("ours", "theirs", "dropped_there", "dropped_here"),
    [
        pytest.param(KEY, OTHER_KEY, 1, 0, id="another key"),
        pytest.param(None, KEY, 1, 0, id="the prober has none"),
        pytest.param(KEY, None, 0, 1, id="the responder has none"),
    ],
)
async def test_without_the_same_key_nothing_is_believed(
    ours: bytes | None, theirs: bytes | None, dropped_there: int, dropped_here: int
) -> None:
    heard = Heard()
    responder = ProbeResponder(State(), key=theirs)
    with responding(responder) as backend, probing(Prober(heard, key=ours)) as prober:
        prober.probe(backend, pytest.fail)
        await until(
            lambda: (
                responder.snapshot().dropped_malformed == dropped_there
                and prober.snapshot().dropped_malformed == dropped_here
            )
        )

        assert heard.reports == []
        assert not prober.is_answering(backend)


async def test_with_the_same_key_it_works() -> None:
    heard = Heard()
    responder = ProbeResponder(State(), key=KEY)
    with responding(responder) as backend, probing(Prober(heard, key=KEY)) as prober:
        prober.probe(backend)
        await until(lambda: heard.kinds() == [True])
        assert prober.is_answering(backend)


async def test_every_question_has_a_fresh_nonce(backend_socket: socket.socket) -> None:
    backend = Backend(address_of(backend_socket))
    with probing(Prober(Heard())) as prober:
        for _ in range(100):
            prober.probe(backend)
        nonces = {nonce_of((await next_datagram(backend_socket))[0]) for _ in range(100)}

    assert len(nonces) == 100
    assert max(nonces).bit_length() > 56  # 100 draws of 64 bits: below 2^56 with 2^-800


async def test_a_notice_reaches_a_prober_that_has_stopped_asking_twice_at_most() -> None:
    heard, state = Heard(), State()
    responder = ProbeResponder(state)
    with responding(responder) as backend, probing(Prober(heard)) as prober:
        prober.probe(backend)
        await until(lambda: len(heard.reports) == 1)

        state.become_lame_duck()
        responder.notify()
        await until(lambda: len(heard.reports) == 3)
        await asyncio.sleep(0.15)  # more than two delays of at most 60 ms

        assert heard.kinds() == [True, False, False]
        assert [report.lame_duck for _, report, _ in heard.reports] == [False, True, True]
        assert prober.snapshot().notices == 2
        assert prober.snapshot().answered == 1


async def test_a_notice_is_believed_with_one_of_the_last_three_nonces(
    backend_socket: socket.socket,
) -> None:
    heard = Heard()
    backend = Backend(address_of(backend_socket))
    with probing(Prober(heard)) as prober:
        for _ in range(5):
            prober.probe(backend)
        for sequence in range(5):
            data, source = await next_datagram(backend_socket)
            notice = answer(nonce_of(data), LoadReport(sequence=sequence), None, kind=Kind.NOTICE)
            backend_socket.sendto(notice, source)
        await until(lambda: prober.snapshot().notices + prober.snapshot().dropped_unknown == 5)

    assert [report.sequence for _, report, _ in heard.reports] == [2, 3, 4]
    assert heard.kinds() == [False, False, False]


async def test_a_notice_is_no_answer(backend_socket: socket.socket) -> None:
    heard, answers = Heard(), []
    backend = Backend(address_of(backend_socket))
    with probing(Prober(heard)) as prober:
        prober.probe(backend, lambda: answers.append("answer"))
        data, source = await next_datagram(backend_socket)
        backend_socket.sendto(answer(nonce_of(data), REPORT, None, kind=Kind.NOTICE), source)
        await until(lambda: heard.kinds() == [False])
        assert answers == []
        assert not prober.is_answering(backend)

        # The question is still open.
        backend_socket.sendto(answer(nonce_of(data), REPORT, None), source)
        await until(lambda: answers == ["answer"])
        assert prober.is_answering(backend)


@pytest.mark.parametrize("kind", [Kind.ANSWER, Kind.NOTICE])
async def test_forgeries_are_dropped_and_counted(backend_socket: socket.socket, kind: Kind) -> None:
    heard = Heard()
    backend = Backend(address_of(backend_socket))
    with probing(Prober(heard, key=KEY)) as prober, stranger("127.0.0.2") as elsewhere:
        prober.probe(backend, pytest.fail)
        data, source = await next_datagram(backend_socket)
        nonce = nonce_of(data, KEY)

        forged = LoadReport(boot=9, sequence=9, lame_duck=True)
        backend_socket.sendto(answer(nonce ^ 1, forged, KEY, kind=kind), source)  # unknown
        elsewhere.sendto(answer(nonce ^ 2, forged, KEY, kind=kind), source)  # unknown
        backend_socket.sendto(answer(nonce, forged, OTHER_KEY, kind=kind), source)  # malformed
        backend_socket.sendto(answer(nonce, forged, None, kind=kind), source)  # malformed
        backend_socket.sendto(answer(nonce, forged, KEY, kind=kind) + b"\0", source)  # malformed
        backend_socket.sendto(question(nonce, KEY), source)  # malformed
        await until(
            lambda: (
                prober.snapshot().dropped_unknown == 2 and prober.snapshot().dropped_malformed == 4
            )
        )

        assert heard.reports == []
        assert not prober.is_answering(backend)


async def test_an_answer_from_another_address_of_the_backend_is_believed(
    backend_socket: socket.socket,
) -> None:
    heard = Heard()
    with probing(Prober(heard)) as prober, stranger("127.0.0.2") as elsewhere:
        prober.probe(Backend(address_of(backend_socket)))
        data, source = await next_datagram(backend_socket)
        elsewhere.sendto(answer(nonce_of(data), REPORT, None), source)
        await until(lambda: heard.kinds() == [True])


async def test_an_answer_counts_once(backend_socket: socket.socket) -> None:
    heard, answers = Heard(), []
    backend = Backend(address_of(backend_socket))
    with probing(Prober(heard)) as prober:
        prober.probe(backend, lambda: answers.append("answer"))
        data, source = await next_datagram(backend_socket)
        for _ in range(3):
            backend_socket.sendto(answer(nonce_of(data), REPORT, None), source)
        await until(lambda: prober.snapshot().dropped_unknown == 2)

        assert len(heard.reports) == len(answers) == 1


async def test_an_answer_after_two_seconds_is_too_late(backend_socket: socket.socket) -> None:
    clock, heard = ManualClock(), Heard()
    backend = Backend(address_of(backend_socket))
    with probing(Prober(heard, clock=clock)) as prober:
        prober.probe(backend, pytest.fail)
        data, source = await next_datagram(backend_socket)
        clock.advance(2.001)
        backend_socket.sendto(answer(nonce_of(data), REPORT, None), source)
        await until(lambda: prober.snapshot().dropped_unknown == 1)

    assert heard.reports == []


async def test_a_forgotten_backends_answer_counts_no_more(backend_socket: socket.socket) -> None:
    heard = Heard()
    backend = Backend(address_of(backend_socket))
    with probing(Prober(heard)) as prober:
        prober.probe(backend, pytest.fail)
        data, source = await next_datagram(backend_socket)
        prober.forget(backend)
        prober.forget(backend)
        backend_socket.sendto(answer(nonce_of(data), REPORT, None), source)
        await until(lambda: prober.snapshot().dropped_unknown == 1)

    assert heard.reports == []
