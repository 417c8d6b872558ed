"""Unary calls through evenly on both sides against bare grpc.aio, in turns.

Two backends each, in processes of their own; the bare client has gRPC's `round_robin`.  A round is
some calls of one and then of the other, so that a noisy moment hits both.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from bench.cpu import cpu_seconds
from evenly.grpc.client.channel import channel

__all__ = ["Comparison", "measure", "show"]

CONCURRENCIES = (1, 32, 128)
BACKENDS = 2
CALLS = 2000
# What we promise: at least 0.9 of bare gRPC's throughput.
BOUND = 0.90
_MESSAGE = b"x" * 100
_METHOD = "/bench.Echo/Do"
_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


@dataclass(frozen=True, slots=True)
class _Round:
    seconds: float
    client_cpu_seconds: float
    backend_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Say what evenly costs at one concurrency; times are per request."""

    concurrency: int
    throughput_ratio: float
    bare_per_second: float
    evenly_per_second: float
    client_microseconds: tuple[float, float]
    """Of CPU, bare and with evenly."""
    backend_microseconds: tuple[float, float]

    @property
    def is_missed(self) -> bool:
        return self.throughput_ratio < BOUND

    def as_json(self) -> dict[str, object]:
        return {
            "what": f"unary gRPC call, concurrency {self.concurrency}",
            "throughput_ratio": round(self.throughput_ratio, 3),
            "bare_per_second": round(self.bare_per_second),
            "evenly_per_second": round(self.evenly_per_second),
            "client_microseconds": [round(value, 1) for value in self.client_microseconds],
            "backend_microseconds": [round(value, 1) for value in self.backend_microseconds],
            "bound": BOUND,
        }


def measure(rounds: int) -> list[Comparison]:
    """Compare at each concurrency, as medians over the rounds."""
    with _backends("bare") as bare, _backends("evenly") as ours:
        return asyncio.run(_measure(max(5, rounds), bare, ours))


def show(comparisons: list[Comparison]) -> None:
    """Print a table."""
    print("\nunary gRPC calls: evenly on both sides against bare grpc.aio, 2 backends, medians")
    print(f"{'concurrency':>11}  {'throughput':>10}  {'bound':>6}  {'requests/s':>14}", end="  ")
    print(f"{'client CPU µs':>14}  {'backend CPU µs':>14}")
    for row in comparisons:
        mark = "  MISSED" if row.is_missed else ""
        print(
            f"{row.concurrency:11}  {row.throughput_ratio:10.3f}  {BOUND:6.2f}"
            f"  {row.bare_per_second:6.0f} →{row.evenly_per_second:6.0f}"
            f"  {row.client_microseconds[0]:6.0f} →{row.client_microseconds[1]:6.0f}"
            f"  {row.backend_microseconds[0]:6.0f} →{row.backend_microseconds[1]:6.0f}{mark}"
        )


async def _measure(
    rounds: int, bare: list[tuple[int, int]], ours: list[tuple[int, int]]
) -> list[Comparison]:
    options = [("grpc.service_config", _ROUND_ROBIN)]
    bare_target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for _, port in bare)
    our_target = "static:" + ",".join(f"127.0.0.1:{port}" for _, port in ours)
    comparisons = []
    async with (
        grpc.aio.insecure_channel(bare_target, options=options) as bare_channel,
        channel(our_target) as our_channel,
    ):
        sides = (
            (bare_channel.unary_unary(_METHOD), [pid for pid, _ in bare]),
            (our_channel.unary_unary(_METHOD), [pid for pid, _ in ours]),
        )
        for do, pids in sides:
            await _round(do, 16, pids)  # Connect, warm up.
        await asyncio.sleep(2.0)  # evenly spreads its connections over a second.
        for concurrency in CONCURRENCIES:
            pairs = [
                [await _round(do, concurrency, pids) for do, pids in sides] for _ in range(rounds)
            ]
            comparisons.append(_compare(concurrency, pairs))
    return comparisons


async def _round(do: Any, concurrency: int, pids: list[int]) -> _Round:
    numbers = iter(range(CALLS))

    async def work() -> None:
        for _ in numbers:
            await do(_MESSAGE)

    backend_before = sum(map(cpu_seconds, pids))
    cpu_before = time.process_time()
    before = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return _Round(
        time.perf_counter() - before,
        time.process_time() - cpu_before,
        sum(map(cpu_seconds, pids)) - backend_before,
    )


def _compare(concurrency: int, pairs: list[list[_Round]]) -> Comparison:
    def per_request(name: str) -> tuple[float, float]:
        both = [
            statistics.median(getattr(pair[side], name) for pair in pairs) / CALLS * 1e6
            for side in (0, 1)
        ]
        return both[0], both[1]

    bare_seconds = statistics.median(pair[0].seconds for pair in pairs)
    our_seconds = statistics.median(pair[1].seconds for pair in pairs)
    return Comparison(
        concurrency=concurrency,
        throughput_ratio=statistics.median(pair[0].seconds / pair[1].seconds for pair in pairs),
        bare_per_second=CALLS / bare_seconds,
        evenly_per_second=CALLS / our_seconds,
        client_microseconds=per_request("client_cpu_seconds"),
        backend_microseconds=per_request("backend_cpu_seconds"),
    )


@contextmanager
def _backends(kind: str) -> Iterator[list[tuple[int, int]]]:
    """Start backends; their process ids and ports."""
    processes = [
        subprocess.Popen(  # noqa: S603 -- our own module
            [sys.executable, "-m", "bench.grpc_backend", kind], stdout=subprocess.PIPE, text=True
        )
        for _ in range(BACKENDS)
    ]
    try:
        found = []
        for process in processes:
            assert process.stdout is not None
            found.append((process.pid, int(process.stdout.readline())))
        yield found
    finally:
        for process in processes:
            process.kill()
            process.communicate()  # It closes the pipe, too.
