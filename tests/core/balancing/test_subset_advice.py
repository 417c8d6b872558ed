from __future__ import annotations

import pytest

from evenly.core.balancing.subset_advice import assess_size, recommend
from evenly.errors import ConfigError


@pytest.mark.parametrize(
    ("clients", "backends", "size"),
    [
        # Half-way between two levels is backends / (2^k · sqrt 2).
        pytest.param(300, 300, 27, id="300 / (8 · 1.41) = 26.5"),
        pytest.param(10_000, 10_000, 28, id="10000 / (256 · 1.41) = 27.6"),
        pytest.param(100, 500, 22, id="500 / (16 · 1.41) = 22.1"),
        # 4 · 400 / 50 = 32 is needed: 400 / (8 · 1.41) = 35.4.
        pytest.param(50, 400, 35, id="more for few clients"),
        pytest.param(10, 1000, 100, id="4 · 1000 / 10 = 400 is beyond the book's 100"),
        pytest.param(300, 30, 30, id="all of a few"),
        pytest.param(300, 3, 20, id="all of a handful, and of those to come"),
    ],
)
def test_recommended_sizes(clients: int, backends: int, size: int) -> None:
    assert recommend(clients, backends).size == size


@pytest.mark.parametrize("backends", range(40, 3000, 37))
def test_a_recommended_size_leaves_room_and_is_in_the_books_range(backends: int) -> None:
    advice = recommend(1000, backends)

    assert 20 <= advice.size <= 100
    # Half an octave up is +41 %, down -29 %; whole sizes from 20 on miss it by 2.5 % at most.
    assert advice.halves_at >= 1.37 * backends
    assert advice.doubles_below is None or advice.doubles_below <= 0.74 * backends
    assert advice.warnings == advice.nested_warnings == ()


def test_the_reason_says_how_far_the_fleet_may_go() -> None:
    advice = recommend(300, 300)

    assert (advice.smallest_subset, advice.largest_subset) == (37, 38)
    assert (advice.halves_at, advice.doubles_below) == (432, 216)
    assert advice.reason.startswith("at the cheap end of the book's 20 to 100")
    assert advice.room == (
        "nested shares the backends out among 8 clients at a time, always a power of two, so 27 is "
        "rounded up to 37 to 38 (at most twice the size); subsets halve at 432 backends (+44%), "
        "which opens nothing, and double below 216 (-28%), which opens as many connections as "
        "there are; no other size near 27 keeps as far from both"
    )


def test_a_size_that_needs_no_rounding() -> None:
    assert assess_size(300, 160, 10).room.startswith("nested subsets have exactly 10 backends; ")


def test_the_reason_for_few_clients() -> None:
    assert recommend(50, 400).reason.startswith("at least 32, for 4 clients per backend")
    assert recommend(10, 1000).reason.startswith("the most that the book advises")


def test_few_backends_are_all_held() -> None:
    advice = recommend(5, 30)

    assert (advice.smallest_subset, advice.largest_subset) == (30, 30)
    assert advice.doubles_below is None
    assert advice.reason == "30 backends are few enough for every client to hold them all"
    assert advice.room == (
        "nested subsets hold all backends until there are 60, and half from then on"
    )
    assert recommend(5, 19).reason == (
        "19 backends are few enough for every client to hold them all, and 20, the least that the "
        "book advises, leaves room"
    )
    assert recommend(5, 1).reason == "there is one backend, which every client holds"
    # A single client holds every backend: nothing to be uneven.
    assert recommend(1, 30).warnings == ()


def test_too_few_clients_are_warned_of() -> None:
    assert assess_size(400, 1000, 10).warnings == ()
    (warning,) = assess_size(399, 1000, 10).warnings

    assert warning.startswith("clients x size = 3990 is less than 4 x backends = 4000:")


def test_a_fleet_close_above_a_change_of_level_is_warned_of() -> None:
    # 10 · 32 = 320; a tenth less than 356 is 320.4, of 355 it is 319.5.
    assert assess_size(1000, 356, 10).nested_warnings == ()
    (warning,) = assess_size(1000, 355, 10).nested_warnings

    assert warning.startswith("355 backends are close above 320:")


@pytest.mark.parametrize(
    ("clients", "backends", "size", "message"),
    [
        (0, 3, 3, "clients must be a whole number in [1, 100000], not 0"),
        (3, 0, 3, "backends must be a whole number in [1, 100000], not 0"),
        (3, 3, 0, "size must be a whole number in [1, 10000], not 0"),
    ],
)
def test_wrong_input_is_refused(clients: int, backends: int, size: int, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        assess_size(clients, backends, size)

    assert str(refusal.value) == message
