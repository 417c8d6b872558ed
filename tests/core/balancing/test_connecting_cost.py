"""What it costs when a whole subset refuses, or loses its connections: a step per backend."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable

import pytest

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.testing import ManualClock


class Driven:
    """A client task whose connections all end alike, driven as `ClientRuntime` drives one."""

    def __init__(self, count: int) -> None:
        self.clock = ManualClock()
        config = ClientTaskConfig(membership=MembershipConfig(subset_size=count))
        self.task = ClientTask(config, clock=self.clock, rng=random.Random(1))
        self.backends = [Backend(f"b{number}") for number in range(count)]
        self.task.update(self.backends)

    def until_all(self, event: ConnectionEvent) -> None:
        """Let time pass until this has happened to each."""
        left = {backend.address for backend in self.backends}
        opens = deque(self.task.take_connections().open)
        while left:
            while opens:
                backend = opens.popleft()
                left.discard(backend.address)
                self.tell(backend, event)
                opens.extend(self.task.take_connections().open)
            self.clock.advance(max(0.0, self.task.next_wake_at() - self.clock()))
            self.task.wake()
            opens.extend(self.task.take_connections().open)

    def tell(self, backend: Backend, event: ConnectionEvent) -> None:
        self.task.record_connection(backend, event)
        self.task.next_wake_at()


def refused_at_once(count: int) -> int:
    driven = Driven(count)
    return calls_of(lambda: driven.until_all(ConnectionEvent.REFUSED))


def lost_and_refused(count: int) -> int:
    driven = Driven(count)
    driven.until_all(ConnectionEvent.OPENED)
    driven.clock.advance(10.0)

    def lose() -> None:
        for backend in driven.backends:
            driven.tell(backend, ConnectionEvent.LOST)
            driven.task.take_connections()
        driven.until_all(ConnectionEvent.REFUSED)

    return calls_of(lose)


def calls_of(work: Callable[[], None]) -> int:
    """Return how many functions are called, Python's own too: unlike CPU time, always the same."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("story", [refused_at_once, lost_and_refused])
def test_four_times_the_backends_cost_four_times_the_work(story: Callable[[int], int]) -> None:
    # 4 for what is linear, and up to a quarter more for the logarithms of heaps (log2 of 4 more
    # steps in 7).  It was 15 when each refusal looked at every backend; 16 is quadratic.
    assert story(400) / story(100) < 5.0
