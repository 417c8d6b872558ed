from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.weights import WeightConfig, Weights
from evenly.core.report import LoadReport
from evenly.errors import ConfigError

START = 1_000.0
# Old enough for slow start and blackout to be over.
READY = START + 10.0
PLAIN = WeightConfig(blackout_seconds=0.0, slow_start_seconds=0.0, idle_utilization=0.0)


def new_view(
    *, qps: float = 0.0, utilization: float = 0.0, eps: float = 0.0, at: float = START
) -> BackendView:
    health = Health(HealthConfig(), now=START, rng=random.Random(0))
    view = BackendView(Backend("a:1"), health, error_decay_seconds=5.0, now=START)
    view.report = LoadReport(qps=qps, utilization=utilization, eps=eps)
    view.reported_at = at
    return view


def unheard() -> BackendView:
    view = new_view()
    view.report = None
    view.reported_at = -math.inf
    return view


@pytest.mark.parametrize(
    ("qps", "utilization", "eps", "penalty", "expected"),
    [
        pytest.param(100.0, 0.5, 0.0, 1.0, 200.0, id="100 / 0.5"),
        pytest.param(100.0, 0.5, 50.0, 1.0, 100.0, id="half fail: 100 / (0.5 + 0.5)"),
        pytest.param(100.0, 0.25, 100.0, 1.0, 80.0, id="all fail: 100 / (0.25 + 1)"),
        pytest.param(100.0, 0.25, 25.0, 3.0, 100.0, id="dear errors: 100 / (0.25 + 0.25 · 3)"),
        pytest.param(100.0, 0.5, 50.0, 0.0, 200.0, id="errors for free: 100 / 0.5"),
        pytest.param(100.0, 2.0, 0.0, 1.0, 50.0, id="beyond what it has: 100 / 2"),
    ],
)
def test_the_weight_of_a_first_report_is_that_of_grfc_a58(
    qps: float, utilization: float, eps: float, penalty: float, expected: float
) -> None:
    view = new_view(qps=qps, utilization=utilization, eps=eps)
    other = new_view(qps=40.0, utilization=1.0)
    Weights(replace(PLAIN, error_penalty=penalty)).refresh([view, other], READY)

    assert view.weight / other.weight == pytest.approx(expected / 40)


@pytest.mark.parametrize(
    ("qps", "utilization", "eps"),
    [
        pytest.param(0.0, 0.5, 0.0, id="no queries"),
        pytest.param(0.0, 0.5, 3.0, id="errors without queries"),
        pytest.param(100.0, 0.0, 0.0, id="no utilization"),
        pytest.param(100.0, 0.0009, 0.0, id="too little of it to divide by"),
    ],
)
def test_a_report_that_says_too_little_makes_no_weight(
    qps: float, utilization: float, eps: float
) -> None:
    view = new_view(qps=qps, utilization=utilization, eps=eps)
    slow = new_view(qps=100.0, utilization=1.0)
    fast = new_view(qps=300.0, utilization=1.0)
    Weights(PLAIN).refresh([view, slow, fast], READY)

    assert (view.weight, slow.weight, fast.weight) == (1.0, 0.5, 1.5)


# 100 requests per second each; the second says 4 times the utilization of the first, and so is
# worth 0.25 of it.  Their median is 0.625 of it, and what is believed of each is
# u² / (u² + 0.1²):  at 0.1 and 0.4: 1/2 and 16/17; at 0.01 and 0.04: 1/101 and 16/116.
@pytest.mark.parametrize(
    ("utilizations", "expected"),
    [
        pytest.param(
            (0.1, 0.4), (16 / 17 * 0.25 + 1 / 17 * 0.625) / (0.5 + 0.5 * 0.625), id="at a tenth"
        ),
        pytest.param(
            (0.01, 0.04),
            (16 / 116 * 0.25 + 100 / 116 * 0.625) / (1 / 101 + 100 / 101 * 0.625),
            id="idle: nearly equal, 0.91",
        ),
    ],
)
def test_a_quotient_is_trusted_as_far_as_a_backend_is_busy(
    utilizations: tuple[float, float], expected: float
) -> None:
    one, other = (new_view(qps=100.0, utilization=used) for used in utilizations)
    Weights(replace(PLAIN, idle_utilization=0.1)).refresh([one, other], READY)

    assert other.weight / one.weight == pytest.approx(expected)


def test_one_that_fails_at_no_cost_is_believed() -> None:
    good, failing = (new_view(qps=100.0, utilization=0.01, eps=eps) for eps in (0.0, 100.0))
    Weights(replace(PLAIN, idle_utilization=0.1)).refresh([good, failing], READY)

    assert failing.weight < 0.15 * good.weight


@pytest.mark.parametrize(
    ("utilization", "idle", "expected"),
    [
        pytest.param(0.0, 0.1, 0.0, id="nothing known"),
        pytest.param(0.1, 0.1, 0.5, id="as at rest"),
        pytest.param(0.5, 0.1, 0.25 / 0.26, id="busy"),
        pytest.param(1e15, 0.1, 1.0, id="beyond any machine"),
        pytest.param(1e-300, 0.1, 0.0, id="too little to divide by"),
        pytest.param(0.001, 0.0, 1.0, id="switched off"),
        pytest.param(0.0, 0.0, 0.0, id="switched off, and nothing known"),
    ],
)
def test_trust(utilization: float, idle: float, expected: float) -> None:
    weights = Weights(WeightConfig(idle_utilization=idle))

    assert weights.trust(utilization) == pytest.approx(expected)


def after_long_peace(weights: Weights, *views: BackendView) -> None:
    """Let these backends' averages be what they have always reported."""
    weights.refresh(views, READY)
    for view in views:
        view.reported_at = READY


def say(view: BackendView, *, qps: float, utilization: float, eps: float = 0.0, at: float) -> None:
    view.report = LoadReport(qps=qps, utilization=utilization, eps=eps)
    view.reported_at = at


# 100 requests per second at a half of its CPUs; then, for a second, two at a quarter of them: one
# request holds one of four.  Their own quotient is 8, and would be held at the floor.
# A second has a part of g = 1 − e^−0.1 = 0.095 in a mean over ten.
def test_a_second_with_one_long_request_hardly_moves_the_weight() -> None:
    weights = Weights(PLAIN)
    held, other = (new_view(qps=100.0, utilization=0.5) for _ in range(2))
    after_long_peace(weights, held, other)
    say(held, qps=2.0, utilization=0.25, at=READY + 1.0)
    weights.refresh([held, other], READY + 1.0)

    # (100 − 98 g) / (0.5 − 0.25 g) = 90.67 / 0.4762 = 190.4; the mean of quotients would be 181.7.
    assert held.weight / other.weight == pytest.approx(190.4 / 200, abs=1e-4)


def test_errors_are_averaged_too() -> None:
    weights = Weights(PLAIN)
    failing, other = (new_view(qps=100.0, utilization=0.5) for _ in range(2))
    after_long_peace(weights, failing, other)
    say(failing, qps=100.0, utilization=0.5, eps=50.0, at=READY + 1.0)
    weights.refresh([failing, other], READY + 1.0)

    # 100 / (0.5 + 0.5 g) = 100 / 0.5476
    assert failing.weight / other.weight == pytest.approx(0.5 / 0.5476, abs=1e-4)


@pytest.mark.parametrize(
    ("smoothing_seconds", "gain"),
    [
        pytest.param(10.0, 1 - math.exp(-1.0), id="as long as it is averaged over: 1 − 1/e"),
        pytest.param(5.0, 1 - math.exp(-2.0), id="twice as long: 1 − 1/e²"),
        pytest.param(0.001, 1.0, id="for ever"),
    ],
)
@pytest.mark.parametrize("refreshes", [1, 10, 1000])
def test_a_change_that_lasts_is_followed_however_often_it_is_looked_at(
    refreshes: int, smoothing_seconds: float, gain: float
) -> None:
    weights = Weights(replace(PLAIN, smoothing_seconds=smoothing_seconds))
    faster, other = (new_view(qps=100.0, utilization=1.0) for _ in range(2))
    after_long_peace(weights, faster, other)
    say(faster, qps=300.0, utilization=1.0, at=READY)
    for turn in range(1, refreshes + 1):
        weights.refresh([faster, other], READY + 10.0 * turn / refreshes)

    assert faster.weight / other.weight == pytest.approx(1.0 + 2.0 * gain)


def test_a_second_without_requests_has_no_part_in_the_averages() -> None:
    weights = Weights(PLAIN)
    view, slow, fast = (new_view(qps=qps, utilization=1.0) for qps in (300.0, 100.0, 300.0))
    after_long_peace(weights, view, slow, fast)
    say(view, qps=0.0, utilization=0.5, at=READY + 1.0)
    weights.refresh([view, slow, fast], READY + 1.0)
    assert (view.weight, slow.weight, fast.weight) == (1.0, 0.5, 1.5)  # unknown meanwhile

    say(view, qps=300.0, utilization=1.0, at=READY + 2.0)
    weights.refresh([view, slow, fast], READY + 2.0)
    assert view.weight == fast.weight


def test_a_clock_that_steps_back_counts_as_no_time() -> None:
    weights = Weights(PLAIN)
    view, other = (new_view(qps=100.0, utilization=1.0) for _ in range(2))
    after_long_peace(weights, view, other)
    say(view, qps=300.0, utilization=1.0, at=READY)
    weights.refresh([view, other], READY - 100_000.0)

    assert (view.mean_qps, view.mean_used) == (100.0, 1.0)
    assert view.weight == other.weight


def test_another_process_begins_its_averages_anew() -> None:
    weights = Weights(PLAIN)
    view, other = (new_view(qps=100.0, utilization=1.0) for _ in range(2))
    after_long_peace(weights, view, other)
    view.reports_since = None  # as `Candidates.renew` does
    say(view, qps=300.0, utilization=1.0, at=READY + 1.0)
    weights.refresh([view, other], READY + 1.0)

    assert view.weight / other.weight == 3.0  # nothing left of the 100

    say(view, qps=100.0, utilization=1.0, at=READY + 2.0)
    weights.refresh([view, other], READY + 2.0)
    gain = 1 - math.exp(-0.1)  # a second, counted from the first report of this process
    assert view.weight / other.weight == pytest.approx(3.0 - 2.0 * gain)


def test_after_expiry_the_averages_begin_anew() -> None:
    weights = Weights(replace(PLAIN, smoothing_seconds=1000.0))
    view, other = (new_view(qps=100.0, utilization=1.0) for _ in range(2))
    after_long_peace(weights, view, other)
    other.reported_at = READY + 180.0
    weights.refresh([view, other], READY + 180.0)
    say(view, qps=300.0, utilization=1.0, at=READY + 181.0)
    weights.refresh([view, other], READY + 181.0)

    assert view.weight / other.weight == 3.0


def test_weights_are_relative_to_their_mean() -> None:
    slow = new_view(qps=100.0, utilization=1.0)  # 100
    fast = new_view(qps=150.0, utilization=0.5)  # 300
    Weights(PLAIN).refresh([slow, fast], READY)

    assert slow.weight == 0.5  # 100 / 200
    assert fast.weight == 1.5  # 300 / 200


def test_unknown_ones_get_the_mean_of_the_known() -> None:
    slow = new_view(qps=100.0, utilization=1.0)
    fast = new_view(qps=300.0, utilization=1.0)
    idle = new_view()
    new = unheard()
    Weights(PLAIN).refresh([idle, slow, new, fast], READY)

    assert (slow.weight, fast.weight) == (0.5, 1.5)  # The unknown have no part in the mean.
    assert (idle.weight, new.weight) == (1.0, 1.0)


def test_with_nobody_known_all_are_equal() -> None:
    views = [unheard(), new_view(), unheard()]
    views[0].weight = 3.0
    Weights(PLAIN).refresh(views, READY)

    assert [view.weight for view in views] == [1.0, 1.0, 1.0]


def test_no_backends_are_no_mistake() -> None:
    Weights(PLAIN).refresh([], READY)


def test_a_weight_stays_within_a_tenth_and_ten_times_the_median() -> None:
    many = [new_view(qps=1.0, utilization=1.0) for _ in range(98)]
    tiny = new_view(qps=0.001, utilization=1.0)
    huge = new_view(qps=20.0, utilization=1.0)
    Weights(PLAIN).refresh([*many, tiny, huge], READY)

    # The median is 1: they are held at 10 and at 0.1, and (98 + 10 + 0.1) / 100 is the mean.
    assert huge.weight == pytest.approx(10.0 / 1.081)
    assert tiny.weight == pytest.approx(0.1 / 1.081)
    assert many[0].weight == pytest.approx(1.0 / 1.081)


# Held at 10 up to 30 times the median; then 300 over how many times it is, but no less than 1.
@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param(4.0, 4.0, id="an honest machine"),
        pytest.param(30.0, 10.0, id="the best that is believed"),
        pytest.param(100.0, 3.0, id="a percentage"),
        pytest.param(1000.0, 1.0, id="a wrong unit"),
        pytest.param(1e12, 1.0, id="nonsense"),
    ],
)
def test_beyond_any_machine_a_weight_is_a_mistake(times: float, expected: float) -> None:
    usual = [new_view(qps=100.0, utilization=0.5) for _ in range(9)]
    boaster = new_view(qps=100.0 * times, utilization=0.5)
    Weights(PLAIN).refresh([*usual, boaster], READY)

    assert boaster.weight / usual[0].weight == pytest.approx(expected)


def test_light_load_does_not_lend_a_mistake_belief() -> None:
    usual = [new_view(qps=1.0, utilization=0.01) for _ in range(9)]
    boaster = new_view(qps=1000.0, utilization=0.01)
    Weights(replace(PLAIN, idle_utilization=0.1)).refresh([*usual, boaster], READY)

    # Of 1,000 times the median a 101st would be believed: 10.9.
    assert boaster.weight == pytest.approx(usual[0].weight)


def test_one_that_uses_little_because_it_fails_is_the_measure_of_nobody() -> None:
    good = [new_view(qps=100.0, utilization=0.5) for _ in range(2)]
    failing = [new_view(qps=1.0, utilization=0.5, eps=1.0) for _ in range(2)]
    Weights(PLAIN).refresh([*good, *failing], READY)

    assert failing[0].weight < 0.1 * good[0].weight


def test_no_more_than_all_requests_can_fail() -> None:
    usual = new_view(qps=100.0, utilization=0.5)
    failing = new_view(qps=100.0, utilization=0.5, eps=100_000.0)
    Weights(PLAIN).refresh([usual, failing], READY)

    # 100 / 0.5 against 100 / (0.5 + 1)
    assert usual.weight / failing.weight == pytest.approx(3.0)


def test_the_bounds_are_settings() -> None:
    slow = new_view(qps=100.0, utilization=1.0)
    fast = new_view(qps=300.0, utilization=1.0)
    config = WeightConfig(
        blackout_seconds=0.0, slow_start_seconds=0.0, min_ratio=0.75, max_ratio=1.25
    )
    Weights(config).refresh([slow, fast], READY)

    assert (slow.weight, fast.weight) == (0.75, 1.25)  # instead of 0.5 and 1.5


def test_reports_count_after_the_blackout() -> None:
    weights = Weights(replace(PLAIN, blackout_seconds=10.0))
    slow = new_view(qps=100.0, utilization=1.0)
    fast = new_view(qps=300.0, utilization=1.0)
    weights.refresh([slow, fast], START)
    assert (slow.weight, fast.weight) == (1.0, 1.0)
    weights.refresh([slow, fast], START + 9.9)
    assert (slow.weight, fast.weight) == (1.0, 1.0)

    weights.refresh([slow, fast], START + 10.0)
    assert (slow.weight, fast.weight) == (0.5, 1.5)


def test_the_blackout_begins_with_the_first_report_that_says_something() -> None:
    weights = Weights(replace(PLAIN, blackout_seconds=10.0))
    a = new_view(qps=100.0, utilization=1.0)
    b = new_view()
    weights.refresh([a, b], START)
    b.report = LoadReport(qps=300.0, utilization=1.0)
    weights.refresh([a, b], START + 5.0)
    weights.refresh([a, b], START + 14.0)
    assert (a.weight, b.weight) == (1.0, 1.0)  # a alone is known, and so is its own mean.

    weights.refresh([a, b], START + 15.0)
    assert (a.weight, b.weight) == (0.5, 1.5)


def test_an_old_weight_is_forgotten_and_blacked_out_when_reports_return() -> None:
    weights = Weights(replace(PLAIN, blackout_seconds=10.0))
    slow = new_view(qps=100.0, utilization=1.0)
    fast = new_view(qps=300.0, utilization=1.0)
    weights.refresh([slow, fast], START)
    slow.reported_at = START + 179.0
    weights.refresh([slow, fast], START + 179.9)
    assert (slow.weight, fast.weight) == pytest.approx((0.5, 1.5))
    weights.refresh([slow, fast], START + 180.0)
    assert (slow.weight, fast.weight) == (1.0, 1.0)

    fast.reported_at = START + 181.0
    weights.refresh([slow, fast], START + 181.0)
    weights.refresh([slow, fast], START + 190.9)
    assert (slow.weight, fast.weight) == (1.0, 1.0)
    weights.refresh([slow, fast], START + 191.0)
    assert (slow.weight, fast.weight) == (0.5, 1.5)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(0.0, 0.1, id="just become healthy: the least there is"),
        pytest.param(1.0, 0.1, id="a tenth of the way"),
        pytest.param(5.0, 0.5, id="half of the way"),
        pytest.param(9.0, 0.9, id="nearly there"),
        pytest.param(10.0, 1.0, id="all of the way"),
        pytest.param(500.0, 1.0, id="long ago"),
    ],
)
def test_slow_start_ramps_a_newcomer_up(seconds: float, expected: float) -> None:
    old = unheard()
    old.healthy_since = -math.inf
    newcomer = unheard()
    newcomer.healthy_since = START
    Weights(WeightConfig()).refresh([old, newcomer], START + seconds)

    # Only the ratio means anything to a policy.
    assert newcomer.weight / old.weight == pytest.approx(expected)


def test_slow_start_multiplies_a_known_weight() -> None:
    old = new_view(qps=100.0, utilization=1.0)
    old.healthy_since = -math.inf
    newcomer = new_view(qps=300.0, utilization=1.0)
    newcomer.healthy_since = START
    Weights(replace(PLAIN, slow_start_seconds=10.0)).refresh([old, newcomer], START + 5.0)

    assert newcomer.weight / old.weight == pytest.approx(1.5)  # 3 times as capable, half warm


def test_the_mean_is_one_after_the_ramp_too() -> None:
    old = unheard()
    old.healthy_since = -math.inf
    newcomer = unheard()
    newcomer.healthy_since = START
    Weights(WeightConfig()).refresh([old, newcomer], START + 5.0)

    # 1 and 0.5 are 0.75 on average.
    assert (old.weight, newcomer.weight) == pytest.approx((4 / 3, 2 / 3))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(0.0, 0.1, id="just become healthy: the least there is"),
        pytest.param(5.0, 0.5, id="half of the way"),
        pytest.param(10.0, 3.0, id="warm: what it had"),
    ],
)
def test_who_joins_after_the_first_refresh_starts_low_at_once(
    seconds: float, expected: float
) -> None:
    weights = Weights(WeightConfig())
    weights.refresh([unheard()], START)
    newcomer = unheard()
    newcomer.weight = 3.0
    newcomer.healthy_since = START
    weights.welcome(newcomer, START + seconds)

    assert newcomer.weight == pytest.approx(expected)


def test_who_joins_before_the_first_refresh_is_as_new_as_all_others() -> None:
    view = unheard()
    Weights(WeightConfig()).welcome(view, START)

    assert view.weight == 1.0


def test_without_slow_start_nobody_starts_low() -> None:
    weights = Weights(PLAIN)
    weights.refresh([], START)
    view = unheard()
    weights.welcome(view, START)

    assert view.weight == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"error_penalty": -1.0}, "error_penalty", id="a reward for errors"),
        pytest.param({"error_penalty": math.nan}, "error_penalty", id="NaN penalty"),
        pytest.param({"blackout_seconds": -1.0}, "blackout_seconds", id="negative blackout"),
        pytest.param({"expiry_seconds": 0.0}, "expiry_seconds", id="expired at once"),
        pytest.param({"min_ratio": 0.0}, "min_ratio", id="weight zero"),
        pytest.param({"min_ratio": 1.1}, "min_ratio", id="the least above the mean"),
        pytest.param({"max_ratio": 0.9}, "max_ratio", id="the most below the mean"),
        pytest.param({"max_ratio": math.inf}, "max_ratio", id="no upper bound"),
        pytest.param({"idle_utilization": -0.1}, "idle_utilization", id="negative rest"),
        pytest.param({"idle_utilization": math.nan}, "idle_utilization", id="NaN rest"),
        pytest.param({"smoothing_seconds": 0.0}, "smoothing_seconds", id="averaged over nothing"),
        pytest.param({"smoothing_seconds": math.nan}, "smoothing_seconds", id="NaN smoothing"),
        pytest.param({"slow_start_seconds": math.nan}, "slow_start_seconds", id="NaN start"),
    ],
)
def test_a_wrong_config_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message} must be"):
        WeightConfig(**settings)
