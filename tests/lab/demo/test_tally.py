from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenly
from evenly.core.criticality import Criticality
from evenly.core.request import Request
from evenly.lab.demo.plan import WILD
from evenly.lab.demo.tally import Tally, application_attempt, bucket_of, latency_ms

ERRORS = [
    None,
    evenly.Throttled("no"),
    evenly.Overloaded("no"),
    evenly.QuotaExceeded("no"),
    evenly.NoBackend("none"),
    TimeoutError("late"),
    RuntimeError("broken"),
]


def count(shown: dict[str, dict[str, int]], key: str) -> int:
    return sum(shown[key].values())


@given(st.lists(st.integers(0, len(ERRORS) - 1), max_size=60), st.integers())
def test_every_request_is_counted_once(endings: list[int], seed: int) -> None:
    rng = random.Random(seed)
    tally = Tally()
    open_ones: list[tuple[Criticality, str]] = []
    for number in endings:
        level, customer = rng.choice(list(Criticality)), rng.choice(["shop", "wild"])
        tally.begun(level, customer)
        open_ones.append((level, customer))
        if rng.random() < 0.8:
            tally.ended(*open_ones.pop(), ERRORS[number], rng.expovariate(10.0))
        shown = tally.shown()
        refused = sum(sum(of.values()) for of in shown["refused"].values())
        ended = count(shown, "ok") + count(shown, "failed") + refused
        assert count(shown, "asked") == ended + shown["active"]
        failed_by = sum(sum(of.values()) for of in shown["failed_by"].values())
        assert failed_by == count(shown, "failed")
        assert sum(shown["latency"].values()) == count(shown, "ok")
        for of in shown["customers"].values():
            assert of["asked"] >= of["ok"] + of["failed"] + of["refused"]
    assert tally.shown()["active"] == len(open_ones)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (evenly.Throttled("no"), "throttled"),
        (evenly.Overloaded("no"), "shed"),
        (evenly.QuotaExceeded("no"), "quota"),
        (evenly.NoBackend("none"), "no_backend"),
    ],
)
def test_a_refusal_is_counted_by_where_it_was_refused(error: Exception, kind: str) -> None:
    tally = Tally()
    tally.begun(Criticality.SHEDDABLE, "ads")
    tally.ended(Criticality.SHEDDABLE, "ads", error, 0.1)

    assert tally.shown()["refused"][kind] == {"SHEDDABLE": 1}
    assert tally.shown()["customers"]["ads"]["refused"] == 1


def test_retries_are_attempts_too() -> None:
    tally = Tally()
    for number in (1, 1, 2, 3):
        tally.attempt_begun("a:1", Request(), number)

    assert (tally.attempts, tally.retries) == (4, 2)


def test_an_attempt_of_the_applications_own_is_a_retry_once_it_is_sent() -> None:
    tally = Tally()
    token = application_attempt.set(2)
    try:
        tally.begun(Criticality.CRITICAL, "shop")
        assert (tally.attempts, tally.retries) == (0, 0)  # It has found no backend yet.
        tally.attempt_begun("a:1", Request(), 1)
    finally:
        application_attempt.reset(token)

    assert (tally.attempts, tally.retries) == (1, 1)


def test_a_customer_that_runs_wild_says_nothing_of_criticalities() -> None:
    tally = Tally()
    for error in (None, evenly.QuotaExceeded("no"), TimeoutError()):
        tally.begun(Criticality.CRITICAL_PLUS, WILD)
        tally.ended(Criticality.CRITICAL_PLUS, WILD, error, 0.1)

    shown = tally.shown()
    assert shown["asked"] == {"BEYOND_QUOTA": 3}
    assert (shown["ok"], shown["failed"]) == ({"BEYOND_QUOTA": 1}, {"BEYOND_QUOTA": 1})
    assert shown["refused"]["quota"] == {"BEYOND_QUOTA": 1}
    assert shown["customers"][WILD] == {"asked": 3, "ok": 1, "failed": 1, "refused": 1}


@given(st.floats(2e-6, 1000.0))
def test_a_latency_is_at_most_the_end_of_its_bucket(seconds: float) -> None:
    number = bucket_of(seconds)

    assert latency_ms(number - 1) * 0.999999 <= seconds * 1000.0 <= latency_ms(number) * 1.000001


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-30, 1e30])
def test_latencies_beyond_all_measure_have_a_bucket(seconds: float) -> None:
    assert -70 <= bucket_of(seconds) <= 150
