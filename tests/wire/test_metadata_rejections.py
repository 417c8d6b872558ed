from __future__ import annotations

import math

import pytest

from evenly.core.request import Outcome, Reason, Rejection
from evenly.errors import UsageError
from evenly.wire.metadata import parse_reject, rejection_to_grpc, rejection_to_http

OVERLOADED = Rejection(Reason.OVERLOADED, retryable=True)
DONT_RETRY = Rejection(Reason.DONT_RETRY, retryable=False)
QUOTA = Rejection(Reason.OUT_OF_QUOTA, retryable=False, retry_after_seconds=1.25)
PUSHBACK = ("grpc-retry-pushback-ms", "-1")
LIMITED = ("x-envoy-ratelimited", "true")


@pytest.mark.parametrize(
    ("rejection", "grpc", "http"),
    [
        pytest.param(
            OVERLOADED,
            (("evenly-reject", "overloaded"),),
            (("evenly-reject", "overloaded"),),
            id="overloaded",
        ),
        pytest.param(
            DONT_RETRY,
            (("evenly-reject", "dont-retry"), PUSHBACK),
            (("evenly-reject", "dont-retry"), LIMITED),
            id="do not retry",
        ),
        pytest.param(
            QUOTA,
            (("evenly-reject", "quota"), PUSHBACK),
            (("evenly-reject", "quota"), LIMITED, ("retry-after", "2")),
            id="out of quota",
        ),
        pytest.param(Rejection(Reason.EXPIRED, retryable=False), (), (), id="expired"),
    ],
)
def test_a_rejection_says_what_it_is(
    rejection: Rejection, grpc: tuple[object, ...], http: tuple[object, ...]
) -> None:
    assert rejection_to_grpc(rejection) == grpc
    assert rejection_to_http(rejection) == http


@pytest.mark.parametrize("rejection", [OVERLOADED, DONT_RETRY, QUOTA])
def test_what_a_rejection_says_is_how_the_attempt_ends(rejection: Rejection) -> None:
    value = dict(rejection_to_grpc(rejection))["evenly-reject"]

    assert parse_reject(value) is parse_reject(value.encode()) is rejection.outcome


@pytest.mark.parametrize(
    "value",
    [None, "", "Overloaded", "overloaded ", "quota" + "\0" * 1000, b"\xff", 1, ["quota"], Outcome],
)
def test_an_unknown_rejection_says_nothing(value: object) -> None:
    assert parse_reject(value) is None


@pytest.mark.parametrize("reason", [Reason.THROTTLED, Reason.NO_BACKEND, Reason.AT_LIMIT])
def test_what_a_client_task_refuses_itself_is_never_sent(reason: Reason) -> None:
    rejection = Rejection(reason, retryable=False)

    with pytest.raises(UsageError, match=reason.name):
        rejection_to_grpc(rejection)
    with pytest.raises(UsageError, match=reason.name):
        rejection_to_http(rejection)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(None, None, id="unknown"),
        pytest.param(0.0, "1", id="now is still a second"),
        pytest.param(-math.inf, "1", id="long ago"),
        pytest.param(3.0, "3", id="whole seconds"),
        pytest.param(3.001, "4", id="rounded up"),
        pytest.param(1e300, "86400", id="a day at most"),
        pytest.param(math.inf, "86400", id="never"),
        pytest.param(math.nan, "86400", id="nobody knows"),
    ],
)
def test_retry_after_is_in_whole_seconds(seconds: float | None, expected: str | None) -> None:
    rejection = Rejection(Reason.OUT_OF_QUOTA, retryable=False, retry_after_seconds=seconds)

    assert dict(rejection_to_http(rejection)).get("retry-after") == expected


def test_only_quota_says_when_to_come_back() -> None:
    rejection = Rejection(Reason.DONT_RETRY, retryable=False, retry_after_seconds=3.0)

    assert "retry-after" not in dict(rejection_to_http(rejection))
