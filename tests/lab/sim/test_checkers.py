"""Each checker stays silent while its invariant holds, and speaks as soon as it does not.

Who sees that the higher level goes first is tried in `test_order.py`; whole runs around a façade
that was sabotaged for the purpose are in `test_checkers_sabotage.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.lab.sim.checkers import Checkers
from evenly.lab.sim.scenario import Scenario

RETRY = RetryConfig(attempts=3, budget_ratio=0.1, initial_balance=1.0, max_balance=2.0)
SCENARIO = Scenario(title="watched", client_task=ClientTaskConfig(retry=RETRY))


@pytest.fixture
def checkers() -> Checkers:
    return Checkers(SCENARIO)


def kinds(violations: tuple[str, ...]) -> set[str]:
    """Return which invariants were broken."""
    return {violation.partition(":")[0] for violation in violations}


def test_a_run_that_breaks_nothing(checkers: Checkers) -> None:
    checkers.begun()
    checkers.sent("client-0", 1, 1, 0.1)
    checkers.sent("client-0", 2, 2, 0.2)
    checkers.ended(0.3, twice=False)

    checkers.finished([("client-0", 0)])

    assert checkers.violations() == ()
    assert checkers.open_calls == 0


def test_a_request_that_never_ends(checkers: Checkers) -> None:
    checkers.begun()
    checkers.begun()
    checkers.ended(0.3, twice=False)
    assert checkers.open_calls == 1

    checkers.finished([])

    assert checkers.violations() == ("begun = finished: 2 requests began and 1 ended",)


def test_a_request_that_ends_twice(checkers: Checkers) -> None:
    checkers.begun()
    checkers.ended(0.3, twice=False)
    checkers.begun()
    checkers.ended(0.4, twice=True)  # And the other one never: the sums agree.

    checkers.finished([])

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
    checkers.finished([("client-0 at service-0", active), ("service-0", 0)])

    assert checkers.violations() == (
        f"active counts: client-0 at service-0 counts {active} active requests too many",
    )


def test_of_a_kind_only_the_first_are_told(checkers: Checkers) -> None:
    for place in range(5):
        checkers.violated("tried", f"at {place}")

    assert checkers.violations() == ("tried: at 0", "tried: at 1", "tried: at 2", "tried: 2 more")
