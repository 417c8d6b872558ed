"""Strangers may send what they like: only counters change, and both ends go on."""

from __future__ import annotations

import asyncio
import random
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evenly.core.balancing.backend import Backend
from evenly.core.report import LoadReport
from evenly.probe.prober import Prober
from evenly.probe.responder import ProbeResponder
from evenly.wire.datagram import SIZE, Kind, answer, parse_question, question
from tests.probe.ends import (
    KEY,
    OTHER_KEY,
    Heard,
    State,
    address_of,
    arrived,
    next_datagram,
    open_files,
    probing,
    received,
    responding,
    stranger,
    until,
)

DATAGRAMS = 100_000
BATCH = 100
# In the name of each test, so that a failure says how to replay it.
seeded = pytest.mark.parametrize("seed", [5], ids="seed {}".format)


def hostile(samples: list[bytes], seed: int) -> Iterator[bytes]:
    """Yield random datagrams, and good ones with bytes changed, cut off or added."""
    rng = random.Random(seed)
    while True:
        draw = rng.random()
        if draw < 0.1:
            yield rng.randbytes(SIZE)
        elif draw < 0.2:
            yield rng.randbytes(rng.choice((0, 1, 16, SIZE - 1, SIZE + 1, 1_400)))
        elif draw < 0.3:
            yield rng.choice(samples)[: rng.randrange(SIZE)]
        elif draw < 0.4:
            yield rng.choice(samples) + rng.randbytes(1 + rng.randrange(50))
        else:
            mutated = bytearray(rng.choice(samples))
            for _ in range(1 + rng.randrange(4)):
                mutated[rng.randrange(SIZE)] ^= 1 << rng.randrange(8)
            yield bytes(mutated)


async def flood(
    sock: socket.socket,
    to: tuple[Any, ...],
    datagrams: Iterator[bytes],
    handled: Callable[[], int],
    *,
    on_batch: Callable[[], object],
) -> None:
    """Send them all, in batches that fit the kernel's buffer, so that each one is read."""
    start = handled()
    for sent in range(BATCH, DATAGRAMS + 1, BATCH):
        for _ in range(BATCH):
            sock.sendto(next(datagrams), to)
        async with asyncio.timeout(20):
            while handled() < start + sent:
                await asyncio.sleep(0)
        on_batch()


def fail_on_loop_errors() -> list[object]:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    return errors


@seeded
async def test_a_responder_survives_a_hundred_thousand_hostile_datagrams(seed: int) -> None:
    errors = fail_on_loop_errors()
    responder = ProbeResponder(State(), key=KEY, probers_max=10)
    samples = [
        question(1, KEY),
        question(2, OTHER_KEY),
        question(3, None),
        answer(4, LoadReport(), KEY),
        answer(5, LoadReport(), KEY, kind=Kind.NOTICE),
    ]
    replies = 0

    with responding(responder) as backend, stranger() as sock:
        host, port = backend.address.split(":")

        def handled() -> int:
            shown = responder.snapshot()
            return shown.answered + shown.dropped_malformed + shown.dropped_limited

        def check_replies() -> None:
            nonlocal replies
            datagrams = received(sock)
            replies += len(datagrams)
            assert all(len(datagram) <= SIZE for datagram in datagrams)

        before = open_files()
        await flood(
            sock, (host, int(port)), hostile(samples, seed), handled, on_batch=check_replies
        )

        shown = responder.snapshot()
        assert shown.answered + shown.dropped_malformed == DATAGRAMS
        # Without the key nobody makes a question: one bit in 80 bytes changed, and the HMAC fails.
        # Two flips may meet and leave a sample as it was, which is then answered, rightly.
        replies += len(await arrived(sock, shown.answered - replies))
        assert replies == shown.answered
        assert shown.answered < DATAGRAMS // 100
        assert shown.probers <= 1
        assert (shown.notices_sent, shown.receive_errors, shown.send_errors) == (0, 0, 0)
        assert open_files() == before
        sock.sendto(question(42, KEY), (host, int(port)))
        await until(lambda: responder.snapshot().answered == shown.answered + 1)
    assert errors == []


@seeded
async def test_without_a_key_only_what_looks_like_a_question_is_answered(
    seed: int,
) -> None:
    rng = random.Random(seed)
    responder = ProbeResponder(State())
    with responding(responder) as backend, stranger() as sock:
        host, port = backend.address.split(":")
        expected = 0
        replies: list[bytes] = []
        for _ in range(20):
            batch = [next(hostile([question(7, None)], rng.getrandbits(32))) for _ in range(BATCH)]
            expected += sum(parse_question(datagram, None) is not None for datagram in batch)
            handled = responder.snapshot().answered + responder.snapshot().dropped_malformed
            for datagram in batch:
                sock.sendto(datagram, (host, int(port)))
            await until(
                lambda handled=handled: (  # type: ignore[misc]
                    responder.snapshot().answered + responder.snapshot().dropped_malformed
                    == handled + BATCH
                )
            )
            replies += received(sock)

        replies += await arrived(sock, expected - len(replies))
        assert responder.snapshot().answered == expected > 0
        assert responder.snapshot().probers == 1
        assert len(replies) == expected
        assert {len(datagram) for datagram in replies} == {SIZE}


@seeded
async def test_a_prober_survives_a_hundred_thousand_hostile_datagrams(seed: int) -> None:
    errors = fail_on_loop_errors()
    heard = Heard()
    with probing(Prober(heard, key=KEY)) as prober, stranger() as sock:
        backend = Backend(address_of(sock))
        for _ in range(3):
            prober.probe(backend)
        asked = [await next_datagram(sock) for _ in range(3)]
        to = asked[0][1]
        nonces = [parse_question(data, KEY) or 0 for data, _ in asked]
        lame_duck = LoadReport(boot=9, sequence=9, lame_duck=True)
        samples = [
            # The right nonces with a wrong key, or none; the right key with other nonces.
            *(answer(nonce, lame_duck, OTHER_KEY) for nonce in nonces),
            *(answer(nonce, lame_duck, None, kind=Kind.NOTICE) for nonce in nonces),
            *(answer(nonce ^ 1, lame_duck, KEY, kind=Kind.NOTICE) for nonce in nonces),
            *(question(nonce, KEY) for nonce in nonces),
        ]

        def handled() -> int:
            shown = prober.snapshot()
            return shown.dropped_malformed + shown.dropped_unknown

        before = open_files()
        await flood(sock, to, hostile(samples, seed), handled, on_batch=lambda: None)

        shown = prober.snapshot()
        assert shown.dropped_malformed + shown.dropped_unknown == DATAGRAMS
        assert heard.reports == []
        assert (shown.answered, shown.notices, shown.peers, shown.questions) == (0, 0, 1, 3)
        assert (shown.receive_errors, shown.send_errors) == (0, 0)
        assert not prober.is_answering(backend)
        assert open_files() == before

        prober.probe(backend)
        data, source = await next_datagram(sock)
        sock.sendto(answer(parse_question(data, KEY) or 0, LoadReport(), KEY), source)
        await until(lambda: heard.kinds() == [True])
    assert errors == []


@seeded
async def test_hostile_datagrams_leave_no_memory_behind(seed: int) -> None:
    responder = ProbeResponder(State(), probers_max=100)
    samples = [question(1, None), answer(4, LoadReport(), None)]
    with responding(responder) as backend, probing(Prober(Heard())) as prober, stranger() as sock:
        host, port = backend.address.split(":")
        prober.probe(Backend(address_of(sock)))
        _, prober_address = await next_datagram(sock)
        datagrams = hostile(samples, seed)

        async def send(count: int) -> None:
            for _ in range(count // BATCH):
                for _ in range(BATCH):
                    datagram = next(datagrams)
                    sock.sendto(datagram, (host, int(port)))
                    sock.sendto(datagram, prober_address)
                seen = responder.snapshot(), prober.snapshot()
                await until(
                    lambda seen=seen: (  # type: ignore[misc]
                        responder.snapshot() != seen[0] and prober.snapshot() != seen[1]
                    )
                )
                received(sock)

        await send(1_000)
        tracemalloc.start()
        try:
            at_first, _ = tracemalloc.get_traced_memory()
            await send(5_000)
            afterwards, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    # 10,000 datagrams of which each left only ten bytes would be 100 kB.
    assert afterwards - at_first < 50_000
