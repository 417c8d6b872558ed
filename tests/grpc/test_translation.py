"""How a gRPC status ends an attempt, and what is raised for it."""

from __future__ import annotations

import asyncio
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest

import evenly
import evenly.grpc
from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.report import LoadReport
from evenly.core.request import Cause, Outcome, Reason, Rejection, Request
from evenly.grpc.client.errors import RejectedRpcError, refused_by_backend, refused_here
from evenly.grpc.common.translation import ERROR_CODES, local_status, outcome_of, outcome_of_lost
from evenly.grpc.sync.client.errors import Unsent
from evenly.wire.load_header import format_load
from tests.grpc.plain import UNARY_UNARY, Context, Counts, quick, served, settled

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (Code.OK, Outcome.OK),
        (Code.NOT_FOUND, Outcome.OK),
        (Code.INVALID_ARGUMENT, Outcome.OK),
        (Code.ABORTED, Outcome.OK),
        (Code.UNAUTHENTICATED, Outcome.OK),
        (Code.UNKNOWN, Outcome.ERROR),
        (Code.INTERNAL, Outcome.ERROR),
        (Code.DATA_LOSS, Outcome.ERROR),
        (Code.UNIMPLEMENTED, Outcome.ERROR),
        (Code.DEADLINE_EXCEEDED, Outcome.TIMEOUT),
    ],
    ids=lambda value: value.name,
)
@pytest.mark.parametrize("is_reported", [True, False])
def test_a_status_says_whether_the_backend_failed(
    code: grpc.StatusCode, outcome: Outcome, is_reported: bool
) -> None:
    assert outcome_of(code, None, is_reported=is_reported, is_cancelled=False) is outcome
    assert (outcome is Outcome.ERROR) == (code in ERROR_CODES)


@pytest.mark.parametrize(
    ("code", "unreported", "reported"),
    [
        pytest.param(Code.UNAVAILABLE, Outcome.LOST, Outcome.ERROR),
        pytest.param(Code.CANCELLED, Outcome.LOST, Outcome.OK),
        pytest.param(Code.RESOURCE_EXHAUSTED, Outcome.OK, Outcome.OK),
    ],
    ids=["UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED"],
)
def test_what_a_broken_connection_and_a_foreign_backend_say_is_told_from_an_answer(
    code: grpc.StatusCode, unreported: Outcome, reported: Outcome
) -> None:
    assert outcome_of(code, None, is_reported=False, is_cancelled=False) is unreported
    assert outcome_of(code, None, is_reported=True, is_cancelled=False) is reported


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ("overloaded", Outcome.OVERLOADED),
        (b"overloaded", Outcome.OVERLOADED),
        ("dont-retry", Outcome.DONT_RETRY),
        ("quota", Outcome.OUT_OF_QUOTA),
        ("anything else", Outcome.LOST),
        ("overloaded" * 1000, Outcome.LOST),
        (5, Outcome.LOST),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_refusal_is_what_the_backend_names_it(value: object, outcome: Outcome) -> None:
    found = outcome_of(Code.UNAVAILABLE, value, is_reported=False, is_cancelled=False)

    assert found is outcome


def test_what_this_side_gave_up_says_nothing_about_the_backend() -> None:
    for code in (Code.CANCELLED, Code.UNKNOWN):
        found = outcome_of(code, "overloaded", is_reported=False, is_cancelled=True)
        assert found is Outcome.CANCELLED


def test_an_answer_stays_one_whatever_its_trailers_say() -> None:
    found = outcome_of(Code.OK, "overloaded", is_reported=True, is_cancelled=False)

    assert found is Outcome.OK


async def test_a_message_that_is_too_large_is_no_refusal() -> None:
    """gRPC says RESOURCE_EXHAUSTED of it, as a foreign backend does when it refuses."""

    async def much(request: bytes, context: Context) -> bytes:
        return bytes(5_000_000)  # gRPC's limit is 4 MiB.

    counts = Counts()
    async with served(config=quick(), observer=counts) as ([backend], channel):
        backend.trailers = (("evenly-load", format_load(LoadReport(boot=1))),)
        await channel.unary_unary(UNARY_UNARY)(b"x")
        backend.unary_unary = much
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(UNARY_UNARY)(b"x")

        assert raised.value.code() is Code.RESOURCE_EXHAUSTED
        assert not isinstance(raised.value, evenly.RejectedError)
        assert counts.finished == [Outcome.OK, Outcome.OK]
        await settled(channel)


async def test_a_backend_that_gives_up_at_the_deadline_counts_as_timed_out() -> None:
    """Its clock may be the faster one: it says CANCELLED then, as one that is going away does."""

    def give_up(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(Code.CANCELLED, "")
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(give_up)
    handlers = grpc.method_handlers_generic_handler("test.Echo", {"UnaryUnary": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    counts = Counts()
    async with evenly.grpc.channel(
        f"static:127.0.0.1:{port}", config=quick(), observer=counts
    ) as channel:
        await channel.channel_ready()
        call = channel.unary_unary(UNARY_UNARY)(b"x", timeout=0.3)
        for _ in range(3):
            await asyncio.sleep(0)  # It is sent.
        time.sleep(0.4)  # The answer is there long before, and looked at after the deadline.
        with pytest.raises(grpc.aio.AioRpcError):
            await call

        assert counts.finished == [Outcome.TIMEOUT]
    server.stop(None).wait()


@pytest.mark.parametrize("is_reported", [True, False])
def test_only_a_pushback_makes_resource_exhausted_a_refusal(is_reported: bool) -> None:
    found = outcome_of(
        Code.RESOURCE_EXHAUSTED,
        None,
        is_reported=is_reported,
        is_cancelled=False,
        has_pushback=True,
    )

    assert found is (Outcome.OK if is_reported else Outcome.DONT_RETRY)


async def test_resource_exhausted_from_a_foreign_backend_is_an_answer() -> None:
    async def limit(request: bytes, context: Context) -> bytes:
        await context.abort(Code.RESOURCE_EXHAUSTED, "this user has had enough")
        return b""

    counts = Counts()
    async with served(config=quick(), observer=counts) as ([backend], channel):
        backend.unary_unary = limit
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(UNARY_UNARY)(b"x")

        assert not isinstance(raised.value, evenly.RejectedError)
        assert counts.finished == [Outcome.OK]
        assert channel.snapshot().throttle.rejection_probabilities == (0.0, 0.0, 0.0, 0.0)


async def test_resource_exhausted_with_a_pushback_from_a_foreign_backend_is_a_refusal() -> None:
    async def refuse(request: bytes, context: Context) -> bytes:
        pushback = (("grpc-retry-pushback-ms", "-1"),)
        await context.abort(Code.RESOURCE_EXHAUSTED, "too much", pushback)
        return b""

    async with served(2, config=quick()) as (backends, channel):
        for backend in backends:
            backend.unary_unary = refuse
        call = channel.unary_unary(UNARY_UNARY)(b"x")
        with pytest.raises(evenly.Overloaded) as raised:
            await call

        assert not raised.value.retryable
        assert call.attempts == 1


@pytest.mark.parametrize("cause", Cause)
def test_a_throttled_call_says_why(cause: Cause) -> None:
    rejection = Rejection(Reason.THROTTLED, retryable=False, cause=cause)
    _, details = local_status(rejection, Request(), "dns:///search.prod:50051")

    assert f"throttles itself, because {cause.value};" in details
    assert cause.value in str(Unsent.refused(rejection, Request(), "search").error())


@pytest.mark.parametrize(
    ("reason", "code", "kind"),
    [
        (Reason.THROTTLED, Code.RESOURCE_EXHAUSTED, evenly.Throttled),
        (Reason.NO_BACKEND, Code.UNAVAILABLE, evenly.NoBackend),
        (Reason.AT_LIMIT, Code.RESOURCE_EXHAUSTED, evenly.NoBackend),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.parametrize("is_retryable", [True, False])
def test_what_never_left_this_process_says_so(
    reason: Reason, code: grpc.StatusCode, kind: type[evenly.RejectedError], is_retryable: bool
) -> None:
    rejection = Rejection(reason, retryable=is_retryable)
    request = Request(criticality=Criticality.SHEDDABLE)
    status, details = local_status(rejection, request, "dns:///search.prod:50051")
    error = refused_here(rejection, status, details)

    assert isinstance(error, kind)
    assert isinstance(error, RejectedRpcError)
    assert error.code() is code
    assert (error.where, error.retryable) == ("local", is_retryable)
    for part in ("(local)", "dns:///search.prod:50051", "SHEDDABLE", reason.value):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own
    assert (type(again), str(again)) == (type(error), str(error))
    assert (again.where, again.retryable) == ("local", is_retryable)


def test_an_expired_request_is_grpc_s_own_error() -> None:
    rejection = Rejection(Reason.EXPIRED, retryable=False)
    error = refused_here(rejection, *local_status(rejection, Request(), "x"))

    assert error.code() is Code.DEADLINE_EXCEEDED
    assert not isinstance(error, evenly.RejectedError)


@pytest.mark.parametrize("outcome", list(Outcome), ids=lambda outcome: outcome.name)
def test_only_refusals_are_raised_as_ours(outcome: Outcome) -> None:
    error = grpc.aio.AioRpcError(Code.UNAVAILABLE, details="why")
    raised = refused_by_backend(error, outcome)

    if outcome.is_rejection:
        assert isinstance(raised, RejectedRpcError)
        assert (raised.code(), raised.details()) == (Code.UNAVAILABLE, "why")
        assert raised.where == "remote"
        assert raised.retryable == (outcome is Outcome.OVERLOADED)
    else:
        assert raised is error


_REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:50051: refused"


@pytest.mark.parametrize(
    ("now", "details", "is_ready", "expected"),
    [
        pytest.param(9.0, _REFUSED, False, Outcome.NOT_SENT, id="gRPC could not connect"),
        pytest.param(9.0, _REFUSED, True, Outcome.LOST, id="but the connection stands"),
        pytest.param(9.0, "Socket closed", False, Outcome.LOST, id="it broke"),
        pytest.param(10.0, "Socket closed", False, Outcome.TIMEOUT, id="at the deadline"),
    ],
)
def test_what_became_of_a_call_whose_backend_said_nothing(
    now: float, details: str, is_ready: bool, expected: Outcome
) -> None:
    task = ClientTask(ClientTaskConfig(), clock=lambda: 0.0, rng=random.Random(1))
    task.update([Backend("10.0.0.1:50051")])
    attempt = task.begin(Request(deadline_at=10.0))
    assert isinstance(attempt, Attempt)

    assert outcome_of_lost(attempt, details, now, is_ready=is_ready) is expected
