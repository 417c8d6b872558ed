"""What picking and accounting cost, in empty method calls."""

from __future__ import annotations

import pytest

from bench import facades, picks
from bench.picks import PICK_BOUND, SIZES
from bench.timing import Row

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {" ".join(row.what.split()): row for row in picks.measure(rounds=3)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("policy", PICK_BOUND)
def test_a_pick_costs_at_most_25_empty_calls(rows: dict[str, Row], policy: str, size: int) -> None:
    assert rows[f"pick {policy} {size}"].ratio <= PICK_BOUND[policy]


@pytest.mark.parametrize("policy", PICK_BOUND)
def test_a_pick_does_not_grow_with_the_backends(rows: dict[str, Row], policy: str) -> None:
    assert rows[f"pick {policy} 1000"].ratio <= 2.0 * rows[f"pick {policy} 20"].ratio


def test_begin_finish_and_admit_finish_cost_at_most_250_empty_calls() -> None:
    rows = [row for row in facades.measure(rounds=3) if row.bound is not None]

    assert len(rows) == 14
    assert [row.what for row in rows if row.is_missed] == []
