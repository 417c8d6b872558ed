from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.health import Health, HealthConfig
from evenly.core.balancing.policies.probing import Probing, ProbingConfig
from evenly.core.balancing.weights import WeightConfig
from evenly.core.report import LoadReport
from evenly.errors import ConfigError
from tests.core.balancing.views import Draws

START = 1_000.0
DEFAULT = ProbingConfig()
LONG_AGO = START - 3_600.0


def new_view(name: str) -> BackendView:
    health = Health(HealthConfig(), now=START, rng=random.Random(0))
    view = BackendView(Backend(name), health, error_decay_seconds=5.0, now=START)
    view.healthy_since = LONG_AGO
    return view


def policy_of(
    names: str, *, config: ProbingConfig = DEFAULT, rng: random.Random | None = None
) -> tuple[Probing, dict[str, BackendView]]:
    weights = WeightConfig(slow_start_seconds=0.0, idle_utilization=0.0)
    policy = Probing(config, weight_config=weights, rng=rng or random.Random(1), now=START)
    views = {name: new_view(name) for name in names}
    for view in views.values():
        policy.add(view, START)
    return policy, views


def fact(
    policy: Probing,
    view: BackendView,
    runnable: float,
    *,
    now: float = START,
    is_probe: bool = False,
    qps: float = 0.0,
    eps: float = 0.0,
) -> None:
    report = LoadReport(runnable=runnable, qps=qps, eps=eps)
    policy.record_report(view, report, now, is_probe=is_probe)


def pick(policy: Probing, *avoid: BackendView, now: float = START) -> str:
    view = policy.pick(now, avoid)
    assert view is not None
    return view.backend.address


def asked(policy: Probing, *, now: float = START) -> str:
    return "".join(sorted(view.backend.address for view in policy.ask(now)))


def report_utilization(views: dict[str, BackendView], *utilizations: float) -> None:
    for view, utilization in zip(views.values(), utilizations, strict=True):
        view.report = LoadReport(utilization=utilization, qps=100.0)
        view.reported_at = START


def test_the_best_fact_is_picked_and_each_is_used_once() -> None:
    # After three facts: b is drawn, then a, which is no less loaded.
    policy, views = policy_of("abc", rng=Draws(0.5, 0.0))
    fact(policy, views["a"], 5.0)
    fact(policy, views["b"], 1.0)
    fact(policy, views["c"], 3.0)

    assert [pick(policy) for _ in range(3)] == ["b", "c", "a"]
    assert pick(policy) == "b"


def test_of_equal_facts_the_first_received_is_picked() -> None:
    policy, views = policy_of("abc", rng=Draws(0.9))  # c is drawn, which is as loaded as usual.
    fact(policy, views["b"], 1.0)
    fact(policy, views["a"], 1.0)

    assert pick(policy) == "b"


# The usual is 0 here; of the facts a's comes first, and so is the best of equals.
@pytest.mark.parametrize(
    ("loads", "draw", "expected"),
    [
        pytest.param({"a": 0.0, "b": 0.0}, 0.1, "a", id="equal facts, the first drawn"),
        pytest.param({"a": 0.0, "b": 0.0}, 0.5, "b", id="equal facts, the second drawn"),
        pytest.param({"a": 0.0, "b": 0.0}, 0.9, "c", id="one without a fact: as good as usual"),
        pytest.param({"a": 0.0, "b": 0.19}, 0.5, "b", id="alike"),
        pytest.param({"a": 0.0, "b": 0.21}, 0.5, "a", id="not alike: the better fact"),
        pytest.param({"a": 1.0, "b": 1.0}, 0.9, "a", id="a fact, rather than one unheard of"),
    ],
)
def test_where_all_are_idle_a_draw_decides(
    loads: dict[str, float], draw: float, expected: str
) -> None:
    policy, views = policy_of("abc", rng=Draws(draw))
    for name, load in loads.items():
        fact(policy, views[name], load)

    assert pick(policy) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [pytest.param(1, "b", id="one of ours is no news"), pytest.param(2, "a", id="two wait there")],
)
def test_where_all_are_idle_who_keeps_ours_waiting_is_not_drawn(own: int, expected: str) -> None:
    policy, views = policy_of("ab", rng=Draws(0.9))
    fact(policy, views["a"], 0.0)
    for _ in range(own):
        views["b"].begin()

    assert pick(policy) == expected


def test_the_draw_is_by_weight() -> None:
    policy, views = policy_of("ab")
    views["a"].weight, views["b"].weight = 1.5, 0.5
    counts = {"a": 0, "b": 0}
    for _ in range(1000):
        for view in views.values():
            fact(policy, view, 0.0)
        counts[pick(policy)] += 1

    # 750 and 250, with a standard deviation of 14; the best score alone would give a all of them.
    assert 680 < counts["a"] < 820


def test_in_a_busy_service_facts_decide_also_where_they_are_alike() -> None:
    policy, views = policy_of("abc", rng=Draws())  # Nobody is drawn.
    for _ in range(5):
        fact(policy, views["c"], 1.0)  # usual: 1 − 0.95⁵ = 0.23
    fact(policy, views["a"], 0.3)
    fact(policy, views["b"], 0.3)

    assert pick(policy) == "a"


# What fails at no cost reports an empty queue; without a fact its last report says that it fails.
def test_one_that_fails_is_not_as_good_as_usual() -> None:
    policy, views = policy_of("abc", rng=Draws(0.9))
    for name in "ab":
        fact(policy, views[name], 0.0)
    views["c"].report = LoadReport(qps=50.0, eps=5.0)

    assert pick(policy) == "a"


def test_one_that_failed_here_is_not_as_good_as_usual() -> None:
    policy, views = policy_of("abc", rng=Draws(0.9))
    for name in "ab":
        fact(policy, views[name], 0.0)
    views["c"].record_error(START, is_failure=True)

    assert pick(policy) == "a"


def test_a_backend_has_one_fact_its_newest() -> None:
    policy, views = policy_of("ab", rng=Draws(0.0, 0.9))
    fact(policy, views["a"], 0.0)
    fact(policy, views["b"], 3.0)
    fact(policy, views["a"], 7.0)

    assert [pick(policy), pick(policy)] == ["b", "a"]
    assert pick(policy) == "a"  # drawn: the 0 was not kept


# A binary fraction, so that the end of a fact's life is exact.
@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(0.12, "b", id="alive"),
        pytest.param(0.125, "a", id="dead: drawn at random"),
    ],
)
def test_a_fact_lives_as_long_as_it_is_told_to(age: float, expected: str) -> None:
    rng = Draws(0.0, 0.0, 0.5, 0.0)  # a is drawn before b.
    policy, views = policy_of("ab", config=ProbingConfig(fact_seconds=0.125), rng=rng)
    fact(policy, views["b"], 1.0)

    assert pick(policy, now=START + age) == expected


def test_a_fact_lives_120_ms() -> None:
    assert DEFAULT.fact_seconds == 0.12
    policy, views = policy_of("ab")
    for name in "ab":
        fact(policy, views[name], 0.0)

    assert asked(policy, now=START + 0.119) == ""
    assert asked(policy, now=START + 0.121) == "ab"


def test_a_fact_renewed_lives_from_then_on() -> None:
    policy, views = policy_of("ab")
    fact(policy, views["a"], 0.0)
    fact(policy, views["b"], 0.0, now=START + 0.05)
    fact(policy, views["a"], 0.0, now=START + 0.09)

    assert asked(policy, now=START + 0.16) == ""
    assert asked(policy, now=START + 0.18) == "ab"  # b's is gone, and one is too few.


def test_an_error_deletes_the_fact() -> None:
    policy, views = policy_of("ab")
    fact(policy, views["a"], 0.0)
    fact(policy, views["b"], 5.0)
    views["a"].record_error(START, is_failure=True)
    policy.record_error(views["a"], START)

    assert pick(policy) == "b"


def test_a_recent_error_weighs_ten_runnable_requests() -> None:
    for runnable, expected in ((9.7, "b"), (10.3, "a")):
        policy, views = policy_of("ab")
        views["a"].record_error(START, is_failure=True)
        fact(policy, views["a"], 0.0)  # 0 + 1 + 10 · 1 = 11
        fact(policy, views["b"], runnable)  # 10.7 or 11.3

        assert pick(policy) == expected


def test_an_old_error_weighs_less() -> None:
    policy, views = policy_of("ab")
    views["a"].record_error(START, is_failure=True)
    fact(policy, views["a"], 0.0, now=START + 5.0)  # 1 + 10/e = 4.68
    fact(policy, views["b"], 3.7, now=START + 5.0)  # 4.7

    assert pick(policy, now=START + 5.0) == "a"


# Another client met its errors, and it says so: this one has none of its own to go by.
@pytest.mark.parametrize(
    ("eps", "qps", "limit"),
    [
        pytest.param(49.99, 49.98, 10.0, id="all fail: 10 · 49.99 / (49.98 + 0.01)"),
        pytest.param(25.0, 49.99, 5.0, id="half fail: 10 · 25 / 50"),
        pytest.param(0.01, 0.01, 5.0, id="4.6 s after a single error: 10 · 0.01 / 0.02"),
        pytest.param(0.0, 50.0, 0.0, id="none fail"),
        pytest.param(0.0, 0.0, 0.0, id="nothing was sent"),
    ],
)
def test_what_a_backend_says_it_fails_weighs_ten_runnable_requests(
    eps: float, qps: float, limit: float
) -> None:
    for runnable, expected in ((limit - 0.3, "b"), (limit + 0.3, "a")):
        policy, views = policy_of("ab")
        fact(policy, views["a"], 1.0, eps=eps, qps=qps)
        fact(policy, views["b"], runnable + 1.0)

        assert pick(policy) == expected


# A single error t seconds ago, and nothing since: its rates are both e^−t.  The penalty is 9.9 at
# once, 4.0 after 5 s, 0.84 after 7 s, and the other backend has one request more in its queue.
@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(0.0, "b", id="at once: avoided"),
        pytest.param(5.0, "b", id="after 5 s still"),
        pytest.param(7.0, "a", id="after 7 s somebody tries again"),
    ],
)
def test_after_the_rates_have_decayed_somebody_tries_again(age: float, expected: str) -> None:
    policy, views = policy_of("ab")
    fact(policy, views["a"], 0.0, eps=math.exp(-age), qps=math.exp(-age))
    fact(policy, views["b"], 1.0)

    assert pick(policy) == expected


def test_own_failures_and_those_of_others_add_up() -> None:
    for runnable, expected in ((14.7, "b"), (15.3, "a")):
        policy, views = policy_of("ab")
        views["a"].record_error(START, is_failure=True)
        fact(policy, views["a"], 0.0, eps=25.0, qps=49.99)  # 0 + 1 + 10 · (1 + 0.5) = 16
        fact(policy, views["b"], runnable)  # 15.7 or 16.3

        assert pick(policy) == expected


def test_a_score_is_relative_to_the_weight() -> None:
    policy, views = policy_of("ab")
    views["a"].weight = 2.0
    fact(policy, views["a"], 3.0)  # (3 + 1) / 2 = 2
    fact(policy, views["b"], 1.5)  # (1.5 + 1) / 1 = 2.5

    assert pick(policy) == "a"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param("", "ab", id="none"),
        pytest.param("a", "ab", id="one"),
        pytest.param("ab", "", id="two good ones"),
    ],
)
def test_it_asks_where_there_are_fewer_than_two_facts(names: str, expected: str) -> None:
    policy, views = policy_of("ab")
    for name in names:
        fact(policy, views[name], 0.0)

    assert asked(policy) == expected


# With a gain of 1 the usual is the last fact's 4: the limit is 1.1 · (4 + 1) = 5.5.
@pytest.mark.parametrize(
    ("runnable", "expected"),
    [
        pytest.param(4.5, "", id="4.5 + 1 is at the limit"),
        pytest.param(4.51, "ab", id="4.51 + 1 is above it"),
    ],
)
def test_it_asks_where_even_the_best_fact_is_worse_than_usual(
    runnable: float, expected: str
) -> None:
    policy, views = policy_of("abc", config=ProbingConfig(usual_gain=1.0))
    fact(policy, views["a"], 9.0)
    fact(policy, views["b"], runnable)
    fact(policy, views["c"], 4.0)
    policy.record_error(views["c"], START)
    policy.remove(views["c"])

    assert asked(policy) == expected


def test_the_usual_is_a_slow_average() -> None:
    policy, views = policy_of("ab")
    # After n facts of 1 the usual is 1 − 0.95ⁿ.  Their score is 2, and 2 <= 1.1 · (usual + 1) asks
    # for a usual of 9/11: 0.95ⁿ <= 2/11, n >= ln(5.5) / −ln(0.95) = 33.2.
    for _ in range(16):
        fact(policy, views["a"], 1.0)
        fact(policy, views["b"], 1.0)
    fact(policy, views["a"], 1.0)
    assert asked(policy) == "ab"  # 33
    fact(policy, views["b"], 1.0)
    assert asked(policy) == ""  # 34


# Each of these draws one of four equals.
QUARTERS = {"a": 0.1, "b": 0.3, "c": 0.6, "d": 0.9}


# With a gain of 1 the usual is the last fact's load: 2 runnable + 10 · 0.5, for half of them fail.
def test_failures_that_are_usual_are_no_reason_to_ask() -> None:
    for eps, expected in ((25.0, ""), (0.0, "ab")):
        policy, views = policy_of("abc", config=ProbingConfig(usual_gain=1.0))
        for name in "ab":
            fact(policy, views[name], 2.0, eps=25.0, qps=49.99)  # 2 + 1 + 5 = 8
        fact(policy, views["c"], 2.0, eps=eps, qps=49.99)
        policy.remove(views["c"])

        # The limit is 1.1 · (7 + 1) = 8.8; were the last without failures, 1.1 · (2 + 1) = 3.3.
        assert asked(policy) == expected


def test_it_asks_for_two_and_prefers_those_without_a_fact() -> None:
    # By twos: b and a have facts, c has none, and neither has d.
    rng = Draws(*(QUARTERS[name] for name in "bacadb"))
    policy, views = policy_of("abcd", config=ProbingConfig(usual_gain=0.0), rng=rng)
    fact(policy, views["a"], 50.0)
    fact(policy, views["b"], 50.0)

    assert asked(policy) == "cd"


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        pytest.param("abbd", "ad", id="a is the older of a and b, d of b and d"),
        pytest.param("badb", "ad", id="the same, drawn the other way round"),
        pytest.param("acbd", "cd", id="c was never heard of"),
        pytest.param("bbdd", "bd", id="drawn twice: no choice"),
    ],
)
def test_of_each_two_it_draws_it_asks_the_one_unheard_of_for_longer(
    drawn: str, expected: str
) -> None:
    policy, views = policy_of("abcd", rng=Draws(*(QUARTERS[name] for name in drawn)))
    for name, age in {"a": 3.0, "b": 1.0, "d": 2.0}.items():
        views[name].reported_at = START - age

    assert asked(policy) == expected


def test_of_two_heard_of_at_the_same_time_the_first_drawn_is_asked() -> None:
    policy, _ = policy_of("abcd", rng=Draws(*(QUARTERS[name] for name in "bacd")))

    assert asked(policy) == "bc"


def test_whom_it_asks_is_drawn_by_weight() -> None:
    # a has five eighths, up to 0.625, and b the next one, up to 0.75.
    policy, views = policy_of("abcd", rng=Draws(0.6249, 0.6, 0.626, 0.7))
    views["a"].weight = 5.0

    assert asked(policy) == "ab"


def test_it_asks_those_with_a_fact_where_there_is_no_other() -> None:
    policy, views = policy_of("ab", config=ProbingConfig(usual_gain=0.0))
    fact(policy, views["a"], 50.0)
    fact(policy, views["b"], 50.0)

    assert asked(policy) == "ab"


def test_it_asks_for_as_many_as_it_is_told_to_or_all() -> None:
    assert len(asked(policy_of("abcdefgh", config=ProbingConfig(probes=3))[0])) == 3
    assert asked(policy_of("ab", config=ProbingConfig(probes=3))[0]) == "ab"


@pytest.mark.parametrize("names", [pytest.param("", id="nobody"), pytest.param("a", id="one")])
def test_without_a_choice_it_does_not_ask(names: str) -> None:
    policy, _ = policy_of(names)

    assert asked(policy) == ""


def test_it_does_not_ask_beyond_the_budget() -> None:
    policy, views = policy_of("abc", config=ProbingConfig(probes_per_second=4.0))

    assert [len(policy.ask(START)) for _ in range(4)] == [2, 2, 0, 0]  # 4 probes at once
    assert len(policy.ask(START + 0.25)) == 0  # 4 · 0.25 = 1 is not enough for two.
    assert len(policy.ask(START + 0.5)) == 2
    assert pick(policy, now=START + 0.5) in views  # Without probes it picks all the same.


def test_having_good_facts_costs_no_budget() -> None:
    policy, views = policy_of("ab", config=ProbingConfig(probes_per_second=2.0))
    for name in "ab":
        fact(policy, views[name], 0.0)
    assert asked(policy) == ""
    assert asked(policy) == ""

    assert asked(policy, now=START + 0.2) == "ab"


def go_blind(policy: Probing) -> None:
    """Let five asks and half a second pass without an answer, and ask once more."""
    for _ in range(5):
        assert asked(policy) != ""
    assert asked(policy, now=START + 0.5) == ""


def test_after_five_asks_and_half_a_second_without_an_answer_it_goes_blind() -> None:
    policy, _ = policy_of("ab")
    for _ in range(20):
        assert asked(policy) == "ab"  # Many at once prove nothing ...
    assert asked(policy, now=START + 0.49) == "ab"

    assert asked(policy, now=START + 0.5) == ""
    assert asked(policy, now=START + 0.6) == ""


def test_five_asks_do_not_blind_it_however_long_they_take() -> None:
    policy, _ = policy_of("ab")
    for second in range(5):
        assert asked(policy, now=START + second) == "ab"  # ... and neither does a lost datagram.

    assert asked(policy, now=START + 5.0) == ""  # the sixth


def test_one_answer_to_a_probe_begins_the_count_anew() -> None:
    policy, views = policy_of("ab")
    for _ in range(5):
        assert asked(policy) == "ab"
    fact(policy, views["a"], 50.0, now=START + 0.4, is_probe=True)
    for _ in range(5):
        assert asked(policy, now=START + 0.6) == "ab"
    assert asked(policy, now=START + 1.0) == "ab"

    assert asked(policy, now=START + 1.1) == ""  # half a second after the first of these


def test_blind_it_picks_the_least_loaded() -> None:
    policy, views = policy_of("abc")
    go_blind(policy)
    now = START + 0.6
    picked = []
    for _ in range(6):
        name = pick(policy, now=now)
        picked.append(name)
        views[name].begin()
        policy.changed(views[name])

    assert sorted(picked[:3]) == sorted(picked[3:]) == ["a", "b", "c"]  # in turn
    views["b"].finish()
    policy.changed(views["b"])
    assert pick(policy, now=now) == "b"
    assert pick(policy, views["b"], now=now) != "b"


def test_blind_it_keeps_up_with_who_comes_and_goes() -> None:
    policy, views = policy_of("ab")
    go_blind(policy)
    now = START + 0.6
    for view in views.values():
        view.begin()
        policy.changed(view)
    newcomer = new_view("c")
    policy.add(newcomer, now)
    assert pick(policy, now=now) == "c"

    policy.remove(newcomer)
    assert pick(policy, now=now) in "ab"


def test_blind_it_still_uses_good_facts_from_responses() -> None:
    policy, views = policy_of("abc", rng=Draws(*[0.9] * 100))  # c is drawn, always.
    go_blind(policy)
    now = START + 0.6
    for name in "bc":
        views[name].begin()
        policy.changed(views[name])
    fact(policy, views["b"], 0.5, now=now)
    assert pick(policy, now=now) == "a"  # One fact is too few: least loaded.

    fact(policy, views["c"], 0.0, now=now)
    assert pick(policy, now=now) == "c"


def test_blind_it_tries_one_probe_with_each_wake() -> None:
    policy, _ = policy_of("abc")
    policy.wake(START)
    assert policy.take_probes() == ()  # It can see.
    go_blind(policy)
    assert policy.take_probes() == ()

    policy.wake(START + 1.0)
    assert len(policy.take_probes()) == 1
    assert policy.take_probes() == ()


def test_a_trial_of_a_backend_that_left_is_forgotten() -> None:
    policy, views = policy_of("ab")
    go_blind(policy)
    policy.wake(START + 1.0)
    for view in views.values():
        policy.remove(view)

    assert policy.take_probes() == ()


def test_an_answer_to_a_probe_makes_it_see_again() -> None:
    policy, views = policy_of("ab")
    go_blind(policy)
    fact(policy, views["a"], 0.0, now=START + 0.6)
    assert asked(policy, now=START + 0.6) == ""  # A response is no answer to a probe.

    fact(policy, views["a"], 0.0, now=START + 0.7, is_probe=True)
    assert asked(policy, now=START + 0.7) == "ab"


def test_a_backend_that_may_not_be_picked_can_end_the_blindness_too() -> None:
    policy, views = policy_of("abc")
    go_blind(policy)
    policy.remove(views["a"])  # It is at its limit, say.
    fact(policy, views["a"], 0.0, now=START + 0.6, is_probe=True)

    assert asked(policy, now=START + 0.6) == "bc"
    assert pick(policy, now=START + 0.6) in "bc"  # And its fact was not kept.


def test_without_probes_it_is_blind_from_the_start() -> None:
    policy, views = policy_of("abc", config=ProbingConfig(probes=0))
    picked = []
    for _ in range(6):
        assert asked(policy) == ""
        name = pick(policy)
        picked.append(name)
        views[name].begin()
        policy.changed(views[name])

    assert sorted(picked[:3]) == sorted(picked[3:]) == ["a", "b", "c"]  # the least loaded in turn


def test_it_stops_asking_when_most_probes_of_a_second_get_no_answer() -> None:
    policy, views = policy_of("abcd", config=ProbingConfig(usual_gain=0.0))
    for _ in range(10):  # 20 probes, of which a alone answers 9: under a half.
        assert len(asked(policy)) == 2
    for _ in range(9):
        fact(policy, views["a"], 50.0, is_probe=True)
    policy.wake(START + 1.0)
    assert asked(policy, now=START + 1.0) == ""

    fact(policy, views["a"], 50.0, now=START + 2.0, is_probe=True)  # The trial is answered.
    assert len(asked(policy, now=START + 2.0)) == 2


# Used 0.4 and 0.8 of what they have, 0.6 on average.
# trim: 0.4 · ln(0.6 / 0.4) = 0.162186 and 0.4 · ln(0.6 / 0.8) = −0.115073
# exp: 1.176079 and 0.891301, 1.033690 on average; and divided by that, 1.137748 and 0.862252.
def test_the_trim_by_hand() -> None:
    policy, views = policy_of("ab")
    report_utilization(views, 0.4, 0.8)
    policy.wake(START + 1.0)

    a, b = views.values()
    assert (a.trim, b.trim) == pytest.approx((0.162186, -0.115073), abs=1e-6)
    assert (a.weight, b.weight) == pytest.approx((1.137748, 0.862252), abs=1e-6)

    policy.wake(START + 2.0)  # 0.98 · 0.162186 + 0.162186 and 0.98 · −0.115073 − 0.115073
    assert (a.trim, b.trim) == pytest.approx((0.321128, -0.227844), abs=1e-6)


def test_the_trim_has_a_limit() -> None:
    policy, views = policy_of("ab")
    for _ in range(60):
        report_utilization(views, 0.05, 1.99)
        policy.wake(START + 1.0)

    # 0.4 · ln(1.02 / 0.05) = 1.2 and 0.4 · ln(1.02 / 1.99) = −0.27, fifty times if they went on.
    assert views["a"].trim == 1.4
    assert views["b"].trim == -1.4
    # exp(1.4) = 4.0552 and exp(−1.4) = 0.2466, 2.1509 on average
    assert views["a"].weight == pytest.approx(1.88535, abs=1e-5)
    assert views["b"].weight == pytest.approx(0.11465, abs=1e-5)


def test_an_old_utilization_does_not_drive_the_trim() -> None:
    policy, views = policy_of("ab")
    report_utilization(views, 0.4, 0.8)
    policy.wake(START + 5.0)
    before = views["a"].trim
    policy.wake(START + 5.1)

    assert before == pytest.approx(0.162186, abs=1e-6)
    assert views["a"].trim == pytest.approx(0.158942, abs=1e-6)  # 0.98 · 0.162186: it fades.


def test_an_unknown_utilization_has_no_part_in_the_mean() -> None:
    policy, views = policy_of("abc")
    report_utilization(views, 0.4, 0.8, 0.0)
    policy.wake(START + 1.0)

    assert views["a"].trim == pytest.approx(0.162186, abs=1e-6)
    assert views["c"].trim == 0.0


def report_failing(view: BackendView, *, eps: float, qps: float) -> None:
    """Let a backend look idle and say that it fails so many."""
    view.report = LoadReport(utilization=0.02, eps=eps, qps=qps)
    view.reported_at = START


@pytest.mark.parametrize(
    ("eps", "expected"),
    [
        pytest.param(100.0, 0.0, id="fails everything"),
        pytest.param(10.0, 0.0, id="10 / (99.99 + 0.01): a tenth"),
        # The median of 0.02, 0.4 and 0.8 is 0.4: 0.4 · ln(20) = 1.198293
        pytest.param(9.9, 1.198293, id="fails a little less: it counts"),
    ],
)
def test_the_trim_of_a_backend_that_fails_does_not_rise(eps: float, expected: float) -> None:
    policy, views = policy_of("abc")
    report_utilization(views, 0.4, 0.8, 0.0)
    report_failing(views["c"], eps=eps, qps=99.99)
    policy.wake(START + 1.0)

    assert views["c"].trim == pytest.approx(expected, abs=1e-6)
    if expected == 0.0:  # Nor does what it says of its CPU move the median of the others.
        assert views["a"].trim == pytest.approx(0.162186, abs=1e-6)


# One error in a thousand is met by somebody all the time.
def test_errors_of_our_own_do_not_stop_the_trim() -> None:
    policy, views = policy_of("ab")
    report_utilization(views, 0.4, 0.8)
    for view in views.values():
        view.record_error(START, is_failure=True)
    policy.wake(START + 1.0)

    assert views["a"].trim == pytest.approx(0.162186, abs=1e-6)


# Nobody sends to it any more, and so it is idle.  The median is 100 a second, a quarter of it 25.
@pytest.mark.parametrize(
    ("qps", "expected"),
    [
        pytest.param(24.9, 0.0, id="less than a quarter of its share: no reason to send it more"),
        pytest.param(25.1, 1.198293, id="more"),
    ],
)
def test_the_trim_of_a_backend_that_gets_next_to_nothing_does_not_rise(
    qps: float, expected: float
) -> None:
    policy, views = policy_of("abc")
    report_utilization(views, 0.4, 0.8, 0.0)
    report_failing(views["c"], eps=0.0, qps=qps)
    policy.wake(START + 1.0)

    assert views["c"].trim == pytest.approx(expected, abs=1e-6)


def test_a_rate_of_a_wrong_unit_does_not_make_the_others_look_avoided() -> None:
    policy, views = policy_of("abc")
    report_utilization(views, 0.4, 0.8, 0.5)
    views["c"].report = LoadReport(utilization=0.5, qps=100_000.0)
    policy._trim(list(views.values()), START + 1.0)

    assert views["a"].trim == pytest.approx(0.4 * math.log(0.5 / 0.4))


# 0.8 / 1000 is a wrong unit; the median without it is 0.6.
@pytest.mark.parametrize("used", [0.0008, 800.0])
def test_a_utilization_of_a_wrong_unit_moves_nobody_else(used: float) -> None:
    policy, views = policy_of("abcde")
    report_utilization(views, 0.4, 0.6, 0.6, 0.8, used)
    policy.wake(START + 1.0)

    assert views["b"].trim == pytest.approx(0.0)
    assert views["e"].trim == (0.0 if used < 1.0 else -1.4)


# Of ten facts each moves the usual load by 0.05 of 3 · (usual + 1) − usual at most.
def test_one_fact_beyond_measure_hardly_moves_the_usual_load() -> None:
    policy, views = policy_of("ab")
    fact(policy, views["a"], 1e12)

    assert policy._usual == pytest.approx(0.05 * 3.0)


# Its empty queue says that it is the best; that it has nothing to do trims nothing.
def test_one_that_begins_to_fail_is_avoided_before_its_rate_tells() -> None:
    policy, views = policy_of("abc", rng=Draws())
    for _ in range(20):
        fact(policy, views["a"], 3.0)
    fact(policy, views["b"], 3.0)
    views["c"].reports_since = LONG_AGO
    fact(policy, views["c"], 0.0, qps=14.0, eps=1.0)

    # By its rate alone it would be first: 10 · 1 / 14 < 3.
    assert pick(policy) == "a"


# A slow one that gets all that its weight gives it is not avoided.
def test_a_backend_of_little_weight_is_trimmed_too() -> None:
    policy, views = policy_of("abc")
    report_utilization(views, 0.4, 0.8, 0.0)
    report_failing(views["c"], eps=0.0, qps=10.0)
    views["a"].weight = views["b"].weight = 1.45
    views["c"].weight = 0.1
    policy._trim(list(views.values()), START + 1.0)

    assert views["c"].trim == pytest.approx(1.198293, abs=1e-6)


# Idle while it was avoided, it was trimmed up; now all are full, and utilization unwinds nothing.
def test_the_trim_of_a_backend_that_refuses_comes_down() -> None:
    policy, views = policy_of("ab")
    for view in views.values():
        view.trim = 1.0
        view.report = LoadReport(utilization=1.0, qps=100.0)
        view.reported_at = START
    assert views["a"].report is not None
    views["a"].report = replace(views["a"].report, cut=1.0)
    policy.wake(START + 1.0)

    assert (views["a"].trim, views["b"].trim) == pytest.approx((0.49, 0.98))


def test_a_refusing_backend_stays_trimmed_down() -> None:
    policy, views = policy_of("a")
    views["a"].trim = -1.0
    views["a"].report = LoadReport(utilization=1.0, qps=100.0, cut=3.0)
    views["a"].reported_at = START
    policy.wake(START + 1.0)

    assert views["a"].trim == pytest.approx(-0.98)


def test_where_nobody_tells_its_rate_the_trim_goes_by_utilization_alone() -> None:
    policy, views = policy_of("abc")
    for name, utilization in {"a": 0.4, "b": 0.8}.items():  # and c has not said anything yet
        views[name].report = LoadReport(utilization=utilization)
        views[name].reported_at = START
    policy.wake(START + 1.0)

    assert views["a"].trim == pytest.approx(0.162186, abs=1e-6)
    assert views["c"].trim == 0.0


def test_the_trim_of_a_backend_that_begins_to_fail_fades() -> None:
    policy, views = policy_of("ab")
    report_utilization(views, 0.4, 0.8)
    policy.wake(START + 1.0)
    report_failing(views["a"], eps=100.0, qps=100.0)
    policy.wake(START + 2.0)

    assert views["a"].trim == pytest.approx(0.158942, abs=1e-6)  # 0.98 · 0.162186


@pytest.mark.parametrize(
    ("age", "trim", "ratio"),
    [
        pytest.param(0.0, -1.0, 0.36788, id="at once: 1/e"),
        pytest.param(2.9, -1.0, 0.36788, id="for three seconds"),
        pytest.param(3.0, 0.0, 1.0, id="no longer"),
    ],
)
def test_a_newcomer_is_held_back(age: float, trim: float, ratio: float) -> None:
    policy, views = policy_of("ab")
    views["b"].healthy_since = START
    policy.wake(START + age)

    assert views["b"].trim == trim
    assert views["b"].weight / views["a"].weight == pytest.approx(ratio, abs=1e-5)


def test_a_newcomer_is_held_back_no_longer_than_it_is_one() -> None:
    policy, views = policy_of("ab")
    views["b"].healthy_since = START
    policy.wake(START + 2.0)
    assert views["b"].trim == -1.0
    policy.wake(START + 3.0)

    # It has said nothing of its utilization: its −1 was no finding, and must not fade for minutes.
    assert views["b"].trim == 0.0
    assert views["b"].weight == views["a"].weight


def test_a_backend_that_no_longer_tells_its_utilization_loses_its_trim() -> None:
    policy, views = policy_of("ab")
    report_utilization(views, 0.4, 0.8)
    policy.wake(START + 1.0)
    assert views["b"].trim < 0.0
    report_utilization(views, 0.4, 0.0)
    policy.wake(START + 2.0)

    assert views["b"].trim == 0.0


@pytest.mark.parametrize(
    ("age", "is_settled", "expected"),
    [
        pytest.param(0.0, True, 0.36788, id="just become healthy: 1/e at once"),
        pytest.param(2.9, True, 0.36788, id="for three seconds"),
        pytest.param(3.0, True, 1.0, id="no longer"),
        pytest.param(0.0, False, 1.0, id="before the first refresh all are new"),
    ],
)
def test_who_joins_after_the_first_refresh_is_held_back_at_once(
    age: float, is_settled: bool, expected: float
) -> None:
    policy, _ = policy_of("ab")
    if is_settled:
        policy.wake(START)
    newcomer = new_view("c")
    newcomer.healthy_since = START
    policy.add(newcomer, START + age)

    assert newcomer.weight == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "utilizations",
    [
        pytest.param([0.0, 0.0, 0.0], id="nothing known"),
        pytest.param([0.5, 0.5, 0.5], id="equals"),
        pytest.param([0.01, 0.5, 3.0], id="far apart"),
        pytest.param([0.0, 0.5, 3.0], id="one unknown"),
    ],
)
def test_weights_keep_a_mean_of_one(utilizations: list[float]) -> None:
    policy, views = policy_of("abc")
    views["c"].healthy_since = START
    for second in range(1, 20):
        report_utilization(views, *utilizations)
        for view in views.values():
            view.reported_at = START + second
        policy.wake(START + second)

        assert sum(view.weight for view in views.values()) == pytest.approx(3.0)


def test_without_facts_it_draws_by_weight() -> None:
    # a has 1.137748 of 2: below 0.568874 it is a.
    policy, views = policy_of("ab", rng=Draws(0.5688, 0.9, 0.5689, 0.1))
    report_utilization(views, 0.4, 0.8)
    policy.wake(START + 1.0)

    # Both are idle, and so the first of each two drawn is picked.
    assert pick(policy, now=START + 1.0) == "a"
    assert pick(policy, now=START + 1.0) == "b"


@pytest.mark.parametrize(
    ("load_a", "load_b", "expected"),
    [
        pytest.param(0, 0, "a", id="idle: the first drawn"),
        pytest.param(1, 0, "b", id="b is idle"),
        pytest.param(2, 1, "a", id="2 / 1 = 1 / 0.5: the first drawn"),
        pytest.param(3, 1, "b", id="3 / 1 > 1 / 0.5"),
        pytest.param(3, 2, "a", id="3 / 1 < 2 / 0.5"),
    ],
)
def test_without_facts_it_takes_the_less_loaded_of_two_for_their_weight(
    load_a: int, load_b: int, expected: str
) -> None:
    policy, views = policy_of("ab", rng=Draws(0.0, 0.9))  # a, then b
    views["b"].weight = 0.5
    for name, load in (("a", load_a), ("b", load_b)):
        for _ in range(load):
            views[name].begin()

    assert pick(policy) == expected


def test_an_avoided_backend_s_fact_is_passed_over_and_kept() -> None:
    policy, views = policy_of("abc")
    fact(policy, views["a"], 0.0)
    fact(policy, views["b"], 5.0)

    assert pick(policy, views["a"]) == "b"
    assert pick(policy, views["a"], views["b"]) == "c"  # drawn: better than a fact to avoid
    assert pick(policy) == "a"


def test_an_avoided_backend_is_picked_where_there_is_no_other() -> None:
    policy, views = policy_of("a")
    fact(policy, views["a"], 0.0)

    assert pick(policy, views["a"]) == "a"


def test_the_fact_of_a_backend_that_left_is_forgotten() -> None:
    policy, views = policy_of("ab")
    fact(policy, views["a"], 0.0)
    policy.remove(views["a"])
    fact(policy, views["a"], 0.0)  # late

    assert pick(policy) == "b"


def test_nobody() -> None:
    policy, _ = policy_of("")
    policy.wake(START)

    assert policy.pick(START, ()) is None
    assert policy.asks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"fact_seconds": 0.0}, "fact_seconds", id="dead at once"),
        pytest.param({"error_score": -1.0}, "error_score", id="errors attract"),
        pytest.param({"worse_ratio": 0.9}, "worse_ratio", id="better than usual"),
        pytest.param({"worse_ratio": math.nan}, "worse_ratio", id="NaN"),
        pytest.param({"usual_gain": 1.1}, "usual_gain", id="beyond the newest"),
        pytest.param({"probes": -1}, "probes", id="fewer than no probes"),
        pytest.param(
            {"probes": 3, "probes_per_second": 2.9}, "probes_per_second", id="never enough for one"
        ),
        pytest.param({"probes_per_second": 0.0}, "probes_per_second", id="no budget"),
        pytest.param({"unanswered_asks": 0}, "unanswered_asks", id="blind at once"),
        pytest.param({"unanswered_seconds": math.inf}, "unanswered_seconds", id="never blind"),
        pytest.param({"trim_gain": -0.1}, "trim_gain", id="towards the busy"),
        pytest.param({"trim_keep_ratio": 1.01}, "trim_keep_ratio", id="growing trim"),
        pytest.param({"trim_limit": -1.0}, "trim_limit", id="negative limit"),
        pytest.param({"newcomer_trim": 0.5}, "newcomer_trim", id="newcomers first"),
        pytest.param({"newcomer_seconds": -1.0}, "newcomer_seconds", id="negative time"),
    ],
)
def test_a_wrong_config_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message} must be"):
        ProbingConfig(**settings)  # type: ignore[arg-type]
