from __future__ import annotations

import pytest

from evenly.lab.demo.totals import CRITICALITIES, REASONS, Ledger, Totals, flatten


def totals(**line: object) -> Totals:
    return Totals(0.0, flatten(line, line))


def test_criticalities_are_in_their_order() -> None:
    assert CRITICALITIES == ("CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE")


def test_counters_have_their_place_in_the_line() -> None:
    line = {
        "ok": {"CRITICAL": 2},
        "refused": {"shed": {"SHEDDABLE": 3}},
        "attempts": 7,
        "policy": "probing",
        "latency": {"48": float("nan"), "49": True, "50": 1},
        "subset": [1],
    }

    assert flatten(line, [*line, "missing"]) == {
        ("ok", "CRITICAL"): 2,
        ("refused", "shed", "SHEDDABLE"): 3,
        ("attempts",): 7,
        ("latency", "50"): 1,
    }


def test_another_process_counts_on_from_what_there_was() -> None:
    ledger = Ledger()
    ledger.record(100, {("ok",): 5})
    ledger.record(100, {("ok",): 7})
    ledger.record(101, {("ok",): 2, ("failed",): 1})

    assert ledger.totals() == {("ok",): 7 + 2, ("failed",): 1}
    assert ledger.total("ok") == 9
    assert ledger.total("refused") == 0


def test_a_count_of_the_same_process_never_falls() -> None:
    ledger = Ledger()
    ledger.record(100, {("ok",): 5, ("cpu_seconds",): 0.5})
    ledger.record(100, {("ok",): 4})

    assert ledger.totals() == {("ok",): 5, ("cpu_seconds",): 0.5}


def test_a_difference_is_what_happened_in_between() -> None:
    first = Totals(10.0, flatten({"ok": {"CRITICAL": 5}}, ["ok"]))
    second = Totals(12.5, flatten({"ok": {"CRITICAL": 9}, "failed": {"SHEDDABLE": 2}}, ENDINGS))

    between = second - first

    assert (between.at, between.ok, between.failed, between.ended) == (2.5, 4, 2, 6)


def test_what_has_not_ended_is_under_way() -> None:
    counted = totals(
        asked={"CRITICAL": 9}, ok={"CRITICAL": 4}, failed={}, refused={"shed": {"CRITICAL": 2}}
    )

    assert counted.under_way == 3
    assert counted.brief().under_way == 3
    assert counted.brief().counters == {
        ("asked",): 9, ("ok",): 4, ("failed",): 0, ("refused",): 2,
    }  # fmt: skip


def test_failures_are_told_by_kind_and_criticality() -> None:
    counted = totals(
        failed={"CRITICAL": 3, "SHEDDABLE": 1},
        failed_by={"timeout": {"CRITICAL": 2, "SHEDDABLE": 1}, "cancelled": {"CRITICAL": 1}},
    )

    assert counted.failed_by() == {"cancelled": 1, "timeout": 3}
    assert counted.failed_by("SHEDDABLE") == {"timeout": 1}
    assert (counted - counted).failed_by() == {}


def test_reasons_are_those_that_clients_count() -> None:
    assert REASONS == ("throttled", "shed", "quota", "no_backend")


ENDINGS = ("asked", "ok", "failed", "refused")


def test_counts_by_criticality_and_reason() -> None:
    counted = totals(
        ok={"CRITICAL": 4, "SHEDDABLE": 1},
        refused={"shed": {"SHEDDABLE": 3, "CRITICAL": 1}, "throttled": {"SHEDDABLE": 5}},
        customers={"shop": {"asked": 14, "ok": 5}, "ads": {"asked": 0}},
    )

    assert counted.ok == 5
    assert counted.refused == 9
    assert counted.count("refused", "shed") == 4
    assert counted.of_criticality("refused", "SHEDDABLE") == 8
    assert counted.of_criticality("ok", "CRITICAL_PLUS") == 0
    assert counted.count("customers", "shop", "ok") == 5
    assert counted.customers() == ["ads", "shop"]


def test_retries_are_compared_with_first_attempts() -> None:
    assert totals(attempts=12, retries=2).retry_ratio == pytest.approx(2 / 10)
    assert totals(attempts=0, retries=0).retry_ratio is None


def test_latency_is_interpolated_inside_of_a_bucket() -> None:
    # 10 requests in (1.1^9, 1.1^10], then 30 in (1.1^19, 1.1^20] ms; others count for nothing.
    counted = totals(latency={"10": 10, "20": 30, "odd": 5, "99999": 5, "7": 0})

    assert counted.latency_ms(0.25) == pytest.approx(1.1**10)
    assert counted.latency_ms(0.125) == pytest.approx(1.1**9.5)
    assert counted.latency_ms(0.5) == pytest.approx(1.1 ** (19 + 10 / 30))
    assert counted.latency_ms(1.0) == pytest.approx(1.1**20)


def test_latency_below_a_millisecond() -> None:
    assert totals(latency={"-3": 1}).latency_ms(1.0) == pytest.approx(1.1**-3)


def test_without_answers_there_is_no_latency() -> None:
    assert totals(latency={}).latency_ms(0.5) is None
