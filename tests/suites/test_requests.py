"""Every way in which a request ends, over every transport and in the simulator: one table.

A row says what the caller sees, how each attempt ended that was begun, and how many requests the
backends saw.  Afterwards nothing is active, nothing waits, and each attempt has finished once.
What a transport cannot do is said in `TRANSPORTS`, and where its callers see something else in
`DIFFERENCES`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

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
from tests.suites.requests.stories import (
    Story,
    asking,
    at_limit,
    connecting,
    elsewhere,
    everywhere,
    failure_stands,
    held,
    impatient_overtakes_nobody,
    in_order,
    moves_on,
    no_backend,
    nobody_listens,
    one,
    port_opens_late,
    throttled,
    undiscovered,
    waits,
)
from tests.suites.requests.world import UNTHROTTLED, Setup


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


_NO_PATIENCE = {Can.PATIENCE: "HTTP has no wait-for-ready"}
_BLOCKS = {Can.CANCEL: "nobody can cancel a call that blocks"}
TRANSPORTS = {
    "http": Transport(over_http.World, _NO_PATIENCE),
    "httpx": Transport(over_http.HttpxWorld, _NO_PATIENCE),
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


@dataclass(frozen=True)
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


_OK, _LOST, _NOT_SENT = Outcome.OK, Outcome.LOST, Outcome.NOT_SENT
_OVERLOADED, _TIMEOUT, _CANCELLED = Outcome.OVERLOADED, Outcome.TIMEOUT, Outcome.CANCELLED
SOON = 0.1
# Not before the request has left; see `held`.
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
    "ok": Ending(one(), (What.OK,), (_OK,), 1),
    "error": Ending(
        one(Act.ERROR, is_idempotent=True), (What.ERROR,), (Outcome.ERROR,), 1, setup=TWO
    ),
    "do not retry": Ending(
        one(Act.DONT_RETRY, is_idempotent=True),
        (What.DONT_RETRY,),
        (Outcome.DONT_RETRY,),
        1,
        setup=TWO,
    ),
    "out of quota": Ending(
        one(Act.OUT_OF_QUOTA, is_idempotent=True),
        (What.OUT_OF_QUOTA,),
        (Outcome.OUT_OF_QUOTA,),
        1,
        setup=TWO,
    ),
    # Tried again, or not.
    "overloaded: elsewhere": Ending(elsewhere, (What.OK,), (_OVERLOADED, _OK), 2, setup=TWO),
    "overloaded everywhere": Ending(
        everywhere, (What.OVERLOADED,), (_OVERLOADED,) * 3, 3, setup=Setup(backends=4)
    ),
    "overloaded, and no budget": Ending(
        one(Act.OVERLOADED), (What.OVERLOADED,), (_OVERLOADED,), 1, setup=NO_BUDGET
    ),
    "overloaded, and one attempt allowed": Ending(
        one(Act.OVERLOADED), (What.OVERLOADED,), (_OVERLOADED,), 1, setup=ONCE
    ),
    "overloaded, and nobody else: there once more": Ending(
        one(Act.OVERLOADED), (What.OK,), (_OVERLOADED, _OK), 2
    ),
    "overloaded, then an error": Ending(
        one(Act.OVERLOADED, Act.ERROR, is_idempotent=True),
        (What.ERROR,),
        (_OVERLOADED, Outcome.ERROR),
        2,
        setup=TWO,
    ),
    "lost, then overloaded: at the third": Ending(
        one(Act.DIE, Act.OVERLOADED, is_idempotent=True),
        (What.OK,),
        (_LOST, _OVERLOADED, _OK),
        3,
        setup=Setup(backends=3),
    ),
    "overloaded, and cannot be sent again": Ending(
        one(Act.OVERLOADED, is_stream=True),
        (What.OVERLOADED,),
        (_OVERLOADED,),
        1,
        setup=TWO,
        needs=STREAM,
    ),
    "lost, idempotent: elsewhere": Ending(
        one(Act.DIE, is_idempotent=True), (What.OK,), (_LOST, _OK), 2, setup=TWO
    ),
    "lost, not idempotent": Ending(one(Act.DIE), (What.LOST,), (_LOST,), 1, setup=TWO),
    "lost, and nobody else: the failure stands": Ending(
        failure_stands,
        (What.LOST,),
        (_LOST, _NOT_SENT),
        1,
        setup=Setup(has_mute=True, connect_seconds=0.1),
    ),
    # Not sent.
    "no connection in time: elsewhere": Ending(
        moves_on, (What.OK,), (_NOT_SENT, _OK), 1, setup=MUTE
    ),
    "connection refused: elsewhere": Ending(
        moves_on,
        (What.OK,),
        (_NOT_SENT, _OK),
        1,
        setup=replace(MUTE, connect_seconds=0.3, patience_seconds=3600.0),
    ),
    "nobody listens": Ending(nobody_listens, (What.NO_CONNECTION,), (_NOT_SENT,), setup=LATE),
    "asks, and nobody answers": Ending(
        asking(),
        (What.OK,),
        (_OK,),
        1,
        setup=replace(ASKS, task=replace(UNTHROTTLED, ask_seconds=0.02)),
    ),
    "no backend": Ending(no_backend, (What.NO_BACKEND,), setup=LATE),
    "at the limit": Ending(at_limit, (What.OK, What.AT_LIMIT), (_OK,), 1, setup=ONE_AT_A_TIME),
    "throttled": Ending(throttled, (What.THROTTLED,), setup=Setup(task=ClientTaskConfig())),
    # Out of time.
    "expired before it began": Ending(one(seconds=0.0), (What.TIMEOUT,)),
    "expired while asking": Ending(asking(seconds=SOON), (What.TIMEOUT,), setup=ASKS),
    "expired while undiscovered": Ending(
        undiscovered(seconds=SOON), (What.TIMEOUT,) * 3, setup=LATE, needs=DISCOVERY
    ),
    "expired while it waits for a backend": Ending(
        waits(seconds=SOON), (What.TIMEOUT,), setup=LATE, needs=PATIENCE
    ),
    "expired while connecting": Ending(
        connecting(seconds=SOON), (What.TIMEOUT,), (_NOT_SENT,), setup=MUTE
    ),
    "expired after it was sent": Ending(held(seconds=LATER), (What.TIMEOUT,), (_TIMEOUT, _OK), 2),
    # Given up.
    "cancelled while asking": Ending(
        asking(then="cancel"), (What.CANCELLED,), setup=ASKS, needs=CANCEL
    ),
    "cancelled while undiscovered": Ending(
        undiscovered(then="cancel"), (What.CANCELLED,) * 3, setup=LATE, needs=CANCEL | DISCOVERY
    ),
    "cancelled while it waits for a backend": Ending(
        waits(then="cancel"), (What.CANCELLED,), setup=LATE, needs=CANCEL | PATIENCE
    ),
    "cancelled while connecting": Ending(
        connecting(then="cancel"), (What.CANCELLED,), (_CANCELLED,), setup=MUTE, needs=CANCEL
    ),
    "cancelled after it was sent": Ending(
        held(then="cancel"), (What.CANCELLED,), (_CANCELLED, _OK), 2, needs=CANCEL
    ),
    # Waiting for a backend.
    "discovered late": Ending(
        undiscovered(then="say"), (What.OK,) * 3, (_OK,) * 3, 3, setup=LATE, needs=DISCOVERY
    ),
    "never discovered": Ending(
        undiscovered(),
        (What.NO_BACKEND,) * 3,
        setup=replace(LATE, discovery_seconds=0.05),
        needs=DISCOVERY,
    ),
    "patient: a backend is listed late": Ending(
        waits(then="say"), (What.OK,), (_OK,), 1, setup=LATE, needs=PATIENCE
    ),
    "patient: a port opens late": Ending(
        port_opens_late, (What.OK,), (_OK,), 1, setup=LATE, needs=PATIENCE, is_tried=True
    ),
    "patient: in order": Ending(
        in_order, (What.OK,) * 6, (_OK,) * 6, 6, setup=ONE_AT_A_TIME, needs=PATIENCE
    ),
    "impatient, behind a patient one": Ending(
        impatient_overtakes_nobody,
        (What.OK, What.NO_BACKEND),
        (_OK,),
        1,
        setup=LATE,
        needs=PATIENCE,
    ),
    # The client is closed.
    "closed while undiscovered": Ending(
        undiscovered(then="close"), (What.NO_BACKEND,) * 3, setup=LATE, needs=CLOSE | DISCOVERY
    ),
    "closed while it waits for a backend": Ending(
        waits(then="close"), (What.NO_BACKEND,), setup=LATE, needs=CLOSE | PATIENCE
    ),
    "closed while asking": Ending(
        asking(then="close"), (What.NO_BACKEND,), setup=ASKS, needs=CLOSE
    ),
    "closed while connecting": Ending(
        connecting(then="close"), (What.NO_CONNECTION,), (_NOT_SENT,), setup=MUTE, needs=CLOSE
    ),
    "closed while connecting, patient": Ending(
        connecting(then="close", is_patient=True),
        (What.NO_CONNECTION,),
        (_NOT_SENT,),
        setup=MUTE,
        needs=CLOSE | PATIENCE,
    ),
    "closed after it was sent": Ending(
        held(then="close", is_idempotent=True), (What.LOST,), (_LOST,), 1, needs=CLOSE
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
