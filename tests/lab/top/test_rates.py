from __future__ import annotations

import pytest

from evenly.lab.top.rates import latency_of, ratio, rising, total
from tests.lab.top.pages import page, sight

REJECTED = "backend_rejected_total"
BUCKET = "client_attempt_seconds_bucket"


def test_a_rate_is_the_rise_over_the_time() -> None:
    before = page(**{f'{REJECTED}{{reason="a"}}': 10, f'{REJECTED}{{reason="b"}}': 5})
    now = page(**{f'{REJECTED}{{reason="a"}}': 16, f'{REJECTED}{{reason="b"}}': 6})
    seen = sight(now, before)

    assert seen.rate("search", f"evenly_{REJECTED}") == (6 + 1) / 2
    assert seen.rate("search", f"evenly_{REJECTED}", reason="a") == 6 / 2
    assert seen.rate("search", f"evenly_{REJECTED}", reason="c") == 0
    assert seen.rates_by("search", f"evenly_{REJECTED}", "reason") == {"a": 3.0, "b": 0.5}
    assert seen.rate("search", "evenly_nothing_total") is None
    assert seen.rate("mail", f"evenly_{REJECTED}") is None


def test_a_restart_counts_from_zero_for_all_counters() -> None:
    before = page(backend_admitted_total=100, backend_lame_duck=1, **{REJECTED: 3})
    now = page(backend_admitted_total=10, backend_lame_duck=0, **{REJECTED: 4})
    seen = sight(now, before)

    assert seen.has_restarted
    assert seen.rate("search", "evenly_backend_admitted_total") == 10 / 2
    assert seen.rate("search", f"evenly_{REJECTED}") == 4 / 2  # Not (4 - 3) / 2.


def test_a_gauge_that_falls_is_no_restart() -> None:
    seen = sight(
        page(backend_admitted_total=12, backend_active_requests=1),
        page(backend_admitted_total=10, backend_active_requests=9),
    )

    assert not seen.has_restarted
    assert seen.rate("search", "evenly_backend_admitted_total") == 2 / 2


def test_a_new_series_counts_from_zero() -> None:
    before = page(**{f'{REJECTED}{{reason="a"}}': 10})
    now = page(**{f'{REJECTED}{{reason="a"}}': 10, f'{REJECTED}{{reason="b"}}': 4})

    assert sight(now, before).rate("search", f"evenly_{REJECTED}") == 4 / 2


def test_one_page_has_gauges_and_no_rates() -> None:
    seen = sight(page(backend_admitted_total=12, backend_utilization=0.5))

    assert seen.rate("search", "evenly_backend_admitted_total") is None
    assert seen.rates_by("search", "evenly_backend_admitted_total", "criticality") == {}
    assert seen.gauge("search", "evenly_backend_utilization") == 0.5
    assert seen.gauge("search", "evenly_backend_active_requests") is None


def test_pages_that_lie_too_far_apart_are_not_compared_in_any_way() -> None:
    before = page(observer_odd_total=1, **histogram(0, 0, 0, 0))
    now = page(observer_odd_total=9, **histogram(0, 9, 9, 9))
    seen = sight(now, before, seconds=None)

    assert rising(seen, "search", "evenly_observer_odd_total") == 0.0
    assert latency_of([seen], "search", f"evenly_{BUCKET}", [0.5]) is None


def test_without_a_page_nothing_is_known_but_what_it_was() -> None:
    seen = sight(None, page(backend_admitted_total=12, backend_utilization=0.5))

    assert seen.gauge("search", "evenly_backend_utilization") is None
    assert seen.rate("search", "evenly_backend_admitted_total") is None
    assert seen.is_about("search", "evenly_backend_")
    assert seen.services == {"search"}


def histogram(*counts: float, outcome: str = "ok") -> dict[str, float]:
    bounds = ("0.001", "0.01", "0.1", "+Inf")
    return {
        f'{BUCKET}{{outcome="{outcome}",le="{bound}"}}': count
        for bound, count in zip(bounds, counts, strict=True)
    }


@pytest.mark.parametrize(
    ("counts", "quantile", "expected"),
    [
        pytest.param((0, 10, 10, 10), 0.5, 0.001 + 0.009 * 0.5, id="half-way in a bucket"),
        pytest.param((10, 10, 10, 10), 0.9, 0.0009, id="in the first one, from zero"),
        pytest.param((50, 90, 100, 100), 0.5, 0.001, id="exactly at a bound"),
        pytest.param((50, 90, 100, 100), 0.95, 0.01 + 0.09 * 0.5, id="over empty ones"),
        pytest.param((0, 0, 0, 10), 0.5, 0.1, id="beyond the last bound: at least that"),
        pytest.param((10, 5, 20, 20), 0.75, 0.01 + 0.09 * 0.5, id="one that fell counts as flat"),
    ],
)
def test_quantiles(counts: tuple[float, ...], quantile: float, expected: float) -> None:
    seen = sight(page(**histogram(*counts)), page(**histogram(0, 0, 0, 0)))

    found = latency_of([seen], "search", f"evenly_{BUCKET}", [quantile])
    assert found == pytest.approx([expected])


def test_latency_is_of_what_succeeded_meanwhile_everywhere() -> None:
    before = page(**histogram(100, 100, 100, 100), **histogram(0, 0, 0, 0, outcome="timeout"))
    now = page(**histogram(100, 110, 110, 110), **histogram(0, 0, 0, 99, outcome="timeout"))
    other = sight(page(**histogram(0, 0, 10, 10)), page(**histogram(0, 0, 0, 0)))

    found = latency_of([sight(now, before), other], "search", f"evenly_{BUCKET}", [0.5, 1.0])
    assert found == pytest.approx([0.01, 0.1])


def test_no_latency_where_nothing_succeeded() -> None:
    flat = page(**histogram(1, 1, 1, 1))
    only = page(**{f'{BUCKET}{{outcome="ok",le="+Inf"}}': 5, f'{BUCKET}{{outcome="ok"}}': 5})

    for seen in (sight(flat, flat), sight(flat), sight(None, flat), sight(only, flat)):
        assert latency_of([seen], "search", f"evenly_{BUCKET}", [0.5]) is None


def test_sums_and_ratios_of_what_is_not_known() -> None:
    assert total([None, 1.0, 2.0]) == 3.0
    assert total([None]) is None
    assert ratio(1.0, 4.0) == 0.25
    assert ratio(1.0, 0.0) is None
    assert ratio(None, 1.0) is None
