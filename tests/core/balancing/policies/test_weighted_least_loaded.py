from __future__ import annotations

import random
from collections import Counter

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.weighted_least_loaded import WeightedLeastLoaded
from evenly.core.balancing.weights import WeightConfig
from evenly.core.report import LoadReport
from tests.core.balancing.views import START, new_view

PLAIN = WeightConfig(blackout_seconds=0.0, slow_start_seconds=0.0)


class EndOfRound(random.Random):
    """Have every backend join at the very end of its first round, so that turns are exact."""

    def random(self) -> float:
        return 1.0


def policy_of(shares: dict[str, float]) -> tuple[WeightedLeastLoaded, dict[str, BackendView]]:
    """Return a policy whose weights are in these proportions, with a mean of 1."""
    policy = WeightedLeastLoaded(PLAIN, rng=EndOfRound())
    views = {name: new_view(name) for name in shares}
    for name, view in views.items():
        view.report = LoadReport(qps=100.0 * shares[name], utilization=1.0)
        view.reported_at = START
        policy.add(view, START)
    policy.wake(START)
    return policy, views


def begin(policy: WeightedLeastLoaded, *avoid: BackendView) -> str:
    view = policy.pick(START, avoid)
    assert view is not None
    view.begin()
    policy.changed(view)
    return view.backend.address


def finish(policy: WeightedLeastLoaded, view: BackendView) -> None:
    view.finish()
    policy.changed(view)


def test_load_is_shared_in_proportion_to_weight() -> None:
    policy, views = policy_of({"a": 1.0, "b": 2.0, "c": 3.0})
    picked = [begin(policy) for _ in range(60)]

    assert Counter(picked) == {"a": 10, "b": 20, "c": 30}  # 60 · 1/6, 2/6, 3/6
    assert [view.active for view in views.values()] == [10, 20, 30]


def test_the_least_load_for_its_weight_is_next() -> None:
    policy, views = policy_of({"a": 1.0, "b": 3.0})  # weights 0.5 and 1.5
    for _ in range(2):
        views["a"].begin()
        policy.changed(views["a"])
    for _ in range(5):
        views["b"].begin()
        policy.changed(views["b"])

    assert begin(policy) == "b"  # 5 / 1.5 = 3.33 against 2 / 0.5 = 4
    assert begin(policy) != "c"
    finish(policy, views["a"])
    finish(policy, views["a"])
    assert begin(policy) == "a"  # 0 is the least for any weight


def test_an_idle_client_task_takes_turns_by_weight() -> None:
    policy, views = policy_of({"a": 1.0, "b": 1.0, "c": 2.0})
    picked = []
    for _ in range(400):
        name = begin(policy)
        picked.append(name)
        finish(policy, views[name])

    # One in four is a tie that rounding may push over the end of the 400: ± 1.
    shares = Counter(picked)
    assert abs(shares["a"] - 100) <= 1
    assert abs(shares["b"] - 100) <= 1
    assert abs(shares["c"] - 200) <= 1


def test_turns_go_on_over_each_wake() -> None:
    policy, views = policy_of({"a": 1.0, "b": 1.0, "c": 1.0})
    picked = []
    for _ in range(6):  # One request a second, and the weights are learned anew in between.
        name = begin(policy)
        picked.append(name)
        finish(policy, views[name])
        policy.wake(START)

    assert "".join(picked) == "abcabc"


def test_errors_count_as_load() -> None:
    policy, views = policy_of({"a": 1.0, "b": 1.0})
    views["a"].record_error(START, is_failure=True)
    policy.changed(views["a"])

    assert begin(policy) == "b"


def test_a_backend_that_was_busy_for_long_does_not_make_up_for_it() -> None:
    policy, views = policy_of({"a": 1.0, "b": 1.0})
    views["a"].begin()
    policy.changed(views["a"])
    for _ in range(100):
        assert begin(policy) == "b"
        finish(policy, views["b"])
    finish(policy, views["a"])

    picked = []
    for _ in range(4):
        name = begin(policy)
        picked.append(name)
        finish(policy, views[name])
    assert picked.count("a") == 2


def test_an_avoided_backend_is_passed_over_for_a_busier_one() -> None:
    policy, views = policy_of({"a": 1.0, "b": 1.0})
    for _ in range(5):
        views["b"].begin()
        policy.changed(views["b"])

    assert begin(policy, views["a"]) == "b"
    assert begin(policy, views["a"], views["b"]) == "a"


def test_one_that_left_is_not_picked_and_can_come_back() -> None:
    policy, views = policy_of({"a": 1.0, "b": 1.0})
    policy.remove(views["a"])
    assert begin(policy) == "b"
    policy.add(views["a"], START)

    assert begin(policy) == "a"


def test_client_tasks_that_start_together_do_not_begin_with_the_same_backend() -> None:
    first = Counter[str]()
    for seed in range(400):
        policy = WeightedLeastLoaded(PLAIN, rng=random.Random(f"{seed}/phase"))
        for name in "abcd":
            policy.add(new_view(name), START)
        first[begin(policy)] += 1

    # 100 each, with a standard deviation of sqrt(400 · 1/4 · 3/4) = 8.7: 60 is 4.6 of them away.
    assert min(first[name] for name in "abcd") > 60


def test_nobody() -> None:
    policy, views = policy_of({"a": 1.0})
    policy.remove(views["a"])
    policy.wake(START)

    assert policy.pick(START, ()) is None
