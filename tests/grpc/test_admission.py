from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
from evenly.context import current_meter
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.overload.quota_config import QuotaConfig
from evenly.core.request import Outcome, Reason
from evenly.errors import Overloaded
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.gate import StartGate
from evenly.wire.load_header import parse_load
from tests.grpc.served import (
    SERVICE,
    SOON,
    TASK,
    failure,
    press,
    served,
    trailers,
    unary,
)

uu = grpc.unary_unary_rpc_method_handler
us = grpc.unary_stream_rpc_method_handler
su = grpc.stream_unary_rpc_method_handler
ss = grpc.stream_stream_rpc_method_handler
Code = grpc.StatusCode


async def echo(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return request


async def test_a_request_is_served_admitted_finished_and_reported() -> None:
    async with served({"Do": uu(echo)}) as backend:
        call = unary(backend.channel, "Do")(b"x")

        assert await call == b"x"
        report = parse_load((await trailers(call))["evenly-load"])
        assert report is not None
        assert not report.lame_duck
        assert await backend.outcome() is Outcome.OK
        assert backend.ledger.costs[0] > 0.0


async def test_the_loop_is_timed_while_a_request_is_served() -> None:
    timed: list[bool] = []

    async def look(request: bytes, context: Any) -> bytes:
        timed.append(backend.runtime.readings.is_timing)
        return b""

    async with served({"Do": uu(look)}) as backend:
        assert not backend.runtime.readings.is_timing
        await unary(backend.channel, "Do")(b"")
    assert timed == [True]


async def test_serializers_are_used_on_both_ends() -> None:
    async def double(request: int, context: Any) -> int:
        return 2 * request

    handler = uu(double, request_deserializer=int, response_serializer=lambda n: str(n).encode())
    async with served({"Do": handler}) as backend:
        assert await unary(backend.channel, "Do")(b"21") == b"42"


async def test_a_request_that_cannot_be_parsed_is_internal_and_an_error() -> None:
    async with served({"Do": uu(echo, request_deserializer=int)}) as backend:
        error = await failure(unary(backend.channel, "Do")(b"x"))

        assert error.code() is Code.INTERNAL
        assert await backend.outcome() is Outcome.ERROR


async def test_a_response_that_cannot_be_serialized_is_an_error() -> None:
    async with served({"Do": uu(echo, response_serializer=int)}) as backend:
        error = await failure(unary(backend.channel, "Do")(b"x"))

        assert error.code() is Code.UNKNOWN
        assert await backend.outcome() is Outcome.ERROR


async def test_what_the_client_claims_is_what_the_handler_sees() -> None:
    seen: list[Any] = []

    async def see(request: bytes, context: Any) -> bytes:
        seen.append(evenly.current_request())
        await asyncio.sleep(0)
        assert evenly.current_request() is seen[-1]
        return request

    metadata = (("evenly-criticality", "SHEDDABLE"), ("evenly-customer", "indexer"))
    async with served({"Do": uu(see)}) as backend:
        before = time.monotonic()
        await unary(backend.channel, "Do")(b"", metadata=metadata, timeout=60.0)
        after = time.monotonic()
        await unary(backend.channel, "Do")(b"")

    assert (seen[0].criticality, seen[0].customer) == (Criticality.SHEDDABLE, "indexer")
    # gRPC rounds what is left of a deadline, and reads the wall clock for it.
    assert before + 59.0 < seen[0].deadline_at < after + 61.0
    assert (seen[1].criticality, seen[1].customer) == (Criticality.CRITICAL, "")
    assert seen[1].deadline_at is None


async def test_a_peer_that_is_not_trusted_is_capped_and_pays_as_nobody() -> None:
    config = BackendConfig(task=TASK, trust_near=False)
    metadata = (("evenly-criticality", "CRITICAL_PLUS"), ("evenly-customer", "indexer"))
    async with served({"Do": uu(echo)}, config=config) as backend:
        await unary(backend.channel, "Do")(b"", metadata=metadata)
        less = (("evenly-criticality", "SHEDDABLE"),)
        await unary(backend.channel, "Do")(b"", metadata=less)

    first, second = backend.ledger.admitted
    assert (first.criticality, first.customer) == (Criticality.CRITICAL, "")
    assert second.criticality is Criticality.SHEDDABLE


async def test_retries_are_counted_by_the_clients_own_number() -> None:
    async with served({"Do": uu(echo)}) as backend:
        await unary(backend.channel, "Do")(b"")
        await unary(backend.channel, "Do")(b"", metadata=(("grpc-previous-rpc-attempts", "2"),))

        attempts = backend.runtime.snapshot().task.attempts
    assert attempts[:3] == (1, 0, 1)


async def test_a_refusal_is_unavailable_trailers_only_and_named() -> None:
    parsed: list[bytes] = []

    async with served({"Do": uu(echo, request_deserializer=parsed.append)}) as backend:
        await press(backend.runtime, 2.0)
        call = unary(backend.channel, "Do")(b"", metadata=(("evenly-criticality", "SHEDDABLE"),))
        error = await failure(call)

        assert error.code() is Code.UNAVAILABLE
        assert error.details() == "evenly: this backend is overloaded; SHEDDABLE"
        names = await trailers(call)
        assert names["evenly-reject"] == "overloaded"
        assert "grpc-retry-pushback-ms" not in names
        report = parse_load(names["evenly-load"])
        assert report is not None
        assert report.cut == 1.0
        # Trailers-Only: the only headers there are, are the trailers.
        assert not await call.initial_metadata()
        assert not parsed
        assert backend.ledger.rejected == [Reason.OVERLOADED]
        assert backend.runtime.active == 0
        await unary(backend.channel, "Do")(b"")  # CRITICAL is served.


@pytest.mark.parametrize("kind", ["us", "su", "ss"])
async def test_streams_are_refused_before_they_begin(kind: str) -> None:
    began: list[str] = []

    async def respond(request: Any, context: Any) -> AsyncIterator[bytes]:
        began.append(kind)
        yield b""

    async def answer(request: Any, context: Any) -> bytes:
        began.append(kind)
        return b""

    async with served({"us": us(respond), "su": su(answer), "ss": ss(respond)}) as backend:
        await press(backend.runtime, 9.0)
        if kind == "us":
            call = backend.channel.unary_stream(f"/{SERVICE}/us")(b"")
        elif kind == "su":
            call = backend.channel.stream_unary(f"/{SERVICE}/su")()
        else:
            call = backend.channel.stream_stream(f"/{SERVICE}/ss")()

        assert await call.code() is Code.UNAVAILABLE
        assert (await trailers(call))["evenly-reject"] == "overloaded"
    assert not began


async def test_when_retries_are_widespread_the_refusal_says_dont_retry() -> None:
    async with served({"Do": uu(echo)}) as backend:
        for _ in range(200):  # More than 5 % of at least 100 arrivals are retries.
            backend.runtime.task._attempts.record(2)
        await press(backend.runtime, 9.0)
        call = unary(backend.channel, "Do")(b"")
        error = await failure(call)

        assert error.code() is Code.RESOURCE_EXHAUSTED
        names = await trailers(call)
        assert (names["evenly-reject"], names["grpc-retry-pushback-ms"]) == ("dont-retry", "-1")


async def test_a_customer_out_of_quota_is_told_who_it_is() -> None:
    quota = QuotaConfig(limits={"greedy": 1e-6}, default_limit=1e6)
    task = BackendTaskConfig(quiet_seconds=0.0, quota=quota)
    metadata = (("evenly-customer", "greedy"),)

    async def burn(request: bytes, context: Any) -> bytes:
        ends_at = time.thread_time() + 0.01
        while time.thread_time() < ends_at:
            pass
        return b""

    async with served({"Do": uu(burn)}, config=BackendConfig(task=task)) as backend:
        call = unary(backend.channel, "Do")(b"", metadata=metadata)
        for _ in range(50):
            if await call.code() is not Code.OK:
                break
            call = unary(backend.channel, "Do")(b"", metadata=metadata)
        assert await call.code() is Code.RESOURCE_EXHAUSTED
        assert "customer 'greedy'" in await call.details()
        names = await trailers(call)
        assert (names["evenly-reject"], names["grpc-retry-pushback-ms"]) == ("quota", "-1")
        assert await unary(backend.channel, "Do")(b"") == b""


async def test_a_rejection_from_below_leaves_as_dont_retry() -> None:
    async def refused_below(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("mine", "1"),))
        raise Overloaded("the database said no")

    async def refused_in_a_group(request: bytes, context: Any) -> bytes:
        raise ExceptionGroup("two", [Overloaded("a"), Overloaded("b")])

    handlers = {"One": uu(refused_below), "Two": uu(refused_in_a_group)}
    async with served(handlers) as backend:
        for name in handlers:
            call = unary(backend.channel, name)(b"")
            error = await failure(call)

            assert error.code() is Code.RESOURCE_EXHAUSTED
            names = await trailers(call)
            assert (names["evenly-reject"], names["grpc-retry-pushback-ms"]) == ("dont-retry", "-1")
            assert "evenly-load" in names
            assert ("mine" in names) == (name == "One")
        assert await backend.ended(2) == [Outcome.DONT_RETRY] * 2


async def test_the_cpu_of_a_handler_and_its_child_tasks_is_charged() -> None:
    burnt: list[float] = []

    def burn(seconds: float) -> None:
        began_at = time.thread_time()
        while time.thread_time() < began_at + seconds:
            pass
        burnt.append(time.thread_time() - began_at)

    async def work(request: bytes, context: Any) -> bytes:
        async def child() -> None:
            await asyncio.sleep(0)
            burn(0.02)

        burn(0.02)
        await asyncio.gather(child(), child())
        return b""

    async with served({"Do": uu(work)}) as backend:
        await unary(backend.channel, "Do")(b"")
        await backend.outcome()

    # Three times 0.02 s, or what the machine made of it, and what gRPC's own tasks take, which is
    # far less than a third of that: once more one of them.
    assert len(burnt) == 3
    assert 0.06 <= sum(burnt) <= backend.ledger.costs[0] < 4 / 3 * sum(burnt)


async def test_cheap_methods_are_metered_now_and_then_and_others_always() -> None:
    metered: list[bool] = []

    async def note(request: bytes, context: Any) -> bytes:
        metered.append(current_meter.get() is not None)
        ends_at = time.thread_time() + float(request)
        while time.thread_time() < ends_at:
            pass
        return b""

    async with served({"Do": uu(note)}) as backend:
        for _ in range(20):
            await unary(backend.channel, "Do")(b"0.002")
        assert all(metered)
        assert min(backend.ledger.costs) >= 0.002

        metered.clear()
        for _ in range(300):
            await unary(backend.channel, "Do")(b"0")
        # The mean forgets 0.002 s within 30 requests; then one in 1 to 15 is metered.
        assert 300 / 15 <= sum(metered) <= 200


class UnpausedClock:
    """A clock on which a pause of the machine, between two looks at it, takes a millisecond."""

    def __init__(self) -> None:
        self._now = self._read_at = time.monotonic()

    def __call__(self) -> float:
        read_at = time.monotonic()
        self._now += min(0.001, read_at - self._read_at)
        self._read_at = read_at
        return self._now


async def test_a_burst_is_admitted_before_its_first_request_has_ended() -> None:
    waiting: list[int] = []

    async def burn(request: bytes, context: Any) -> bytes:
        waiting.append(backend.runtime.gate.waiting)
        ends_at = time.thread_time() + 0.02
        while time.thread_time() < ends_at:
            pass
        return b""

    async with served({"Do": uu(burn)}) as backend:
        # Patient, because other processes may keep gRPC's threads from the CPU.
        backend.runtime.gate = StartGate(idle_seconds=0.1, clock=UnpausedClock())
        # Of a criticality that is not refused for a burst.
        plus = (("evenly-criticality", "CRITICAL_PLUS"),)
        calls = [unary(backend.channel, "Do")(b"", metadata=plus) for _ in range(12)]
        await asyncio.gather(*calls)
        await backend.ended(12)

    # Without the gate none ever waits: gRPC reads one only when the one before has been served.
    assert max(waiting) >= 6


async def test_a_request_that_waits_for_its_turn_may_run_out_of_time() -> None:
    async with served({"Do": uu(echo)}) as backend:
        backend.runtime.gate = StartGate(idle_seconds=1.0)
        for _ in range(50):
            # So much work was begun that the next request waits for 0.1 s: until the loop has
            # looked for as long.  One that gRPC does not read in time is not even admitted.
            backend.runtime.gate.left(0.1)
            await failure_or_none(unary(backend.channel, "Do")(b"", timeout=0.04))
            if Outcome.TIMEOUT in backend.ledger.outcomes:
                break
        async with asyncio.timeout(SOON):
            while backend.runtime.active:
                await asyncio.sleep(0.01)

        assert Outcome.TIMEOUT in backend.ledger.outcomes
        assert len(backend.ledger.outcomes) == len(backend.ledger.admitted)
        assert backend.runtime.snapshot().waiting == 0


async def failure_or_none(call: Any) -> Any:
    with contextlib.suppress(grpc.aio.AioRpcError):
        return await call
