"""A backend of one core that serves 100 a second, if nothing else is said, folded every 10 ms.

    S = 100/s    n* = 1.25 · 1 + 4 = 5.25    hard bound = max(5.25 + 1.75, 0.15 · 100) = 15

Arrivals are counted when 10 ms are over; that and rounding are 1/2 %: hence the tolerances.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.cut_line import CutLine
from evenly.core.overload.runnable import Runnable

CRITICAL = Criticality.CRITICAL
FOLD_SECONDS = 0.01
TARGET = 5.25
HARD = 15.0

Arrivals = tuple[int, int, int, int]
"""In one fold: SHEDDABLE first."""
NOBODY: Arrivals = (0, 0, 0, 0)


@dataclass
class Station:
    """Be what a cut-line is told of: a queue, what ends, and what arrives."""

    cores: float = 1.0
    ended_per_fold: float = 1.0
    """Of all that are served at once, so that this is S / 100 however short the queue."""
    now: float = 1000.0
    ended: float = 0.0
    used_seconds: float = 0.0
    queue: Runnable = field(init=False)
    line: CutLine = field(init=False)

    def __post_init__(self) -> None:
        self.queue = Runnable(self.cores, 1.0, self.now)
        self.line = CutLine(self.queue, self.cores, self.now)

    def fold(self, arrivals: Arrivals = NOBODY, held_back: float = 0.0) -> float:
        """Let 10 ms pass in which so many arrive; return the cut-line."""
        for criticality, count in zip(Criticality, arrivals, strict=True):
            self.line.arrived[criticality] += count
            for _ in range(count if held_back else 0):
                self.line.hold_back(criticality, held_back)
        self.now += FOLD_SECONDS
        busy = min(1.0, self.queue.count / self.cores)
        self.ended += self.ended_per_fold * busy
        self.line.fold(self.ended, self.used_seconds, self.now)
        return self.line.value

    def live(
        self,
        *arrivals: Arrivals,
        queue: float = TARGET,
        seconds: float = 10.0,
        held_back: float = 0.0,
    ) -> float:
        """Let such arrivals come in turn for so long, with a queue of always the same length."""
        each = itertools.cycle(arrivals or (NOBODY,))
        for _ in range(round(seconds / FOLD_SECONDS)):
            self.queue.record(queue, self.now)
            self.fold(next(each), held_back)
        return self.line.value


# What is asked for, and what can be served


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        pytest.param([(0, 0, 1, 0), NOBODY], 0.0, id="50 a second: half of what can be served"),
        pytest.param([(2, 0, 0, 0)], 0.5, id="200: 1 - 100 / 200"),
        pytest.param([(2, 0, 1, 0), (2, 0, 0, 0)], 0.75, id="50 of CRITICAL leave 50 of 200"),
        pytest.param([(1, 2, 0, 0)], 1.5, id="half of SHEDDABLE_PLUS: 2 - 100 / 200"),
        pytest.param(
            [(1, 9, 1, 0), (1, 9, 0, 0), (1, 9, 1, 0)], 1.963, id="67 of CRITICAL, 33 of 900"
        ),
        pytest.param([(9, 9, 4, 0)], 2.75, id="a quarter of CRITICAL, whatever is below"),
        pytest.param([(5, 2, 1, 0), (5, 2, 0, 0)], 1.75, id="50 of CRITICAL, 50 of 200"),
        pytest.param([(1, 1, 1, 4)], 3.75, id="CRITICAL_PLUS alone is too much"),
    ],
)
def test_the_cut_is_the_level_above_which_demand_can_be_served(
    arrivals: Sequence[Arrivals], expected: float
) -> None:
    assert Station().live(*arrivals) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("queue", "wanted"),
    [
        pytest.param(5.25, 100.0, id="as long as it should be"),
        pytest.param(4.2, 112.0, id="a fifth shorter: 1 + 0.6 · 0.2"),
        pytest.param(1.0, 148.6, id="nobody waits: 1 + 0.6 · 4.25 / 5.25"),
        pytest.param(0.8, 150.0, id="fifth idle: never more than half as much again"),
        pytest.param(0.6, 175.0, id="busy for 0.6 of the time: 150 / (0.6 / 0.7)"),
        pytest.param(10.5, 80.0, id="twice as long: 1 - 0.2 · 1"),
        pytest.param(14.9, 70.0, id="longer: never less than 0.7 of it"),
        pytest.param(15.1, 49.7, id="beyond the hard bound: 1 - 0.5 · 15.1 / 15"),
        pytest.param(24.0, 20.0, id="far beyond it: 1 - 0.5 · 1.6"),
        pytest.param(30.0, 0.0, id="twice the bound: nothing"),
        pytest.param(1e9, 0.0, id="as many as can be recorded"),
    ],
)
def test_a_queue_that_is_short_lets_more_in_and_one_that_is_long_less(
    queue: float, wanted: float
) -> None:
    # Of 200 SHEDDABLE a second, those above the line are wanted.
    cut = Station().live((2, 0, 0, 0), queue=queue)

    assert cut == pytest.approx(1.0 - wanted / 200.0, abs=0.005)


# However long the queue: who is refused for it are those below CRITICAL_PLUS, as far as there are
# any.  From 1.4 of the hard bound on, it is no matter of the others any more.
@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        pytest.param(21.0, 3.0, id="1.4 of the bound"),
        pytest.param(36.0, 3.5, id="0.5 · 36 / 15 - 0.7"),
        pytest.param(51.0, 4.0, id="3.4 times the bound: everything"),
        pytest.param(1e9, 4.0, id="beyond all bounds"),
    ],
)
def test_the_hard_bound_spares_critical_plus_up_to_a_length(queue: float, expected: float) -> None:
    station = Station()

    assert station.live((2, 0, 1, 1), (2, 0, 1, 0), queue=queue) == pytest.approx(expected)


def test_where_critical_plus_alone_is_too_much_part_of_it_is_refused_at_once() -> None:
    # 400 of it: 4 - 100 / 400 by demand, where the cap by the queue would still be 3.
    assert Station().live((0, 0, 0, 4), queue=20.0) == pytest.approx(3.75, abs=0.01)


def test_who_is_not_there_is_not_refused_for_a_queue() -> None:
    # Only SHEDDABLE comes: refusing it is all that helps.
    assert Station().live((2, 0, 0, 0), queue=1e6) == 1.0


@pytest.mark.parametrize(
    ("cores", "per_second", "target"),
    [
        pytest.param(1.0, 20_000.0, 101.25, id="50 µs: 1.25 + 0.005 · 20,000, 5 ms of work"),
        pytest.param(1.0, 1000.0, 6.25, id="1 ms: 1.25 + 5"),
        pytest.param(1.0, 100.0, 5.25, id="10 ms: 1.25 + four requests"),
        pytest.param(1.0, 40.0, 4.25, id="25 ms: 1.25 + 1 + 0.05 · 40"),
        pytest.param(1.0, 2.0, 2.35, id="500 ms: 1.25 + 1 + 0.05 · 2"),
        pytest.param(2.0, 4.0, 3.7, id="500 ms on two cores: 2.5 + 1 + 0.05 · 4"),
        pytest.param(32.0, 2000.0, 50.0, id="16 ms on 32 cores: 40 + 0.005 · 2,000"),
    ],
)
def test_the_queue_that_should_be_is_a_matter_of_time(
    cores: float, per_second: float, target: float
) -> None:
    station = Station(cores=cores, ended_per_fold=per_second * FOLD_SECONDS)
    station.live(queue=cores, seconds=1.0)

    assert station.line.served == pytest.approx(per_second)
    assert station.line.target() == pytest.approx(target)


# A queue of 100 is 5 ms of 50 µs: nothing; and a queue of ten is five seconds of 500 ms.
@pytest.mark.parametrize(
    ("per_second", "queue", "is_refused"),
    [
        pytest.param(20_000.0, 100.0, False, id="100 of 50 µs: 5 ms"),
        pytest.param(20_000.0, 3100.0, True, id="3,100 of 50 µs: 155 ms"),
        pytest.param(2.0, 2.0, False, id="one waits for one of 500 ms"),
        pytest.param(2.0, 10.0, True, id="nine wait for 4.5 s"),
    ],
)
def test_what_a_queue_means_depends_on_what_its_requests_cost(
    per_second: float, queue: float, is_refused: bool
) -> None:
    station = Station(ended_per_fold=per_second * FOLD_SECONDS)
    a_tenth_less = round(per_second * FOLD_SECONDS * 0.9)
    arrivals = (a_tenth_less, 0, 0, 0)
    if not a_tenth_less:  # Nine in five seconds, that is one in 0.55.
        slow: list[Arrivals] = [NOBODY] * 54
        station.live((1, 0, 0, 0), *slow, queue=queue, seconds=30.0)
    else:
        station.live(arrivals, queue=queue, seconds=5.0)

    assert (station.line.value > 0.0) is is_refused


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        pytest.param(0.0, 0.0, id="idle"),
        pytest.param(1.0, 0.0, id="nobody waits"),
        pytest.param(1.5, 0.025, id="(0.5 + 1 + 1) / 100"),
        pytest.param(11.0, 0.12, id="(10 + 1 + 1) / 100"),
    ],
)
def test_how_long_one_that_arrives_now_takes(queue: float, expected: float) -> None:
    station = Station()
    station.live(queue=1.0, seconds=1.0)
    station.live(queue=queue, seconds=0.02)

    assert station.line.wait_seconds == pytest.approx(expected)


# What can be served


def test_served_is_what_all_cores_would_if_they_were_busy() -> None:
    station = Station(cores=4.0, ended_per_fold=8.0)
    station.live(queue=1.0, seconds=1.0)  # One core of four is busy, and two end in each fold.

    assert station.line.served == pytest.approx(800.0)


def test_an_event_loop_that_is_seldom_seen_busy_tells_by_the_cpu_that_it_used() -> None:
    station = Station()
    for _ in range(100):
        station.queue.record(0.0, station.now)
        station.ended += 1.0
        station.used_seconds += 0.008
        station.fold()

    # Ended ÷ (0.8 · used) = 1 / 0.0064, a core's worth of which is served.
    assert station.line.served == pytest.approx(1 / 0.0064)


def test_a_backend_that_becomes_slower_is_known_to_be_within_seconds() -> None:
    station = Station()
    station.live(queue=1.0, seconds=10.0)
    station.ended_per_fold = 0.5
    station.live(queue=1.0, seconds=2.0)

    # 50 + 50 / e: the past counts for 2 s.
    assert station.line.served == pytest.approx(50 + 50 / math.e, rel=0.01)


def test_before_one_was_served_no_queue_is_evidence() -> None:
    station = Station(ended_per_fold=0.0)

    assert station.live((9, 9, 9, 9), queue=400.0) == 0.0
    assert station.line.wait_seconds == 0.0


def test_where_nothing_ends_any_more_in_the_end_everything_is_refused() -> None:
    station = Station()
    station.live((0, 0, 0, 1), queue=1.0)
    station.ended_per_fold = 0.0

    assert station.live((0, 0, 0, 1), queue=100.0) == pytest.approx(4.0, abs=0.01)


def test_an_unknown_queue_refuses_nothing() -> None:
    station = Station()
    for _ in range(100):
        station.ended += 1.0
        station.used_seconds += 0.01
        assert station.fold((9, 9, 9, 9)) == 0.0  # Nobody counts.
    station.live((9, 9, 9, 9), queue=100.0)
    assert station.line.value > 3.0
    assert station.line.wait_seconds > 0.0

    for _ in range(499):
        station.fold((9, 9, 9, 9))
    assert station.line.value > 3.0  # It has been known for 5 s.
    for _ in range(3):
        station.fold((9, 9, 9, 9))
    assert (station.line.value, station.line.wait_seconds) == (0.0, 0.0)


def test_cores_that_rest_while_something_is_refused_say_that_less_is_asked_for() -> None:
    slow = [NOBODY] * 9
    station = Station(ended_per_fold=0.02)  # 500 ms: two a second, of which ten are asked for.
    station.live((1, 0, 0, 0), *slow, queue=2.0, seconds=20.0)
    assert station.line.value > 0.7
    # 10 · exp(−1.4 / 5) = 7.6 would still be more than 3 / (0.3 / 0.7) = 7.
    station.live(queue=0.3, seconds=1.4)

    assert station.line.value == 0.0


def test_an_event_loop_that_is_seldom_seen_busy_does_not_rest() -> None:
    station = Station()
    for _ in range(1000):
        station.queue.record(0.0, station.now)
        station.ended += 1.0
        station.used_seconds += 0.01
        station.fold((4, 0, 0, 0))

    # 1 / (0.8 · 0.01) = 125 are served, half as much again is let in with an empty queue.
    assert station.line.value == pytest.approx(1.0 - 1.5 * 125.0 / 400.0, abs=0.01)


# Calm and onset


def run(load: float, *, cores: int, service_seconds: float, seconds: float, seed: int) -> float:
    """Let requests come by chance to a queue that serves them; return which part is refused."""
    rng = random.Random(seed)
    station = Station(cores=cores)
    busy_until = [station.now] * cores
    ends: list[float] = []
    per_fold = load * cores / service_seconds * FOLD_SECONDS
    refused = arrived = 0
    at = station.now
    warm_at = station.now + 5.0
    while station.now < warm_at + seconds:
        arrivals = [0, 0, 0, 0]
        while at < station.now + FOLD_SECONDS:
            at += rng.expovariate(per_fold / FOLD_SECONDS)
            level = rng.random() * 4.0
            arrivals[int(level)] += 1
            is_warm = at >= warm_at
            arrived += is_warm
            if level < station.line.value:
                refused += is_warm
                continue
            first = min(range(cores), key=lambda core: busy_until[core])
            busy_until[first] = max(at, busy_until[first]) + service_seconds
            ends.append(busy_until[first])
        station.now += FOLD_SECONDS
        station.ended += sum(end <= station.now for end in ends)
        ends = [end for end in ends if end > station.now]
        for criticality, count in zip(Criticality, arrivals, strict=True):
            station.line.arrived[criticality] += count
        station.queue.record(len(ends), station.now)
        station.line.fold(round(station.ended), 0.0, station.now)
    return refused / arrived


# By chance alone a queue is longer now and then: of one core that is used to 0.7, more than ten are
# in it one time in 200.  Who is refused for that may go elsewhere; here there is nowhere.
@pytest.mark.parametrize(("load", "most"), [(0.5, 0.004), (0.7, 0.01)])
@pytest.mark.parametrize(
    ("cores", "service_seconds"),
    [
        pytest.param(1, 0.002, id="1 core, 2 ms"),
        pytest.param(2, 0.015, id="2 cores, 15 ms"),
        pytest.param(2, 0.13, id="2 cores, 130 ms"),
        pytest.param(16, 0.05, id="16 cores, 50 ms"),
    ],
)
def test_in_calm_hardly_anything_is_refused(
    cores: int, service_seconds: float, load: float, most: float
) -> None:
    refused = [
        run(load, cores=cores, service_seconds=service_seconds, seconds=30.0, seed=seed)
        for seed in range(3)
    ]

    assert sum(refused) / 3 <= most


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", [1.5, 3.0, 10.0])
def test_beyond_capacity_what_is_too_much_is_refused(load: float, seed: int) -> None:
    refused = run(load, cores=2, service_seconds=0.015, seconds=20.0, seed=seed)

    assert 1.0 - refused == pytest.approx(1.0 / load, rel=0.05)


def test_after_an_overload_the_cut_falls_to_nothing_within_two_seconds() -> None:
    station = Station()
    station.live((2, 1, 1, 1), queue=12.0)  # five times what can be served
    assert station.line.value > 2.0

    # 500 / e² + 50 a second are less than 148.6.
    station.live((1, 0, 0, 0), NOBODY, queue=1.0, seconds=2.0)
    assert station.line.value == 0.0


# 50 a second for long, then 1,050: of an average over a second that is (50 + 1,050 t), which
# reaches what is let in with a short queue, 150, after 0.1 s.
def test_demand_that_rises_at_once_is_believed_at_once() -> None:
    station = Station()
    station.live((0, 0, 1, 0), NOBODY, queue=1.0)
    cuts: list[float] = []
    for _ in range(5):
        station.queue.record(2.0, station.now)
        cuts.append(station.fold((10, 0, 0, 0)))

    # In 0.05 s 2.5 + 10 have come where 2.5 + 0.5 were usual: 12.5 > 3 + 3 · √3 + 2.
    assert cuts[0] > 0.0
    assert min(cuts[1:]) > 0.5


@pytest.mark.parametrize(
    ("at_once", "is_refused"),
    [
        # 50 / s for long are 2.5 in 0.05 s.  With n more it is usual + 0.05 n, and 3 sigmas.
        pytest.param(5, False, id="7.5 where 2.75 are usual: within 2.75 + 3 · 1.66 + 2"),
        pytest.param(9, True, id="11.5 where 2.95 are usual: beyond 2.95 + 3 · 1.72 + 2"),
    ],
)
def test_what_chance_explains_is_no_onset(at_once: int, is_refused: bool) -> None:
    station = Station()
    station.live((0, 0, 1, 0), NOBODY, queue=TARGET)
    station.queue.record(TARGET, station.now)

    assert (station.fold((at_once, 0, 0, 0)) > 0.0) is is_refused


def test_few_requests_at_once_after_a_long_silence_refuse_nothing_where_they_cost_little() -> None:
    station = Station(ended_per_fold=20.0)  # 0.5 ms each
    station.live((0, 0, 20, 0), queue=1.0)
    for _ in range(60):
        station.queue.record(0.0, station.now)
        station.now += 1.0
        station.line.fold(round(station.ended), 0.0, station.now)
    station.queue.record(30.0, station.now)

    # 30 in 10 ms are 15 ms of work.
    assert station.fold((0, 0, 30, 0)) == 0.0


# What clients hold back


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(2.0, 2.0, id="all of CRITICAL is sent: 100 of 100"),
        pytest.param(2.5, 2.5, id="half of it: 200 are asked for"),
        pytest.param(2.75, 2.75, id="a quarter: 400"),
        pytest.param(2.85, 2.85, id="0.15 of it: 667"),
        pytest.param(2.95, 2.45, id="hardly any of it: what comes says little"),
        pytest.param(3.5, 3.0, id="none of it: they asked before they came"),
    ],
)
def test_who_comes_stands_for_those_that_its_client_holds_back(
    line: float, expected: float
) -> None:
    # It falls no further than half a criticality below the line of those who come.
    assert Station().live((0, 0, 1, 0), held_back=line) == pytest.approx(expected, abs=0.01)


def test_nobody_stands_for_more_than_ten() -> None:
    station = Station()
    for fold in range(1000):  # Every other client has heard a line, and the average is 1.475.
        station.queue.record(TARGET, station.now)
        station.fold((0, 0, 1, 0), held_back=2.95 if fold % 2 else 0.0)

    # 50 + 10 · 50 are asked for: 3 - 100 / 550.
    assert station.line.value == pytest.approx(3.0 - 100.0 / 550.0, abs=0.01)


def test_a_criticality_that_is_held_back_is_remembered_and_forgotten() -> None:
    station = Station()
    assert station.live((1, 1, 1, 0)) == pytest.approx(2.0, abs=0.01)
    station.live((0, 0, 1, 0), held_back=2.0, seconds=1.0)
    # The average of the line is 2 · (1 − exp(−t / 0.1)): after 0.3 s, 1.9, it is known that all of
    # SHEDDABLE_PLUS is held back; before, that less comes.  Since then it is forgotten in 5 s.
    station.live((0, 0, 1, 0), queue=4.2, held_back=2.0, seconds=0.2)
    remembered = 100.5 * math.exp(-0.3) * math.exp(-0.9 / 5.0)
    # With a queue of 4.2, 112 are wanted: 100.5 of CRITICAL and 11.5 of these.
    assert station.line.value == pytest.approx(2.0 - 11.5 / remembered, abs=0.02)

    station.live((0, 0, 1, 0), queue=4.2, held_back=2.0, seconds=30.0)
    assert station.line.value == pytest.approx(1.5, abs=0.01)  # 2 - 0.5: it sinks by steps


def test_what_is_held_back_follows_what_is_seen() -> None:
    station = Station()
    station.live((1, 1, 2, 0), queue=TARGET)
    assert station.line.value == pytest.approx(2.5, abs=0.01)
    station.live((0, 0, 2, 0), held_back=2.0, seconds=1.0)
    demand = list(station.line._demand)
    station.live((0, 0, 4, 0), held_back=2.0, seconds=1.0)

    # CRITICAL rises from 200 to 200 + 200 · (1 - 1/e), and what is hidden in the same ratio, but
    # for what is forgotten in a second.
    grown = 1.0 + (1.0 - 1.0 / math.e)
    expected = [1.0, 1.0, grown]
    expected[0] = expected[1] = grown * math.exp(-1.0 / 5.0)
    after = station.line._demand
    assert [after[i] / demand[i] for i in range(3)] == pytest.approx(expected, rel=0.02)


def test_who_comes_though_it_is_held_back_is_counted() -> None:
    # 50 of CRITICAL, and 200 of SHEDDABLE_PLUS who asked before they came: 2 - 50 / 200.
    cut = Station().live((0, 2, 1, 0), (0, 2, 0, 0), held_back=2.0, seconds=40.0)

    assert cut == pytest.approx(1.75, abs=0.01)


def test_a_line_that_is_no_longer_told_is_believed_for_a_tenth_of_a_second() -> None:
    station = Station()
    station.live((5, 5, 5, 0), queue=12.0, held_back=2.0)
    station.live((0, 0, 1, 0), held_back=2.0, queue=1.0)
    assert station.line.value == pytest.approx(1.5, abs=0.01)
    # The line is 2 · exp(−t / 0.1), and the cut half below it.
    station.live((0, 0, 1, 0), queue=1.0, seconds=0.1)
    assert station.line.value == pytest.approx(2.0 / math.e - 0.5, abs=0.02)
    station.live((0, 0, 1, 0), queue=1.0, seconds=0.1)

    assert station.line.value == 0.0


def test_reading_a_burst_is_no_evidence_of_what_its_requests_take() -> None:
    # Idle, then 400 at once.  One request has passed in the 10 ms in which they are read, and took
    # 0.1 ms: S is 100, by which they are 4 s of work, and by the CPU they are 40 ms.
    station = Station()
    station.live(NOBODY, queue=0.0, seconds=5.0)
    station.queue.record(400.0, station.now)
    station.ended += 1.0
    station.used_seconds += 0.0001
    assert station.fold((400, 0, 0, 0)) == 0.0

    # Had it taken 10 ms of CPU, they would be too many.
    other = Station()
    other.live(NOBODY, queue=0.0, seconds=5.0)
    other.queue.record(400.0, other.now)
    other.ended += 1.0
    other.used_seconds += 0.01
    assert other.fold((400, 0, 0, 0)) > 0.0


def test_a_line_of_others_refuses_nothing_where_there_is_room() -> None:
    station = Station()
    station.live((0, 0, 1, 0), held_back=2.0, queue=1.0)

    assert station.line.value == 0.0


# All who had a right to come have stopped, and the others hear that they would be refused.
def test_where_nobody_comes_any_more_the_cut_falls() -> None:
    station = Station()
    station.live((5, 5, 5, 1), queue=12.0, held_back=2.5)
    assert station.line.value > 2.0
    station.live(NOBODY, queue=0.0, seconds=10.0)

    assert station.line.value == 0.0


def test_few_that_come_tell_their_line_as_fast_as_many() -> None:
    station = Station(ended_per_fold=0.1)
    few: list[Arrivals] = [NOBODY] * 49
    station.live((0, 0, 1, 0), *few, queue=1.0, held_back=2.0, seconds=5.0)
    # Two a second, each half a second after the one before: 1 − exp(−0.5 / 0.1) is nearly all.
    station.live((0, 0, 1, 0), *few, queue=1.0, held_back=1.0, seconds=0.5)

    assert station.line._line == pytest.approx(1.0, abs=0.02)


# Odd clocks, long silences


def test_a_clock_that_steps_back_does_not_freeze_the_cut() -> None:
    station = Station()
    station.live((5, 5, 5, 0), queue=12.0)
    assert station.line.value > 2.0
    station.now -= 3600.0
    station.live((1, 0, 0, 0), NOBODY, queue=1.0, seconds=10.0)

    assert station.line.value == 0.0
    assert station.line.served == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize("seconds", [1e-18, 1e-13, 1e-6, 60.0, 745.0, 1e6, 1e12])
@pytest.mark.parametrize("arrived", [0, 1])
def test_any_time_may_pass_between_two_folds(seconds: float, arrived: int) -> None:
    station = Station()
    station.live((5, 5, 5, 1), queue=12.0, held_back=2.5)
    for _ in range(2):
        station.now += seconds
        station.queue.record(1.0, station.now)
        station.line.arrived[CRITICAL] += arrived
        if arrived:
            station.line.hold_back(CRITICAL, 2.5)
        station.line.fold(round(station.ended) + 1, 0.0, station.now)
        assert 0.0 <= station.line.value <= 4.0
        assert all(0.0 <= demand <= 1e6 for demand in station.line._demand)

    first = Station(now=0.0)
    first.line.arrived[CRITICAL] += arrived
    first.line.fold(0, 0.0, seconds)
    assert first.line.value == 0.0


def test_to_fold_twice_at_one_instant_changes_nothing() -> None:
    station = Station()
    station.live((5, 5, 5, 0), queue=12.0)
    before = station.line.value, station.line.served, station.line.wait_seconds
    station.line.arrived[CRITICAL] += 1000
    station.line.fold(round(station.ended), 0.0, station.now)

    assert (station.line.value, station.line.served, station.line.wait_seconds) == before
    assert station.line.arrived[CRITICAL] == 1000  # They count when time has passed.


def test_requests_that_cost_next_to_nothing_leave_everything_finite() -> None:
    station = Station()
    station.queue.record(0.0, station.now)
    for _ in range(3):
        station.ended += 1e6
        station.used_seconds += 5e-324
        station.fold((9, 9, 9, 9))

    assert 0.0 <= station.line.value <= 4.0
    assert station.line.served <= 1e12
    assert station.line.target() <= 1e12
