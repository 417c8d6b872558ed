"""Watch a run from outside, and say which invariant it broke.

Nothing here decides anything or is asked by anyone; a checker believes only what it has seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, final

from evenly.lab.sim.order import Order
from evenly.lab.sim.scenario import Scenario

__all__ = ["Checkers"]

# Beyond so many of a kind, more of the same says nothing new.
_SHOWN = 3
# The budget's resolution: a balance is a whole number of millionths of a retry.
_PARTS: Final = 1_000_000


@final
class _Account:
    """Count one client task's requests and retries, and what it may still retry."""

    __slots__ = ("parts", "requests", "retries")

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.requests = 0
        self.retries = 0


@final
class Checkers:
    """Collect the violations of one run."""

    def __init__(self, scenario: Scenario) -> None:
        retry = scenario.client_task.retry
        self._attempts_allowed = retry.attempts
        self._first_parts = round(retry.initial_balance * _PARTS)
        self._parts_per_request = round(retry.budget_ratio * _PARTS)
        self._most_parts = round(retry.max_balance * _PARTS)
        self.order = Order(scenario, self.violated)
        """Sees that the higher level goes first."""
        self._begun = 0
        self._ended = 0
        self._accounts: dict[str, _Account] = {}
        self._seen: Counter[str] = Counter()
        self._violations: list[str] = []

    @property
    def open_calls(self) -> int:
        """Return how many requests have begun and not ended."""
        return self._begun - self._ended

    def violated(self, kind: str, what: str) -> None:
        """Note a violation; of each kind only the first few in full."""
        self._seen[kind] += 1
        if self._seen[kind] <= _SHOWN:
            self._violations.append(f"{kind}: {what}")

    def violations(self) -> tuple[str, ...]:
        """Return what was found, and how much more of the same there was."""
        more = [
            f"{kind}: {count - _SHOWN} more" for kind, count in self._seen.items() if count > _SHOWN
        ]
        return (*self._violations, *more)

    def begun(self) -> None:
        """See a request begin."""
        self._begun += 1

    def ended(self, now: float, *, twice: bool) -> None:
        """See a request end."""
        self._ended += 1
        if twice:
            self.violated("begun = finished", f"a request ended twice at {now:.3f} s")

    def sent(self, client: str, attempt: int, number: int, now: float) -> None:
        """See an attempt begin, which its client task calls `number`.

        The budget is kept once more: it starts with the initial balance, every request adds the
        ratio up to the most that can be saved, and every retry costs 1.  So over any stretch there
        are at most as many retries as the book's 10 % and what was saved before.
        """
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account(self._first_parts)
        if attempt == 1:
            account.requests += 1
            parts = account.parts + self._parts_per_request
            account.parts = parts if parts < self._most_parts else self._most_parts
        else:
            self._retried(account, client, attempt, now)
        if number != attempt:
            what = f"{client} called attempt {attempt} its {number}. at {now:.3f} s"
            self.violated("attempts", what)

    def never_sent(self, client: str) -> None:
        """See a retry end that could not be sent anywhere: what it cost is taken back."""
        account = self._accounts[client]
        account.retries -= 1
        account.parts = min(self._most_parts, account.parts + _PARTS)

    def _retried(self, account: _Account, client: str, attempt: int, now: float) -> None:
        if attempt > self._attempts_allowed:
            self.violated("attempts", f"{client} sent attempt {attempt} at {now:.3f} s")
        account.retries += 1
        account.parts -= _PARTS
        if account.parts < 0:
            self.violated(
                "retry budget",
                f"{client} had sent {account.retries} retries for {account.requests} requests at"
                f" {now:.3f} s, {-account.parts / _PARTS:g} more than it had",
            )

    def sent_to_lame_duck(self, client: str, backend: str, since: float, now: float) -> None:
        """See an attempt sent to a lame duck that its client task must have heard of."""
        self.violated(
            "lame duck",
            f"{client} sent to {backend} at {now:.4f} s, a lame duck since {since:.4f} s, though"
            " another backend was healthy",
        )

    def finished(self, actives: Iterable[tuple[str, int]]) -> None:
        """See the world at its end.

        `actives` says for everyone that counts active requests how many it counts too many.
        """
        if self._begun != self._ended:
            self.violated(
                "begun = finished", f"{self._begun} requests began and {self._ended} ended"
            )
        for name, active in actives:
            if active:
                self.violated("active counts", f"{name} counts {active} active requests too many")
