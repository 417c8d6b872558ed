from __future__ import annotations

from statistics import median
from time import perf_counter

import pytest

from evenly.core.balancing.nested_subset import nested_subset


@pytest.mark.acceptance
@pytest.mark.parametrize("size", [20, 100])
def test_one_client_of_ten_thousand_backends_takes_two_milliseconds(size: int) -> None:
    backends = [f"10.0.{x // 256}.{x % 256}:443" for x in range(10_000)]

    def mean_seconds() -> float:
        start = perf_counter()
        for client in range(50):
            nested_subset(backends, 997 * client, size)
        return (perf_counter() - start) / 50

    assert median(mean_seconds() for _ in range(3)) <= 0.002
