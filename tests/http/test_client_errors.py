"""What clients raise: each library's own errors, and ours."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import httpx
import pytest

import evenly
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Outcome, Reason, Rejection
from evenly.http.client.errors import (
    ConnectionLost,
    HttpError,
    NoBackendHttpError,
    OverloadedHttpError,
    Phase,
    QuotaExceededHttpError,
    RejectedHttpError,
    SessionErrors,
    StatusError,
    ThrottledHttpError,
    Timeout,
)
from evenly.http.client.httpx_errors import (
    NoBackendTransportError,
    ThrottledTransportError,
    TransportErrors,
)
from evenly.http.client.response import Response
from tests.http.raw_backend import (
    DONT_RETRY,
    OVERLOADED,
    QUOTA,
    Arrival,
    cut,
    hang,
    quick,
    reply,
    served,
    transported,
)


@pytest.mark.parametrize(
    ("reason", "session_kinds", "transport_kinds"),
    [
        (
            Reason.THROTTLED,
            (ThrottledHttpError, evenly.Throttled),
            (ThrottledTransportError, httpx.TransportError, evenly.Throttled),
        ),
        (
            Reason.NO_BACKEND,
            (NoBackendHttpError, evenly.NoBackend),
            (NoBackendTransportError, httpx.ConnectError, evenly.NoBackend),
        ),
        (
            Reason.AT_LIMIT,
            (NoBackendHttpError, evenly.NoBackend),
            (NoBackendTransportError, httpx.ConnectError, evenly.NoBackend),
        ),
        (Reason.EXPIRED, (Timeout, TimeoutError), (httpx.PoolTimeout,)),
    ],
)
@pytest.mark.parametrize("retryable", [True, False])
def test_what_is_refused_here_is_an_error_of_both_kinds(
    reason: Reason,
    session_kinds: tuple[Any, ...],
    transport_kinds: tuple[Any, ...],
    retryable: bool,
) -> None:
    rejection = Rejection(reason, retryable=retryable)
    ours = SessionErrors().refused_here(rejection, "the message")
    theirs = TransportErrors().refused_here(rejection, "the message")

    assert all(isinstance(ours, kind) for kind in (HttpError, *session_kinds))
    assert all(isinstance(theirs, kind) for kind in transport_kinds)
    assert str(ours) == str(theirs) == "the message"
    for error in (ours, theirs):
        if isinstance(error, evenly.RejectedError):
            assert error.retryable is retryable
            assert error.where == "local"


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.BACKEND, httpx.PoolTimeout),
        (Phase.CONNECT, httpx.ConnectTimeout),
        (Phase.WRITE, httpx.WriteTimeout),
        (Phase.READ, httpx.ReadTimeout),
    ],
)
def test_httpx_has_a_timeout_for_each_phase(phase: Phase, expected: type[Exception]) -> None:
    assert type(TransportErrors().timed_out(phase, "late")) is expected
    assert type(SessionErrors().timed_out(phase, "late")) is Timeout


def test_httpx_tells_a_broken_connection_from_what_is_no_http() -> None:
    errors = TransportErrors()

    assert (
        type(errors.lost("x", is_bad_response=True, phase=Phase.READ)) is httpx.RemoteProtocolError
    )
    assert type(errors.lost("x", is_bad_response=False, phase=Phase.READ)) is httpx.ReadError
    assert type(errors.lost("x", is_bad_response=False, phase=Phase.WRITE)) is httpx.WriteError


@pytest.mark.parametrize(
    ("header", "status", "kind", "retryable"),
    [
        (OVERLOADED, 503, evenly.Overloaded, True),
        (DONT_RETRY, 503, evenly.Overloaded, False),
        (QUOTA, 429, evenly.QuotaExceeded, False),
    ],
)
async def test_a_session_raises_what_a_backend_refuses_with_its_response(
    header: tuple[str, str], status: int, kind: type[evenly.RejectedError], retryable: bool
) -> None:
    async def refuse(arrival: Arrival) -> bytes:
        return reply(status, b'{"error": "no"}', header, ("retry-after", "7"))

    async with served(handler=refuse) as ([backend], session, _):
        with pytest.raises(kind) as caught:
            await session.post("/")

        error = caught.value
        assert isinstance(error, RejectedHttpError)
        assert error.retryable is retryable
        assert error.where == "remote"
        assert error.response is not None
        assert error.response.status == status
        assert error.response.json() == {"error": "no"}
        assert error.response.headers["retry-after"] == "7"
        assert backend.address in str(error)
        with pytest.raises(kind):
            async with session.stream("POST", "/streamed"):
                raise AssertionError


@pytest.mark.parametrize("status", [429, 503])
async def test_what_a_stranger_refuses_is_for_the_caller_to_read(status: int) -> None:
    async def refuse(arrival: Arrival) -> bytes:
        return reply(status, b"no", ("retry-after", "1"))

    async with served(handler=refuse) as ([_], session, _):
        response = await session.post("/")

        assert response.status == status
        with pytest.raises(StatusError, match=str(status)) as caught:
            response.raise_for_status()
        assert caught.value.response is response


async def test_a_client_that_throttles_itself_says_so_and_sends_nothing() -> None:
    async def refuse(arrival: Arrival) -> bytes:
        return reply(503, b"", DONT_RETRY)

    config = quick(task=ClientTaskConfig(throttle=ThrottleConfig(name="adaptive")))
    async with served(handler=refuse, config=config) as ([backend], session, counts):
        refusals: list[BaseException | Response] = []
        for _ in range(200):
            refusals += await asyncio.gather(session.get("/"), return_exceptions=True)
        here = [error for error in refusals if isinstance(error, ThrottledHttpError)]
        throttled = len(here)

        assert throttled > 0
        assert all("(local)" in str(error) for error in here)
        assert backend.requests == 200 - throttled
        assert counts.refused == [Reason.THROTTLED] * throttled


async def test_an_error_names_the_backend_and_what_it_waited_for() -> None:
    async with served() as ([backend], session, counts):
        await session.get("/")  # A connection is there: time is up for the response.
        backend.handler = hang
        with pytest.raises(Timeout, match=f"{backend.address}: .* waiting for the response"):
            await session.get("/", timeout_seconds=0.05)
        backend.handler = cut
        with pytest.raises(ConnectionLost, match=backend.address):
            await session.post("/")

        assert counts.finished == [Outcome.OK, Outcome.TIMEOUT, Outcome.LOST]


async def test_httpx_raises_its_own_and_knows_the_request() -> None:
    async with transported(handler=cut) as ([backend], transport, _):
        client = httpx.AsyncClient(transport=transport)
        with pytest.raises(httpx.ReadError) as caught:
            await client.post("http://search/there")
        assert caught.value.request.url.path == "/there"
        assert isinstance(caught.value.__cause__, Exception)

        async def nonsense(arrival: Arrival) -> bytes:
            return b"nonsense\r\n\r\n"

        backend.handler = nonsense
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("http://search/")
        await backend.stop()
        with pytest.raises(httpx.ConnectError) as refused:
            await client.post("http://search/")
        assert isinstance(refused.value, evenly.NoBackend)


def test_errors_can_cross_processes() -> None:
    for error in (
        ThrottledHttpError("m", retryable=True),
        OverloadedHttpError("m"),
        QuotaExceededHttpError("m"),
        Timeout("m"),
        ConnectionLost("m"),
        ThrottledTransportError("m", retryable=True),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert type(again) is type(error)
        assert str(again) == "m"
        assert getattr(again, "retryable", None) == getattr(error, "retryable", None)
