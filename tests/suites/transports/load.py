"""Send requests at a steady rate, whatever becomes of them, and count how they end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evenly.core.criticality import Criticality
from tests.suites.transports.transport import Client

_BURST = 10


@dataclass(slots=True)
class Answer:
    """Say how one request ended."""

    sent_at: float
    ended_at: float
    end: str
    """`OK`, or the name of the failure."""
    backend: str | None
    criticality: Criticality
    details: str = ""

    @property
    def is_ok(self) -> bool:
        return self.end == "OK"


@dataclass
class Load:
    """Send `per_second` requests a second from `start` to `stop`."""

    client: Client
    per_second: float
    mix: Sequence[Criticality] = (Criticality.CRITICAL,)
    """Whose turn it is goes round and round."""
    timeout_seconds: float = 5.0
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sender: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Load:
        self._sender = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._sender is not None
        self._sender.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _run(self) -> None:
        number = 0
        begun_at = time.monotonic()
        while True:
            due = int((time.monotonic() - begun_at) * self.per_second)
            # After a pause of the machine only a little is made up for: a burst is another story.
            number = max(number, due - _BURST)
            while number < due:
                task = asyncio.create_task(self._send(self.mix[number % len(self.mix)]))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
                number += 1
            await asyncio.sleep(1.0 / self.per_second)

    async def _send(self, criticality: Criticality) -> None:
        sent_at = time.monotonic()
        end, backend, details = await self.client.send(criticality, self.timeout_seconds)
        self.answers.append(Answer(sent_at, time.monotonic(), end, backend, criticality, details))

    def failures(self, since: float = 0.0, until: float = float("inf")) -> Counter[str]:
        """Count the requests sent in between that failed, by what they failed with."""
        return Counter(
            f"{answer.end}: {answer.details[:80]}"
            for answer in self.answers
            if not answer.is_ok and since <= answer.sent_at < until
        )

    def share(self, address: str, since: float, until: float = float("inf")) -> float:
        """Return which part of the requests sent in between went to one backend."""
        backends = [a.backend for a in self.answers if since <= a.sent_at < until]
        return backends.count(address) / max(1, len(backends))


async def eventually(is_so: Callable[[], bool], *, seconds: float = 30.0) -> float:
    """Wait until something is so; return after how many seconds it was."""
    begun_at = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun_at < seconds, f"not so after {seconds} s"
        await asyncio.sleep(0.005)
    return time.monotonic() - begun_at
