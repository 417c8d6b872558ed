from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from evenly.errors import ConfigError
from evenly.lab.demo.controls import Settings
from evenly.lab.demo.member import Pace
from evenly.lab.demo.plan import WILD_LOAD
from evenly.lab.demo.stories import STORIES
from tests.lab.demo.fakes import HURRY, fleet_of, pids, said, states, texts
from tests.lab.demo.waiting import until


async def test_what_is_set_reaches_whom_it_concerns(log: Callable[[], list[str]]) -> None:
    configured = {"do": "configure", "policy": "random", "throttle": "off", "is_protected": True}
    async with fleet_of() as fleet:
        await fleet.control("load", {"load": 2})
        await fleet.control("load", {"load": 2})  # Nothing changes, and so nobody is told.
        await fleet.control("wild", is_on=True)
        await fleet.control("wild", is_on=False)
        await fleet.control("throttle", throttle="off")
        await fleet.control("policy", policy="random")
        await fleet.control("protect", is_on=False)
        settings = fleet.settings.describe()
        await until(lambda: len(log()) == 2 * 6 + 3)
        heard = said(log)

    for client in ("c1", "c2"):
        assert [command for name, command in heard if name == client] == [
            {"do": "load", "rate": 80.0},
            {"do": "wild", "rate": WILD_LOAD * 80.0 / 2},
            {"do": "wild", "rate": 0.0},
            {**configured, "policy": "probing"},
            configured,
            {**configured, "is_protected": False},
        ]
    for backend in ("b1", "b2", "b3"):
        assert [command for name, command in heard if name == backend] == [
            {"do": "protect", "is_on": False}
        ]
    assert settings == {
        "load": 2.0,
        "policy": "random",
        "throttle": "off",
        "is_protected": False,
        "is_wild": False,
    }


async def test_what_is_set_while_a_process_waits_for_its_turn_reaches_it(
    log: Callable[[], list[str]], starts: Callable[[], list[dict[str, Any]]]
) -> None:
    async with fleet_of() as fleet:
        for _ in range(3):  # So many start at a time.
            await fleet._starting.acquire()
        await fleet.control("kill", backend="b2")
        os.kill(pids(fleet)["c1"] or 0, signal.SIGKILL)
        await until(lambda: sum("has ended" in text for text in texts(fleet)) == 2)
        await asyncio.sleep(3 * HURRY.again_seconds)

        await fleet.control("protect", is_on=False)
        await fleet.control("load", load=2.0)
        for _ in range(3):
            fleet._starting.release()

        await until(lambda: len(starts()) == 5 + 2)
        given = {settings["name"]: settings for settings in starts()[5:]}
        assert given["b2"]["is_protected"] is False
        assert given["c1"]["is_protected"] is False
        assert given["c1"]["rate"] == 80.0
        assert not [name for name, _ in said(log) if name in given]


async def test_what_is_set_while_a_process_starts_reaches_it(log: Callable[[], list[str]]) -> None:
    async with fleet_of() as fleet:
        member = fleet._backends["b2"]
        settings = member._settings

        def set_later() -> Mapping[str, object]:
            made = settings()
            asyncio.get_running_loop().call_soon(
                lambda: fleet._conductor._set("protect", {"is_on": False})
            )
            return made

        member._settings = set_later
        await fleet.control("kill", backend="b2")

        told = ("b2", {"do": "protect", "is_on": False})
        await until(lambda: told in said(log))


async def test_quiet_clients_ask_for_nothing(log: Callable[[], list[str]]) -> None:
    async with fleet_of() as fleet:
        fleet.quiet(is_on=True)
        await fleet.control("load", load=2.0)
        fleet.quiet(is_on=False)
        await until(lambda: len(log()) == 2 * 3)

        rates = [command["rate"] for name, command in said(log) if name == "c1"]
        assert rates == [0.0, 0.0, 80.0]


async def test_faults_reach_one_backend_and_the_process_after_it(
    log: Callable[[], list[str]],
) -> None:
    async with fleet_of() as fleet:
        await fleet.control("slow", backend="b2", is_on=True)
        await fleet.control("fail", backend="b3", is_on=True)
        await until(lambda: len(log()) == 2)
        assert sorted(log()) == [
            'b2 {"do": "slow", "factor": 4.0}',
            'b3 {"do": "fail", "is_on": true}',
        ]
        rows = fleet._frame()["backends"]
        assert [row["faults"] for row in rows] == [[], ["slow"], ["fail"]]

        await fleet.control("kill", backend="b2")
        await until(lambda: len(log()) == 3)
        assert log()[2] == 'b2 {"do": "slow", "factor": 4.0}'

        await fleet.control("slow", backend="b2", is_on=False)
        await fleet.control("fail", backend="b3", is_on=False)
        await until(lambda: len(log()) == 5)
        assert sorted(log()[3:]) == [
            'b2 {"do": "slow", "factor": 1.0}',
            'b3 {"do": "fail", "is_on": false}',
        ]


async def test_stop_and_cont() -> None:
    async with fleet_of() as fleet:
        await until(lambda: states(fleet) == ["healthy"] * 3)

        await fleet.control("stop", backend="b1")
        assert states(fleet) == ["stopped", "healthy", "healthy"]
        assert fleet._frame()["backends"][0]["faults"] == ["stopped"]

        await fleet.control("cont", backend="b1")
        await until(lambda: states(fleet) == ["healthy"] * 3)


async def test_who_is_asked_to_end_does_so_and_is_replaced(log: Callable[[], list[str]]) -> None:
    async with fleet_of(Pace(again_seconds=600.0)) as fleet:
        before = pids(fleet)["b3"]

        await fleet.control("terminate", backend="b3")

        await until(lambda: pids(fleet)["b3"] != before and states(fleet)[2] == "healthy")
        assert log() == ["b3 term"]
        assert "b3: SIGTERM" in texts(fleet)


async def test_who_leaves_is_not_asked_to_again_nor_killed_for_it_later(
    log: Callable[[], list[str]],
) -> None:
    async with fleet_of() as fleet:
        before = pids(fleet)["b3"]
        await fleet.control("terminate", backend="b3")
        # A second one would drop what it still works on.
        with pytest.raises(ConfigError, match="backend must be one that stays, not 'b3': it is"):
            await fleet.control("terminate", backend="b3")
        await until(lambda: pids(fleet)["b3"] != before and states(fleet)[2] == "healthy")
        after = pids(fleet)["b3"]

        await asyncio.sleep(HURRY.terminate_seconds)

        assert log() == ["b3 term"]
        assert pids(fleet)["b3"] == after
        assert not [text for text in texts(fleet) if "has not ended" in text]


async def test_rolling_restart_replaces_each_once_and_in_order(
    log: Callable[[], list[str]],
) -> None:
    async with fleet_of() as fleet:
        await until(lambda: states(fleet) == ["healthy"] * 3)
        before = pids(fleet)

        await fleet.control("rolling_restart")
        with pytest.raises(ConfigError, match="rolling_restart must be the only one"):
            await fleet.control("rolling_restart")
        await until(lambda: "rolling restart: all backends are new" in texts(fleet))

        assert log() == ["b1 term", "b2 term", "b3 term"]
        after = pids(fleet)
        assert {name for name in before if before[name] != after[name]} == {"b1", "b2", "b3"}
        assert [member.lives for member in fleet._backends.values()] == [2, 2, 2]

        await fleet.control("rolling_restart")  # When one is over there may be another.


async def test_rolling_restart_waits_for_who_is_away(log: Callable[[], list[str]]) -> None:
    async with fleet_of() as fleet:
        await until(lambda: states(fleet) == ["healthy"] * 3)
        await fleet.control("kill", backend="b1")
        await fleet.control("rolling_restart")

        await until(lambda: "rolling restart: all backends are new" in texts(fleet))

        assert log() == ["b1 term", "b2 term", "b3 term"]
        assert [member.lives for member in fleet._backends.values()] == [3, 2, 2]


async def test_who_does_not_end_when_asked_is_killed(
    log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "b2=deaf")
    async with fleet_of(replace(HURRY, terminate_seconds=0.3)) as fleet:
        await until(lambda: states(fleet) == ["healthy"] * 3)

        await fleet.control("rolling_restart")
        await until(lambda: "rolling restart: all backends are new" in texts(fleet))

        assert "b2 has not ended within 0.3 s: it is killed" in texts(fleet)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("explode", {}, r"do must be one of load, policy, .*, reset, not 'explode'"),
        ("load", {}, r"load must be told load, not nothing"),
        ("load", {"load": 1, "x": 2}, r"load must be told load, not 'load', 'x'"),
        ("load", {"load": 11}, r"load must be in \[0\.1, 10\], not 11"),
        ("load", {"load": float("nan")}, r"load must be in \[0\.1, 10\], not nan"),
        ("load", {"load": True}, r"load must be in \[0\.1, 10\], not True"),
        ("load", {"load": "1"}, r"load must be in \[0\.1, 10\], not '1'"),
        ("policy", {"policy": "best"}, r"policy must be one of random, .*, not 'best'"),
        ("throttle", {"throttle": None}, r"throttle must be one of responsive, .*, not None"),
        ("protect", {"is_on": 1}, r"is_on must be true or false, not 1"),
        ("kill", {"backend": "b9"}, r"backend must be one of b1, b2, b3, not 'b9'"),
        ("kill", {"backend": ["b1"]}, r"backend must be one of b1, b2, b3, not \['b1'\]"),
        ("kill", {"backend": "c1"}, r"backend must be one of b1, b2, b3, not 'c1'"),
        ("rolling_restart", {"backend": "b1"}, r"rolling_restart must be told nothing, not"),
        ("slow", {"backend": "b1"}, r"slow must be told backend and is_on, not 'backend'"),
        ("story", {"story": "war"}, r"story must be one of uneven, .*, not 'war'"),
    ],
)
async def test_bad_controls_are_refused(
    name: str, arguments: dict[str, object], message: str
) -> None:
    fleet = fleet_of()
    fleet._make_members()
    try:
        with pytest.raises(ConfigError, match=message):
            await fleet.control(name, arguments)
        assert not fleet.events
    finally:
        await fleet.close()


async def test_who_does_not_run_cannot_be_killed() -> None:
    async with fleet_of(Pace(again_seconds=600.0)) as fleet:
        await fleet.control("kill", backend="b1")
        await until(lambda: states(fleet)[0] == "down")

        with pytest.raises(ConfigError, match="backend must be one that runs, not 'b1'"):
            await fleet.control("stop", backend="b1")
        await fleet.control("reset")


async def test_reset_makes_everything_as_at_the_start(log: Callable[[], list[str]]) -> None:
    async with fleet_of() as fleet:
        usual = fleet.settings
        await fleet.control("stop", backend="b3")  # First: what it has been told, it may hear.
        await fleet.control("load", load=5.0)
        await fleet.control("wild", is_on=True)
        await fleet.control("protect", is_on=False)
        await fleet.control("slow", backend="b1", is_on=True)
        await fleet.control("fail", backend="b2", is_on=True)
        await until(lambda: len(log()) == 2 * 3 + 2 + 2)  # b3 hears nothing.

        await fleet.reset()

        assert fleet.settings == usual
        await until(lambda: states(fleet) == ["healthy"] * 3)
        await until(lambda: len(log()) == 10 + 2 * 3 + 2 + 2 + 2)
        assert [row["faults"] for row in fleet._frame()["backends"]] == [[], [], []]
        assert [command for name, command in said(log) if name == "c1"][-3:] == [
            {
                "do": "configure",
                "policy": "probing",
                "throttle": "responsive",
                "is_protected": True,
            },
            {"do": "load", "rate": pytest.approx(28.0)},
            {"do": "wild", "rate": 0.0},
        ]
        told = len(log())
        await fleet.reset()
        assert len(log()) == told


async def test_a_story_shows_its_text_and_does_what_it_says(log: Callable[[], list[str]]) -> None:
    async with fleet_of() as fleet:
        await fleet.control("load", load=3.0)

        await fleet.control("story", story="retry-storm")
        await until(lambda: fleet._frame()["story"] is not None)
        await until(lambda: not fleet.settings.is_protected)

        story = fleet._frame()["story"]
        first = STORIES["retry-storm"].steps[0]
        assert story == {
            "name": "retry-storm",
            "step": 0,
            "steps": len(STORIES["retry-storm"].steps),
            "text": first.text,
            "panels": list(first.panels),
        }
        assert fleet.settings.load == 0.7  # It begins with the fleet as at the start.
        kinds = {event["text"]: event["kind"] for event in fleet.events}
        assert kinds["story: The retry storm"] == "user"
        assert kinds["protection off"] == "story"

        await fleet.control("end_story")
        assert fleet._frame()["story"] is None
        assert fleet.settings.is_protected


async def test_another_story_ends_the_first() -> None:
    async with fleet_of() as fleet:
        await fleet.control("story", story="retry-storm")
        await until(lambda: not fleet.settings.is_protected)

        await fleet.control("load", load=3.0)
        await fleet.control("slow", backend="b1", is_on=True)

        await fleet.control("story", story="uneven")
        assert fleet.settings == Settings()
        assert fleet._frame()["backends"][0]["faults"] == []
        await until(lambda: bool(fleet._frame()["story"]["text"]))
        assert fleet._frame()["story"]["name"] == "uneven"

        await fleet.control("reset")
        assert fleet._frame()["story"] is None
