from __future__ import annotations

import math

import pytest

from evenly.core import check
from evenly.errors import ConfigError, EvenlyError

# What a caller that mypy has not seen may pass.
NOT_NUMBERS = [
    pytest.param(math.nan, id="NaN"),
    pytest.param(True, id="a bool, which would count as 1"),
    pytest.param("1", id="a string"),
    pytest.param(None, id="None"),
    pytest.param(1j, id="a complex number"),
]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(1, id="the lower end"),
        pytest.param(2.5, id="the upper end"),
        pytest.param(2, id="a whole number between"),
        pytest.param(1.75, id="a fraction between"),
    ],
)
def test_number_accepts(value: float) -> None:
    check.number("weight", value, 1.0, 2.5)


@pytest.mark.parametrize(
    "value",
    [
        *NOT_NUMBERS,
        pytest.param(math.nextafter(1.0, 0.0), id="just below"),
        pytest.param(math.nextafter(2.5, 3.0), id="just above"),
        pytest.param(math.inf, id="infinity"),
        pytest.param(-math.inf, id="minus infinity"),
    ],
)
def test_number_refuses(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^weight must be in \[1, 2\.5\], not "):
        check.number("weight", value, 1.0, 2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(5e-324, id="the smallest float"),
        pytest.param(1, id="one"),
        pytest.param(1.7e308, id="huge"),
    ],
)
def test_positive_accepts(value: float) -> None:
    check.positive("window_seconds", value)


@pytest.mark.parametrize(
    "value",
    [
        *NOT_NUMBERS,
        pytest.param(0, id="zero"),
        pytest.param(-0.0, id="minus zero"),
        pytest.param(-1.0, id="negative"),
        pytest.param(math.inf, id="infinity"),
        pytest.param(-math.inf, id="minus infinity"),
    ],
)
def test_positive_refuses(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^window_seconds must be finite and above 0, not "):
        check.positive("window_seconds", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 1, 1.0])
def test_fraction_accepts(value: float) -> None:
    check.fraction("fill_ratio", value)


@pytest.mark.parametrize(
    "value",
    [
        *NOT_NUMBERS,
        pytest.param(-1e-9, id="just below 0"),
        pytest.param(1.0 + 1e-9, id="just above 1"),
        pytest.param(math.inf, id="infinity"),
    ],
)
def test_fraction_refuses(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^fill_ratio must be in \[0, 1\], not "):
        check.fraction("fill_ratio", value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, 2, 10_000])
def test_count_accepts(value: int) -> None:
    check.count("subset_size", value, 1, 10_000)


@pytest.mark.parametrize(
    "value",
    [
        *NOT_NUMBERS,
        pytest.param(0, id="just below"),
        pytest.param(10_001, id="just above"),
        pytest.param(5.0, id="a float, though whole"),
        pytest.param(math.inf, id="infinity"),
    ],
)
def test_count_refuses(value: object) -> None:
    pattern = r"^subset_size must be a whole number in \[1, 10000\], not "
    with pytest.raises(ConfigError, match=pattern):
        check.count("subset_size", value, 1, 10_000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("7", "'7'", id="a string with its quotes"),
        pytest.param(math.nan, "nan", id="NaN"),
        pytest.param(True, "True", id="a bool"),
        pytest.param(0.1, "0.1", id="a float in full"),
    ],
)
def test_the_message_ends_with_the_value_as_it_was_written(value: object, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check.count("size", value, 1, 2)  # type: ignore[arg-type]

    assert str(caught.value) == f"size must be a whole number in [1, 2], not {shown}"


def test_a_config_error_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, EvenlyError)
