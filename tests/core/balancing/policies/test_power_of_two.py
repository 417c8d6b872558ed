from __future__ import annotations

import pytest

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.power_of_two import PowerOfTwo
from tests.core.balancing.views import START, Draws, new_view


def policy_of(loads: list[int], *numbers: float) -> tuple[PowerOfTwo, list[BackendView]]:
    policy = PowerOfTwo(rng=Draws(*numbers))
    views = [new_view(name) for name in "abcd"[: len(loads)]]
    for view, load in zip(views, loads, strict=True):
        for _ in range(load):
            view.begin()
        policy.add(view, START)
    return policy, views


# The first number draws one of four; the second one of the three others: a step over the first.
@pytest.mark.parametrize(
    ("loads", "first", "second", "expected"),
    [
        pytest.param([5, 1, 0, 0], 0.0, 0.0, 1, id="a and b: b has less"),
        pytest.param([1, 5, 0, 0], 0.0, 0.0, 0, id="a and b: a has less"),
        pytest.param([2, 2, 0, 0], 0.0, 0.0, 0, id="a and b, equal: the first drawn"),
        pytest.param([2, 2, 0, 0], 0.25, 0.0, 1, id="b and a, equal: the first drawn"),
        pytest.param([9, 9, 9, 0], 0.99, 0.99, 3, id="d and c: d has less"),
        pytest.param([0, 8, 9, 9], 0.5, 0.5, 1, id="c and b: b has less"),
        pytest.param([0, 9, 9, 9], 0.5, 0.34, 2, id="c and b, equal: c was first"),
    ],
)
def test_the_less_loaded_of_two_different_ones(
    loads: list[int], first: float, second: float, expected: int
) -> None:
    policy, views = policy_of(loads, first, second)

    assert policy.pick(START, ()) is views[expected]


def test_the_two_are_always_different() -> None:
    # 0 ... 3 by the first number and 0 ... 2 by the second: all twelve pairs.
    for first in range(4):
        for second in range(3):
            loads = [1, 1, 1, 1]
            loads[first] = 2
            policy, views = policy_of(loads, first / 4, second / 3)

            assert policy.pick(START, ()) is not views[first]


def test_errors_count_as_load() -> None:
    policy, (a, b) = policy_of([0, 1], 0.0, 0.0)
    a.record_error(START, is_failure=True)
    a.record_error(START, is_failure=True)

    assert policy.pick(START, ()) is b  # 2 errors against 1 active request


@pytest.mark.parametrize(
    ("avoided", "numbers", "expected"),
    [
        pytest.param([0], [0.0, 0.0], 1, id="the better one: the other"),
        pytest.param([1], [0.0, 0.0], 0, id="the worse one: the better"),
        pytest.param([0, 1], [0.0, 0.0, 0.0, 0.0], 2, id="both: any other"),
        pytest.param([0, 1, 2], [0.0, 0.0, 0.5], 1, id="all: one of them after all"),
    ],
)
def test_avoided_backends_are_picked_only_where_there_is_no_other(
    avoided: list[int], numbers: list[float], expected: int
) -> None:
    policy, views = policy_of([0, 5, 9], *numbers)

    assert policy.pick(START, [views[place] for place in avoided]) is views[expected]


def test_with_one_backend_there_is_no_draw() -> None:
    policy, (a,) = policy_of([7])

    assert policy.pick(START, ()) is a
    assert policy.pick(START, [a]) is a


def test_nobody() -> None:
    policy, (a,) = policy_of([0])
    policy.remove(a)

    assert policy.pick(START, ()) is None
