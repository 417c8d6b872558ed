"""HTTP clients against one another, in turns: ours with everything on, and what people use today.

Two backends with evenly's middleware, in processes of their own and the same for all; the others
send to them in turns by hand.  A round is some requests of each client, so that a noisy moment hits
all.  Of `Session` and aiohttp the CPU of the client counts, of httpx how many requests it gets
through: its own pool is what limits it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

import aiohttp
import httpx

from bench.cpu import cpu_seconds
from bench.http_middleware import backend
from evenly.http import Session, Transport

__all__ = ["Comparison", "measure", "show"]

CONCURRENCIES = (1, 32, 128)
REQUESTS = {"session": 1500, "aiohttp": 1500, "httpx on evenly": 400, "httpx": 200}
# What we promise: `Session` needs less client CPU per request than bare aiohttp, and httpx on our
# transport has at least 5 × the throughput of stock httpx at concurrency 32.
CPU_BOUND = 1.0
THROUGHPUT_BOUND = 5.0
_THROUGHPUT_CONCURRENCY = 32
_BACKENDS = 2
_PATH = "/things/7"

Get = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Round:
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compare one of ours with one of theirs at one concurrency; times are per request."""

    what: str
    concurrency: int
    ratio: float
    bound: float | None
    is_missed: bool
    client_microseconds: tuple[float, float]
    """Of CPU: theirs and ours."""
    per_second: tuple[float, float]

    def as_json(self) -> dict[str, object]:
        return {
            "what": f"{self.what}, concurrency {self.concurrency}",
            "ratio": round(self.ratio, 3),
            "bound": self.bound,
            "client_microseconds": [round(value, 1) for value in self.client_microseconds],
            "per_second": [round(value) for value in self.per_second],
        }


def measure(rounds: int) -> list[Comparison]:
    """Compare at each concurrency, as medians over the rounds."""
    with ExitStack() as stack:
        ports = [stack.enter_context(backend("evenly"))[1] for _ in range(_BACKENDS)]
        return asyncio.run(_measure(max(5, rounds), [f"127.0.0.1:{port}" for port in ports]))


def show(comparisons: list[Comparison]) -> None:
    """Print a table."""
    print("\nHTTP clients, 2 backends with the middleware, medians (theirs → ours)")
    print(f"{'what':34}  {'concurrency':>11}  {'ratio':>6}  {'bound':>6}", end="  ")
    print(f"{'client CPU µs':>14}  {'requests/s':>14}")
    for row in comparisons:
        bound = "" if row.bound is None else f"{row.bound:.2f}"
        mark = "  MISSED" if row.is_missed else ""
        print(
            f"{row.what:34}  {row.concurrency:11}  {row.ratio:6.2f}  {bound:>6}"
            f"  {row.client_microseconds[0]:5.0f} →{row.client_microseconds[1]:6.0f}"
            f"  {row.per_second[0]:6.0f} →{row.per_second[1]:6.0f}{mark}"
        )


async def _measure(rounds: int, addresses: list[str]) -> list[Comparison]:
    target = f"static:{','.join(addresses)}"
    urls = itertools.cycle([f"http://{address}{_PATH}" for address in addresses])
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(Session(target))
        others = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        plain = await stack.enter_async_context(httpx.AsyncClient(limits=unlimited))
        on_ours = await stack.enter_async_context(httpx.AsyncClient(transport=Transport(target)))

        async def get_by_aiohttp() -> None:
            async with others.get(next(urls)) as response:
                await response.read()

        clients: dict[str, Get] = {
            "session": lambda: session.get(_PATH),
            "aiohttp": get_by_aiohttp,
            "httpx on evenly": lambda: on_ours.get(f"http://backends{_PATH}"),
            "httpx": lambda: plain.get(next(urls)),
        }
        for name, get in clients.items():
            await _round(name, get, 16)  # Connect, warm up.
        await asyncio.sleep(2.0)  # evenly spreads its connections over a second.
        comparisons = []
        for concurrency in CONCURRENCIES:
            found: dict[str, list[_Round]] = {name: [] for name in clients}
            for _ in range(rounds):
                for name, get in clients.items():
                    found[name].append(await _round(name, get, concurrency))
            comparisons += _compare(concurrency, found)
    return comparisons


async def _round(name: str, get: Get, concurrency: int) -> _Round:
    numbers = iter(range(REQUESTS[name]))

    async def work() -> None:
        for _ in numbers:
            await get()

    cpu_before = cpu_seconds(os.getpid())
    before = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    seconds = time.perf_counter() - before
    return _Round(
        seconds / REQUESTS[name], (cpu_seconds(os.getpid()) - cpu_before) / REQUESTS[name]
    )


def _compare(concurrency: int, found: dict[str, list[_Round]]) -> list[Comparison]:
    def medians(name: str) -> tuple[float, float]:
        rounds = found[name]
        return (
            statistics.median(one.cpu_seconds for one in rounds) * 1e6,
            1.0 / statistics.median(one.seconds for one in rounds),
        )

    def compared(
        what: str, theirs: str, ours: str, ratio: float, bound: float | None
    ) -> Comparison:
        (their_cpu, their_rate), (our_cpu, our_rate) = medians(theirs), medians(ours)
        return Comparison(
            what,
            concurrency,
            ratio,
            bound,
            bound is not None and (ratio < bound if bound > 1.0 else ratio >= bound),
            (their_cpu, our_cpu),
            (their_rate, our_rate),
        )

    cpu = statistics.median(
        ours.cpu_seconds / theirs.cpu_seconds
        for ours, theirs in zip(found["session"], found["aiohttp"], strict=True)
    )
    throughput = statistics.median(
        theirs.seconds / ours.seconds
        for ours, theirs in zip(found["httpx on evenly"], found["httpx"], strict=True)
    )
    is_bounded = concurrency == _THROUGHPUT_CONCURRENCY
    return [
        compared("Session over aiohttp, CPU", "aiohttp", "session", cpu, CPU_BOUND),
        compared(
            "httpx on ours over its own, rate",
            "httpx",
            "httpx on evenly",
            throughput,
            THROUGHPUT_BOUND if is_bounded else None,
        ),
    ]
