from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.window import DecayingAverage, DecayingCount, SlidingCount, TokenBucket

# Whole 1024ths of a second, and windows that are whole numbers of buckets of a power of two: every
# sum below is exact, so the limits of the window can be tested with >= and not with a tolerance.
TICK = 1 / 1024
ticks = st.one_of(
    st.just(0),  # the clock stands still
    st.integers(min_value=0, max_value=3000),
    st.integers(min_value=10**7, max_value=10**8),  # it jumps ahead by hours
)
amounts = st.integers(min_value=0, max_value=1000)


@given(
    steps=st.lists(st.tuples(ticks, amounts), max_size=60),
    buckets=st.integers(min_value=1, max_value=20),
    bucket_ticks=st.sampled_from([1, 64, 512]),
    start=st.integers(min_value=-(10**6), max_value=10**6),
)
def test_sliding_count_keeps_its_word_for_every_age(
    steps: list[tuple[int, int]], buckets: int, bucket_ticks: int, start: int
) -> None:
    window = buckets * bucket_ticks
    count = SlidingCount(window * TICK, buckets=buckets)
    events: list[tuple[int, int]] = []
    now = start
    for step, amount in steps:
        now += step
        count.add(now * TICK, amount)
        events.append((now, amount))

        total = count.total(now * TICK)
        surely = sum(many for at, many in events if now - at <= window - bucket_ticks)
        perhaps = sum(many for at, many in events if now - at < window)
        assert surely <= total <= perhaps


@given(
    steps=st.lists(
        st.tuples(st.integers(min_value=-2000, max_value=2000), amounts, st.booleans()), max_size=60
    ),
    buckets=st.integers(min_value=1, max_value=20),
)
def test_sliding_count_takes_every_earlier_now_for_the_latest(
    steps: list[tuple[int, int, bool]], buckets: int
) -> None:
    told_back = SlidingCount(buckets * 64 * TICK, buckets=buckets)
    never_back = SlidingCount(buckets * 64 * TICK, buckets=buckets)
    assert told_back.total(0.0) == never_back.total(0.0) == 0.0  # time starts at 0 for both
    now = latest = 0
    for step, amount, reads in steps:
        now += step
        latest = max(latest, now)
        if reads:
            assert told_back.total(now * TICK) == never_back.total(latest * TICK)
        else:
            told_back.add(now * TICK, amount)
            never_back.add(latest * TICK, amount)
    assert told_back.total(now * TICK) == never_back.total(latest * TICK)


@given(
    steps=st.lists(st.tuples(ticks, amounts), max_size=40),
    decay_seconds=st.floats(min_value=0.01, max_value=1000.0),
)
def test_decaying_count_is_the_sum_over_all_ages(
    steps: list[tuple[int, int]], decay_seconds: float
) -> None:
    count = DecayingCount(decay_seconds)
    events: list[tuple[int, int]] = []
    now = 0
    for step, amount in steps:
        now += step
        count.add(now * TICK, amount)
        events.append((now, amount))

    expected = math.fsum(many * math.exp(-(now - at) * TICK / decay_seconds) for at, many in events)
    # 40 products and sums, each off by at most 2^−52 of itself, and exp by as much per unit of its
    # argument (below 746, or it is 0): 40 · 750 · 2.2e-16 < 1e-11.
    assert count.value(now * TICK) == pytest.approx(expected, rel=1e-11, abs=1e-300)


@given(
    steps=st.lists(st.tuples(ticks, st.integers(min_value=-50, max_value=50)), min_size=1),
    tail=ticks,
    decay_seconds=st.floats(min_value=0.01, max_value=1000.0),
)
def test_decaying_average_is_the_integral_of_the_held_signal(
    steps: list[tuple[int, int]], tail: int, decay_seconds: float
) -> None:
    average = DecayingAverage(decay_seconds)
    records: list[tuple[int, int]] = []
    now = 0
    for step, value in steps:
        now += step
        average.record(now * TICK, value)
        records.append((now, value))
    end = now + tail

    # y(end) = ∫ x(t) · exp(−(end − t)/decay)/decay dt, over the steps, and over all time before the
    # first record with the first value: each step weighs what decays at its end less at its start.
    def weight(at: int) -> float:
        return math.exp(-(end - at) * TICK / decay_seconds)

    changes = [*(at for at, _ in records), end]
    expected = records[0][1] * weight(changes[0]) + math.fsum(
        value * (weight(until) - weight(at))
        for (at, value), until in zip(records, changes[1:], strict=True)
    )
    # Rounding as above, on values up to 50.
    assert average.value(end * TICK) == pytest.approx(expected, abs=1e-9)
    values = [value for _, value in records]
    assert min(values) - 1e-9 <= average.value(end * TICK) <= max(values) + 1e-9


bucket_steps = st.lists(
    st.tuples(
        st.integers(min_value=-200, max_value=2000),  # back in time as well
        st.sampled_from(["take", "charge", "level", "rate", "capacity"]),
        st.integers(min_value=0, max_value=40),
    ),
    max_size=60,
)


@given(steps=bucket_steps, level=st.integers(min_value=0, max_value=10))
def test_token_bucket_follows_a_plain_model_and_mints_nothing(
    steps: list[tuple[int, str, int]], level: int
) -> None:
    # Whole ticks, rates and amounts: level · 1024 is a whole number, and every float is exact.
    bucket = TokenBucket(2.0, 10.0, level=float(level))
    bucket.level(0.0)
    rate, capacity, model = 2, 10, level * 1024
    earned = level * 1024
    spent = 0
    now = latest = 0
    for step, verb, number in steps:
        now += step
        passed = max(0, now - latest)
        latest = max(latest, now)
        earned += passed * rate
        model = min(capacity * 1024, model + passed * rate)
        if verb == "take":
            enough = number * 1024 <= model
            assert bucket.take(now * TICK, float(number)) is enough
            model -= number * 1024 * enough
            spent += number * 1024 * enough
            assert spent <= earned or model < 0  # only a debt can go beyond what was earned
        elif verb == "charge":
            bucket.charge(now * TICK, float(number))
            model -= number * 1024
            spent += number * 1024
        elif verb == "rate":
            bucket.update(now * TICK, rate_per_second=float(number))
            rate = number
        elif verb == "capacity":
            bucket.update(now * TICK, capacity=float(number))
            capacity = number
            model = min(model, capacity * 1024)
        assert bucket.level(now * TICK) == model / 1024
        assert model <= earned - spent


@given(
    rate=st.floats(min_value=1e-3, max_value=1e6),
    capacity=st.floats(min_value=1.0, max_value=1e6),
    start=st.floats(min_value=-1e9, max_value=2e9),
    debt=st.floats(min_value=0.0, max_value=1e6),
    part=st.floats(min_value=0.0, max_value=1.0),
)
def test_token_bucket_gives_what_was_waited_for_after_a_few_waits(
    rate: float, capacity: float, start: float, debt: float, part: float
) -> None:
    bucket = TokenBucket(rate, capacity)
    bucket.charge(start, debt)
    now = start
    # The first wait is right but for rounding (of `now`, up to 2.4e-7 s here, and of the level);
    # the second makes up for that, and is off by far less itself; the third is spare.
    for _ in range(3):
        wait = bucket.seconds_until(now, part * capacity)
        if wait == 0.0:
            break
        assert now + wait > now
        now += wait
    assert bucket.take(now, part * capacity)
