from __future__ import annotations

import math

import pytest

from evenly.core.window import DecayingAverage, DecayingCount, SlidingCount, TokenBucket
from evenly.errors import ConfigError

HOURS = 3600.0
NOT_AMOUNTS = [
    pytest.param(math.nan, id="NaN"),
    pytest.param(-1.0, id="negative"),
    pytest.param(math.inf, id="infinite"),
]
NOT_DURATIONS = [
    pytest.param(0.0, id="zero"),
    pytest.param(-1.0, id="negative"),
    pytest.param(math.nan, id="NaN"),
    pytest.param(math.inf, id="infinite"),
]


# Six buckets of 10 s each; the first begins with the first call, at 100.
@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(100.0, 1.0, id="at once"),
        pytest.param(150.0, 1.0, id="as old as the window less a bucket"),
        pytest.param(159.9, 1.0, id="a moment before its bucket leaves"),
        pytest.param(160.0, 0.0, id="as old as the window"),
        pytest.param(100.0 + 5 * HOURS, 0.0, id="hours later"),
    ],
)
def test_sliding_count_of_an_event_at_the_start_of_its_bucket(now: float, expected: float) -> None:
    count = SlidingCount(60.0, buckets=6)
    count.add(100.0)

    assert count.total(now) == expected


def test_sliding_count_of_an_event_at_the_end_of_its_bucket_leaves_a_bucket_early() -> None:
    count = SlidingCount(60.0, buckets=6)
    count.total(100.0)
    count.add(109.5)

    assert count.total(159.5) == 1.0  # 50 s old: window − one bucket
    assert count.total(160.0) == 0.0  # 50.5 s old: its bucket ended 50 s ago


def test_sliding_count_drops_bucket_after_bucket() -> None:
    count = SlidingCount(3.0, buckets=3)
    count.add(0.0, 1.0)
    count.add(1.0, 10.0)
    count.add(2.0, 100.0)

    assert [count.total(now) for now in (2.9, 3.0, 4.0, 5.0)] == [111.0, 110.0, 100.0, 0.0]


def test_sliding_count_starts_afresh_after_a_long_silence() -> None:
    count = SlidingCount(3.0, buckets=3)
    count.add(0.0, 5.0)
    count.add(7 * HOURS, 2.0)

    assert count.total(7 * HOURS + 2.0) == 2.0
    assert count.total(7 * HOURS + 3.0) == 0.0


def test_sliding_count_takes_an_earlier_now_for_the_latest() -> None:
    count = SlidingCount(3.0, buckets=3)
    count.add(0.0)
    count.add(10.0)
    count.add(9.5)  # counts as of 10.0: were it put a bucket back, it would leave at 12

    assert count.total(5.0) == 2.0  # as at 10.0; the event at 0.0 does not come back
    assert count.total(12.5) == 2.0
    assert count.total(13.0) == 0.0


def test_sliding_count_leaves_no_rounding_error_behind() -> None:
    count = SlidingCount(2.0, buckets=2)
    count.add(0.0, 1e15)
    count.add(1.0, 0.1)

    assert count.total(2.0) == 0.1  # 1e15 + 0.1 − 1e15 would be 0.125


def test_sliding_count_with_one_bucket_counts_from_its_first_event() -> None:
    count = SlidingCount(10.0, buckets=1)
    count.add(5.0)
    count.add(14.0)

    assert count.total(14.9) == 2.0
    assert count.total(15.0) == 0.0


@pytest.mark.parametrize("amount", NOT_AMOUNTS)
def test_sliding_count_refuses_an_amount_and_stays_as_it_was(amount: float) -> None:
    count = SlidingCount(60.0)
    count.add(0.0)

    with pytest.raises(ConfigError, match=r"amount must be in \[0, 1e\+15\], not"):
        count.add(0.0, amount)
    assert count.total(0.0) == 1.0


@pytest.mark.parametrize("window_seconds", NOT_DURATIONS)
def test_sliding_count_refuses_a_window(window_seconds: float) -> None:
    with pytest.raises(ConfigError, match="window_seconds must be finite and above 0, not"):
        SlidingCount(window_seconds)


def test_sliding_count_refuses_no_buckets() -> None:
    with pytest.raises(ConfigError, match=r"buckets must be a whole number in \[1, 10000\], not 0"):
        SlidingCount(60.0, buckets=0)


def test_decaying_count_adds_what_is_left_of_each() -> None:
    count = DecayingCount(10.0)
    count.add(0.0)
    count.add(10.0, 2.0)

    # Ages 20 s and 10 s: 1 · e^−2 + 2 · e^−1
    assert count.value(20.0) == pytest.approx(math.exp(-2) + 2 * math.exp(-1))


def test_decaying_count_settles_at_rate_times_decay() -> None:
    count = DecayingCount(5.0)
    for tick in range(10_000):
        count.add(tick / 100)

    # 100 a second · 5 s = 500, right after an event half an event more: 500.5
    assert count.value(99.99) == pytest.approx(500.5, abs=0.01)


def test_decaying_count_is_zero_before_and_long_after() -> None:
    count = DecayingCount(1.0)
    assert count.value(5.0) == 0.0

    count.add(5.0)
    assert count.value(5.0 + 2 * HOURS) == 0.0  # e^−7200 is below the smallest float


def test_decaying_count_takes_an_earlier_now_for_the_latest() -> None:
    count = DecayingCount(10.0)
    count.add(100.0)
    count.add(90.0)

    assert count.value(50.0) == 2.0
    assert count.value(110.0) == pytest.approx(2 * math.exp(-1))


def test_decaying_count_does_not_move_when_read() -> None:
    count = DecayingCount(10.0)
    count.add(0.0)
    for second in range(100):
        count.value(float(second))

    assert count.value(10.0) == math.exp(-1)


@pytest.mark.parametrize("amount", NOT_AMOUNTS)
def test_decaying_count_refuses_an_amount_and_stays_as_it_was(amount: float) -> None:
    count = DecayingCount(10.0)
    count.add(0.0)

    with pytest.raises(ConfigError, match="amount must be in"):
        count.add(0.0, amount)
    assert count.value(0.0) == 1.0


@pytest.mark.parametrize("decay_seconds", NOT_DURATIONS)
def test_decaying_count_refuses_a_decay(decay_seconds: float) -> None:
    with pytest.raises(ConfigError, match="decay_seconds must be finite and above 0, not"):
        DecayingCount(decay_seconds)


def test_decaying_average_is_zero_before_the_first_record() -> None:
    assert DecayingAverage(1.0).value(123.0) == 0.0


def test_decaying_average_takes_the_first_value_as_held_forever() -> None:
    average = DecayingAverage(10.0)
    average.record(0.0, 8.0)

    assert average.value(0.0) == 8.0
    assert average.value(HOURS) == 8.0


def test_decaying_average_follows_a_step() -> None:
    average = DecayingAverage(10.0)
    average.record(0.0, 0.0)
    average.record(100.0, 4.0)

    # 4 · (1 − e^(−t/10)): nothing at once, 63 % after one decay time
    assert average.value(100.0) == 0.0
    assert average.value(110.0) == pytest.approx(4 * (1 - math.exp(-1)))
    assert average.value(100.0 + HOURS) == 4.0


def test_decaying_average_weighs_by_time_and_not_by_records() -> None:
    once = DecayingAverage(10.0)
    often = DecayingAverage(10.0)
    once.record(0.0, 0.0)
    often.record(0.0, 0.0)
    once.record(1.0, 6.0)
    for tenth in range(10, 60):
        often.record(tenth / 10, 6.0)

    # Held for 5 s of a decay of 10 s: 6 · (1 − e^−0.5)
    assert once.value(6.0) == pytest.approx(6 * (1 - math.exp(-0.5)))
    assert often.value(6.0) == pytest.approx(6 * (1 - math.exp(-0.5)))


def test_decaying_average_gives_no_weight_to_a_value_replaced_at_once() -> None:
    average = DecayingAverage(10.0)
    average.record(0.0, 1.0)
    average.record(5.0, 1_000_000.0)
    average.record(5.0, 1.0)

    assert average.value(5.0) == 1.0
    assert average.value(50.0) == 1.0


def test_decaying_average_takes_an_earlier_now_for_the_latest() -> None:
    average = DecayingAverage(10.0)
    average.record(0.0, 0.0)
    average.record(10.0, 2.0)
    average.record(5.0, 4.0)  # replaces the 2 as of 10.0

    assert average.value(5.0) == 0.0
    assert average.value(20.0) == pytest.approx(4 * (1 - math.exp(-1)))


@pytest.mark.parametrize(
    "value", [pytest.param(math.nan, id="NaN"), pytest.param(-math.inf, id="infinite")]
)
def test_decaying_average_refuses_a_value_and_stays_as_it_was(value: float) -> None:
    average = DecayingAverage(10.0)
    average.record(0.0, 3.0)

    with pytest.raises(ConfigError, match="value must be in"):
        average.record(1.0, value)
    assert average.value(2.0) == 3.0


@pytest.mark.parametrize("decay_seconds", NOT_DURATIONS)
def test_decaying_average_refuses_a_decay(decay_seconds: float) -> None:
    with pytest.raises(ConfigError, match="decay_seconds must be finite and above 0, not"):
        DecayingAverage(decay_seconds)


def test_token_bucket_starts_full_and_refuses_without_changing_anything() -> None:
    bucket = TokenBucket(2.0, 5.0)

    assert bucket.take(0.0, 4.0)
    assert not bucket.take(0.0, 1.5)  # 5 − 4 = 1 is left
    assert bucket.level(0.0) == 1.0
    assert bucket.take(0.0)
    assert not bucket.take(0.0)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(10.0, 0.0, id="time starts with the first call"),
        pytest.param(11.5, 3.0, id="1.5 s at 2 a second"),
        pytest.param(12.5, 5.0, id="exactly full"),
        pytest.param(10.0 + HOURS, 5.0, id="never more than the capacity"),
    ],
)
def test_token_bucket_fills_at_its_rate(now: float, expected: float) -> None:
    bucket = TokenBucket(2.0, 5.0, level=0.0)
    bucket.level(10.0)

    assert bucket.level(now) == expected


def test_token_bucket_pays_off_a_debt_before_anything_can_be_taken() -> None:
    bucket = TokenBucket(2.0, 5.0)
    bucket.charge(0.0, 9.0)

    assert bucket.level(0.0) == -4.0
    assert not bucket.take(2.0, 0.5)  # −4 + 2 s · 2 = 0
    assert bucket.take(2.25, 0.5)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param(1.0, 0.0, id="there already"),
        pytest.param(4.0, 1.5, id="3 missing at 2 a second"),
        pytest.param(5.0, 2.0, id="the whole capacity"),
        pytest.param(5.1, math.inf, id="more than fits"),
    ],
)
def test_token_bucket_tells_how_long_to_wait(amount: float, expected: float) -> None:
    bucket = TokenBucket(2.0, 5.0, level=1.0)

    assert bucket.seconds_until(7.0, amount) == expected


def test_token_bucket_without_a_trickle_never_refills() -> None:
    bucket = TokenBucket(0.0, 5.0)

    assert bucket.take(0.0, 5.0)
    assert bucket.seconds_until(0.0, 1.0) == math.inf
    assert bucket.level(HOURS) == 0.0


def test_token_bucket_mints_nothing_when_time_goes_back_and_forth() -> None:
    bucket = TokenBucket(1.0, 100.0, level=0.0)
    bucket.level(50.0)
    for _ in range(10):
        bucket.level(40.0)
        bucket.level(50.0)

    assert bucket.level(50.0) == 0.0
    assert bucket.level(53.0) == 3.0


def test_token_bucket_pays_the_old_rate_until_an_update() -> None:
    bucket = TokenBucket(1.0, 100.0, level=0.0)
    bucket.level(0.0)
    bucket.update(10.0, rate_per_second=5.0)

    assert bucket.rate_per_second == 5.0
    assert bucket.level(10.0) == 10.0  # 10 s at 1
    assert bucket.level(12.0) == 20.0  # and 2 s at 5


def test_token_bucket_mints_nothing_when_its_capacity_shrinks_and_grows() -> None:
    bucket = TokenBucket(0.0, 10.0)
    bucket.update(0.0, capacity=4.0)
    bucket.update(0.0, capacity=50.0)

    assert bucket.capacity == 50.0
    assert bucket.level(0.0) == 4.0


def test_token_bucket_keeps_a_debt_through_an_update() -> None:
    bucket = TokenBucket(1.0, 10.0)
    bucket.charge(0.0, 13.0)
    bucket.update(0.0, rate_per_second=2.0, capacity=1.0)

    assert bucket.level(0.0) == -3.0
    assert bucket.level(HOURS) == 1.0


def test_token_bucket_is_left_alone_by_an_update_that_it_refuses() -> None:
    bucket = TokenBucket(1.0, 10.0)

    with pytest.raises(ConfigError, match=r"capacity must be in \[0, 1e\+15\], not -1"):
        bucket.update(0.0, rate_per_second=2.0, capacity=-1.0)
    assert (bucket.rate_per_second, bucket.capacity) == (1.0, 10.0)


@pytest.mark.parametrize("amount", NOT_AMOUNTS)
def test_token_bucket_refuses_an_amount_and_stays_as_it_was(amount: float) -> None:
    bucket = TokenBucket(1.0, 10.0)

    with pytest.raises(ConfigError, match="amount must be in"):
        bucket.take(0.0, amount)
    with pytest.raises(ConfigError, match="amount must be in"):
        bucket.charge(0.0, amount)
    with pytest.raises(ConfigError, match="amount must be in"):
        bucket.seconds_until(0.0, amount)
    assert bucket.level(0.0) == 10.0


@pytest.mark.parametrize(
    ("rate_per_second", "capacity", "level", "message"),
    [
        pytest.param(math.nan, 1.0, None, "rate_per_second must be", id="rate NaN"),
        pytest.param(-1.0, 1.0, None, "rate_per_second must be", id="rate negative"),
        pytest.param(math.inf, 1.0, None, "rate_per_second must be", id="rate infinite"),
        pytest.param(1.0, math.nan, None, "capacity must be", id="capacity NaN"),
        pytest.param(1.0, -1.0, None, "capacity must be", id="capacity negative"),
        pytest.param(1.0, 2.0, 2.5, r"level must be in \[0, 2\], not 2.5", id="level above"),
        pytest.param(1.0, 2.0, -0.5, r"level must be in \[0, 2\], not -0.5", id="level below"),
        pytest.param(1.0, 2.0, math.nan, "level must be", id="level NaN"),
    ],
)
def test_token_bucket_refuses(
    rate_per_second: float, capacity: float, level: float | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        TokenBucket(rate_per_second, capacity, level)
