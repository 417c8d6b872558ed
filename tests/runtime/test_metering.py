from __future__ import annotations

import random

import pytest

from evenly.runtime.metering import Metering
from evenly.signals.cost_meter import CostMeter

CHEAP = 10_000  # nanoseconds, as meters count
DEAR = 600_000


def request(metering: Metering, nanoseconds: int) -> tuple[bool, float]:
    """Serve one request; return whether it was metered, and what it was put down at."""
    meter = metering.next()
    if meter is not None:
        meter.loop_nanoseconds = nanoseconds
    return meter is not None, metering.cpu_seconds(meter)


class Learned(list[float]):
    """What was measured, and what the others were put down at."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[tuple[int, float]] = []

    def measured(self, seconds: float, others: int, others_seconds: float) -> None:
        self.append(seconds)
        self.others.append((others, others_seconds))


def unheard(_seconds: float, _others: int, _others_seconds: float) -> None: ...


def uncharged(_: float) -> None:
    raise AssertionError("nothing was charged")


def test_what_is_charged_is_a_cost_and_not_work_of_this_process() -> None:
    measured = Learned()
    charged: list[float] = []
    metering = Metering(measured.measured, charged.append, is_always_on=False)
    meter = metering.next()
    assert meter is not None
    meter.loop_nanoseconds = CHEAP
    meter.charge(0.02)
    meter.charge(0.01)

    assert metering.cpu_seconds(meter) == pytest.approx(0.03001)
    assert list(measured) == [pytest.approx(0.00001)]
    assert charged == [pytest.approx(0.03)]
    assert metering.next() is not None  # It was dear.


def test_dear_requests_are_always_metered() -> None:
    learned = Learned()
    metering = Metering(learned.measured, uncharged, is_always_on=False)

    served = [request(metering, DEAR) for _ in range(50)]

    assert all(is_metered for is_metered, _ in served)
    assert [seconds for _, seconds in served] == [pytest.approx(0.0006)] * 50
    assert list(learned) == [pytest.approx(0.0006)] * 50


@pytest.mark.parametrize(
    ("nanoseconds", "metered"),
    [
        # Of 0 to 62 that follow a metered one, 31 on average are skipped: 4000 / 32 ± 4 · 6.4.
        pytest.param(CHEAP, pytest.approx(125, abs=26), id="cheap"),
        pytest.param(90_000, pytest.approx(125, abs=26), id="nearly 0.1 ms"),
        # Of 0 to 14, 7: 4000 / 8 ± 4 · 12.1.
        pytest.param(120_000, pytest.approx(500, abs=49), id="more than 0.1 ms"),
        pytest.param(480_000, pytest.approx(500, abs=49), id="nearly 0.5 ms"),
    ],
)
def test_cheap_requests_are_metered_now_and_then_and_put_down_at_the_mean(
    nanoseconds: int, metered: object
) -> None:
    learned = Learned()
    metering = Metering(
        learned.measured, uncharged, is_always_on=False, rng=random.Random("metering")
    )
    served = [request(metering, nanoseconds) for _ in range(4000)]
    metering.skips = 0
    request(metering, nanoseconds)

    assert len(learned) == metered
    assert sum(is_metered for is_metered, _ in served) == len(learned) - 1
    # Each of them is heard of once, with those before it at what they were put down at.
    put_down = [seconds for is_metered, seconds in served if not is_metered]
    told = [seconds for others, seconds in learned.others for _ in range(others)]
    assert sum(others for others, _ in learned.others) >= len(put_down)
    assert told[: len(put_down)] == put_down
    assert [seconds for _, seconds in served] == pytest.approx([nanoseconds * 1e-9] * 4000)


def test_a_method_that_becomes_dear_is_metered_always_again() -> None:
    metering = Metering(unheard, uncharged, is_always_on=False)
    for _ in range(100):
        request(metering, CHEAP)
    served = [request(metering, DEAR) for _ in range(100)]

    # At most 62 are skipped before the first is metered; that one is dear, and so are all after it.
    first = [is_metered for is_metered, _ in served].index(True)
    assert first <= 62
    assert all(is_metered for is_metered, _ in served[first:])


@pytest.mark.parametrize(
    ("usual", "dear", "metered"),
    [
        # 4000 / 32, and ten or so in a row while the mean is high.
        pytest.param(20_000, 990_000, pytest.approx(135, abs=36), id="even"),
        # 2 ms are forgotten after 139 that are metered: 10 in a row, 129 of 1032, 2958 / 32.
        pytest.param(20_000, 2_000_000, pytest.approx(231, abs=45), id="uneven for a while"),
        # 10 ms after 460: 25 in a row, 435 of 3480, 495 / 32.
        pytest.param(20_000, 10_000_000, pytest.approx(475, abs=55), id="uneven for long"),
        # 460 in a row, 3540 / 8.
        pytest.param(200_000, 10_000_000, pytest.approx(902, abs=50), id="dearer, and all"),
    ],
)
def test_one_that_is_dear_lets_more_of_the_cheap_ones_be_metered(
    usual: int, dear: int, metered: object
) -> None:
    learned = Learned()
    metering = Metering(
        learned.measured, uncharged, is_always_on=False, rng=random.Random("uneven")
    )
    request(metering, dear)
    for _ in range(4000):
        request(metering, usual)

    assert len(learned) == metered


def test_requests_that_overlap_are_counted_once() -> None:
    learned = Learned()
    metering = Metering(learned.measured, uncharged, is_always_on=False, rng=random.Random(1))
    meters = [metering.next() for _ in range(3)]  # all three, before any has ended
    for meter in meters:
        assert meter is not None
        meter.loop_nanoseconds = CHEAP
        metering.cpu_seconds(meter)
        assert [metering.next() for _ in range(5)] == [None] * 5

    assert [others for others, _ in learned.others] == [0, 5, 5]


def test_others_are_told_at_what_they_took_here_and_put_down_with_what_was_charged() -> None:
    learned = Learned()
    metering = Metering(learned.measured, lambda _: None, is_always_on=False)
    for _ in range(2):
        metering.skips = 0
        meter = metering.next()
        assert meter is not None
        meter.loop_nanoseconds = CHEAP
        meter.charge(0.00002)
        metering.cpu_seconds(meter)

    # The first is taken whole.
    assert metering.mean_seconds == pytest.approx(0.00003)
    assert learned.others[1][1] == pytest.approx(0.00001)


def test_streams_are_always_metered() -> None:
    metering = Metering(unheard, uncharged, is_always_on=True)

    assert all(request(metering, CHEAP)[0] for _ in range(50))


def test_each_request_has_a_meter_of_its_own() -> None:
    metering = Metering(unheard, uncharged, is_always_on=True)
    first, second = metering.next(), metering.next()

    assert isinstance(first, CostMeter)
    assert first is not second
