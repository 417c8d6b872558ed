from __future__ import annotations

import math
import random

import pytest

from evenly.core.criticality import Criticality
from evenly.core.overload.customer_gates import CustomerGates
from evenly.core.overload.send_probability import SendProbabilityConfig

SHEDDABLE = Criticality.SHEDDABLE
SHEDDABLE_PLUS = Criticality.SHEDDABLE_PLUS
CRITICAL = Criticality.CRITICAL
CRITICAL_PLUS = Criticality.CRITICAL_PLUS

# With K = 1.1 a rejection lowers ln q by up to 8 · 0.25 / 1.1, and q falls to 0.001 at least.
CONFIG = SendProbabilityConfig()
ONE_REJECTION = math.exp(-8 * 0.25 / 1.1)  # 0.162: after a second or more without an answer


def make(config: SendProbabilityConfig = CONFIG) -> CustomerGates:
    return CustomerGates(config, 60.0, rng=random.Random(21), now=0.0)


def refused_at(now: float, criticality: Criticality = CRITICAL) -> CustomerGates:
    gates = make()
    gates.record(criticality, now, is_accept=False)
    return gates


def probabilities(gates: CustomerGates) -> list[float]:
    return [gates.probability(criticality) for criticality in Criticality]


def sent(gates: CustomerGates, criticality: Criticality, now: float) -> int:
    """Return how many of 1,000 are sent."""
    return sum(gates.admit(criticality, now) for _ in range(1000))


def test_a_new_one_sends_everything() -> None:
    gates = make()

    assert gates.is_normal(0.0)
    assert probabilities(gates) == [1.0] * 4
    assert all(sent(gates, criticality, 0.0) == 1000 for criticality in Criticality)


def test_one_refusal_after_long_lowers_it_by_the_longest_step() -> None:
    gates = refused_at(5.0)

    assert gates.probability(CRITICAL) == pytest.approx(ONE_REJECTION)
    assert not gates.is_normal(5.0)
    # 162 ± 12 of 1,000, five of them.
    assert sent(gates, CRITICAL, 5.0) == pytest.approx(162, abs=60)


# What is sent most learns first that it is refused.
def test_a_criticality_that_is_seldom_sent_is_throttled_no_less_than_a_higher_one() -> None:
    gates = refused_at(5.0)

    assert probabilities(gates) == pytest.approx([ONE_REJECTION] * 3 + [1.0])
    for lower in (SHEDDABLE, SHEDDABLE_PLUS):
        assert sent(gates, lower, 5.0) == pytest.approx(162, abs=60)
    assert sent(gates, CRITICAL_PLUS, 5.0) == 1000


def test_of_several_higher_ones_the_most_throttled_counts() -> None:
    gates = refused_at(5.0)
    gates.record(SHEDDABLE_PLUS, 5.0, is_accept=False)
    gates.record(SHEDDABLE_PLUS, 10.0, is_accept=False)

    squared = ONE_REJECTION**2  # 0.026
    assert probabilities(gates) == pytest.approx([squared, squared, ONE_REJECTION, 1.0])


# From 0.162: ten of a step of 0.25 / 11, and then m of 1 + 1/3, 1 + 2/3, … steps, until
# 10 + m + m · (m + 1) / 6 = 8 / 1.1 · 11 = 80, so m = 18 (or 85 with it).
@pytest.mark.parametrize(("accepts", "is_back"), [(27, False), (28, True)])
def test_an_accept_counts_for_every_higher_criticality(accepts: int, is_back: bool) -> None:
    gates = refused_at(5.0)
    for tick in range(accepts):
        gates.record(SHEDDABLE, 6.0 + tick * 0.1, is_accept=True)

    assert gates.is_normal(10.0) is is_back
    assert (sent(gates, SHEDDABLE, 10.0) == 1000) is is_back


def test_an_accept_says_nothing_of_lower_criticalities() -> None:
    gates = refused_at(5.0)
    for tick in range(100):
        gates.record(CRITICAL_PLUS, 6.0 + tick * 0.1, is_accept=True)

    assert gates.probability(CRITICAL) == pytest.approx(ONE_REJECTION)


def test_it_never_falls_below_its_floor() -> None:
    gates = make(SendProbabilityConfig(min_probability=0.5))
    for tick in range(1, 101):
        gates.record(CRITICAL, tick * 0.1, is_accept=False)

    assert gates.probability(CRITICAL) == 0.5
    # Half of 1,000: 500 ± 16, five of them.
    assert sent(gates, CRITICAL, 10.0) == pytest.approx(500, abs=80)


@pytest.mark.parametrize(("pause", "is_normal"), [(59.9, False), (60.0, True), (86_400.0, True)])
def test_time_heals_everything(pause: float, is_normal: bool) -> None:
    gates = refused_at(5.0)

    assert gates.is_normal(5.0 + pause) is is_normal
    assert (sent(gates, CRITICAL, 5.0 + pause) == 1000) is is_normal


def test_what_was_forgotten_does_not_come_back_with_the_next_word() -> None:
    gates = refused_at(5.0)
    gates.record(SHEDDABLE, 70.0, is_accept=True)

    assert gates.is_normal(70.0)
    assert probabilities(gates) == [1.0] * 4


def test_news_within_that_time_keeps_what_is_held_against_it() -> None:
    gates = refused_at(5.0)
    for minute in range(1, 10):  # An accept of one criticality, less than a minute apart.
        gates.record(CRITICAL_PLUS, 5.0 + minute * 59.0, is_accept=True)

    assert gates.probability(CRITICAL) == pytest.approx(ONE_REJECTION)
    assert not gates.is_normal(5.0 + 10 * 59.0)


def test_a_clock_that_steps_back_leaves_probabilities() -> None:
    gates = refused_at(5000.0)
    gates.record(CRITICAL, 10.0, is_accept=False)
    gates.record(CRITICAL, 11.0, is_accept=True)

    assert all(0.001 <= probability <= 1.0 for probability in probabilities(gates))
