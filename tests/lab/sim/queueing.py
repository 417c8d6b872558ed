"""What queueing theory says of a backend with some cores behind one queue, first come first served.

Everything here is independent of the simulator, which is held against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from heapq import heapreplace


def completions(arrivals: Iterable[tuple[float, float]], cores: int) -> Iterator[float]:
    """Yield when each request ends, from when it arrives and what it costs (Kiefer, Wolfowitz)."""
    free_at = [0.0] * cores
    for at, cost_seconds in arrivals:
        begins_at = max(at, free_at[0])
        heapreplace(free_at, begins_at + cost_seconds)
        yield begins_at + cost_seconds


def erlang_c_mean(cores: int, load: float, mean_seconds: float) -> float:
    """Return the mean response time of M/M/k: Erlang C's probability to wait times 1 / (kμ − λ)."""
    offered = cores * load
    waits = offered**cores / math.factorial(cores) / (1.0 - load)
    begins = sum(offered**i / math.factorial(i) for i in range(cores))
    return mean_seconds * (1.0 + waits / (begins + waits) / (cores * (1.0 - load)))


def pollaczek_khinchine_mean(load: float, mean_seconds: float, variation: float) -> float:
    """Return the mean response time of M/G/1; `variation` is the costs' variance over mean²."""
    return mean_seconds * (1.0 + load / (1.0 - load) * (1.0 + variation) / 2.0)
