from __future__ import annotations

import random

import pytest

from evenly.core.balancing.policies.catalogue import POLICIES, PolicyConfig, make_policy
from evenly.core.balancing.policies.least_loaded import LeastLoaded
from evenly.core.balancing.policies.policy import Policy
from evenly.core.balancing.policies.power_of_two import PowerOfTwo
from evenly.core.balancing.policies.prequal import Prequal
from evenly.core.balancing.policies.probing import Probing
from evenly.core.balancing.policies.random_choice import RandomChoice
from evenly.core.balancing.policies.round_robin import RoundRobin
from evenly.core.balancing.policies.weighted_least_loaded import WeightedLeastLoaded
from evenly.core.balancing.policies.weighted_round_robin import WeightedRoundRobin
from evenly.core.balancing.weights import WeightConfig
from evenly.errors import ConfigError
from tests.core.balancing.views import START, new_view


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("random", RandomChoice),
        ("round_robin", RoundRobin),
        ("least_loaded", LeastLoaded),
        ("weighted_round_robin", WeightedRoundRobin),
        ("weighted_least_loaded", WeightedLeastLoaded),
        ("power_of_two", PowerOfTwo),
        ("prequal", Prequal),
        ("probing", Probing),
    ],
)
def test_a_policy_is_made_by_name(name: str, kind: type[Policy]) -> None:
    policy = make_policy(PolicyConfig(name=name), rng=random.Random(0), now=START)

    assert type(policy) is kind
    assert policy.pick(START, ()) is None


def test_probing_is_the_default_and_nothing_is_missing() -> None:
    assert PolicyConfig().name == "probing"
    assert POLICIES == (
        "random",
        "round_robin",
        "least_loaded",
        "weighted_round_robin",
        "weighted_least_loaded",
        "power_of_two",
        "prequal",
        "probing",
    )


@pytest.mark.parametrize(
    "name", [pytest.param("", id="no name"), pytest.param("Probing", id="another spelling")]
)
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=f"policy must be one of random, .*, not '{name}'"):
        PolicyConfig(name=name)


def test_a_newcomer_is_held_back_once_and_not_twice_by_probing() -> None:
    config = PolicyConfig(weights=WeightConfig(slow_start_seconds=60.0))
    policy = make_policy(config, rng=random.Random(0), now=START)
    old = new_view("old")
    old.healthy_since = START - 3_600.0
    newcomer = new_view("new")
    for view in (old, newcomer):
        policy.add(view, START)
    policy.wake(START + 1.0)

    # exp(−1), and not exp(−1) · 1/60.
    assert newcomer.weight / old.weight == pytest.approx(0.36788, abs=1e-5)
