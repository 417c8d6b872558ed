"""Figure 21-1: which attempt the requests are that a backend gets, and what it concludes.

SRE book, chapter 21, "Deciding to Retry".  The book's picture is not in its text, but what it shows
is: the arrivals at one backend "over a sliding window (corresponding to 1,000 initial requests, not
counting retries)", where "the only limit to retries is the retry budget of three attempts".  Where
a fraction f of the backends rejects, that makes 1,000 first attempts, 1,000 f second and 1,000 f²
third ones.  Here unchanged client tasks and backends do it: no network, and no time passes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from evenly.core.attempt import Attempt
from evenly.core.backend_task import BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.overload.retry import AttemptHistogram, AttemptHistogramConfig, RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Next, Outcome, Rejection, Request

__all__ = ["PERCENTS", "WINDOW", "Situation", "run_situation"]

PERCENTS: Final = (0, 1, 4, 10, 50, 100)
"""Of the backends, so many reject in each situation."""
WINDOW: Final = AttemptHistogramConfig().first_attempts
"""The book's 1,000 initial requests."""
_CLIENTS: Final = 10
_ENDLESS_RETRIES: Final = RetryConfig(initial_balance=1e6, max_balance=1e6)
# Above any share of retries, so that a backend never says "don't retry".
_SILENT: Final = AttemptHistogramConfig(widespread_ratio=1.0)
_ATTEMPTS: Final = 3
# Far more requests than cores: a backend in which so many are runnable rejects everything.
_HOPELESS: Final = 1_000.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Hold what one backend sees while some of all backends reject everything."""

    percent: int
    counts: tuple[int, ...]
    """First, second and third attempts in its window."""
    is_widespread: bool
    """Whether its histogram, with evenly's defaults, concludes that others reject too."""
    attempts_per_request: float
    """As the book assumes: only three attempts limit retries."""
    obeyed_attempts_per_request: float
    """Where backends answer what their histograms conclude; still without a retry budget."""

    @property
    def expected(self) -> tuple[float, ...]:
        """Return the counts that the book's rules give: 1,000, 1,000 f and 1,000 f²."""
        return tuple(WINDOW * (self.percent / 100) ** retry for retry in range(_ATTEMPTS))

    @property
    def retries_ratio(self) -> float:
        """Return the share of retries among arrivals."""
        return sum(self.counts[1:]) / sum(self.counts)

    @property
    def answer(self) -> str:
        """Return what the backend says when it must reject, in the book's words."""
        return "overloaded; don’t retry" if self.is_widespread else "task overloaded"


def run_situation(
    seed: int, *, percent: int, backends: int = 100, first_attempts: int = 1200
) -> Situation:
    """Send so many requests per backend, of which `percent` reject, twice.

    `first_attempts` is more than the window of 1,000: chance sends some backends fewer.
    """
    rejecting = round(backends * percent / 100)
    assumed = _Exchange(seed, backends, rejecting, _SILENT)
    requests = backends * first_attempts
    attempts = assumed.send(requests)
    obeyed = _Exchange(seed, backends, rejecting, AttemptHistogramConfig())
    obeyed.send(requests // 2)  # Until the windows are full.
    obeyed_attempts = obeyed.send(requests // 2)
    # Backend 0 is one of those that reject, if any does.
    counts = assumed.tasks[0].snapshot().attempts[:_ATTEMPTS]
    return Situation(
        percent=percent,
        counts=counts,
        is_widespread=_is_widespread(counts),
        attempts_per_request=attempts / requests,
        obeyed_attempts_per_request=obeyed_attempts / (requests // 2),
    )


def _is_widespread(counts: Sequence[int]) -> bool:
    histogram = AttemptHistogram()
    for number, count in enumerate(counts, start=1):
        for _ in range(count):
            histogram.record(number)
    return histogram.retries_are_widespread


@final
class _Exchange:
    """Let client tasks and backends talk to each other without delay, at one instant."""

    def __init__(
        self, seed: int, backends: int, rejecting: int, attempts: AttemptHistogramConfig
    ) -> None:
        # Overloaded from the start: it will never be known what a request costs.
        config = BackendTaskConfig(attempts=attempts)
        self.tasks = [
            BackendTask(config, clock=_clock, rng=random.Random(f"{seed}/backend-{i}"), boot=1)
            for i in range(backends)
        ]
        for index, task in enumerate(self.tasks):
            task.announce_healthy()
            task.record_signal("memory", _HOPELESS if index < rejecting else 0.0)
        self._clients = [self._make_client(seed, index) for index in range(_CLIENTS)]

    def send(self, requests: int) -> int:
        """Send requests from all client tasks in turn; return how many attempts they took."""
        return sum(self._send_one(self._clients[i % _CLIENTS]) for i in range(requests))

    def _send_one(self, client: ClientTask) -> int:
        request = Request()
        attempt = client.begin(request)
        while isinstance(attempt, Attempt):
            task = self.tasks[attempt.view.backend.index or 0]
            admission = task.admit(request, attempt.number)
            if not isinstance(admission, Rejection):
                admission.finish(Outcome.OK)
                attempt.finish(Outcome.OK)
                return attempt.number
            if attempt.finish(admission.outcome) is not Next.RETRY:
                return attempt.number
            attempt = client.begin(request, attempt)
        raise RuntimeError(f"no backend to send to: {attempt!r}")

    def _make_client(self, seed: int, index: int) -> ClientTask:
        """Return a client task that is connected to everyone and picks at random.

        Random, because "we don't use any explicit logic to ensure that a retry actually goes to a
        different backend task" (book); evenly's retries do, which matters little among 100.
        """
        backends = [Backend(f"backend-{i}", i) for i in range(len(self.tasks))]
        client = ClientTask(
            ClientTaskConfig(
                policy=PolicyConfig(name="random"),
                membership=MembershipConfig(client_index=index, subset_size=len(backends)),
                throttle=ThrottleConfig(name="off"),
                retry=_ENDLESS_RETRIES,
            ),
            clock=_clock,
            rng=random.Random(f"{seed}/client-{index}"),
        )
        client.update(backends)
        client.take_connections()
        for backend, task in zip(backends, self.tasks, strict=True):
            client.record_connection(backend, ConnectionEvent.OPENED)
            # The book's clients hear of no cut-line, and pass nobody over.
            client.record_report(backend, replace(task.report(), cut=0.0))
        return client


def _clock() -> float:
    return 0.0
