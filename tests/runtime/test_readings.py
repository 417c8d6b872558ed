from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.runtime.readings import Readings

NEWS_SECONDS = 0.001


class Backend:
    """Requests that wait, and what is recorded of them; without a loop, and so without a lag."""

    def __init__(self, handler_seconds: float) -> None:
        self.waiting = 0
        self.active = 1
        self.handler_seconds = handler_seconds
        self.recorded: list[float] = []
        self.readings = Readings(
            signals=frozenset({"runnable"}),
            record=lambda _, value: self.recorded.append(value),
            record_process=lambda _: None,
            waiting=lambda: self.waiting,
            active=lambda: self.active,
            ended=lambda: 0,
            handler_seconds=lambda: self.handler_seconds,
            rng=random.Random(0),
        )

    def arrive(self) -> None:
        self.active += 1
        self.readings.record_waiting(arriving=1)
        self.waiting += 1

    def begin(self) -> None:
        self.waiting -= 1
        self.readings.record_waiting()


@pytest.mark.parametrize(
    ("handler_seconds", "records"),
    [
        pytest.param(0.0, 40, id="of unknown cost: each"),
        pytest.param(0.005, 40, id="5 ms: each"),
        pytest.param(0.001, 40, id="1 ms: each"),
        # 4, 8, 12, 16, 20 and back 16, 12, 8, 4, and 0, which is none.
        pytest.param(0.00025, 10, id="0.25 ms: every fourth"),
        pytest.param(0.00001, 1, id="10 µs: when nobody waits any more"),
    ],
)
def test_a_queue_is_recorded_by_the_millisecond(handler_seconds: float, records: int) -> None:
    backend = Backend(handler_seconds)
    for _ in range(20):
        backend.arrive()
    for _ in range(20):
        backend.begin()

    assert len(backend.recorded) == records
    assert backend.recorded[-1] == 0.0


@given(
    handler_seconds=st.sampled_from([0.0, 0.00003, 0.0003, 0.002]),
    steps=st.lists(st.sampled_from("abbcir"), max_size=200),
)
def test_what_is_recorded_is_never_off_by_a_millisecond_of_work(
    handler_seconds: float, steps: list[str]
) -> None:
    backend = Backend(handler_seconds)
    for step in steps:
        if step == "a":
            for _ in range(3):
                backend.arrive()
        elif step == "b" and backend.waiting:
            backend.begin()
        elif step == "c" and backend.waiting:
            backend.waiting -= 1  # and was forgotten: nobody says so ...
            backend.readings.record_runnable()  # ... before somebody asks
        elif step == "i" and not backend.waiting:
            backend.active = 0
            backend.readings.record_runnable()
            backend.active = 1
        elif step == "r":
            backend.readings.record_runnable()

        known = backend.recorded[-1] if backend.recorded else 0.0
        assert abs(known - backend.waiting) * handler_seconds < NEWS_SECONDS
        assert handler_seconds or known == backend.waiting
        assert backend.waiting or known == 0.0


def test_what_counts_is_the_work_of_the_whole_request() -> None:
    backend = Backend(0.00001)
    backend.readings._loop_seconds = 0.0005  # An echo: the loop takes fifty times the handler's.
    for _ in range(4):
        backend.arrive()

    assert backend.recorded == [2.0, 4.0]


def test_what_waited_when_all_had_gone_is_no_base_to_compare_with() -> None:
    backend = Backend(0.0004)
    for _ in range(3):
        backend.arrive()
    assert backend.recorded == [3.0]
    backend.waiting = backend.active = 0  # all of them cancelled
    backend.readings.record_runnable()
    for _ in range(3):
        backend.arrive()

    assert backend.recorded == [3.0, 0.0, 3.0]
