from __future__ import annotations

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.round_robin import RoundRobin
from tests.core.balancing.views import START, new_view


def policy_of(names: str) -> tuple[RoundRobin, list[BackendView]]:
    policy = RoundRobin()
    views = [new_view(name) for name in names]
    for view in views:
        policy.add(view, START)
    return policy, views


def picks(policy: RoundRobin, count: int) -> str:
    found = [policy.pick(START, ()) for _ in range(count)]
    return "".join(view.backend.address for view in found if view is not None)


def test_all_take_turns() -> None:
    policy, _ = policy_of("abc")

    assert picks(policy, 7) == "abcabca"


def test_a_newcomer_waits_for_its_turn() -> None:
    policy, _ = policy_of("abc")
    assert picks(policy, 1) == "a"
    policy.add(new_view("d"), START)

    assert picks(policy, 5) == "bcadb"


def test_one_that_leaves_takes_nobody_else_s_turn() -> None:
    policy, (_, b, _) = policy_of("abc")
    assert picks(policy, 1) == "a"
    policy.remove(b)

    assert picks(policy, 3) == "cac"


def test_load_means_nothing_to_it() -> None:
    policy, (a, _) = policy_of("ab")
    a.begin()
    policy.changed(a)

    assert picks(policy, 3) == "aba"


def test_an_avoided_backend_keeps_its_turn() -> None:
    policy, (a, b, _) = policy_of("abc")

    assert policy.pick(START, [a]) is b
    assert picks(policy, 4) == "acba"


def test_an_avoided_backend_is_picked_where_there_is_no_other() -> None:
    policy, (a, b) = policy_of("ab")

    assert policy.pick(START, [a, b]) is a
    assert policy.pick(START, [a, b]) is b  # Even so they take turns.


def test_nobody() -> None:
    policy, (a,) = policy_of("a")
    policy.remove(a)

    assert policy.pick(START, ()) is None
