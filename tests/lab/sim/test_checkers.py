"""Each checker stays silent while its invariant holds, and speaks as soon as it does not.

Whole runs around a façade that was sabotaged for the purpose are in `test_checkers_sabotage.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evenly.core.client_task import ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.overload.retry import RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.lab.sim.checkers import Checkers
from evenly.lab.sim.inversion import Fared, inversion_chance
from evenly.lab.sim.recorder import Second
from evenly.lab.sim.scenario import Scenario

RETRY = RetryConfig(attempts=3, budget_ratio=0.1, initial_balance=1.0, max_balance=2.0)
SCENARIO = Scenario(title="watched", client_task=ClientTaskConfig(retry=RETRY))


@pytest.fixture
def checkers() -> Checkers:
    return Checkers(SCENARIO)


def kinds(violations: tuple[str, ...]) -> set[str]:
    """Return which invariants were broken."""
    return {violation.partition(":")[0] for violation in violations}


def second(*refused: int, offered: int = 100) -> Second:
    """Return a second with so many refused of so many offered, SHEDDABLE first."""
    result = Second()
    result.offered[:] = [offered] * len(Criticality)
    result.refused[:] = refused
    return result


def test_a_run_that_breaks_nothing(checkers: Checkers) -> None:
    checkers.begun()
    checkers.sent("client-0", 1, 1, 0.1)
    checkers.sent("client-0", 2, 2, 0.2)
    checkers.reported("service-0", 0b1100, 0.2)
    checkers.ended(0.3, twice=False)

    checkers.finished([("client-0", 0)], [second(100, 50, 0, 0)])

    assert checkers.violations() == ()
    assert checkers.open_calls == 0


def test_a_request_that_never_ends(checkers: Checkers) -> None:
    checkers.begun()
    checkers.begun()
    checkers.ended(0.3, twice=False)
    assert checkers.open_calls == 1

    checkers.finished([], [])

    assert checkers.violations() == ("begun = finished: 2 requests began and 1 ended",)


def test_a_request_that_ends_twice(checkers: Checkers) -> None:
    checkers.begun()
    checkers.ended(0.3, twice=False)
    checkers.begun()
    checkers.ended(0.4, twice=True)  # And the other one never: the sums agree.

    checkers.finished([], [])

    assert checkers.violations() == ("begun = finished: a request ended twice at 0.400 s",)


def test_an_attempt_too_many() -> None:
    checkers = Checkers(replace(SCENARIO, client_task=ClientTaskConfig()))  # With a budget of 3.
    for attempt in (1, 2, 3):
        checkers.sent("client-0", attempt, attempt, 0.1)
    assert checkers.violations() == ()

    checkers.sent("client-0", 4, 4, 0.2)

    assert checkers.violations() == ("attempts: client-0 sent attempt 4 at 0.200 s",)


def test_an_attempt_that_is_called_by_another_number(checkers: Checkers) -> None:
    checkers.sent("client-0", 1, 1, 0.1)
    checkers.sent("client-0", 2, 1, 0.2)

    assert checkers.violations() == ("attempts: client-0 called attempt 2 its 1. at 0.200 s",)


def test_a_retry_that_the_budget_does_not_have(checkers: Checkers) -> None:
    # 1 at first, and 10 requests earn 1 more.
    for _ in range(9):
        checkers.sent("client-0", 1, 1, 0.1)
    checkers.sent("client-0", 2, 2, 0.2)
    assert checkers.violations() == ()

    checkers.sent("client-0", 2, 2, 0.3)

    assert checkers.violations() == (
        "retry budget: client-0 had sent 2 retries for 9 requests at 0.300 s, 0.1 more than it had",
    )


def test_budgets_are_of_one_client_task_each(checkers: Checkers) -> None:
    for client in ("client-0", "client-1"):
        checkers.sent(client, 1, 1, 0.1)
        checkers.sent(client, 2, 2, 0.2)
    assert checkers.violations() == ()

    checkers.sent("client-1", 2, 2, 0.3)

    assert kinds(checkers.violations()) == {"retry budget"}


def test_a_budget_cannot_save_more_than_its_most(checkers: Checkers) -> None:
    # 1 + 0.1 · 1000, of which 2 are kept: a third retry is one too many.
    for _ in range(1000):
        checkers.sent("client-0", 1, 1, 0.1)
    checkers.sent("client-0", 2, 2, 0.2)
    checkers.sent("client-0", 2, 2, 0.2)
    assert checkers.violations() == ()

    checkers.sent("client-0", 2, 2, 0.2)

    assert kinds(checkers.violations()) == {"retry budget"}


def test_a_retry_that_was_never_sent_is_taken_back(checkers: Checkers) -> None:
    checkers.sent("client-0", 1, 1, 0.1)
    for _ in range(3):  # 1.1 is enough for one, and each of these is none.
        checkers.sent("client-0", 2, 2, 0.2)
        checkers.never_sent("client-0")
    checkers.sent("client-0", 2, 2, 0.3)
    assert checkers.violations() == ()

    checkers.sent("client-0", 2, 2, 0.4)

    assert checkers.violations() == (
        "retry budget: client-0 had sent 2 retries for 1 requests at 0.400 s, 0.9 more than it had",
    )


def test_what_is_taken_back_is_no_more_than_can_be_saved(checkers: Checkers) -> None:
    checkers.sent("client-0", 1, 1, 0.1)
    for _ in range(5):
        checkers.never_sent("client-0")
    checkers.sent("client-0", 2, 2, 0.2)
    checkers.sent("client-0", 2, 2, 0.2)
    assert checkers.violations() == ()  # 2, the most

    checkers.sent("client-0", 2, 2, 0.2)

    assert kinds(checkers.violations()) == {"retry budget"}


def test_a_lame_duck_that_is_sent_to(checkers: Checkers) -> None:
    checkers.sent_to_lame_duck("client-0", "service-1", 1.5, 1.75)

    (violation,) = checkers.violations()
    assert violation == (
        "lame duck: client-0 sent to service-1 at 1.7500 s, a lame duck since 1.5000 s, though"
        " another backend was healthy"
    )


@pytest.mark.parametrize("active", [1, -1])
def test_an_active_count_that_is_not_zero(checkers: Checkers, active: int) -> None:
    checkers.finished([("client-0 at service-0", active), ("service-0", 0)], [])

    assert checkers.violations() == (
        f"active counts: client-0 at service-0 counts {active} active requests too many",
    )


@pytest.mark.parametrize("admits", [0b0111, 0b1011, 0b0100, 0b0001])
def test_a_backend_that_admits_a_lower_criticality_only(checkers: Checkers, admits: int) -> None:
    checkers.reported("service-0", admits, 0.5)

    assert checkers.violations() == (
        f"criticality inversion: service-0 admitted {admits:04b} at 0.500 s",
    )


def test_a_second_in_which_a_higher_criticality_is_refused_more(checkers: Checkers) -> None:
    fine = second(50, 50, 50, 50)
    upside_down = second(50, 50, 90, 50)

    checkers.finished([], [fine, upside_down])

    inversion = "criticality inversion: in second 1, 90 of 100 of CRITICAL and 50 of 100 of"
    assert checkers.violations() == (
        f"{inversion} SHEDDABLE were refused",
        f"{inversion} SHEDDABLE_PLUS were refused",
    )


def test_an_inversion_that_only_the_whole_story_shows(checkers: Checkers) -> None:
    # 10 of 50 against 20 of 50 can be chance in one second, and cannot in twenty.
    seconds = [second(30, 10, 20, 10, offered=50)] * 20

    checkers.finished([], seconds)

    (violation,) = checkers.violations()
    assert violation == (
        "criticality inversion: in all, 400 of 1000 of CRITICAL and 200 of 1000 of SHEDDABLE_PLUS"
        " were refused"
    )


def test_the_books_equation_keeps_no_order() -> None:
    """Of a criticality of which it has seen R requests, it refuses up to R / (R + 1)."""
    adaptive = ClientTaskConfig(throttle=ThrottleConfig(name="adaptive"))
    checkers = Checkers(replace(SCENARIO, client_task=adaptive))

    checkers.finished([], [second(50, 50, 90, 50)])

    assert checkers.violations() == ()


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        pytest.param(Fared(5, 2), Fared(6, 5), id="few"),
        pytest.param(Fared(40, 10), Fared(60, 25), id="some"),
        pytest.param(Fared(300, 10), Fared(200, 160), id="many"),
        pytest.param(Fared(10, 0), Fared(10, 10), id="none against all"),
    ],
)
def test_the_chance_is_the_hypergeometric_tail(lower: Fared, higher: Fared) -> None:
    n, m = lower.offered, higher.offered
    total = higher.refused + lower.refused
    most = min(m, total)
    ways = sum(math.comb(m, k) * math.comb(n, total - k) for k in range(higher.refused, most + 1))

    # Logarithms of about 1e3, each right to 1e-16 of that, and what the tail leaves away.
    assert inversion_chance(lower, higher) == pytest.approx(
        ways / math.comb(n + m, total), rel=1e-6, abs=0.0
    )


def test_a_higher_criticality_that_fares_as_well_is_no_inversion() -> None:
    assert inversion_chance(Fared(100, 50), Fared(10, 5)) == 1.0
    assert inversion_chance(Fared(100, 50), Fared(10, 1)) == 1.0
    assert inversion_chance(Fared(0, 0), Fared(10, 10)) == 1.0
    assert inversion_chance(Fared(10, 0), Fared(0, 0)) == 1.0
    assert inversion_chance(Fared(10, 0), Fared(10, 0)) == 1.0


def test_of_a_kind_only_the_first_are_told(checkers: Checkers) -> None:
    for place in range(5):
        checkers.violated("tried", f"at {place}")

    assert checkers.violations() == ("tried: at 0", "tried: at 1", "tried: at 2", "tried: 2 more")
