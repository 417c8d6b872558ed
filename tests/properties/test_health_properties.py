from __future__ import annotations

import copy
import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.candidates import Candidates
from evenly.core.balancing.health import Health, HealthConfig, State
from evenly.core.balancing.membership import ConnectionEvent, Membership, MembershipConfig
from evenly.core.balancing.policies.round_robin import RoundRobin

START = 1_000.0
BOOT = 5_000
many = settings(max_examples=150)


def connected() -> Health:
    health = Health(HealthConfig(), now=START, rng=random.Random(0))
    health.opened(START)
    return health


@many
@given(
    history=st.lists(st.booleans(), min_size=1, max_size=6),
    data=st.data(),
)
def test_reports_of_one_boot_in_any_order_end_in_the_state_of_the_last(
    history: list[bool], data: st.DataObject
) -> None:
    sent = list(enumerate(history))
    arrived = data.draw(
        st.lists(st.sampled_from(sent), max_size=12).map(lambda more: [*more, sent[-1]])
    )
    arrived = data.draw(st.permutations(arrived))
    health = connected()
    newest = -1
    for sequence, lame_duck in arrived:
        assert health.said(BOOT, sequence, START, lame_duck=lame_duck) is (sequence >= newest)
        newest = max(newest, sequence)
        # At every moment it is the state of the newest that has arrived.
        assert health.state is (State.LAME_DUCK if history[newest] else State.HEALTHY)

    assert health.state is (State.LAME_DUCK if history[-1] else State.HEALTHY)


@many
@given(
    processes=st.lists(st.lists(st.booleans(), min_size=1, max_size=3), min_size=1, max_size=3),
    data=st.data(),
)
def test_reports_of_several_boots_in_any_order_end_in_the_state_of_the_last(
    processes: list[list[bool]], data: st.DataObject
) -> None:
    sent = [
        (BOOT + process, sequence, lame_duck)
        for process, history in enumerate(processes)
        for sequence, lame_duck in enumerate(history)
    ]
    health = connected()
    for boot, sequence, lame_duck in data.draw(st.permutations(sent)):
        health.said(boot, sequence, START, lame_duck=lame_duck)

    assert health.state is (State.LAME_DUCK if processes[-1][-1] else State.HEALTHY)


@many
@given(
    backends=st.integers(min_value=1, max_value=12),
    ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    rounds=st.lists(st.sets(st.integers(min_value=0, max_value=11)), max_size=25),
)
def test_silence_takes_out_at_most_its_part_and_never_who_was_heard(
    backends: int, ratio: float, rounds: list[set[int]]
) -> None:
    config = MembershipConfig(health=HealthConfig(silent_max_ratio=ratio))
    candidates = Candidates(RoundRobin(), active_limit=100)
    membership = Membership(config, candidates, rng=random.Random(0))
    membership.update([Backend(f"b{number}") for number in range(backends)], START)
    views = [membership.view(Backend(f"b{number}")) for number in range(backends)]
    members = [view for view in views if view is not None]
    for view in members:
        membership.connection(view, ConnectionEvent.OPENED, START)
    membership.check_health(START)  # Nobody is asked: the openings were something heard.

    unheard = dict.fromkeys(members, 0)
    for speakers in rounds:
        for number in sorted(speakers):
            if number < backends:
                view = members[number]
                view.health.heard()
                membership.moved(view, START)
                unheard[view] = -1  # The check that follows is skipped.
        membership.check_health(START)
        for view in members:
            unheard[view] += 1
        silent = [view for view in members if view.health.is_silent]

        assert len(silent) <= ratio * backends
        # Three checks, each with a whole interval to answer in, end with the fourth.
        assert all(unheard[view] >= 4 for view in silent)
        overdue = [view for view in members if unheard[view] >= 4]
        assert len(silent) == min(len(overdue), int(ratio * backends))
        assert all(
            (view.health.state is State.REFUSING) == view.health.is_silent for view in members
        )


@many
@given(
    draw=st.floats(min_value=0.0, max_value=1.0, exclude_max=True),
    waits=st.lists(st.floats(min_value=0.0, max_value=200.0), max_size=20),
)
def test_a_reconnect_is_never_sooner_than_four_fifths_of_a_second_after_a_refusal(
    draw: float, waits: list[float]
) -> None:
    class SameDraw(random.Random):
        def random(self) -> float:
            return draw

    health = Health(HealthConfig(), now=START, rng=SameDraw(0))
    now = START
    for wait in waits:
        now += wait
        health.refused(now)
        assert health.connect_at is not None
        delay = health.connect_at - now
        # 1 − 20 % and 120 + 20 %, give or take the rounding of instants around 5,000.
        assert 0.8 - 1e-9 <= delay <= 144.0 + 1e-9


def rest(health: Health) -> None:
    """Let it rest when its membership would."""
    if health.is_connected and not health.is_connecting and health.state is State.HEALTHY:
        health.rest()


def connect(health: Health, now: float) -> None:
    """Have the transport connect, if that is due."""
    if health.is_connection_due(now):
        health.connecting()


def stay_silent(health: Health, now: float) -> None:
    """Leave more checks unanswered than an idle one may."""
    for _ in range(2 * 4 + 1):
        health.check(now, may_go_silent=True)


EVENTS: dict[str, Callable[[Health, float, int], object]] = {
    "opened": lambda health, now, _: health.opened(now),
    "refused": lambda health, now, _: health.refused(now),
    "lost": lambda health, now, _: health.lost(now),
    "heard": lambda health, _now, _: health.heard(),
    "said lame": lambda health, _, number: health.said(BOOT, number, START, lame_duck=True),
    "said healthy": lambda health, _, number: health.said(BOOT, number, START, lame_duck=False),
    "serving": lambda health, _now, _: health.watched(serving=True),
    "not serving": lambda health, _now, _: health.watched(serving=False),
    "demand": lambda health, now, _: health.demand(now),
    "connect": lambda health, now, _: connect(health, now),
    "rest": lambda health, _now, _: rest(health),
    "check": lambda health, now, _: health.check(now, may_go_silent=True),
    "silence": lambda health, now, _: stay_silent(health, now),
}


@many
@given(
    story=st.lists(
        st.tuples(st.sampled_from(sorted(EVENTS)), st.sampled_from([0.0, 0.5, 60.0])), max_size=40
    )
)
def test_whoever_may_be_picked_has_a_connection_or_gets_one_at_once(
    story: list[tuple[str, float]],
) -> None:
    health = Health(HealthConfig(idle_check_every=2), now=START, rng=random.Random(0))
    now = START
    for number, (event, wait) in enumerate(story):
        now += wait
        EVENTS[event](health, now, number)

        assert not (health.is_connected and health.is_idle)
        is_reachable = (health.is_connected or health.is_idle) and not health.is_silent
        assert (health.state is not State.REFUSING) is is_reachable
        if health.is_connected and not health.is_silent:
            assert health.connect_at is None  # Nobody replaces what is well.
        if is_reachable or health.is_untried:
            picked = copy.copy(health)
            is_missing = not (picked.is_connected or picked.is_connecting)
            assert picked.demand(now) is is_missing
            assert picked.is_connection_due(now) is is_missing
