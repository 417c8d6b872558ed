"""Failures by kind: the same names over both transports, and a bounded number of them."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

import evenly
from evenly.core.criticality import Criticality
from evenly.http.client.errors import ConnectionLost, StatusError, Timeout
from evenly.http.client.response import Response
from evenly.lab.demo.failure_kinds import MOST_KINDS, Failures, kind_of, worded
from evenly.lab.demo.tally import Tally


def status(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


def answered(code: int) -> StatusError:
    return StatusError(f"{code}", object.__new__(Response))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (status(grpc.StatusCode.DEADLINE_EXCEEDED), "timeout"),
        (Timeout("late"), "timeout"),
        (TimeoutError("no free connection"), "timeout"),
        (status(grpc.StatusCode.UNAVAILABLE), "connection_lost"),
        (ConnectionLost("reset"), "connection_lost"),
        (ConnectionResetError("reset"), "connection_lost"),
        (status(grpc.StatusCode.INTERNAL), "error_answer"),
        (answered(500), "error_answer"),
        (status(grpc.StatusCode.CANCELLED), "cancelled"),
        (evenly.Throttled("throttled"), "Throttled"),
        (KeyError("x"), "KeyError"),
        (type("E" * 100, (Exception,), {})(), "E" * 40),
    ],
)
def test_a_failure_has_the_same_kind_over_both_transports(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_the_kinds_that_come_last_are_counted_together() -> None:
    failures = Failures()
    for number in range(2 * MOST_KINDS):
        failures.add(type(f"Error{number}", (Exception,), {})(), "CRITICAL")
    failures.add(type("Error0", (Exception,), {})(), "CRITICAL")

    assert len(failures.counts) == MOST_KINDS
    assert failures.counts["Error0"] == {"CRITICAL": 2}
    assert failures.counts["other"] == {"CRITICAL": MOST_KINDS + 1}


def test_a_client_counts_them_by_criticality() -> None:
    tally = Tally()
    for error in (TimeoutError(), TimeoutError(), ConnectionLost("reset"), evenly.NoBackend("-")):
        tally.begun(Criticality.CRITICAL, "shop")
        tally.ended(Criticality.CRITICAL, "shop", error, 0.1)

    shown = tally.shown()
    assert shown["failed"] == {"CRITICAL": 3}
    assert shown["failed_by"] == {"timeout": {"CRITICAL": 2}, "connection_lost": {"CRITICAL": 1}}


def test_words() -> None:
    assert worded({}) == ""
    assert worded({"timeout": 3, "connection_lost": 20, "error_answer": 0}) == (
        "20 connection lost, 3 timeout"
    )
