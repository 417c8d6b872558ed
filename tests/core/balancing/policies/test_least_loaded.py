from __future__ import annotations

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.least_loaded import LeastLoaded
from tests.core.balancing.views import START, new_view


def policy_of(loads: dict[str, int]) -> tuple[LeastLoaded, dict[str, BackendView]]:
    policy = LeastLoaded()
    views = {name: new_view(name) for name in loads}
    for name, view in views.items():
        for _ in range(loads[name]):
            view.begin()
        policy.add(view, START)
    return policy, views


def begin(policy: LeastLoaded, *avoid: BackendView) -> str:
    """Begin one attempt, and return where."""
    view = policy.pick(START, avoid)
    assert view is not None
    view.begin()
    policy.changed(view)
    return view.backend.address


def finish(policy: LeastLoaded, view: BackendView) -> None:
    view.finish()
    policy.changed(view)


def table(views: dict[str, BackendView]) -> str:
    return " ".join(str(view.active) for view in views.values())


# SRE book, chapter 20, "Least-Loaded Round Robin": the four tables, as printed.
def test_the_book_s_tables() -> None:
    active = [2, 1, 0, 0, 1, 0, 2, 0, 0, 1]
    policy, views = policy_of({f"t{number}": count for number, count in enumerate(active)})
    assert table(views) == "2 1 0 0 1 0 2 0 0 1"

    assert begin(policy) == "t2"
    assert table(views) == "2 1 1 0 1 0 2 0 0 1"

    assert [begin(policy) for _ in range(4)] == ["t3", "t5", "t7", "t8"]
    assert table(views) == "2 1 1 1 1 1 2 1 1 1"

    finish(policy, views["t4"])
    assert table(views) == "2 1 1 1 0 1 2 1 1 1"
    assert begin(policy) == "t4"
    assert table(views) == "2 1 1 1 1 1 2 1 1 1"

    # "The set of backend candidates is all tasks except t0 and t6": t1 and t9 have waited longest.
    turns = [begin(policy) for _ in range(8)]
    assert turns == ["t1", "t9", "t2", "t3", "t5", "t7", "t8", "t4"]
    assert table(views) == "2 2 2 2 2 2 2 2 2 2"


def test_equals_take_turns_even_if_each_finishes_at_once() -> None:
    policy, views = policy_of({"a": 0, "b": 0, "c": 0})
    picked = []
    for _ in range(7):
        name = begin(policy)
        picked.append(name)
        finish(policy, views[name])

    assert "".join(picked) == "abcabca"


def test_a_backend_that_fails_at_once_is_not_a_sinkhole() -> None:
    policy, views = policy_of({"a": 0, "b": 0})
    picked = []
    for _ in range(6):
        name = begin(policy)
        picked.append(name)
        if name == "a":
            views["a"].record_error(START, is_failure=True)
            finish(policy, views["a"])

    # a's errors stand like the requests of b, which never finish: turn and turn about.
    assert picked == ["a", "b", "a", "b", "a", "b"]
    assert (views["a"].active, views["a"].load) == (0, 3)
    assert (views["b"].active, views["b"].load) == (3, 3)


def test_faded_errors_let_a_backend_back_in() -> None:
    policy, views = policy_of({"a": 0, "b": 0})
    views["a"].record_error(START, is_failure=True)
    policy.changed(views["a"])
    assert begin(policy) == "b"
    finish(policy, views["b"])

    assert views["a"].fade_errors(START + 4.0)  # exp(−4/5) = 0.45 rounds to 0.
    policy.changed(views["a"])
    assert [begin(policy), begin(policy)] == ["b", "a"]


def test_a_newcomer_with_the_least_load_is_next() -> None:
    policy, views = policy_of({"a": 2, "b": 3})
    newcomer = new_view("c")
    newcomer.begin()
    policy.add(newcomer, START)

    # c: 1 → 2; then a (2, there first) → 3; then c again → 3; then b, which has been at 3 longest.
    assert [begin(policy) for _ in range(4)] == ["c", "a", "c", "b"]
    assert views["b"].active == 4


def test_one_that_left_is_not_picked_and_can_come_back() -> None:
    policy, views = policy_of({"a": 0, "b": 5})
    policy.remove(views["a"])
    assert begin(policy) == "b"

    policy.add(views["a"], START)
    assert begin(policy) == "a"


def test_the_lowest_level_is_found_again_after_all_have_risen_and_fallen() -> None:
    policy, views = policy_of({"a": 0, "b": 0})
    for _ in range(20):
        begin(policy)
    for name in ("a", "b") * 9:
        finish(policy, views[name])

    assert table(views) == "1 1"  # 10 each, less 9
    assert [begin(policy), begin(policy)] == ["a", "b"]


def test_an_avoided_backend_is_passed_over_for_a_busier_one() -> None:
    policy, views = policy_of({"a": 0, "b": 3, "c": 7})

    assert begin(policy, views["a"]) == "b"
    assert begin(policy, views["a"], views["b"]) == "c"
    assert begin(policy, *views.values()) == "a"  # no other


def test_nobody() -> None:
    policy, views = policy_of({"a": 3})
    policy.remove(views["a"])

    assert policy.pick(START, ()) is None
    assert policy.pick(START, [views["a"]]) is None
