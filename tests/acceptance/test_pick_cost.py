"""What picking and accounting cost, in empty method calls (DESIGN section 7)."""

from __future__ import annotations

import pytest

from bench.picks import PICK_BOUND, SIZES, measure
from bench.timing import Row

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {" ".join(row.what.split()): row for row in measure(rounds=3)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("policy", PICK_BOUND)
def test_a_pick_costs_at_most_25_empty_calls(rows: dict[str, Row], policy: str, size: int) -> None:
    assert rows[f"pick {policy} {size}"].ratio <= PICK_BOUND[policy]


@pytest.mark.parametrize("policy", PICK_BOUND)
def test_a_pick_does_not_grow_with_the_backends(rows: dict[str, Row], policy: str) -> None:
    assert rows[f"pick {policy} 1000"].ratio <= 2.0 * rows[f"pick {policy} 20"].ratio


def test_begin_and_finish_cost_at_most_250_empty_calls(rows: dict[str, Row]) -> None:
    costs = {what: row.ratio for what, row in rows.items() if what.startswith("begin+finish")}

    assert len(costs) == 12
    assert max(costs.values()) <= 250.0
