from __future__ import annotations

import random
from collections import Counter

import pytest

from evenly.core.criticality import Criticality
from evenly.core.level import LUCK_STEPS, TOP, draw_luck, level_of, luck_of_user
from evenly.core.request import Request

HOUR = 3600.0


class Draw(random.Random):
    """Draw the same number every time, and count how often."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value
        self.draws = 0

    def random(self) -> float:
        self.draws += 1
        return self.value


@pytest.mark.parametrize(
    ("drawn", "luck"),
    [
        pytest.param(0.0, 0.0, id="the least"),
        pytest.param(0.015, 0.0, id="below 1/64 = 0.0156"),
        pytest.param(0.016, 1 / 64, id="above it"),
        pytest.param(0.5, 32 / 64, id="half"),
        pytest.param(1.0 - 2**-53, 63 / 64, id="the most that is drawn"),
    ],
)
def test_luck_is_a_multiple_of_a_64th_and_below_1(drawn: float, luck: float) -> None:
    assert draw_luck(Draw(drawn)) == luck


def test_all_lucks_are_drawn_alike() -> None:
    rng = random.Random(21)
    counts = Counter(draw_luck(rng) for _ in range(64_000))

    assert sorted(counts) == [step / 64 for step in range(LUCK_STEPS)]
    # 1,000 ± 32 each, five of them.
    assert all(abs(count - 1000) < 160 for count in counts.values())


def test_a_level_is_criticality_plus_luck() -> None:
    rng = Draw(0.75)
    assert [level_of(Request(criticality=one), rng) for one in Criticality] == [
        0.75,
        1.75,
        2.75,
        3.75,
    ]
    assert TOP == 4.0  # above 3 + 63/64


def test_luck_is_drawn_once_and_stays() -> None:
    rng = Draw(0.25)
    request = Request(criticality=Criticality.SHEDDABLE)
    assert level_of(request, rng) == 0.25
    rng.value = 0.5

    assert level_of(request, rng) == 0.25
    assert request.luck == 0.25
    assert rng.draws == 1
    assert level_of(request.until(9.0), rng) == 0.25  # It is the same request, only later.


@pytest.mark.parametrize("luck", [0.0, 0.125, 63 / 64])
def test_a_request_with_luck_draws_none(luck: float) -> None:
    rng = Draw(0.5)

    assert level_of(Request(criticality=Criticality.CRITICAL, luck=luck), rng) == 2.0 + luck
    assert rng.draws == 0


def test_a_user_has_the_same_luck_for_an_hour() -> None:
    lucks = [luck_of_user("ada", b"key", 10 * HOUR + seconds) for seconds in (0.0, 1.0, 3599.9)]

    assert lucks[0] == lucks[1] == lucks[2]
    assert lucks[0] in {step / 64 for step in range(64)}


def test_in_the_next_hour_others_lose() -> None:
    users = [f"user{number}" for number in range(1000)]
    now, later = ([luck_of_user(user, b"key", hour * HOUR) for user in users] for hour in (10, 11))
    # A quarter of them is below 0.25, 250 ± 14, and of these a quarter again: 62 ± 7, five of them.
    both = sum(a < 0.25 and b < 0.25 for a, b in zip(now, later, strict=True))

    assert both == pytest.approx(1000 / 16, abs=35)


def test_nobody_chooses_a_name_by_its_luck_without_the_key() -> None:
    users = [f"user{number}" for number in range(1000)]
    guessed = [user for user in users if luck_of_user(user, b"guess", 0.0) >= 0.75]
    lucky = sum(luck_of_user(user, b"key", 0.0) >= 0.75 for user in guessed)

    # A quarter of about 250: 62 ± 7, five of them.
    assert lucky == pytest.approx(len(guessed) / 4, abs=35)


def test_users_have_all_lucks_alike() -> None:
    counts = Counter(luck_of_user(f"user{number}", b"key", 0.0) for number in range(6400))

    # 100 ± 10 each, five of them.
    assert len(counts) == 64
    assert all(abs(count - 100) < 50 for count in counts.values())


# Pinned, because all processes of a fleet must agree: a change of the hash is a change of the wire.
def test_the_luck_of_a_user_is_the_same_in_every_version() -> None:
    assert [luck_of_user(user, b"key", 0.0) for user in ("", "ada", "ünï")] == [
        19 / 64,
        48 / 64,
        10 / 64,
    ]
