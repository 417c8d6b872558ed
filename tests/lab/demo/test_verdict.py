"""The figures of the scripted play: what they are made of, and that each can be missed."""

from __future__ import annotations

import pytest

from evenly.lab.demo.totals import Totals
from evenly.lab.demo.verdict import (
    Figure,
    Track,
    critical_plus,
    errors_fall,
    failures,
    fast_fail_errors,
    never_ended,
    ok_ratio,
    overload_goodput,
    recovery,
    restart_failures,
    restart_refused,
)


def counts(
    seconds: float = 10.0,
    *,
    ok: int = 0,
    failed: int = 0,
    level: str = "CRITICAL",
    asked: int | None = None,
    **refused: int,
) -> Totals:
    ended = ok + failed + sum(refused.values())
    return Totals(
        seconds,
        {
            ("asked", level): ended if asked is None else asked,
            ("ok", level): ok,
            ("failed", level): failed,
            **{("refused", reason, level): number for reason, number in refused.items()},
        },
    )


def test_failures_are_errors_and_refusals_that_no_overload_excuses() -> None:
    part = counts(ok=10, failed=3, shed=100, throttled=100, quota=100, no_backend=5)

    assert failures(part) == 3 + 5


def by_kind(level: str = "CRITICAL", **kinds: int) -> Totals:
    failed = counts(ok=10, failed=sum(kinds.values()), level=level, no_backend=2, shed=4)
    of_kinds = {("failed_by", kind, level): number for kind, number in kinds.items()}
    return Totals(failed.at, failed.counters | of_kinds)


def test_a_missed_figure_says_what_failed_by_kind() -> None:
    part = by_kind(timeout=1, connection_lost=30)
    figure = restarted(part)

    assert str(figure) == (
        "failed requests during the rolling restart: 33 (≤ 0);"
        " 30 connection lost, 2 no backend, 1 timeout"
    )
    kinds = {"connection_lost": 30, "no_backend": 2, "timeout": 1}
    assert figure.describe()["failed_by"] == kinds
    assert fast_fail_errors(part, had_share=True).failed_by == kinds
    assert errors_fall(counts(ok=1), part, had_share=True).failed_by == kinds
    assert str(restarted(counts(ok=9))) == "failed requests during the rolling restart: 0 (≤ 0)"


def test_what_was_not_served_of_the_most_critical_is_told_by_kind() -> None:
    lost = by_kind("CRITICAL_PLUS", timeout=3)
    of_others = by_kind(cancelled=7)
    both = Totals(1.0, lost.counters | of_others.counters)

    assert critical_plus(lost, both, never_ended=0).failed_by == {
        "timeout": 3,
        "no_backend": 2,
        "shed": 4,
    }


def test_the_part_that_was_served_is_of_those_that_ended() -> None:
    part = counts(ok=90, failed=4, shed=5, throttled=1, asked=1000)

    assert ok_ratio(part) == 0.9
    assert ok_ratio(part, "CRITICAL") == 0.9
    assert ok_ratio(part, "SHEDDABLE") is None
    assert ok_ratio(counts()) is None


def restarted(
    part: Totals, *, is_complete: bool = True, never_ended: int = 0, client_ends: int = 0
) -> Figure:
    return restart_failures(
        part, is_complete=is_complete, never_ended=never_ended, client_ends=client_ends
    )


def plus(**of: int) -> Totals:
    return counts(level="CRITICAL_PLUS", **of)


@pytest.mark.parametrize(
    ("figure", "is_met"),
    [
        pytest.param(restarted(counts(ok=9)), True, id="restart"),
        pytest.param(restarted(counts(ok=9999, failed=1)), False, id="one failed"),
        pytest.param(restarted(counts(ok=9999, no_backend=1)), False, id="one without a backend"),
        pytest.param(restarted(counts(ok=9999, shed=1)), True, id="one shed"),
        pytest.param(restarted(counts(ok=9), never_ended=1), False, id="one never ended"),
        pytest.param(restarted(counts(ok=9), client_ends=1), False, id="a client ended"),
        pytest.param(restarted(counts(ok=9), is_complete=False), False, id="half a restart"),
        pytest.param(restarted(counts()), False, id="no requests"),
        pytest.param(
            restart_refused(counts(ok=990, shed=6, throttled=4), is_complete=True), True,
            id="1 % refused",
        ),
        pytest.param(
            restart_refused(counts(ok=989, shed=6, throttled=5), is_complete=True), False,
            id="1.1 % refused",
        ),
        pytest.param(
            restart_refused(counts(ok=9), is_complete=False), False, id="half of it, refused"
        ),
        pytest.param(restart_refused(counts(), is_complete=True), False, id="refused of nothing"),
        pytest.param(
            fast_fail_errors(counts(ok=9971, failed=29), had_share=True), True, id="0.29 % errors"
        ),
        pytest.param(
            fast_fail_errors(counts(ok=9970, failed=30), had_share=True), False, id="0.3 % errors"
        ),
        pytest.param(fast_fail_errors(counts(), had_share=True), False, id="errors of nothing"),
        pytest.param(fast_fail_errors(counts(ok=9), had_share=False), False, id="it had no share"),
        pytest.param(
            errors_fall(counts(ok=9, failed=4), counts(ok=9, failed=3), had_share=True), True,
            id="fewer errors",
        ),
        pytest.param(
            errors_fall(counts(ok=9, failed=4), counts(ok=9, failed=4), had_share=True), False,
            id="as many errors",
        ),
        pytest.param(
            errors_fall(counts(ok=9), counts(ok=9), had_share=True), True, id="no errors at all"
        ),
        pytest.param(
            errors_fall(counts(ok=9), counts(ok=9, failed=1), had_share=True), False,
            id="the first error is late",
        ),
        pytest.param(
            errors_fall(counts(ok=9, failed=4), counts(), had_share=True), False,
            id="no requests any more",
        ),
        pytest.param(
            errors_fall(counts(ok=9, failed=4), counts(ok=9), had_share=False), False,
            id="errors of a backend without a share",
        ),
        # 10 s at a capacity of 200 per second are 2,000 requests.
        pytest.param(overload_goodput(counts(ok=1800), 200.0, 5.0), True, id="90 % of capacity"),
        pytest.param(overload_goodput(counts(ok=1799), 200.0, 5.0), False, id="below 90 %"),
        pytest.param(overload_goodput(counts(0.0, ok=99), 200.0, 5.0), False, id="no time"),
        pytest.param(
            critical_plus(plus(ok=99, throttled=1), plus(ok=99, throttled=1), never_ended=0), True,
            id="99 % ok",
        ),
        pytest.param(
            critical_plus(plus(ok=98, shed=1), plus(ok=98, shed=1), never_ended=0), False,
            id="98.99 % ok",
        ),
        pytest.param(
            critical_plus(plus(ok=98, failed=1), plus(ok=98, failed=1), never_ended=0), False,
            id="failed",
        ),
        pytest.param(
            critical_plus(plus(ok=80, asked=100), plus(ok=80, failed=20), never_ended=0), False,
            id="under way at the end, and failed then",
        ),
        pytest.param(
            critical_plus(plus(ok=80, asked=100), plus(ok=110), never_ended=0), True,
            id="under way at the end, and served then",
        ),
        pytest.param(
            critical_plus(plus(ok=80, asked=100), plus(ok=80, asked=100), never_ended=20), False,
            id="under way for ever",
        ),
        pytest.param(
            critical_plus(counts(ok=99), counts(ok=99), never_ended=0), False,
            id="no CRITICAL_PLUS",
        ),
        pytest.param(never_ended(0, 0), True, id="all ended"),
        pytest.param(never_ended(1, 0), False, id="one of them never ended"),
        pytest.param(never_ended(0, 1), False, id="nobody knows what a client had"),
    ],
)  # fmt: skip
def test_a_figure_meets_its_bound_or_misses_it(figure: Figure, is_met: bool) -> None:
    assert figure.is_met is is_met
    assert figure.describe()["is_met"] is is_met


def track(*seconds: Totals) -> Track:
    """Return samples every half second; each of `seconds` is what happened in one."""
    samples = [Totals(0.0, {})]
    for second in seconds:
        for _ in range(2):
            last = samples[-1]
            sums = dict(last.counters)
            for place, number in second.counters.items():
                sums[place] = sums.get(place, 0) + number / 2
            samples.append(Totals(last.at + 0.5, sums))
    return Track(samples)


GOOD = counts(ok=100)
BAD = counts(ok=60, shed=40)
STUMBLE = counts(ok=98, failed=2)


@pytest.mark.parametrize(
    ("seconds", "value"),
    [
        pytest.param([GOOD] * 12, 0.0, id="at once"),
        # A sliding second that begins in a bad one is bad, too.
        pytest.param([BAD] * 4 + [GOOD] * 8, 4.5, id="four bad seconds"),
        pytest.param([BAD] * 5 + [GOOD] * 7, 5.5, id="five bad seconds"),
        pytest.param([BAD] * 12, None, id="never"),
        pytest.param([BAD, GOOD, GOOD] + [BAD] * 9, None, id="a relapse for good"),
        pytest.param([GOOD] * 3 + [BAD] * 2 + [GOOD] * 7, 5.5, id="a relapse"),
        pytest.param([BAD, *[GOOD] * 9, STUMBLE, GOOD], 1.5, id="one instant is forgiven"),
        pytest.param([counts(ok=98, failed=2)] * 12, None, id="98 % ok"),
        pytest.param([counts(ok=99, failed=1)] * 12, 0.0, id="99 % ok"),
        pytest.param([counts(ok=94, asked=100)] * 12, None, id="requests pile up"),
        pytest.param([counts(ok=95, asked=100)] * 12, 0.0, id="goodput is 95 % of what is asked"),
        pytest.param(
            [counts(ok=90, asked=100), counts(ok=110, asked=100)] * 6, 0.0, id="luck of arrivals"
        ),
        pytest.param([counts()] * 12, None, id="nobody asks"),
    ],
)
def test_recovery_is_the_end_of_the_last_bad_second(
    seconds: list[Totals], value: float | None
) -> None:
    figure = recovery(track(BAD, *seconds), 1.0, 13.0)

    assert figure.value == value
    assert figure.is_met is (value is not None and value <= 5.0)


def test_a_good_second_before_the_end_of_the_overload_does_not_count() -> None:
    figure = recovery(track(GOOD, GOOD, BAD, BAD), 2.0, 4.0)

    assert figure.value is None


def test_a_track_counts_between_instants() -> None:
    found = track(*[counts(ok=100)] * 4).between(1.0, 3.0)

    assert (found.at, found.ok) == (2.0, 200)


def test_a_track_has_samples() -> None:
    with pytest.raises(ValueError, match="at least one sample, not 0"):
        Track([])


def test_a_figure_reads_well() -> None:
    errors = fast_fail_errors(counts(ok=98, failed=2), had_share=True)
    never = recovery(track(BAD, BAD), 0.0, 2.0)

    assert str(errors) == "failed requests while one backend fails fast: 2.00% (< 4.00%)"
    assert str(never) == "time to recover from the overload: not measured (≤ 5.0 s)"
