from __future__ import annotations

import random

import pytest

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.candidates import Candidates
from evenly.core.balancing.health import Health, HealthConfig, State
from evenly.core.balancing.policies.round_robin import RoundRobin
from evenly.core.report import LoadReport

START = 1_000.0


def new_view(name: str, state: str = "untried") -> BackendView:
    health = Health(HealthConfig(), now=START, rng=random.Random(0))
    view = BackendView(Backend(name), health, error_decay_seconds=5.0, now=START)
    become(view, state)
    return view


def become(view: BackendView, state: str) -> None:
    health = view.health
    if state in ("healthy", "lame duck"):
        health.opened(START)
        health.watched(serving=state == "healthy")
    elif state == "refusing":
        health.refused(START)
    elif state == "gone":
        view.in_subset = False


def pickable(policy: RoundRobin) -> list[str]:
    """Return whom the policy holds, by letting it take turns once."""
    names: list[str] = []
    while (view := policy.pick(START, ())) is not None and view.backend.address not in names:
        names.append(view.backend.address)
    return sorted(names)


def placed(*views: BackendView, active_limit: int = 100) -> tuple[Candidates, RoundRobin]:
    policy = RoundRobin()
    candidates = Candidates(policy, active_limit=active_limit)
    for view in views:
        candidates.place(view, START)
    return candidates, policy


@pytest.mark.parametrize(
    ("states", "expected", "are_healthy", "exist"),
    [
        pytest.param([], [], False, False, id="nobody"),
        pytest.param(["refusing", "refusing"], [], False, False, id="all refuse"),
        pytest.param(["gone", "healthy"], ["b"], True, True, id="one left the subset"),
        pytest.param(["healthy", "healthy"], ["a", "b"], True, True, id="all healthy"),
        pytest.param(["healthy", "lame duck"], ["a"], True, True, id="healthy before lame"),
        pytest.param(["lame duck", "healthy"], ["b"], True, True, id="the same, the other way"),
        pytest.param(["healthy", "untried"], ["a"], True, True, id="healthy before untried"),
        pytest.param(["lame duck", "untried"], ["a"], False, True, id="lame before untried"),
        pytest.param(["lame duck", "refusing"], ["a"], False, True, id="lame, the last resort"),
        pytest.param(["untried", "refusing"], ["a"], False, True, id="untried before nothing"),
        pytest.param(["untried", "untried"], ["a", "b"], False, True, id="all untried"),
    ],
)
def test_only_the_best_tier_is_picked_from(
    states: list[str], expected: list[str], are_healthy: bool, exist: bool
) -> None:
    views = [new_view(name, state) for name, state in zip("ab", states, strict=False)]
    candidates, policy = placed(*views)

    assert pickable(policy) == expected
    assert candidates.are_healthy is are_healthy
    assert candidates.exist is exist


def test_a_backend_moves_through_every_tier() -> None:
    a = new_view("a", "untried")
    b = new_view("b", "lame duck")
    candidates, policy = placed(a, b)
    assert pickable(policy) == ["b"]

    become(a, "healthy")
    candidates.place(a, START)
    assert pickable(policy) == ["a"]
    become(a, "lame duck")
    candidates.place(a, START)
    assert pickable(policy) == ["a", "b"]
    become(a, "refusing")
    candidates.place(a, START)
    assert pickable(policy) == ["b"]
    become(b, "refusing")
    candidates.place(b, START)
    assert pickable(policy) == []
    assert not candidates.exist
    become(b, "healthy")
    candidates.place(b, START)
    assert pickable(policy) == ["b"]
    become(b, "gone")
    candidates.place(b, START)
    assert pickable(policy) == []


def test_placing_twice_changes_nothing() -> None:
    a = new_view("a", "healthy")
    candidates, policy = placed(a)
    candidates.place(a, START + 5.0)

    assert pickable(policy) == ["a"]
    assert a.healthy_since == START


# A backend that reports names its boot, and ClientTask sees a new process by that.
@pytest.mark.parametrize("reports", [True, False], ids=["reporting", "never reported"])
@pytest.mark.parametrize(
    ("story", "seconds_reporting", "seconds_silent"),
    [
        pytest.param(["healthy"], 0.0, 1.0, id="a first connection"),
        pytest.param(["healthy", "lame duck", "healthy"], 3.0, 3.0, id="from lame duck"),
        pytest.param(["healthy", "refusing", "healthy"], 0.0, 3.0, id="a reconnect"),
        pytest.param(["lame duck", "refusing", "healthy"], 0.0, 3.0, id="a lame duck that went"),
        pytest.param(["healthy", "lame duck"], 0.0, 1.0, id="to lame duck"),
    ],
)
def test_a_backend_is_cold_after_a_lame_duck_or_when_nobody_can_tell(
    story: list[str], seconds_reporting: float, seconds_silent: float, reports: bool
) -> None:
    a = new_view("a", "untried")
    a.report = LoadReport() if reports else None
    candidates, _ = placed(a)
    for seconds, state in enumerate(story, 1):
        become(a, state)
        candidates.place(a, START + seconds)

    assert a.healthy_since == START + (seconds_reporting if reports else seconds_silent)


def since(view: BackendView) -> tuple[float, float | None]:
    return (view.healthy_since, view.reports_since)


@pytest.mark.parametrize("state", ["healthy", "lame duck", "refusing"])
def test_a_renewed_backend_is_cold_and_its_weight_is_learned_anew(state: str) -> None:
    a = new_view("a", state)
    b = new_view("b", "healthy")
    candidates, policy = placed(a, b)
    held = pickable(policy)
    a.reports_since = START
    candidates.renew(a, START + 5.0)

    assert since(a) == (START + 5.0, None)
    assert pickable(policy) == held


def test_a_spare_is_a_lame_duck_and_then_one_not_yet_tried() -> None:
    busy = new_view("a", "healthy")
    lame = new_view("b", "lame duck")
    refusing = new_view("c", "refusing")
    gone = new_view("d", "gone")
    untried = new_view("e", "untried")
    candidates, policy = placed(busy, lame, refusing, gone, untried, active_limit=1)
    candidates.begin(busy)
    assert pickable(policy) == []

    assert candidates.spare(()) is lame
    candidates.begin(lame)
    assert candidates.spare(()) is untried
    candidates.begin(untried)
    assert candidates.spare(()) is None
    candidates.finish(untried, START)
    assert candidates.spare(()) is untried
    assert pickable(policy) == []  # It is no candidate all the same.
    assert untried.active == 0


def test_spares_take_turns() -> None:
    views = [new_view(name) for name in "abc"]
    candidates, _ = placed(*views)

    assert [candidates.spare(()) for _ in range(4)] == [*views, views[0]]


def test_a_spare_is_never_one_to_be_avoided() -> None:
    a, b = new_view("a"), new_view("b")
    candidates, _ = placed(a, b)

    assert candidates.spare([a]) is b
    assert candidates.spare([a, b]) is None


def test_at_its_limit_a_backend_is_not_picked_until_one_finishes() -> None:
    a = new_view("a", "healthy")
    b = new_view("b", "healthy")
    candidates, policy = placed(a, b, active_limit=2)
    candidates.begin(a)
    assert pickable(policy) == ["a", "b"]
    candidates.begin(a)
    assert pickable(policy) == ["b"]
    assert (a.active, a.load) == (2, 2)

    candidates.finish(a, START)
    assert pickable(policy) == ["a", "b"]
    assert (a.active, a.load) == (1, 1)


def test_the_limit_does_not_open_the_next_tier() -> None:
    a = new_view("a", "healthy")
    b = new_view("b", "lame duck")
    candidates, policy = placed(a, b, active_limit=1)
    candidates.begin(a)

    assert pickable(policy) == []
    assert candidates.exist
    assert candidates.are_healthy


def test_the_limit_holds_in_the_tier_that_opens() -> None:
    a = new_view("a", "healthy")
    b = new_view("b", "lame duck")
    candidates, policy = placed(b, active_limit=1)
    candidates.begin(b)
    candidates.place(a, START)
    become(a, "refusing")
    candidates.place(a, START)

    assert pickable(policy) == []  # b is the last resort, and busy.
    candidates.finish(b, START)
    assert pickable(policy) == ["b"]


def test_an_attempt_that_ends_after_its_backend_left_its_tier_opens_nothing() -> None:
    a = new_view("a", "healthy")
    b = new_view("b", "healthy")
    candidates, policy = placed(a, b, active_limit=1)
    candidates.begin(a)
    become(a, "lame duck")
    candidates.place(a, START)
    candidates.finish(a, START)
    assert a.health.state is State.LAME_DUCK
    assert pickable(policy) == ["b"]

    candidates.begin(b)
    become(b, "gone")
    candidates.place(b, START)
    candidates.finish(b, START)
    assert pickable(policy) == ["a"]
    assert b.active == 0


def test_an_attempt_that_ends_with_nobody_left_opens_nothing() -> None:
    a = new_view("a", "healthy")
    candidates, policy = placed(a)
    candidates.begin(a)
    become(a, "gone")
    candidates.place(a, START)
    candidates.finish(a, START)

    assert pickable(policy) == []
    assert a.active == 0
