from __future__ import annotations

import math
import random

import pytest

from evenly.core.balancing.backend import Backend, BackendSnapshot, BackendView
from evenly.core.balancing.health import Health, HealthConfig, State
from evenly.core.report import LoadReport
from evenly.errors import ConfigError

START = 1_000.0


def new_view(*, decay_seconds: float = 5.0) -> BackendView:
    health = Health(HealthConfig(), now=START, rng=random.Random(0))
    return BackendView(
        Backend("search-3:443", 3), health, error_decay_seconds=decay_seconds, now=START
    )


def test_a_backend_is_its_address_and_index() -> None:
    assert Backend("a:1", 7) == Backend("a:1", 7)
    assert Backend("a:1", 7) != Backend("a:1")
    assert str(Backend("a:1", 7)) == "a:1"


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("", id="empty"),
        pytest.param("a" * 513, id="longer than 512"),
        pytest.param("a:1\n", id="a line break"),
        pytest.param("a\x00", id="a NUL"),
        pytest.param(b"a:1", id="bytes"),
        pytest.param(None, id="none"),
    ],
)
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="address must be 1 to 512 printable characters"):
        Backend(address)


def test_a_wrong_address_is_not_quoted_at_length() -> None:
    with pytest.raises(ConfigError) as caught:
        Backend("a" * 10_000)

    assert len(str(caught.value)) < 200


def test_an_address_may_be_as_long_as_512() -> None:
    assert len(Backend("a" * 512).address) == 512


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(-1, id="negative"),
        pytest.param(100_000, id="above 99999"),
        pytest.param(True, id="a bool"),
        pytest.param(1.5, id="a fraction"),
        pytest.param(math.nan, id="NaN"),
    ],
)
def test_a_wrong_index_is_refused(index: int) -> None:
    with pytest.raises(ConfigError, match="index must be a whole number in \\[0, 99999\\]"):
        Backend("a:1", index)


@pytest.mark.parametrize("index", [0, 99_999])
def test_the_ends_of_the_range_are_indices(index: int) -> None:
    assert Backend("a:1", index).index == index


def test_load_is_active_requests_plus_recent_errors() -> None:
    view = new_view()
    for _ in range(3):
        view.begin()
    view.record_error(START, is_failure=True)
    view.record_error(START, is_failure=True)

    assert (view.active, view.error_load, view.load) == (3, 2, 5)
    view.finish()
    assert (view.active, view.error_load, view.load) == (2, 2, 4)
    view.fade_errors(START + 5.0)  # 2/e = 0.74 rounds to 1.
    assert (view.active, view.error_load, view.load) == (2, 1, 3)
    view.begin()
    assert (view.active, view.error_load, view.load) == (3, 1, 4)


def test_an_error_fades_with_the_decay_time() -> None:
    view = new_view(decay_seconds=5.0)
    view.record_error(START, is_failure=True)

    assert view.errors(START) == 1.0
    assert view.errors(START + 5.0) == pytest.approx(0.36788, abs=1e-5)  # 1/e
    assert view.errors(START + 10.0) == pytest.approx(0.13534, abs=1e-5)  # 1/e²


def test_errors_add_up_while_they_fade() -> None:
    view = new_view(decay_seconds=5.0)
    view.record_error(START, is_failure=True)
    view.record_error(START + 5.0, is_failure=True)

    assert view.errors(START + 5.0) == pytest.approx(1.36788, abs=1e-5)  # 1/e + 1


def test_failures_are_the_errors_that_reports_do_not_tell_of() -> None:
    view = new_view(decay_seconds=5.0)
    view.record_error(START, is_failure=False)
    assert (view.errors(START), view.failures(START)) == (1.0, 0.0)
    view.record_error(START, is_failure=True)
    assert (view.errors(START), view.failures(START)) == (2.0, 1.0)

    view.fade_errors(START + 5.0)
    assert view.failures(START + 5.0) == pytest.approx(0.36788, abs=1e-5)  # 1/e


def test_a_clock_that_is_told_back_does_not_make_errors_grow() -> None:
    view = new_view()
    view.record_error(START, is_failure=True)

    assert view.errors(START - 100.0) == 1.0


# 1 · exp(−3/5) = 0.549 rounds to 1; 1 · exp(−4/5) = 0.449 rounds to 0.
@pytest.mark.parametrize(
    ("seconds", "load", "changed"),
    [
        pytest.param(0.0, 1, False, id="at once"),
        pytest.param(3.0, 1, False, id="more than half is left"),
        pytest.param(4.0, 0, True, id="less than half is left"),
    ],
)
def test_an_error_is_a_whole_active_request_until_half_of_it_has_faded(
    seconds: float, load: int, changed: bool
) -> None:
    view = new_view(decay_seconds=5.0)
    view.record_error(START, is_failure=True)

    assert view.fade_errors(START + seconds) is changed
    assert view.load == load


# exp(−23/5) = 0.01005 is kept; exp(−23.1/5) = 0.0099 is below a hundredth.
def test_an_error_is_forgotten_below_a_hundredth() -> None:
    view = new_view(decay_seconds=5.0)
    was_erring = [view.is_erring]
    view.record_error(START, is_failure=True)
    for seconds in (0.0, 23.0, 23.1):
        view.fade_errors(START + seconds)
        was_erring.append(view.is_erring)

    assert was_erring == [False, True, True, False]
    assert view.errors(START + 23.1) == 0.0


def test_errors_weigh_at_most_a_hundred_requests() -> None:
    view = new_view()
    for _ in range(150):
        view.record_error(START, is_failure=True)

    assert view.errors(START) == 150.0
    assert view.error_load == 100
    # 150 · exp(−1/5) = 122.8: still above, so nothing changed.
    assert not view.fade_errors(START + 1.0)
    # 150 · exp(−5/5) = 55.18
    assert view.fade_errors(START + 5.0)
    assert view.error_load == 55


def test_snapshot_shows_what_is_known() -> None:
    view = new_view()
    view.begin()
    view.begin()
    view.record_error(START, is_failure=True)

    assert view.snapshot(START) == BackendSnapshot(
        address="search-3:443",
        index=3,
        state=State.REFUSING,
        in_subset=True,
        active=2,
        errors=1.0,
        weight=1.0,
        utilization=None,
    )
    view.report = LoadReport(utilization=0.75)
    assert view.snapshot(START).utilization == 0.75


def test_views_are_compared_by_identity() -> None:
    view = new_view()

    assert view != new_view()
    assert {view: 1}[view] == 1


def test_repr_is_a_dump_of_the_state() -> None:
    view = new_view()
    view.begin()
    view.begin()

    assert repr(view) == "<BackendView search-3:443 refusing active=2 error_load=0 weight=1>"
