"""Whom a responder tells of a change of state, and how often."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack

from evenly.core.report import LoadReport
from evenly.probe.responder import ProbeResponder
from evenly.testing import ManualClock
from evenly.wire.datagram import SIZE, Kind, parse_answer, question
from tests.probe.ends import (
    KEY,
    State,
    arrived,
    next_datagram,
    received,
    running,
    stranger,
    until,
)

LUCK = 20


async def test_who_has_not_asked_for_longest_is_forgotten_first() -> None:
    responder = ProbeResponder(State(), probers_max=2, rng=random.Random(LUCK))
    with running(responder) as address, ExitStack() as stack:
        first, second, third = (stack.enter_context(stranger()) for _ in range(3))
        for count, asker in enumerate((first, second, first, third), start=1):
            asker.sendto(question(count, None), address)
            await until(lambda count=count: responder.snapshot().answered == count)  # type: ignore[misc]
        for asker, answers in ((first, 2), (second, 1), (third, 1)):
            await arrived(asker, answers)

        responder.notify()

        assert len(await arrived(first, 1)) == len(await arrived(third, 1)) == 1
        assert received(second) == []


async def test_a_notice_echoes_the_last_nonce_and_carries_the_new_state() -> None:
    state = State()
    responder = ProbeResponder(state, key=KEY)
    with running(responder) as address, stranger() as asker:
        for nonce in (41, 42):
            asker.sendto(question(nonce, KEY), address)
        await arrived(asker, 2)

        state.become_lame_duck()
        responder.notify()

        (datagram,) = await arrived(asker, 1)
        assert len(datagram) == SIZE
        assert parse_answer(datagram, KEY) == (Kind.NOTICE, 42, state.report)


async def test_a_second_notice_follows_and_no_third() -> None:
    responder = ProbeResponder(State())
    with running(responder) as address, stranger() as asker:
        asker.sendto(question(42, None), address)
        await until(lambda: responder.snapshot().answered == 1)

        responder.notify()
        assert responder.snapshot().notices_sent == 1
        await until(lambda: responder.snapshot().notices_sent == 2)
        await asyncio.sleep(0.15)  # more than two delays of at most 60 ms

        assert responder.snapshot().notices_sent == 2
        assert len(await arrived(asker, 1 + 2)) == 1 + 2


async def test_a_newer_change_replaces_the_second_notice_of_the_older() -> None:
    state = State()
    responder = ProbeResponder(state)
    with running(responder) as address, stranger() as asker:
        asker.sendto(question(42, None), address)
        await arrived(asker, 1)

        for sequence in (2, 3, 4):
            state.report = LoadReport(boot=7, sequence=sequence)
            responder.notify()
        await until(lambda: responder.snapshot().notices_sent == 4)
        await asyncio.sleep(0.15)

        told = [parse_answer(datagram, None) for datagram in await arrived(asker, 4)]
        assert [parsed and parsed[2].sequence for parsed in told] == [2, 3, 4, 4]


async def test_who_lost_its_place_in_the_table_gets_no_second_notice() -> None:
    responder = ProbeResponder(State(), probers_max=1)
    with running(responder) as address, stranger() as early, stranger() as late:
        early.sendto(question(1, None), address)
        await until(lambda: responder.snapshot().answered == 1)
        responder.notify()
        late.sendto(question(2, None), address)
        await until(lambda: responder.snapshot().answered == 2)
        await asyncio.sleep(0.15)

        # An answer and a notice; an answer.
        assert [len(await arrived(early, 2)), len(await arrived(late, 1))] == [2, 1]


async def test_who_asked_too_long_ago_gets_no_notice() -> None:
    clock = ManualClock()
    responder = ProbeResponder(State(), clock=clock, prober_seconds=60.0)
    with running(responder) as address, stranger() as early, stranger() as late:
        early.sendto(question(1, None), address)
        await until(lambda: responder.snapshot().answered == 1)
        clock.advance(30.0)
        late.sendto(question(2, None), address)
        await until(lambda: responder.snapshot().answered == 2)
        clock.advance(30.001)

        responder.notify()

        assert [len(await arrived(late, 2)), len(await arrived(early, 1))] == [2, 1]


async def test_several_sockets_answer_and_notify_from_the_one_that_was_asked() -> None:
    responder = ProbeResponder(State())
    with running(responder) as first, stranger("127.0.0.1") as asker:
        second = ("127.0.0.2", responder.bind("127.0.0.2", 0))  # also after the start
        for address in (first, second):
            asker.sendto(question(42, None), address)
        await until(lambda: responder.snapshot().answered == 2)
        answers = {(await next_datagram(asker))[1] for _ in range(2)}
        responder.notify()
        notices = {(await next_datagram(asker))[1] for _ in range(2)}

        assert answers == notices == {first, second}
