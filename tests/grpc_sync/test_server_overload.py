"""A threaded server that is sent more than it can do sheds the least critical first."""

from __future__ import annotations

import threading
from collections import Counter

import grpc
import pytest

import evenly
import evenly.grpc.sync
from evenly.grpc.sync.server.interpreter import InterpreterClock
from evenly.testing import ManualClock
from tests.grpc_sync.backends import LONG_SECONDS, Anything, method, wait_until
from tests.grpc_sync.process import Process

SHEDDABLE = evenly.Criticality.SHEDDABLE
CRITICAL = evenly.Criticality.CRITICAL
CRITICAL_PLUS = evenly.Criticality.CRITICAL_PLUS


def test_overload_by_cpu_bound_handlers_sheds_sheddable_before_critical_plus() -> None:
    """One interpreter, each request 10 ms: at most 100 requests a second can be served.

    24 clients that come back 20 ms after a refusal offer several times that.
    """
    clients = {SHEDDABLE: 20, CRITICAL: 2, CRITICAL_PLUS: 2}
    served: Counter[evenly.Criticality] = Counter()
    shed: Counter[evenly.Criticality] = Counter()
    others: list[grpc.RpcError] = []
    is_over = threading.Event()

    def call(channel: grpc.Channel, criticality: evenly.Criticality) -> None:
        burn = channel.unary_unary(method("Burn"))
        # gRPC's own channel, so that no client throttles itself.
        metadata = (("evenly-criticality", criticality.name),)
        while not is_over.wait(0.02):
            try:
                burn(b"0.01", metadata=metadata, timeout=LONG_SECONDS)
                served[criticality] += 1
            except grpc.RpcError as error:
                seen: Anything = error
                refused = dict(seen.trailing_metadata()).get("evenly-reject")
                if refused in ("overloaded", "dont-retry"):
                    shed[criticality] += 1
                else:
                    others.append(error)

    with (
        Process(max_workers=2).ready() as process,
        grpc.insecure_channel(process.address) as channel,
    ):
        callers = [
            threading.Thread(target=call, args=(channel, criticality))
            for criticality, number in clients.items()
            for _ in range(number)
        ]
        for caller in callers:
            caller.start()
        wait_until(lambda: served[CRITICAL_PLUS] >= 40, "forty of the most critical")
        is_over.set()
        for caller in callers:
            caller.join(LONG_SECONDS)

    assert others == []
    shares = {
        criticality: shed[criticality] / (shed[criticality] + served[criticality])
        for criticality in clients
    }
    assert shares[SHEDDABLE] > shares[CRITICAL_PLUS], (served, shed)
    assert shares[SHEDDABLE] > shares[CRITICAL], (served, shed)
    # What CRITICAL_PLUS asks for fits: two clients, of whom each waits for its answer.
    assert shares[CRITICAL_PLUS] < 0.1, (served, shed)


def test_an_interpreter_is_at_most_always_busy() -> None:
    clock, cpu = ManualClock(), ManualClock()
    busy = InterpreterClock(clock, cpu)
    first = busy()
    clock.advance(1.0)
    cpu.advance(0.3)
    assert busy() - first == pytest.approx(0.3)
    clock.advance(1.0)
    cpu.advance(1.8)  # Two cores: what is beyond one was done in libraries, without its lock.
    assert busy() - first == pytest.approx(0.3 + 1.0)
