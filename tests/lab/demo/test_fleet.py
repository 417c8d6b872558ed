from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from evenly.lab.demo.child import ChildError
from evenly.lab.demo.fleet import Fleet
from evenly.lab.demo.member import Pace
from evenly.lab.demo.stories import STORIES
from tests.lab.demo.fakes import PLAN, children, fleet_of, pids, states, texts
from tests.lab.demo.waiting import is_alive, until

if TYPE_CHECKING:
    from evenly.lab.dashboard.source import Source


async def test_everything_starts_with_its_settings_and_ends(
    starts: Callable[[], list[dict[str, Any]]],
) -> None:
    async with fleet_of() as fleet:
        running = pids(fleet)
        assert all(is_alive(pid) for pid in running.values())
        given = {settings["name"]: settings for settings in starts()}
        assert sorted(given) == ["b1", "b2", "b3", "c1", "c2"]
        assert given["b2"] == {
            "name": "b2",
            "host": "127.0.0.1",
            "port": given["b2"]["port"],
            "speed": 2,
            "slots": 2,
            "work_seconds": 0.1,
            "transport": "grpc",
            "is_real_cpu": False,
            "is_protected": True,
            "customers": PLAN.limits_of(PLAN.backends[1]),
            "default_limit": max(PLAN.limits_of(PLAN.backends[1]).values()),
        }
        addresses = {name: f"127.0.0.1:{given[name]['port']}" for name in ("b1", "b2", "b3")}
        assert given["c2"] == {
            "name": "c2",
            "host": "127.0.0.1",
            "index": 1,
            "transport": "grpc",
            "backends": addresses,
            "subset_size": 3,
            "rate": pytest.approx(0.7 * 80 / 2),
            "wild_rate": 0.0,
            "timeout_seconds": 1.5,
            "policy": "probing",
            "throttle": "responsive",
            "is_protected": True,
            "seed": PLAN.seed,
        }

    assert not any(is_alive(pid) for pid in running.values())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", given["b1"]["port"]))


async def test_who_is_killed_comes_back_at_its_address(
    starts: Callable[[], list[dict[str, Any]]],
) -> None:
    async with fleet_of() as fleet:
        await until(lambda: states(fleet) == ["healthy"] * 3)
        before = pids(fleet)
        await fleet.control("load", load=1.0)

        await fleet.control("kill", backend="b2")
        os.kill(before["c1"] or 0, signal.SIGKILL)  # Nobody asked for this one.
        await until(lambda: states(fleet)[1] == "down")
        await until(lambda: len(starts()) == 7)
        await until(lambda: states(fleet) == ["healthy"] * 3)

        after = pids(fleet)
        assert {name for name in before if before[name] != after[name]} == {"b2", "c1"}
        backends = [settings for settings in starts() if settings["name"] == "b2"]
        assert backends[0] == backends[1]
        clients = [settings for settings in starts() if settings["name"] == "c1"]
        assert clients[1] == clients[0] | {"rate": 40.0}
        await until(lambda: f"c1 is back (process {after['c1']})" in texts(fleet))
        assert "b2: SIGKILL" in texts(fleet)
        assert "b2 has ended (SIGKILL, −9); again in 0.05 s" in texts(fleet)


async def test_who_crashes_is_announced_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAKE_MODE", "b2=crash")
    async with fleet_of() as fleet:
        assert fleet._backends["b2"].ends == 0
        await fleet.control("fail", backend="b2", is_on=True)

        why = "b2 has ended (exit code 1): out of bananas"
        await until(lambda: f"{why}; again in 0.05 s" in texts(fleet))
        assert why in caplog.messages
        assert fleet._backends["b2"].ends >= 1


async def test_clients_that_end_are_counted() -> None:
    async with fleet_of() as fleet:
        await fleet.control("kill", backend="b1")
        os.kill(pids(fleet)["c1"] or 0, signal.SIGKILL)
        await until(lambda: sum("is back" in text for text in texts(fleet)) == 2)

        assert fleet.client_ends() == 1


async def test_who_watches_is_told_that_no_more_frames_can_be_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet_of() as fleet:
        watching = asyncio.create_task(_count(fleet))
        async with aclosing(fleet.subscribe()) as frames:
            await anext(frames)

        def broken() -> dict[str, Any]:
            raise ValueError("no ink")

        monkeypatch.setattr(fleet, "_frame", broken)
        assert await watching >= 1

        # Nor does anybody wait who comes later.
        assert await _count(fleet) == 0
        assert "no more frames can be made: no ink" in texts(fleet)
        assert "no more frames can be made" in caplog.messages


async def _count(fleet: Fleet) -> int:
    return len([frame async for frame in fleet.subscribe()])


async def test_a_port_that_is_taken_is_tried_again(
    starts: Callable[[], list[dict[str, Any]]],
) -> None:
    pace = Pace(again_seconds=0.5)
    async with fleet_of(pace) as fleet:
        port = next(settings["port"] for settings in starts() if settings["name"] == "b1")
        await fleet.control("kill", backend="b1")
        await until(lambda: states(fleet)[0] == "down")
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            refusal = f"b1 did not start (exit code 1): port {port}: Address already in use"
            await until(lambda: f"{refusal}; again in 0.5 s" in texts(fleet))
        await until(lambda: states(fleet)[0] == "healthy")


async def test_a_stopped_process_does_not_survive() -> None:
    fleet = fleet_of()
    await fleet.start()
    running = pids(fleet)
    for backend in ("b1", "b2", "b3"):
        await fleet.control("stop", backend=backend)

    await fleet.close()

    assert not any(is_alive(pid) for pid in running.values())
    await fleet.close()  # Twice is no error.


async def test_close_goes_on_when_who_asked_for_it_is_cancelled() -> None:
    fleet = fleet_of()
    await fleet.start()
    closing = asyncio.create_task(fleet.close())
    await asyncio.sleep(0)

    closing.cancel()
    await asyncio.gather(fleet.close(), fleet.close())

    assert closing.cancelled()
    assert not children()


async def test_a_start_that_is_cancelled_leaves_nobody(
    starts: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "b3=mute")
    fleet = fleet_of()
    starting = asyncio.create_task(fleet.start())
    # A process may have begun to work before we know that it has started.
    await until(lambda: len(starts()) == 3 and Counter(pids(fleet).values())[None] == 2)
    running = pids(fleet)

    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [pid is not None for pid in running.values()] == [True] * 3 + [False] * 2
    assert not any(is_alive(pid) for pid in running.values())


async def test_a_start_that_is_cancelled_at_any_moment_leaves_nobody() -> None:
    for steps in range(0, 60, 3):
        fleet = fleet_of()
        starting = asyncio.create_task(fleet.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not any(is_alive(pid) for pid in pids(fleet).values())
    assert not children()


async def test_a_child_that_cannot_start_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "c2=broken")
    fleet = fleet_of()

    with pytest.raises(ChildError, match=r"c2 did not start \(exit code 1\): c2 has no bananas"):
        await fleet.start()

    assert not any(is_alive(pid) for pid in pids(fleet).values())
    assert not children()


async def test_a_child_that_is_never_ready_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "b1=mute")
    fleet = fleet_of(Pace(start_seconds=0.3))

    with pytest.raises(ChildError, match=r"was not ready after 0\.3 s"):
        await fleet.start()

    assert not children()


async def test_frames_come_to_all_who_watch_until_the_end() -> None:
    fleet = fleet_of()
    source: Source = fleet
    await fleet.start()
    seen: list[dict[str, Any]] = []

    async def watch() -> None:
        async for frame in source.frames():
            seen.append(frame)  # noqa: PERF401 -- looked at while it grows

    watching = asyncio.create_task(watch())
    async with aclosing(fleet.subscribe()) as frames:
        first = await anext(frames)
        second = await anext(frames)
    await fleet.control("stop", backend="b1")
    await until(lambda: any("b1: SIGSTOP" in text_of(frame) for frame in seen))
    await fleet.close()
    await watching

    assert second["t"] > first["t"]
    assert seen[:2] == [first, second]
    assert sum("b1: SIGSTOP" in text_of(frame) for frame in seen) == 1
    assert [row["name"] for row in seen[-1]["clients"]] == ["c1", "c2"]
    assert seen[-1]["clients"][0]["subset"] == ["b1", "b2", "b3"]
    assert [frame async for frame in fleet.subscribe()] == []


def text_of(frame: dict[str, Any]) -> str:
    return " ".join(event["text"] for event in frame["events"])


async def test_totals_are_exact_over_restarts() -> None:
    async with fleet_of() as fleet:
        await until(lambda: fleet.totals().ok > 3)
        before = fleet.totals()
        await fleet.control("kill", backend="b1")
        os.kill(pids(fleet)["c2"] or 0, signal.SIGKILL)
        await until(lambda: "is back" in " ".join(texts(fleet)))
        await until(lambda: (fleet.totals() - before).ok > 3)

        after = fleet.totals()
        assert (after - before).asked == (after - before).ok
        assert after.at > before.at


async def test_what_a_page_needs_once() -> None:
    async with fleet_of() as fleet:
        described = fleet.describe()
        json.dumps(described, allow_nan=False)
        running = pids(fleet)
        targets = fleet.targets("127.0.0.1:9100")

    plan: Any = described["plan"]
    assert plan["backends"][1] == {"name": "b2", "speed": 2, "slots": 2, "capacity": 40.0}
    assert plan["clients"] == ["c1", "c2"]
    assert described["policies"]
    assert [story["name"] for story in described["stories"]] == list(STORIES)  # type: ignore[attr-defined]
    # The fakes say their process id for the port of their metrics.
    assert [target["targets"] for target in targets[:-1]] == [
        [f"127.0.0.1:{pid}"] for pid in running.values()
    ]
    assert Counter(target["labels"]["role"] for target in targets) == {
        "backend": 3,
        "client": 2,
        "fleet": 1,
    }
    own = {"targets": ["127.0.0.1:9100"], "labels": {"role": "fleet", "name": "demo"}}
    assert targets[-1] == own


async def test_its_own_metrics() -> None:
    async with fleet_of() as fleet:
        await until(lambda: "evenly_demo_wasted " in fleet.metrics())
        await fleet.control("load", load=2.0)
        page = fleet.metrics()

    assert "\nevenly_demo_load 2.0\n" in page
    assert "\nevenly_demo_is_protected 1.0\n" in page


@pytest.mark.parametrize("names", [("story",), ("rolling_restart",), ("story", "rolling_restart")])
async def test_close_ends_what_is_under_way(names: tuple[str, ...]) -> None:
    fleet = fleet_of()
    await fleet.start()
    for name in names:
        await fleet.control(name, {"story": "overload"} if name == "story" else {})
    await asyncio.sleep(0)

    await fleet.close()

    assert not children()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
