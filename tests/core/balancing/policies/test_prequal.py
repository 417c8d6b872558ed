from __future__ import annotations

import math
import random

import pytest

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.policies.prequal import Prequal, PrequalConfig
from evenly.core.report import LoadReport
from evenly.errors import ConfigError
from tests.core.balancing.views import START, new_view

# With 8 backends and 4 places, (1 + 1) / ((1 − 4/8) · 2 − 0) = 2 uses a probe, nothing to round.
SMALL = PrequalConfig(pool_size=4, probes_per_request=2, removals_per_request=0)


class SameDraw(random.Random):
    """Give one number for ever."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self._number = number

    def random(self) -> float:
        return self._number


def policy_of(
    names: str = "abcdefgh", *, config: PrequalConfig = SMALL, draw: float = 0.99
) -> tuple[Prequal, dict[str, BackendView]]:
    """Return a policy that draws the last backend where it draws at random."""
    policy = Prequal(config, rng=SameDraw(draw))
    views = {name: new_view(name) for name in names}
    for view in views.values():
        policy.add(view, START)
    return policy, views


def answer(
    policy: Prequal,
    view: BackendView,
    *,
    in_flight: int = 0,
    latency: float = 0.01,
    now: float = START,
    is_probe: bool = True,
) -> None:
    report = LoadReport(active=in_flight, latency_seconds=latency)
    policy.record_report(view, report, now, is_probe=is_probe)


def pick(policy: Prequal, *avoid: BackendView, now: float = START) -> str:
    view = policy.pick(now, avoid)
    assert view is not None
    return view.backend.address


# In flight 2, 3 and 9: the 0.84 quantile is the value at int(0.84 · 2) = 1, which is 3.
def test_of_the_cold_the_quickest_is_picked() -> None:
    policy, views = policy_of()
    answer(policy, views["a"], in_flight=9, latency=0.001)
    answer(policy, views["b"], in_flight=2, latency=0.03)
    answer(policy, views["c"], in_flight=3, latency=0.02)

    assert pick(policy) == "c"


def test_if_all_are_hot_the_one_with_fewest_in_flight_is_picked() -> None:
    coldest_is_line = PrequalConfig(
        pool_size=4, probes_per_request=2, removals_per_request=0, hot_quantile=0.0
    )
    policy, views = policy_of(config=coldest_is_line)
    answer(policy, views["d"], in_flight=0)
    policy.remove(views["d"])  # The line stays at its 0, and all others are hot.
    answer(policy, views["a"], in_flight=9, latency=0.001)
    answer(policy, views["b"], in_flight=2, latency=0.03)
    answer(policy, views["c"], in_flight=3, latency=0.02)

    assert pick(policy) == "b"


def test_the_line_is_drawn_from_the_last_128_probes() -> None:
    policy, views = policy_of()
    for _ in range(128):
        answer(policy, views["d"], in_flight=50)
    answer(policy, views["a"], in_flight=10, latency=0.02)
    answer(policy, views["b"], in_flight=40, latency=0.01)
    assert pick(policy) == "b"  # Both are cold: the line is at 50.

    for _ in range(128):
        answer(policy, views["d"], in_flight=20)
    answer(policy, views["a"], in_flight=10, latency=0.02)
    answer(policy, views["b"], in_flight=40, latency=0.01)
    assert pick(policy, views["d"]) == "a"  # The 50s are forgotten: the line is at 20.


def test_errors_count_as_requests_in_flight() -> None:
    policy, views = policy_of()
    for _ in range(9):
        views["a"].record_error(START, is_failure=True)
    answer(policy, views["a"], in_flight=0, latency=0.001)  # 9
    answer(policy, views["b"], in_flight=2, latency=0.03)
    answer(policy, views["c"], in_flight=3, latency=0.02)

    assert pick(policy) == "c"


def test_no_backend_has_fewer_in_flight_than_this_client_task_has_there() -> None:
    policy, views = policy_of()
    for _ in range(5):
        views["a"].begin()
    answer(policy, views["a"], in_flight=0)
    answer(policy, views["b"], in_flight=2)

    assert pick(policy) == "b"


# The median is 0.03: a thirtieth of it is believed, and milliseconds for seconds are not.
@pytest.mark.parametrize(("latency", "expected"), [(0.0011, "a"), (0.00003, "b")])
def test_a_latency_of_a_wrong_unit_is_as_good_as_usual(latency: float, expected: str) -> None:
    policy, views = policy_of()
    answer(policy, views["b"], in_flight=0, latency=0.03)
    answer(policy, views["a"], in_flight=0, latency=latency)

    assert pick(policy) == expected


def test_a_probe_counts_its_own_uses_and_is_used_twice_here() -> None:
    policy, views = policy_of()
    answer(policy, views["a"], in_flight=0)
    answer(policy, views["b"], in_flight=5)

    # The line is at int(0.84 · 1) = 0, the first value: a is cold; then both are hot and a has 1.
    assert [pick(policy), pick(policy)] == ["a", "a"]
    assert pick(policy) == "h"  # One probe is left, and one is not a choice: at random.


@pytest.mark.parametrize(
    ("backends", "draw", "uses"),
    [
        # 2 / ((1 − 4/8) · 3 − 1) = 4
        pytest.param(8, 0.0, 4, id="four times"),
        # 2 / ((1 − 4/16) · 3 − 1) = 1.6
        pytest.param(16, 0.59, 2, id="1.6 times, rounded up"),
        pytest.param(16, 0.61, 1, id="1.6 times, rounded down"),
        # 2 / ((1 − 4/5) · 3 − 1) is negative: as often as the pool has places.
        pytest.param(5, 0.0, 4, id="no gain"),
        # 2 / ((1 − 4/400) · 3 − 1) = 1.015
        pytest.param(400, 0.5, 1, id="once"),
    ],
)
def test_uses_of_a_probe(backends: int, draw: float, uses: int) -> None:
    config = PrequalConfig(pool_size=4, probes_per_request=3, removals_per_request=1)
    policy = Prequal(config, rng=SameDraw(draw))
    views = [new_view(str(number)) for number in range(backends)]
    for view in views:
        policy.add(view, START)

    answer(policy, views[0])

    assert policy._pool[0].uses_left == uses  # Removals hide it from outside.


def test_the_pool_has_so_many_places_and_the_oldest_gives_way() -> None:
    policy, views = policy_of()
    answer(policy, views["a"], latency=0.001)
    for name in "bcd":
        answer(policy, views[name], latency=0.02)
    assert pick(policy) == "a"

    policy, views = policy_of()
    answer(policy, views["a"], latency=0.001)
    for name in "bcde":
        answer(policy, views[name], latency=0.02)
    assert pick(policy) == "b"


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(1.0, "a", id="a second old"),
        pytest.param(1.01, "h", id="older: at random"),
    ],
)
def test_a_probe_is_used_for_a_second(age: float, expected: str) -> None:
    policy, views = policy_of()
    answer(policy, views["a"], latency=0.001)
    answer(policy, views["b"], latency=0.02)

    assert pick(policy, now=START + age) == expected


def test_of_each_pick_one_probe_leaves_the_oldest_and_the_worst_in_turn() -> None:
    config = PrequalConfig(pool_size=4, probes_per_request=2, removals_per_request=1)
    policy, views = policy_of(config=config)
    for name, latency in (("a", 0.4), ("b", 0.3), ("c", 0.2), ("d", 0.1)):
        answer(policy, views[name], latency=latency)

    # The line is at 0, so a probe is hot once it was used.
    assert pick(policy) == "d"  # a leaves, the oldest.
    assert pick(policy) == "c"  # c leaves: of the hot c and d the slower.
    assert pick(policy) == "b"  # b leaves, the oldest: d is left alone.
    assert pick(policy) == "h"


def test_what_comes_with_responses_is_not_used() -> None:
    policy, views = policy_of()
    answer(policy, views["a"], is_probe=False)
    answer(policy, views["b"], is_probe=False)

    assert pick(policy) == "h"


def test_without_latencies_requests_in_flight_decide() -> None:
    policy, views = policy_of()
    answer(policy, views["a"], in_flight=3, latency=0.0)
    answer(policy, views["b"], in_flight=1, latency=0.0)
    answer(policy, views["c"], in_flight=5, latency=0.0)

    assert pick(policy) == "b"


def test_probes_of_a_backend_that_left_are_forgotten() -> None:
    policy, views = policy_of()
    answer(policy, views["a"], latency=0.001)
    answer(policy, views["b"], latency=0.01)
    answer(policy, views["c"], latency=0.02)
    policy.remove(views["a"])
    answer(policy, views["a"], latency=0.001)  # late

    assert pick(policy) == "b"


def test_avoided_backends_are_picked_only_where_there_is_no_other() -> None:
    policy, views = policy_of("abcde")
    answer(policy, views["a"], latency=0.001)
    answer(policy, views["b"], latency=0.02)

    assert pick(policy, views["a"]) == "b"
    assert pick(policy, views["a"], views["b"], views["e"]) == "d"  # at random: e; again: d
    assert pick(policy, *views.values()) in views


def test_each_pick_asks_for_probes_of_different_backends() -> None:
    published = PrequalConfig(pool_size=4)
    policy, _ = policy_of(config=published)
    pick(policy)

    probes = [view.backend.address for view in policy.take_probes()]
    assert len(probes) == len(set(probes)) == 3
    assert policy.take_probes() == []  # Each is said once.


def test_probes_that_nobody_takes_do_not_pile_up() -> None:
    policy, views = policy_of()
    for _ in range(10):
        pick(policy)
    policy.remove(views["h"])

    # No more than the pool has places, and not the one that has left: it was drawn first.
    assert len(policy.take_probes()) == 3


def test_with_no_more_backends_than_places_it_is_least_loaded() -> None:
    policy, views = policy_of("abcd")
    answer(policy, views["d"], latency=0.001)
    answer(policy, views["c"], latency=0.002)
    picked = []
    for _ in range(6):
        name = pick(policy)
        picked.append(name)
        views[name].begin()
        policy.changed(views[name])

    assert "".join(picked) == "abcdab"
    assert policy.take_probes() == []
    policy.add(new_view("e"), START)
    assert pick(policy) == "d"  # The quickest probe.


def test_the_published_parameters_are_the_defaults() -> None:
    assert PrequalConfig() == PrequalConfig(
        pool_size=16,
        probes_per_request=3,
        removals_per_request=1,
        hot_quantile=0.84,
        probe_age_seconds=1.0,
        reuse_slack=1.0,
    )


def test_nobody() -> None:
    policy, _ = policy_of("")

    assert policy.pick(START, ()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"pool_size": 1}, "pool_size", id="one place"),
        pytest.param({"probes_per_request": 0}, "probes_per_request", id="no probes"),
        pytest.param({"removals_per_request": -1}, "removals_per_request", id="negative"),
        pytest.param({"hot_quantile": 1.01}, "hot_quantile", id="above all"),
        pytest.param({"hot_quantile": math.nan}, "hot_quantile", id="NaN"),
        pytest.param({"probe_age_seconds": 0.0}, "probe_age_seconds", id="old at once"),
        pytest.param({"reuse_slack": -0.1}, "reuse_slack", id="negative slack"),
    ],
)
def test_a_wrong_config_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message} must be"):
        PrequalConfig(**settings)  # type: ignore[arg-type]
