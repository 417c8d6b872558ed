from __future__ import annotations

import math

import pytest

from evenly.errors import ConfigError
from evenly.testing import ManualClock


def test_it_stands_still_until_it_is_told_to_move() -> None:
    clock = ManualClock(50.0)

    assert [clock(), clock()] == [50.0, 50.0]
    clock.advance(0.25)
    clock.advance(2.0)
    assert clock() == 52.25  # 50 + 0.25 + 2


def test_it_starts_where_an_instant_cannot_be_taken_for_a_duration() -> None:
    assert ManualClock()() == 1_000.25


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(-0.001, id="back"),
        pytest.param(math.nan, id="NaN"),
        pytest.param(math.inf, id="for ever"),
    ],
)
def test_time_never_goes_back_and_never_ends(seconds: float) -> None:
    clock = ManualClock(50.0)

    with pytest.raises(ConfigError, match="seconds must be in"):
        clock.advance(seconds)
    assert clock() == 50.0
