"""Use every public name as a user would.  Checked by mypy, never executed."""

from __future__ import annotations

import evenly
from evenly.testing import ManualClock


def subsets() -> tuple[str, ...]:
    backends: list[str | None] = ["a", "b", None, "d"]
    mine: tuple[str, ...] = evenly.nested_subset(backends, 0, 2)
    mine = evenly.deterministic_subset(backends, 0, 2)
    mine = evenly.rendezvous_subset(backends, 0, 2)
    mine = evenly.rocksteadier_subset(backends, 0, 2)
    mine += evenly.random_subset(backends, 0, 2, seed=1)
    return mine


def criticality() -> bool:
    return evenly.Criticality.SHEDDABLE < evenly.Criticality.CRITICAL


def errors() -> evenly.EvenlyError | None:
    try:
        subsets()
    except evenly.ConfigError as error:
        return _either(error, error)
    except evenly.UsageError as error:
        return _either(error, error)
    return None


def _either(ours: evenly.EvenlyError, _theirs: ValueError | RuntimeError) -> evenly.EvenlyError:
    return ours


def refused(error: evenly.RejectedError) -> str:
    match error:
        case evenly.Throttled() | evenly.NoBackend() | evenly.RetryBudgetExhausted():
            return error.where
        case evenly.Overloaded() | evenly.QuotaExceeded():
            return f"{error.where}, retryable: {error.retryable}"
        case _:
            return str(error)


async def cheaper(query: str) -> str:
    return query[:1]


@evenly.degradable(cheaper)
async def search(query: str) -> str:
    if evenly.should_degrade():
        evenly.mark_degraded()
    return await evenly.run_in_thread(query.upper)


def estimate(query: str) -> int:
    return len(query) // 5


@evenly.degradable(estimate)
def count(query: str) -> int:
    return len(query.split())


async def context() -> evenly.Request:
    with evenly.request_context(
        criticality=evenly.Criticality.SHEDDABLE, customer="indexer", deadline_seconds=1.0
    ):
        answer: str = await search("a")
        number: int = count(answer)
        with evenly.ContextThreadPoolExecutor(max_workers=number) as executor:
            executor.submit(evenly.carry_context(print), answer).result()
        return evenly.current_request()


def clock() -> float:
    manual = ManualClock()
    manual.advance(1.0)
    return manual()
