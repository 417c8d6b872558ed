from __future__ import annotations

import asyncio
import itertools
import socket

import pytest

from evenly.context import current_request, request_context
from evenly.core.report import LoadReport
from evenly.errors import ConfigError
from evenly.probe.responder import ProbeResponder, ResponderSnapshot
from evenly.testing import ManualClock
from evenly.wire.datagram import SIZE, Kind, parse_answer, question
from tests.probe.ends import (
    KEY,
    OTHER_KEY,
    V4,
    State,
    arrived,
    has_ipv6,
    open_files,
    received,
    report_icmp_errors,
    running,
    stranger,
    turns,
    until,
)


async def test_a_question_is_answered_with_the_report_and_its_nonce() -> None:
    state = State()
    responder = ProbeResponder(state)
    with running(responder) as address, stranger() as asker:
        asker.sendto(question(42, None), address)
        await until(lambda: responder.snapshot().answered == 1)

        (datagram,) = await arrived(asker, 1)
        assert parse_answer(datagram, None) == (Kind.ANSWER, 42, state.report)
        assert responder.snapshot() == ResponderSnapshot(
            answered=1,
            dropped_malformed=0,
            dropped_limited=0,
            notices_sent=0,
            send_errors=0,
            receive_errors=0,
            probers=1,
        )


async def test_an_answer_is_as_large_as_its_question() -> None:
    responder = ProbeResponder(State(), key=KEY)
    with running(responder) as address, stranger() as asker:
        asked = question(42, KEY)
        asker.sendto(asked, address)
        await until(lambda: responder.snapshot().answered == 1)

        assert [len(datagram) for datagram in await arrived(asker, 1)] == [len(asked)] == [SIZE]


@pytest.mark.parametrize(
    "datagram",
    [
        pytest.param(b"", id="empty"),
        pytest.param(question(1, KEY)[:-1], id="short"),
        pytest.param(question(1, KEY) + b"\0", id="one byte more"),
        pytest.param(question(1, KEY) * 100, id="far too long"),
        pytest.param(question(1, None), id="HMAC missing"),
        pytest.param(question(1, OTHER_KEY), id="HMAC of another key"),
    ],
)
async def test_what_is_no_question_with_our_key_is_counted_and_not_answered(
    datagram: bytes,
) -> None:
    responder = ProbeResponder(State(), key=KEY)
    with running(responder) as address, stranger() as asker:
        asker.sendto(datagram, address)
        asker.sendto(question(42, KEY), address)
        await until(lambda: responder.snapshot().answered == 1)

        assert len(await arrived(asker, 1)) == 1
        assert responder.snapshot().dropped_malformed == 1
        assert responder.snapshot().probers == 1


async def test_the_report_is_built_once_for_all_that_waits() -> None:
    state = State()
    responder = ProbeResponder(state)
    with running(responder) as address, stranger() as asker:
        for nonce in range(100):
            asker.sendto(question(nonce, None), address)
        await until(lambda: responder.snapshot().answered == 100)

        # Not a hundred times; once, unless the kernel was late with some of them.
        assert state.built <= 5


async def test_a_flood_leaves_the_loop_its_turns() -> None:
    state = State()
    responder = ProbeResponder(state)
    answered = [0]
    with running(responder) as address, stranger() as asker:
        for nonce in range(250):
            asker.sendto(question(nonce, None), address)
        while responder.snapshot().answered < 250:
            await asyncio.sleep(0)
            answered.append(responder.snapshot().answered)

    # 250 = 100 + 100 + 50, with other callbacks between them.
    assert max(after - before for before, after in itertools.pairwise(answered)) <= 100
    assert state.built >= 3


async def test_the_limit_per_source_holds_for_a_second() -> None:
    clock = ManualClock()
    responder = ProbeResponder(State(), clock=clock, answers_per_second=10)
    with running(responder) as address, stranger() as asker, stranger("127.0.0.2") as other:
        for nonce in range(25):
            asker.sendto(question(nonce, None), address)
        await until(lambda: responder.snapshot().dropped_limited == 15)
        assert responder.snapshot().answered == 10

        other.sendto(question(1, None), address)
        await until(lambda: responder.snapshot().answered == 11)
        clock.advance(1.0)
        asker.sendto(question(99, None), address)
        await until(lambda: responder.snapshot().answered == 12)


async def test_twenty_thousand_sources_fill_two_tables_of_bounded_size_and_nothing_else() -> None:
    # Real datagrams from real addresses: 127.0.0.0/8 is all ours.
    clock = ManualClock()
    responder = ProbeResponder(State(), clock=clock, probers_max=1_000)

    def handled() -> int:
        shown = responder.snapshot()
        return shown.answered + shown.dropped_limited

    with running(responder) as address, stranger("127.255.0.1") as asker:
        for number in range(20_000):
            with stranger(f"127.1.{number // 250}.{number % 250 + 1}") as source:
                source.sendto(question(number, None), address)
            if number % 100 == 99:
                sent = number + 1
                await until(lambda sent=sent: handled() == sent)  # type: ignore[misc]
                assert responder.snapshot().probers <= 1_000

        shown = responder.snapshot()
        assert shown.probers == 1_000
        # A thousand sources are counted by themselves; the others share the limit of one source.
        assert (shown.answered, shown.dropped_limited) == (1_000 + 10_000, 9_000)
        assert shown.send_errors == 0
        clock.advance(1.0)
        asker.sendto(question(42, None), address)
        await until(lambda: len(received(asker)) == 1)


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
async def test_every_address_means_both_families() -> None:
    responder = ProbeResponder(State())
    with running(responder, "[::]") as (_, port), stranger("::1") as v6, stranger() as v4:
        v6.sendto(question(6, None), ("::1", port))
        v4.sendto(question(4, None), (V4, port))
        await until(lambda: responder.snapshot().answered == 2)

        assert [len(await arrived(v6, 1)), len(await arrived(v4, 1))] == [1, 1]


async def test_a_name_is_bound_at_its_addresses() -> None:
    responder = ProbeResponder(State())
    with running(responder, "localhost") as address, stranger() as asker:
        asker.sendto(question(4, None), (V4, address[1]))
        await until(lambda: responder.snapshot().answered == 1)


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open() -> None:
    responder = ProbeResponder(State())
    with stranger() as taken:
        before = open_files()
        with pytest.raises(OSError, match="in use"):
            responder.bind(V4, taken.getsockname()[1])

        assert open_files() == before


async def test_questions_wait_until_the_start() -> None:
    responder = ProbeResponder(State())
    port = responder.bind(V4, 0)
    with stranger() as asker:
        asker.sendto(question(42, None), (V4, port))
        await turns()
        assert responder.snapshot().answered == 0

        responder.start(asyncio.get_running_loop())
        await until(lambda: responder.snapshot().answered == 1)
        responder.stop()


async def test_start_and_stop_may_be_repeated_and_release_everything() -> None:
    loop = asyncio.get_running_loop()
    before = open_files()
    state = State()
    responder = ProbeResponder(state)
    for _ in range(2):
        port = responder.bind(V4, 0)
        for _ in range(2):
            responder.start(loop)
        with stranger() as asker:
            asker.sendto(question(42, None), (V4, port))
            await until(lambda: len(received(asker)) == 1)
        responder.notify()
        for _ in range(2):
            responder.stop()
        assert open_files() == before
        assert responder.snapshot().probers == 0
    built = state.built
    responder.notify()
    await asyncio.sleep(0.1)  # a second round would be due by now

    assert responder.snapshot().notices_sent == 2
    assert state.built == built


def test_stop_after_the_loop_is_closed_still_closes_the_sockets() -> None:
    before = open_files()
    responder = ProbeResponder(State())
    responder.bind(V4, 0)
    loop = asyncio.new_event_loop()
    responder.start(loop)
    loop.close()

    responder.stop()

    assert open_files() == before


async def test_an_answer_that_cannot_be_sent_is_counted_and_its_asker_not_remembered() -> None:
    # Source port 0 means "no answer wanted" (RFC 768); a kernel refuses to send there.  Only a raw
    # socket can write it.
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        pytest.skip("raw sockets need privileges")
    responder = ProbeResponder(State())
    with running(responder) as (host, port), raw:
        asked = question(42, None)
        header = b"".join(n.to_bytes(2, "big") for n in (0, port, 8 + len(asked), 0))
        raw.sendto(header + asked, (host, 0))
        await until(lambda: responder.snapshot().send_errors == 1)

        assert responder.snapshot().probers == 0
        assert responder.snapshot().answered == 0


async def test_an_icmp_error_is_counted_and_the_next_question_answered() -> None:
    responder = ProbeResponder(State())
    with running(responder) as address, stranger() as asker:
        report_icmp_errors(responder._sockets[0])
        with stranger() as gone:
            gone.sendto(question(1, None), address)
        await until(lambda: responder.snapshot().receive_errors == 1)

        asker.sendto(question(2, None), address)
        await until(lambda: len(received(asker)) == 1)


async def test_a_report_that_fails_is_reported_and_the_next_question_answered() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    state = State()

    def report() -> LoadReport:
        if not failures:
            raise ZeroDivisionError
        return state()

    responder = ProbeResponder(report)
    with running(responder) as address, stranger() as asker:
        for nonce in range(3):
            asker.sendto(question(nonce, None), address)
        await until(lambda: responder.snapshot().answered == 2)

    assert [type(failure) for failure in failures] == [ZeroDivisionError]


async def test_answers_are_not_made_in_the_context_of_whoever_started_it() -> None:
    customers: list[str] = []
    state = State()

    def report() -> LoadReport:
        customers.append(current_request().customer)
        return state()

    responder = ProbeResponder(report)
    with request_context(customer="indexer"), running(responder) as address, stranger() as asker:
        asker.sendto(question(42, None), address)
        await until(lambda: responder.snapshot().answered == 1)

    assert customers == [""]


@pytest.mark.parametrize(
    "wrong",
    [
        {"probers_max": 0},
        {"prober_seconds": float("nan")},
        {"prober_seconds": 0.0},
        {"answers_per_second": 0},
    ],
    ids=str,
)
def test_a_value_out_of_its_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ProbeResponder(State(), **wrong)  # type: ignore[arg-type]
