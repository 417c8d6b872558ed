from __future__ import annotations

import pytest

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.random_choice import RandomChoice
from tests.core.balancing.views import START, Draws, new_view


def policy_of(names: str, *numbers: float) -> tuple[RandomChoice, list[BackendView]]:
    policy = RandomChoice(rng=Draws(*numbers))
    views = [new_view(name) for name in names]
    for view in views:
        policy.add(view, START)
    return policy, views


def picks(policy: RandomChoice, count: int) -> str:
    found = [policy.pick(START, ()) for _ in range(count)]
    return "".join(view.backend.address for view in found if view is not None)


def test_each_backend_has_the_same_part_of_the_draw() -> None:
    policy, _ = policy_of("abcd", 0.0, 0.24, 0.25, 0.5, 0.75, 0.99)

    assert picks(policy, 6) == "aabcdd"


def test_load_means_nothing_to_it() -> None:
    policy, (a, _) = policy_of("ab", 0.0, 0.0)
    a.begin()
    policy.changed(a)
    a.record_error(START, is_failure=True)
    policy.record_error(a, START)

    assert picks(policy, 2) == "aa"


@pytest.mark.parametrize(
    ("avoided", "expected"),
    [
        pytest.param([0], 1, id="another one"),
        pytest.param([1], 0, id="not the one drawn"),
        pytest.param([0, 1], 0, id="no other"),
    ],
)
def test_avoided_backends_are_picked_only_where_there_is_no_other(
    avoided: list[int], expected: int
) -> None:
    policy, views = policy_of("ab", 0.0, 0.0)

    picked = policy.pick(START, [views[place] for place in avoided])

    assert picked is views[expected]


def test_one_that_left_is_not_picked() -> None:
    policy, (a, _) = policy_of("ab", 0.0, 0.99)
    policy.remove(a)

    assert picks(policy, 2) == "bb"


def test_nobody() -> None:
    policy, (a,) = policy_of("a")
    policy.remove(a)

    assert policy.pick(START, ()) is None
    assert policy.pick(START, [a]) is None


def test_it_asks_and_probes_nobody() -> None:
    policy, _ = policy_of("ab")
    policy.wake(START)

    assert not policy.asks
    assert policy.ask(START) == ()
    assert policy.take_probes() == ()
