"""One real fleet, small: the supervisor and its children understand one another."""

from __future__ import annotations

from typing import Literal

import pytest

from evenly.lab.demo.fleet import Fleet
from evenly.lab.demo.member import Pace
from evenly.lab.demo.plan import BackendPlan, Plan
from tests.lab.demo.waiting import is_alive, until

pytest.importorskip("grpc")
pytest.importorskip("httptools")
pytest.importorskip("prometheus_client")


@pytest.mark.parametrize("transport", ["grpc", "http"])
async def test_a_real_fleet_serves_is_hurt_and_ends(transport: Literal["grpc", "http"]) -> None:
    plan = Plan(
        backends=tuple(BackendPlan(name=name, speed=1.0) for name in ("b1", "b2")),
        clients=1,
        subset_size=2,
        transport=transport,
    )
    async with Fleet(plan, pace=Pace(again_seconds=0.1)) as fleet:
        await until(lambda: fleet.totals().ok >= 10)
        first = fleet._frame()
        assert [row["state"] for row in first["backends"]] == ["healthy", "healthy"]
        assert first["clients"][0]["subset"] == ["b1", "b2"]
        assert sum(row["weight"] for row in first["backends"]) == pytest.approx(1.0, abs=1e-3)

        # Fails fast: its own count says so, whatever its client makes of it.
        await fleet.control("fail", backend="b2", is_on=True)
        await until(lambda: fleet._latest["backends"][1]["failed"] > 0)
        # With one client that soon avoids it, and retries, few may fail; each has its kind.
        counted = fleet.totals()
        assert sum(counted.failed_by().values()) == counted.failed
        await fleet.control("reset")

        await fleet.control("kill", backend="b1")
        await until(lambda: fleet._frame()["backends"][0]["pid"] != first["backends"][0]["pid"])
        await until(lambda: fleet._frame()["backends"][0]["state"] == "healthy")
        last = fleet._frame()
        assert last["backends"][0]["address"] == first["backends"][0]["address"]
        before = fleet.totals().ok
        await until(lambda: fleet.totals().ok >= before + 10)

        await fleet.control("stop", backend="b2")
        running = [row["pid"] for row in (*last["backends"], *last["clients"])]

    assert not any(is_alive(pid) for pid in running)
