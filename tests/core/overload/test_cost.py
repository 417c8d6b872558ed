from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, cast

import pytest

from evenly.core.overload.cost import CostConfig, CostKeeper
from evenly.errors import ConfigError


def begun(
    compute_units: float = 1.0, period_seconds: float = 1.0, serving_seconds: float = 8.0
) -> CostKeeper:
    """Return a keeper for requests that take long to serve, so that sums are exact."""
    keeper = CostKeeper(
        CostConfig(
            compute_units=compute_units,
            period_seconds=period_seconds,
            serving_seconds=serving_seconds,
        )
    )
    keeper.record_process(100.0, 0.0)  # Start-up used 100 s, which no request pays for.
    return keeper


def test_before_any_overhead_is_known_a_request_costs_what_its_handler_used() -> None:
    assert begun().settle(0.25) == 0.25


def test_cost_is_in_normalised_cpu_seconds() -> None:
    assert begun(compute_units=2.0).settle(0.25) == 0.5


def test_the_rest_of_a_period_is_spread_over_the_requests_of_the_next() -> None:
    keeper = begun(compute_units=2.0)
    for _ in range(4):
        keeper.settle(0.125)
    keeper.record_process(101.0, 1.0)  # 1.0 used, 4 · 0.125 in handlers: 0.5 / 4 a request

    assert [keeper.settle(0.25) for _ in range(4)] == [(0.25 + 0.125) * 2.0] * 4
    assert keeper.snapshot().pool_seconds == 0.0
    assert keeper.settle(0.25) == 0.5  # a fifth request: the pool is spent


def test_what_was_not_charged_is_made_up_in_the_next_period() -> None:
    keeper = begun()
    costs = [keeper.settle(0.0) for _ in range(4)]
    keeper.record_process(101.0, 1.0)  # 1.0 / 4 = 0.25 a request
    costs += [keeper.settle(0.0) for _ in range(2)]  # charges 0.5, leaves 0.5
    keeper.record_process(102.0, 2.0)  # (0.5 + 1.0) / 2 = 0.75 a request
    costs += [keeper.settle(0.0) for _ in range(2)]

    assert costs == [0.0] * 4 + [0.25] * 2 + [0.75] * 2
    assert sum(costs) == 2.0  # all that the process used


def test_all_of_the_process_is_attributed_over_time() -> None:
    keeper = begun()
    charged = 0.0
    process = 100.0
    requests = [10, 3, 40, 1, 25, 7, 12, 30, 2, 18]
    for second, count in enumerate(requests * 10, start=1):
        for _ in range(count):
            charged += keeper.settle(0.002)
        process += count * 0.003  # each costs another millisecond outside of its handler
        keeper.record_process(process, float(second))

    used = 1480 * 0.003
    assert process == pytest.approx(100.0 + used)
    assert charged + keeper.snapshot().pool_seconds == pytest.approx(used)
    # What is left is at most what two of the largest periods leave, 40 requests each.
    assert used - charged <= 2 * 40 * 0.001


def test_a_cheap_request_pays_for_what_it_takes_to_serve_it() -> None:
    keeper = begun(serving_seconds=0.001)
    process, cost = 100.0, 0.0
    for second in range(1, 4):
        for _ in range(1000):
            cost = keeper.settle(0.000006)
        process += 1000 * 0.000255
        keeper.record_process(process, float(second))

    assert cost == pytest.approx(0.000255)  # An echo over gRPC: a handler of 6 µs.
    assert keeper.snapshot().background_seconds == pytest.approx(0.0, abs=1e-9)


def test_background_work_is_charged_to_nobody_beyond_the_own_cost_of_requests() -> None:
    keeper = begun(serving_seconds=0.0009765625)
    costs = []
    for second in range(1, 61):
        costs.append(keeper.settle(0.005))
        # Half a core beside it, in a thread that no request knows of.
        keeper.record_process(100.0 + 0.505 * second, float(second))

    assert max(costs) == pytest.approx(2 * 0.005 + 0.0009765625)
    assert keeper.snapshot().background_seconds == pytest.approx(60 * 0.505 - sum(costs), abs=0.01)
    keeper.record_process(130.3, 61.0)  # The thread has ended ...
    costs = []
    for second in range(62, 65):
        costs.append(keeper.settle(0.005))
        keeper.record_process(130.3 + 0.005 * (second - 61), float(second))
    assert costs[1:] == pytest.approx([0.005, 0.005])  # ... and is not paid for afterwards.


def test_what_is_beyond_serving_is_shared_in_proportion_to_the_handlers() -> None:
    keeper = begun(serving_seconds=0.125)
    for handler in (0.5, 1.5, 0.0, 0.0):
        keeper.settle(handler)
    keeper.record_process(103.5, 1.0)  # 1.5 besides: 4 · 0.125 alike, and 1.0 for 2.0 of handlers

    assert keeper.snapshot().overhead_seconds == 0.125
    assert keeper.snapshot().overhead_ratio == 0.5
    costs = [keeper.settle(handler) for handler in (0.5, 1.5, 0.0, 0.0)]
    assert costs == [0.5 + 0.125 + 0.25, 1.5 + 0.125 + 0.75, 0.125, 0.125]
    assert keeper.snapshot().pool_seconds == 0.0


def test_without_a_share_for_serving_a_request_costs_twice_its_handler_at_most() -> None:
    keeper = begun(serving_seconds=0.0)
    keeper.settle(0.5)
    keeper.settle(0.0)
    keeper.record_process(104.0, 1.0)

    assert keeper.settle(0.0) == 0.0
    assert keeper.settle(0.5) == 1.0
    assert keeper.snapshot().background_seconds == 3.0


def test_a_quiet_night_is_not_charged_to_the_first_request_in_the_morning() -> None:
    keeper = begun()
    for hour in range(8):
        keeper.record_process(101.0 + hour, 3600.0 * (hour + 1))
    keeper.settle(0.01)
    keeper.record_process(108.03, 30_000.0)  # 0.03 used, 0.01 in the handler

    assert keeper.snapshot().background_seconds == pytest.approx(8.0)
    assert keeper.settle(0.01) == pytest.approx(0.01 + 0.02)


def test_a_request_that_ran_through_quiet_periods_takes_its_part_back() -> None:
    keeper = begun()
    keeper.record_process(101.0, 1.0)
    keeper.record_process(102.0, 2.0)
    assert keeper.snapshot().background_seconds == 2.0
    assert keeper.settle(2.75) == 2.75
    keeper.record_process(103.0, 3.0)  # 1 − 2.75: 1.75 of the idle seconds were its own

    assert keeper.snapshot().background_seconds == 0.25
    assert keeper.snapshot().pool_seconds == 0.0
    assert keeper.settle(0.5) == 0.5


def test_no_overhead_is_charged_while_handlers_are_ahead_of_the_process() -> None:
    keeper = begun()
    keeper.settle(3.0)
    keeper.record_process(101.0, 1.0)  # pool: −2

    assert keeper.settle(0.5) == 0.5
    keeper.record_process(104.5, 2.0)  # −2 + 3.5 − 0.5 = 1
    assert keeper.settle(0.5) == 1.5


def test_readings_within_a_period_wait_for_its_end() -> None:
    keeper = begun(period_seconds=2.0)
    keeper.settle(0.0)
    keeper.record_process(101.0, 1.9)
    assert keeper.snapshot().overhead_seconds == 0.0
    keeper.record_process(101.5, 2.0)

    assert keeper.snapshot().overhead_seconds == 1.5


def test_a_period_lasts_from_the_reading_that_began_it() -> None:
    keeper = begun()
    keeper.record_process(100.0, 1000.0)
    keeper.settle(0.0)
    keeper.record_process(101.0, 1000.9)

    assert keeper.snapshot().overhead_seconds == 0.0


def test_a_cpu_clock_that_stands_still_has_not_stepped_back() -> None:
    keeper = begun()
    keeper.settle(0.0)
    keeper.settle(0.5)
    keeper.record_process(100.0, 1.0)

    assert keeper.snapshot().ignored == 0
    assert keeper.snapshot().pool_seconds == -0.5  # the handler was charged before the process


def test_a_cpu_clock_that_steps_back_begins_again() -> None:
    keeper = begun()
    keeper.settle(0.5)
    keeper.record_process(50.0, 1.0)
    keeper.settle(0.5)
    keeper.record_process(51.0, 2.0)  # 1.0 since then, 0.5 in the handler

    assert keeper.snapshot().ignored == 1
    assert keeper.settle(0.0) == 0.5


def test_a_clock_that_steps_back_ends_the_period() -> None:
    keeper = begun()
    keeper.record_process(100.0, 1000.0)
    keeper.settle(0.0)
    keeper.record_process(101.0, 5.0)

    assert keeper.snapshot().overhead_seconds == 1.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.5])
def test_wrong_readings_are_ignored_and_counted(wrong: float) -> None:
    keeper = begun()
    keeper.settle(0.0)
    keeper.record_process(wrong, 1.0)
    keeper.record_process(101.0, 1.0)
    # It costs its overhead, and hides nothing.
    assert keeper.settle(wrong) == 1.0

    assert keeper.snapshot().ignored == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"compute_units": 0.0},
        {"compute_units": math.nan},
        {"period_seconds": 0.0},
        {"serving_seconds": -0.001},
        {"serving_seconds": math.inf},
        {"serving_seconds": math.nan},
    ],
)
def test_wrong_config(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CostConfig(**fields)


@pytest.mark.parametrize("wrong", [None, "0.5", b"1", [0.5], 1j, Decimal("0.5"), 10**400])
def test_a_handler_whose_cpu_is_not_a_number_costs_its_overhead_and_is_counted(
    wrong: object,
) -> None:
    keeper = begun()
    keeper.settle(0.0)
    keeper.record_process(101.0, 1.0)  # an overhead of 1.0 / 1

    assert keeper.settle(cast(float, wrong)) == 0.0 + 1.0  # A meter that mypy has not seen.
    assert keeper.snapshot().ignored == 1
    assert keeper.settle(0.25) == 0.25  # and the next is settled as ever


def test_requests_that_are_settled_together_cost_what_they_cost_one_by_one() -> None:
    together, alone = begun(2.0), begun(2.0)
    for keeper in (together, alone):
        keeper.settle(1.0)
        keeper.record_process(5.0, 1.0)  # An overhead of 4 seconds for the next one ...

    assert together.settle(0.75, 3) == pytest.approx(sum(alone.settle(0.25) for _ in range(3)))
    assert together.snapshot() == alone.snapshot()
    for keeper in (together, alone):
        keeper.record_process(11.75, 2.0)  # ... and then of 2 seconds for each of three.
    assert together.snapshot() == alone.snapshot()
    assert together.settle(0.5, 2) == pytest.approx(sum(alone.settle(0.25) for _ in range(2)))
    assert together.snapshot() == alone.snapshot()
