from __future__ import annotations

from collections import Counter

import pytest

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.weighted_round_robin import WeightedRoundRobin
from evenly.core.balancing.weights import WeightConfig
from evenly.core.report import LoadReport
from tests.core.balancing.views import START, Draws, new_view

PLAIN = WeightConfig(blackout_seconds=0.0, slow_start_seconds=0.0, idle_utilization=0.0)


def learn_weights(policy: WeightedRoundRobin, shares: dict[BackendView, float]) -> None:
    """Let the backends report so that their weights come out in these proportions."""
    for view, share in shares.items():
        view.report = LoadReport(qps=100.0 * share, utilization=1.0)
        view.reported_at = START
        view.reports_since = None  # Otherwise what they said before would count too.
    policy.wake(START)


def policy_of(
    shares: dict[str, float], phases: list[float] | None = None
) -> tuple[WeightedRoundRobin, list[BackendView]]:
    """Return a policy that knows its weights before its first turn."""
    policy = WeightedRoundRobin(PLAIN, rng=Draws(*(phases or [0.0] * 2 * len(shares))))
    views = [new_view(name) for name in shares]
    for view in views:
        policy.add(view, START)
    learn_weights(policy, dict(zip(views, shares.values(), strict=True)))
    for view in views:
        policy.remove(view)
        policy.add(view, START)
    return policy, views


def picks(policy: WeightedRoundRobin, count: int) -> str:
    found = [policy.pick(START, ()) for _ in range(count)]
    return "".join(view.backend.address for view in found if view is not None)


# Weights 0.5, 1, 2 and 0.5: a turn comes every 2, 1, 0.5 and 2.  At 0 all are due, in their order;
# then c at 0.5, b and c at 1, c at 1.5; and at 2 all again, those first who have waited longest.
def test_turns_are_interleaved_in_exact_proportion() -> None:
    policy, _ = policy_of({"a": 1.0, "b": 2.0, "c": 4.0, "d": 1.0})

    assert picks(policy, 24) == "abcdcbcc" + "adbccbcc" + "adbccbcc"


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        pytest.param({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 20, "b": 20, "c": 20}, id="equals"),
        pytest.param({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 10, "b": 20, "c": 30}, id="1 : 2 : 3"),
        pytest.param({"a": 1.0, "b": 4.0, "c": 5.0}, {"a": 6, "b": 24, "c": 30}, id="1 : 4 : 5"),
    ],
)
def test_shares_over_whole_cycles(shares: dict[str, float], expected: dict[str, int]) -> None:
    # A phase of a half keeps every turn away from the ends of a cycle, where rounding decides.
    policy, _ = policy_of(shares, phases=[0.5] * 6)

    assert Counter(picks(policy, 60)) == expected


def test_heavy_backends_are_not_bunched() -> None:
    # Weights 1.5 and 0.5: a at 0, 0.67, 1.33, 2 ... and b at 1, 3, 5 ...
    policy, _ = policy_of({"a": 3.0, "b": 1.0}, phases=[0.0, 0.0, 0.0, 0.5])

    assert picks(policy, 400) == "aaba" * 100


def test_a_random_phase_decides_who_begins() -> None:
    phases = [0.0, 0.0, 0.75, 0.25]
    policy, _ = policy_of({"a": 1.0, "b": 1.0}, phases)

    assert picks(policy, 4) == "baba"


def test_a_newcomer_begins_now_and_does_not_make_up_for_the_past() -> None:
    policy, (a, b) = policy_of({"a": 1.0, "b": 1.0}, phases=[0.0] * 4 + [0.5])
    assert picks(policy, 100) == "ab" * 50
    newcomer = new_view("c")
    policy.add(newcomer, START)
    learn_weights(policy, {a: 1.0, b: 1.0, newcomer: 1.0})

    assert Counter(picks(policy, 30)) == {"a": 10, "b": 10, "c": 10}


def test_a_changed_weight_counts_from_the_next_turn() -> None:
    policy, (a, b) = policy_of({"a": 1.0, "b": 1.0})
    assert picks(policy, 2) == "ab"
    learn_weights(policy, {a: 1.0, b: 3.0})

    # Weights 0.5 and 1.5.  Both are due at 1, in order; then a at 3, and b at 1.67, 2.33 and 3.
    assert picks(policy, 4) == "abbb"


def test_an_avoided_backend_is_next_once_it_need_not_be_avoided() -> None:
    policy, (a, b, _) = policy_of({"a": 1.0, "b": 1.0, "c": 1.0})

    assert policy.pick(START, [a]) is b
    assert picks(policy, 5) == "acbac"


def test_an_avoided_backend_is_picked_where_there_is_no_other() -> None:
    policy, (a, b) = policy_of({"a": 1.0, "b": 1.0})

    assert policy.pick(START, [a, b]) is a
    assert policy.pick(START, [a, b]) is b


def test_one_that_left_is_not_picked() -> None:
    policy, (a, _) = policy_of({"a": 1.0, "b": 1.0})
    policy.remove(a)

    assert picks(policy, 3) == "bbb"


def test_nobody() -> None:
    policy, (a,) = policy_of({"a": 1.0})
    policy.remove(a)
    policy.wake(START)

    assert policy.pick(START, ()) is None
