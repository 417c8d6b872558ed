from __future__ import annotations

import math
from typing import Any

import pytest

from evenly.core.report import LoadReport
from evenly.errors import ConfigError

REALS = ["runnable", "utilization", "qps", "eps", "latency_seconds", "compute_units"]
WHOLES = ["boot", "sequence", "active", "probe_port"]


def test_a_report_says_nothing_unless_told() -> None:
    report = LoadReport()

    assert not report.lame_duck
    assert report.cut == 0.0  # nothing is refused
    assert (report.utilization, report.qps, report.eps) == (0.0, 0.0, 0.0)
    assert report.compute_units == 1.0
    assert report.probe_port is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, -5e-324])
@pytest.mark.parametrize("field", ["cut", *REALS])
def test_a_report_refuses_a_number_that_no_backend_has(field: str, value: float) -> None:
    fields: dict[str, Any] = {field: value}

    with pytest.raises(ConfigError, match=rf"load report out of bounds: .*{field}={value!r}"):
        LoadReport(**fields)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1])
@pytest.mark.parametrize("field", WHOLES)
def test_a_report_refuses_a_count_that_no_backend_has(field: str, value: float) -> None:
    fields: dict[str, Any] = {field: value}

    with pytest.raises(ConfigError, match=rf"load report out of bounds: .*{field}={value!r}"):
        LoadReport(**fields)


@pytest.mark.parametrize(
    ("field", "most"),
    [
        pytest.param("boot", 2**63 - 1, id="nanoseconds in 63 bits: the year 2262"),
        pytest.param("sequence", 2**32 - 1, id="32 bits"),
        pytest.param("active", 2**32 - 1, id="more than any process holds"),
        pytest.param("probe_port", 65535, id="the highest port"),
    ],
)
def test_a_report_accepts_a_count_up_to_its_most(field: str, most: int) -> None:
    accepted: dict[str, Any] = {field: most}
    refused: dict[str, Any] = {field: most + 1}

    assert getattr(LoadReport(**accepted), field) == most
    with pytest.raises(ConfigError, match=f"{field}={most + 1}"):
        LoadReport(**refused)


@pytest.mark.parametrize("field", ["compute_units", "probe_port"])
def test_a_report_refuses_a_zero_where_zero_means_nothing(field: str) -> None:
    fields: dict[str, Any] = {field: 0}

    with pytest.raises(ConfigError, match=f"{field}=0"):
        LoadReport(**fields)


@pytest.mark.parametrize("field", [name for name in REALS if name != "compute_units"])
def test_a_report_accepts_zero_and_large_numbers(field: str) -> None:
    zero: dict[str, Any] = {field: 0.0}
    large: dict[str, Any] = {field: 1e15}

    assert getattr(LoadReport(**zero), field) == 0.0
    assert getattr(LoadReport(**large), field) == 1e15


@pytest.mark.parametrize("value", ["0.5", None, 10**400], ids=["text", "nothing", "a huge int"])
@pytest.mark.parametrize("field", ["cut", *REALS])
def test_a_report_refuses_what_is_not_a_float(field: str, value: object) -> None:
    fields: dict[str, Any] = {field: value}

    with pytest.raises(ConfigError, match="load report out of bounds"):
        LoadReport(**fields)


def test_a_report_may_say_that_a_backend_is_used_beyond_what_it_was_given() -> None:
    assert LoadReport(utilization=1.8).utilization == 1.8


@pytest.mark.parametrize("cut", [0.0, 1.5, 4.0])
def test_a_cut_is_a_level_or_above_all_of_them(cut: float) -> None:
    assert LoadReport(cut=cut).cut == cut


@pytest.mark.parametrize("cut", [math.nextafter(4.0, 5.0), 5, 1e15])
def test_a_report_refuses_a_cut_above_that_of_who_refuses_everything(cut: float) -> None:
    with pytest.raises(ConfigError, match=rf"load report out of bounds: .*cut={cut!r}"):
        LoadReport(cut=cut)


def test_a_report_has_no_room_for_a_misspelt_attribute() -> None:
    assert not hasattr(LoadReport(), "__dict__")
