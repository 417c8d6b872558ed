from __future__ import annotations

import pytest

from evenly.core.criticality import Criticality


def test_the_four_values_are_in_the_books_order() -> None:
    assert sorted(Criticality, reverse=True) == [
        Criticality.CRITICAL_PLUS,
        Criticality.CRITICAL,
        Criticality.SHEDDABLE_PLUS,
        Criticality.SHEDDABLE,
    ]


def test_values_count_from_zero_because_levels_and_lists_begin_there() -> None:
    # A level is criticality plus luck, and goes over the wire: renumbering would change it.
    assert {criticality.name: criticality.value for criticality in Criticality} == {
        "SHEDDABLE": 0,
        "SHEDDABLE_PLUS": 1,
        "CRITICAL": 2,
        "CRITICAL_PLUS": 3,
    }


@pytest.mark.parametrize("criticality", Criticality)
def test_a_value_comes_back_from_its_number_and_its_name(criticality: Criticality) -> None:
    assert Criticality(int(criticality)) is criticality
    assert Criticality[criticality.name] is criticality


@pytest.mark.parametrize(
    "value", [pytest.param(-1, id="below all"), pytest.param(4, id="above all")]
)
def test_there_is_no_fifth(value: int) -> None:
    with pytest.raises(ValueError, match="is not a valid Criticality"):
        Criticality(value)
