"""Every way in which a request ends, over every transport and in the simulator: one table.

A row says what the caller sees, how each attempt ended that was begun, and how many requests the
backends saw.  Afterwards nothing is active, nothing waits, and each attempt has finished once.
What a transport cannot do is said in `TRANSPORTS`, and where its callers see something else in
`DIFFERENCES`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from evenly.core.balancing.health import State
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.core.request import Outcome
from tests.suites.requests import (
    over_grpc,
    over_grpc_sync,
    over_http,
    over_lines,
    simulated,
)
from tests.suites.requests.script import Act, What
from tests.suites.requests.world import UNTHROTTLED, Sent, Setup, World


class Can(enum.Enum):
    """What a row needs, and not every transport has."""

    PATIENCE = "a request may wait for a backend: wait-for-ready"
    CANCEL = "a caller can give up"
    CLOSE = "a client can be closed while requests are under way"
    STREAM = "there are requests that cannot be sent again"
    DISCOVERY = "the first list of backends may come late"


@dataclass(frozen=True)
class Transport:
    """A transport, and why it lacks what it lacks."""

    world: Callable[[Setup], Any]
    lacks: Mapping[Can, str] = field(default_factory=dict)


_BLOCKS = {Can.CANCEL: "nobody can cancel a call that blocks"}
TRANSPORTS = {
    "http": Transport(over_http.World, {Can.PATIENCE: "HTTP has no wait-for-ready"}),
    "grpc": Transport(over_grpc.World),
    "grpc-unary-stream": Transport(partial(over_grpc.World, kind="unary_stream")),
    "grpc-stream-unary": Transport(partial(over_grpc.World, kind="stream_unary")),
    "grpc-stream-stream": Transport(partial(over_grpc.World, kind="stream_stream")),
    "grpc-sync": Transport(over_grpc_sync.World),
    "grpc-sync-blocking": Transport(over_grpc_sync.BlockingWorld, _BLOCKS),
    "grpc-sync-streams": Transport(
        partial(over_grpc_sync.BlockingWorld, kind="stream_stream"), _BLOCKS
    ),
    "lines": Transport(over_lines.World, {Can.STREAM: "a request is one line, and is kept"}),
    "simulator": Transport(
        simulated.World,
        {
            Can.CANCEL: "its callers wait until the deadline",
            Can.CLOSE: "its client tasks retire, and let end what is under way",
            Can.STREAM: "its requests have no bodies",
            Can.DISCOVERY: "its client tasks are told at their start",
        },
    ),
}

Story = Callable[[World], Awaitable[list[Sent]]]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """One row."""

    story: Story
    ends: tuple[What, ...]
    """What the callers see."""
    finished: tuple[Outcome, ...] = ()
    """How the attempts ended, in that order."""
    seen: int = 0
    """How many requests the backends have read."""
    is_tried: bool = False
    """Whether there may be any number of attempts before that could not be sent."""
    setup: Setup = field(default_factory=Setup)
    needs: frozenset[Can] = frozenset()


# Stories.


def one(*acts: Act, **options: Any) -> Story:
    """Send a request; the backends do these to what arrives, one after the other, and then OK."""

    async def story(world: World) -> list[Sent]:
        world.script.next += acts
        return [world.send(**options)]

    return story


async def elsewhere(world: World) -> list[Sent]:
    sent = await one(Act.OVERLOADED)(world)
    await world.answered(*sent)
    assert len(set(world.script.addresses)) == 2
    assert world.counts.begun == [1, 2]
    return sent


async def everywhere(world: World) -> list[Sent]:
    world.script.then = Act.OVERLOADED
    sent = [world.send()]
    await world.answered(*sent)
    assert len(set(world.script.addresses)) == 3
    assert world.counts.begun == [1, 2, 3]
    return sent


async def failure_stands(world: World) -> list[Sent]:
    """While it is served its backend leaves the list, and who is listed instead never answers."""
    world.script.next = [Act.HOLD]
    sent = world.send(is_idempotent=True)
    await world.until(lambda: world.script.seen == 1)
    world.say(world.mute)
    await world.until(lambda: world.mute in world.known())
    world.script.release(Act.DIE)
    return [sent]


async def moves_on(world: World) -> list[Sent]:
    """Its connection does not come to stand, and another does."""
    world.say(world.mute)
    await world.until(lambda: world.mute in world.known())
    sent = world.send()
    await world.until(lambda: world.active == 1)
    world.say(world.mute, *world.addresses)
    return [sent]


async def nobody_listens(world: World) -> list[Sent]:
    for backend in world.backends:
        await backend.stop()
    # Begun together with the first connection, and not after that was refused.
    if world.requests.is_discovered:
        world.say(*world.addresses)
        return [world.send()]
    sent = world.send()
    await world.until(lambda: world.requests.parked == 1)
    world.say(*world.addresses)
    return [sent]


def held(*, then: str = "", **options: Any) -> Story:
    """Have a request held by its backend, after it was answered once, and then do something."""

    async def story(world: World) -> list[Sent]:
        world.script.next = [Act.HOLD]
        sent = world.send(**options)
        await world.until(lambda: world.script.seen == 1)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        await world.answered(sent)
        world.script.release()  # An answer that comes late is nobody's.
        if then != "close":
            await world.settled()
            await world.answered(world.send())
        return [sent]

    return story


def connecting(*, then: str = "", **options: Any) -> Story:
    async def story(world: World) -> list[Sent]:
        world.say(world.mute)
        await world.until(lambda: world.mute in world.known())
        sent = world.send(**options)
        if then:
            await world.until(lambda: world.active == 1)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        return [sent]

    return story


def asking(*, then: str = "", **options: Any) -> Story:
    async def story(world: World) -> list[Sent]:
        sent = world.send(**options)
        if then:
            await world.until(lambda: world.counts.asks)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        await world.answered(sent)
        assert world.counts.asks == 1
        return [sent]

    return story


def undiscovered(*, then: str = "", **options: Any) -> Story:
    """Nobody has said yet which backends there are."""

    async def story(world: World) -> list[Sent]:
        sent = [world.send(str(number), **options) for number in range(3)]
        if then:
            await world.until(lambda: world.requests.parked == 3)
        if then == "cancel":
            for call in sent:
                call.cancel()
        elif then == "close":
            await world.close()
        elif then == "say":
            world.say(*world.addresses)
        return sent

    return story


async def no_backend(world: World) -> list[Sent]:
    world.say()
    await world.until(lambda: world.requests.is_discovered)
    return [world.send()]


def waits(*, then: str = "", **options: Any) -> Story:
    """Be patient where there is no backend."""

    async def story(world: World) -> list[Sent]:
        world.say()
        await world.until(lambda: world.requests.is_discovered)
        sent = world.send(is_patient=True, **options)
        if then:
            await world.until(lambda: world.requests.parked == 1)
        if then == "cancel":
            sent.cancel()
        elif then == "close":
            await world.close()
        elif then == "say":
            world.say(*world.addresses)
        return [sent]

    return story


async def port_opens_late(world: World) -> list[Sent]:
    (backend,) = world.backends
    await backend.stop()
    world.say(backend.address)
    await world.until(lambda: world.known().get(backend.address) is State.REFUSING)
    sent = world.send(is_patient=True)
    await world.until(lambda: world.requests.parked == 1)
    await backend.start()
    return [sent]


async def impatient_overtakes_nobody(world: World) -> list[Sent]:
    """It fails at once, and does not wait behind a patient one."""
    (patient,) = await waits(then="park")(world)
    impatient = world.send()
    await world.answered(impatient)
    assert patient.what is None
    world.say(*world.addresses)
    return [patient, impatient]


async def at_limit(world: World) -> list[Sent]:
    world.script.next = [Act.HOLD]
    first = world.send()
    await world.until(lambda: world.script.seen == 1)
    second = world.send()
    await world.answered(second)
    world.script.release()
    return [first, second]


async def in_order(world: World) -> list[Sent]:
    world.script.next = [Act.HOLD]
    sent = [world.send("first")]
    await world.until(lambda: world.script.seen == 1)
    for number in range(5):
        sent.append(world.send(str(number), is_patient=True))
        await world.until(lambda number=number: world.requests.parked == number + 1)
    world.script.release()
    await world.answered(*sent)
    assert world.script.names == ["first", "0", "1", "2", "3", "4"]
    return sent


async def throttled(world: World) -> list[Sent]:
    """Whose every request is refused soon refuses them itself."""
    world.script.then = Act.DONT_RETRY
    for _ in range(1000):
        before = world.script.seen, len(world.counts.begun)
        sent = world.send()
        (what,) = await world.answered(sent)
        if what is What.THROTTLED:
            assert (world.script.seen, len(world.counts.begun)) == before
            world.counts.finished.clear()
            world.counts.begun.clear()
            world.script.arrivals.clear()
            return [sent]
    raise AssertionError


# The table.

_OK, _LOST, _NOT_SENT = Outcome.OK, Outcome.LOST, Outcome.NOT_SENT
_OVERLOADED, _TIMEOUT, _CANCELLED = Outcome.OVERLOADED, Outcome.TIMEOUT, Outcome.CANCELLED
SOON = 0.05
# Not before the request has left, also on a machine that pauses.
LATER = 0.3

TWO = Setup(backends=2)
LATE = Setup(is_listed=False)
MUTE = Setup(is_listed=False, has_mute=True)
ASKS = Setup(backends=2, asks=True, task=replace(UNTHROTTLED, ask_seconds=10.0))
ONE_AT_A_TIME = Setup(task=replace(UNTHROTTLED, active_limit=1))
ONCE = Setup(backends=2, task=replace(UNTHROTTLED, retry=RetryConfig(attempts=1)))
NO_BUDGET = Setup(
    backends=2,
    task=replace(UNTHROTTLED, retry=RetryConfig(initial_balance=0.0, budget_ratio=0.0)),
)
PATIENCE, CANCEL = frozenset({Can.PATIENCE}), frozenset({Can.CANCEL})
CLOSE, DISCOVERY = frozenset({Can.CLOSE}), frozenset({Can.DISCOVERY})
STREAM = frozenset({Can.STREAM})

ENDINGS = {
    # Answered at once.
    "ok": Ending(story=one(), ends=(What.OK,), finished=(_OK,), seen=1),
    "error": Ending(
        setup=TWO,
        story=one(Act.ERROR, is_idempotent=True),
        ends=(What.ERROR,),
        finished=(Outcome.ERROR,),
        seen=1,
    ),
    "do not retry": Ending(
        setup=TWO,
        story=one(Act.DONT_RETRY, is_idempotent=True),
        ends=(What.DONT_RETRY,),
        finished=(Outcome.DONT_RETRY,),
        seen=1,
    ),
    "out of quota": Ending(
        setup=TWO,
        story=one(Act.OUT_OF_QUOTA, is_idempotent=True),
        ends=(What.OUT_OF_QUOTA,),
        finished=(Outcome.OUT_OF_QUOTA,),
        seen=1,
    ),
    # Tried again, or not.
    "overloaded: elsewhere": Ending(
        setup=TWO, story=elsewhere, ends=(What.OK,), finished=(_OVERLOADED, _OK), seen=2
    ),
    "overloaded everywhere": Ending(
        setup=Setup(backends=4),
        story=everywhere,
        ends=(What.OVERLOADED,),
        finished=(_OVERLOADED,) * 3,
        seen=3,
    ),
    "overloaded, and no budget": Ending(
        setup=NO_BUDGET,
        story=one(Act.OVERLOADED),
        ends=(What.OVERLOADED,),
        finished=(_OVERLOADED,),
        seen=1,
    ),
    "overloaded, and one attempt allowed": Ending(
        setup=ONCE,
        story=one(Act.OVERLOADED),
        ends=(What.OVERLOADED,),
        finished=(_OVERLOADED,),
        seen=1,
    ),
    "overloaded, and nobody else: there once more": Ending(
        story=one(Act.OVERLOADED), ends=(What.OK,), finished=(_OVERLOADED, _OK), seen=2
    ),
    "overloaded, then an error": Ending(
        setup=TWO,
        story=one(Act.OVERLOADED, Act.ERROR, is_idempotent=True),
        ends=(What.ERROR,),
        finished=(_OVERLOADED, Outcome.ERROR),
        seen=2,
    ),
    "lost, then overloaded: at the third": Ending(
        setup=Setup(backends=3),
        story=one(Act.DIE, Act.OVERLOADED, is_idempotent=True),
        ends=(What.OK,),
        finished=(_LOST, _OVERLOADED, _OK),
        seen=3,
    ),
    "overloaded, and cannot be sent again": Ending(
        setup=TWO,
        needs=STREAM,
        story=one(Act.OVERLOADED, is_stream=True),
        ends=(What.OVERLOADED,),
        finished=(_OVERLOADED,),
        seen=1,
    ),
    "lost, idempotent: elsewhere": Ending(
        setup=TWO,
        story=one(Act.DIE, is_idempotent=True),
        ends=(What.OK,),
        finished=(_LOST, _OK),
        seen=2,
    ),
    "lost, not idempotent": Ending(
        setup=TWO, story=one(Act.DIE), ends=(What.LOST,), finished=(_LOST,), seen=1
    ),
    "lost, and nobody else: the failure stands": Ending(
        setup=Setup(has_mute=True, connect_seconds=0.1),
        story=failure_stands,
        ends=(What.LOST,),
        finished=(_LOST, _NOT_SENT),
        seen=1,
    ),
    # Not sent.
    "no connection in time: elsewhere": Ending(
        setup=MUTE, story=moves_on, ends=(What.OK,), finished=(_NOT_SENT, _OK), seen=1
    ),
    "connection refused: elsewhere": Ending(
        setup=replace(MUTE, connect_seconds=0.1, patience_seconds=3600.0),
        story=moves_on,
        ends=(What.OK,),
        finished=(_NOT_SENT, _OK),
        seen=1,
    ),
    "nobody listens": Ending(
        setup=LATE, story=nobody_listens, ends=(What.NO_CONNECTION,), finished=(_NOT_SENT,)
    ),
    "asks, and nobody answers": Ending(
        setup=replace(ASKS, task=replace(UNTHROTTLED, ask_seconds=0.02)),
        story=asking(),
        ends=(What.OK,),
        finished=(_OK,),
        seen=1,
    ),
    "no backend": Ending(setup=LATE, story=no_backend, ends=(What.NO_BACKEND,)),
    "at the limit": Ending(
        setup=ONE_AT_A_TIME,
        story=at_limit,
        ends=(What.OK, What.AT_LIMIT),
        finished=(_OK,),
        seen=1,
    ),
    "throttled": Ending(
        setup=Setup(task=ClientTaskConfig()), story=throttled, ends=(What.THROTTLED,)
    ),
    # Out of time.
    "expired before it began": Ending(story=one(seconds=0.0), ends=(What.TIMEOUT,)),
    "expired while asking": Ending(setup=ASKS, story=asking(seconds=SOON), ends=(What.TIMEOUT,)),
    "expired while undiscovered": Ending(
        setup=LATE,
        needs=DISCOVERY,
        story=undiscovered(seconds=SOON),
        ends=(What.TIMEOUT,) * 3,
    ),
    "expired while it waits for a backend": Ending(
        setup=LATE, needs=PATIENCE, story=waits(seconds=SOON), ends=(What.TIMEOUT,)
    ),
    "expired while connecting": Ending(
        setup=MUTE, story=connecting(seconds=SOON), ends=(What.TIMEOUT,), finished=(_NOT_SENT,)
    ),
    "expired after it was sent": Ending(
        story=held(seconds=LATER), ends=(What.TIMEOUT,), finished=(_TIMEOUT, _OK), seen=2
    ),
    # Given up.
    "cancelled while asking": Ending(
        setup=ASKS, needs=CANCEL, story=asking(then="cancel"), ends=(What.CANCELLED,)
    ),
    "cancelled while undiscovered": Ending(
        setup=LATE,
        needs=CANCEL | DISCOVERY,
        story=undiscovered(then="cancel"),
        ends=(What.CANCELLED,) * 3,
    ),
    "cancelled while it waits for a backend": Ending(
        setup=LATE,
        needs=CANCEL | PATIENCE,
        story=waits(then="cancel"),
        ends=(What.CANCELLED,),
    ),
    "cancelled while connecting": Ending(
        setup=MUTE,
        needs=CANCEL,
        story=connecting(then="cancel"),
        ends=(What.CANCELLED,),
        finished=(_CANCELLED,),
    ),
    "cancelled after it was sent": Ending(
        needs=CANCEL,
        story=held(then="cancel"),
        ends=(What.CANCELLED,),
        finished=(_CANCELLED, _OK),
        seen=2,
    ),
    # Waiting for a backend.
    "discovered late": Ending(
        setup=LATE,
        needs=DISCOVERY,
        story=undiscovered(then="say"),
        ends=(What.OK,) * 3,
        finished=(_OK,) * 3,
        seen=3,
    ),
    "never discovered": Ending(
        setup=replace(LATE, discovery_seconds=0.05),
        needs=DISCOVERY,
        story=undiscovered(),
        ends=(What.NO_BACKEND,) * 3,
    ),
    "patient: a backend is listed late": Ending(
        setup=LATE,
        needs=PATIENCE,
        story=waits(then="say"),
        ends=(What.OK,),
        finished=(_OK,),
        seen=1,
    ),
    "patient: a port opens late": Ending(
        setup=LATE,
        needs=PATIENCE,
        story=port_opens_late,
        is_tried=True,
        ends=(What.OK,),
        finished=(_OK,),
        seen=1,
    ),
    "patient: in order": Ending(
        setup=ONE_AT_A_TIME,
        needs=PATIENCE,
        story=in_order,
        ends=(What.OK,) * 6,
        finished=(_OK,) * 6,
        seen=6,
    ),
    "impatient, behind a patient one": Ending(
        setup=LATE,
        needs=PATIENCE,
        story=impatient_overtakes_nobody,
        ends=(What.OK, What.NO_BACKEND),
        finished=(_OK,),
        seen=1,
    ),
    # The client is closed.
    "closed while undiscovered": Ending(
        setup=LATE,
        needs=CLOSE | DISCOVERY,
        story=undiscovered(then="close"),
        ends=(What.NO_BACKEND,) * 3,
    ),
    "closed while it waits for a backend": Ending(
        setup=LATE,
        needs=CLOSE | PATIENCE,
        story=waits(then="close"),
        ends=(What.NO_BACKEND,),
    ),
    "closed while asking": Ending(
        setup=ASKS, needs=CLOSE, story=asking(then="close"), ends=(What.NO_BACKEND,)
    ),
    "closed while connecting": Ending(
        setup=MUTE,
        needs=CLOSE,
        story=connecting(then="close"),
        ends=(What.NO_CONNECTION,),
        finished=(_NOT_SENT,),
    ),
    "closed while connecting, patient": Ending(
        setup=MUTE,
        needs=CLOSE | PATIENCE,
        story=connecting(then="close", is_patient=True),
        ends=(What.NO_CONNECTION,),
        finished=(_NOT_SENT,),
    ),
    "closed after it was sent": Ending(
        needs=CLOSE,
        story=held(then="close", is_idempotent=True),
        ends=(What.LOST,),
        finished=(_LOST,),
        seen=1,
    ),
}

# As gRPC's own channels do: closing one cancels its calls.
_CANCELS = tuple(transport for transport in TRANSPORTS if transport.startswith("grpc"))
DIFFERENCES: dict[tuple[str, str], dict[str, Any]] = {
    (transport, row): {
        "ends": tuple(What.CANCELLED for _ in ending.ends),
        "finished": tuple(_CANCELLED for _ in ending.finished),
    }
    for transport in _CANCELS
    for row, ending in ENDINGS.items()
    if Can.CLOSE in ending.needs
}


def cells() -> list[Any]:
    """Return every row with every transport that can do it."""
    return [
        pytest.param(transport, row, id=f"{transport}-{row}")
        for transport in TRANSPORTS
        for row, ending in ENDINGS.items()
        if ending.needs.isdisjoint(TRANSPORTS[transport].lacks)
    ]


@pytest.mark.parametrize(("transport", "row"), cells())
async def test_a_request_ends(transport: str, row: str) -> None:
    ending = replace(ENDINGS[row], **DIFFERENCES.get((transport, row), {}))
    async with TRANSPORTS[transport].world(ending.setup) as world:
        sent = await ending.story(world)

        assert await world.answered(*sent) == list(ending.ends)
        await world.settled()
        finished = tuple(world.counts.finished)
        if ending.is_tried:
            finished = tuple(outcome for outcome in finished if outcome is not _NOT_SENT)
        assert finished == ending.finished
        assert len(world.counts.begun) == len(world.counts.finished)
        assert world.script.seen == ending.seen
