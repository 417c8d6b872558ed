"""Overload evenly and the best that people can have without it, HAProxy, side by side.

Eight backends of two emulated cores, 130 ms a request, a deadline of 1 s and three attempts, as
`tests/acceptance/live/settings.py` has them; each figure is the median of three runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.acceptance.live.run import Figures, median, overloaded

pytestmark = pytest.mark.acceptance

_RUNS = 3
_SYSTEMS = ("haproxy", "http", "grpc")


def _table(times: float, figures: Mapping[str, Figures]) -> str:
    lines = [
        f"{times:g} × capacity: success by criticality, %; work, % of capacity; seconds",
        "system      C+     C    S+     S  useful  vain   p50   p99  first C+/C   back  calm  late",
    ]
    for name, run in figures.items():
        served = (run.critical_plus, run.critical, run.sheddable_plus, run.sheddable)
        lines.append(
            f"{name:8}"
            + "".join(f"{100 * ratio:6.1f}" for ratio in served)
            + f"{100 * run.useful:8.1f}{100 * run.vain:6.1f}"
            + f"{run.p50_seconds:6.2f}{run.p99_seconds:6.2f}"
            + f"{100 * run.first_critical_plus:8.0f}/{100 * run.first_critical:3.0f}"
            + f"{run.back_seconds:7.2f}{100 * run.calm:6.1f}{run.late_seconds:6.3f}"
        )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("times", "least_critical"),
    [
        # CRITICAL_PLUS and CRITICAL are 40 % of the requests, 80 % of what can be served.
        pytest.param(2.0, 0.96, id="twice"),
        # CRITICAL_PLUS is half of what can be served; a third of CRITICAL is the other half.
        pytest.param(5.0, 0.30, id="five times"),
    ],
)
async def test_overload_beside_haproxy(times: float, least_critical: float, tmp_path: Path) -> None:
    runs: dict[str, list[Figures]] = {system: [] for system in _SYSTEMS}
    # In turns, so that what else the machine does hits them all.
    for seed in range(_RUNS):
        for system, done in runs.items():
            done.append(await overloaded(system, times, seed=seed, folder=tmp_path))
    medians = {system: median(done) for system, done in runs.items()}
    print(f"\n{_table(times, medians)}")

    for transport in ("http", "grpc"):
        ours = medians[transport]
        assert ours.critical_plus >= 0.99
        assert ours.critical >= least_critical
        assert ours.useful >= 0.97
        assert ours.back_seconds <= 2.0
