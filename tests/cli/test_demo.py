"""What `evenly demo` says to whoever typed it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Self

import pytest
import typer
from typer.testing import CliRunner

from evenly.cli import demo as demo_module
from evenly.cli.demo import demo
from evenly.lab.demo import fleet as fleet_module
from evenly.lab.demo import script as script_module
from evenly.lab.demo.child import ChildError
from evenly.lab.demo.plan import Plan
from evenly.lab.demo.played import Part, Played
from evenly.lab.demo.totals import Totals
from evenly.lab.demo.verdict import Figure

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("demo")(demo)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "29"), "Invalid value for '--seconds': must be in [30, 3600], not 29.0"),
        (("--seconds", "nan"), "Invalid value for '--seconds': must be in [30, 3600], not nan"),
        (("--seconds", "soon"), "Invalid value for '--seconds': must be in [30, 3600], not 'soon'"),
        (("--json", "x.json"), "Invalid value for '--json': needs --seconds"),
        (("--backends", "2"), "'--backends': must be a whole number in [3, 64], not 2"),
        (("--backends", "65"), "'--backends': must be a whole number in [3, 64], not 65"),
        (("--clients", "0"), "'--clients': must be a whole number in [1, 64], not 0"),
        (("--load", "11"), "Invalid value for '--load': must be in [0.1, 10], not 11.0"),
        (("--port", "65536"), "'--port': must be a whole number in [0, 65535], not 65536"),
        (("--seconds", "30", "--load", "2"), "'--load': must not be given with --seconds"),
        (("--seconds", "30", "--open"), "'--open': must not be given with --seconds"),
        (("--seconds", "30", "--host", "::1"), "'--host': must not be given with --seconds"),
        (("--seconds", "30", "--port", "0"), "'--port': must not be given with --seconds"),
        (
            ("--seconds", "30", "--json", "/nowhere/at/all.json"),
            "'--json': must be a file in a folder that exists, not /nowhere/at/all.json",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_an_option_is_named(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)

    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize(
    ("missing", "arguments", "message"),
    [
        (["grpc"], [], 'grpc: pip install "evenly[grpc]"'),
        (["httptools"], ["--http"], 'httptools: pip install "evenly[http]"'),
        (["starlette"], [], 'starlette: pip install "evenly[dashboard]"'),
        (
            ["prometheus_client"],
            ["--seconds", "30"],
            'prometheus_client: pip install "evenly[prometheus]"',
        ),
        (
            ["grpc", "starlette", "uvicorn"],
            [],
            'grpc and starlette and uvicorn: pip install "evenly[grpc,dashboard]"',
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_not_installed_is_named(
    missing: list[str], arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)

    done = run(*arguments)

    assert done.exit_code == 1
    assert done.output == f"Error: evenly demo needs {message}\n"


class FakeFleet:
    """A fleet without processes."""

    def __init__(self, plan: Any, **_settings: Any) -> None:
        self.plan = plan

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass

    async def subscribe(self) -> AsyncGenerator[dict[str, Any]]:
        await asyncio.Event().wait()
        yield {}


def figure(name: str, value: float | None) -> Figure:
    return Figure(
        name=name, what=f"the {name}", value=value, bound=0.9, relation="≥", unit="ratio", how="so"
    )


def play_gives(monkeypatch: pytest.MonkeyPatch, *figures: Figure) -> None:
    part = Part(
        name="warm-up", began_at=0.0, ended_at=8.0, counts=Totals(8.0, {("ok", "CRITICAL"): 7})
    )
    played = Played(seconds=90.2, parts=[part], figures=figures, demo_cores=0.41)

    class FakeScript:
        def __init__(self, _stage: object, _plan: object, seconds: float, **_more: object) -> None:
            assert seconds == 90.0

        async def play(self) -> Played:
            await asyncio.sleep(0)
            return played

    monkeypatch.setattr(fleet_module, "Fleet", FakeFleet)
    monkeypatch.setattr(script_module, "Script", FakeScript)


def test_a_play_that_meets_its_bounds_ends_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play_gives(monkeypatch, figure("goodput", 0.95))

    done = run("--seconds", "90", "--json", str(tmp_path / "out.json"))

    assert done.exit_code == 0, done.output
    assert re.search(r"met +the goodput +95.00% +≥ 90.00%", done.output)
    assert "It took 90 s and 0.41 CPUs on average." in done.output
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["evenly"].startswith("0.")
    assert document["commit"]
    assert document["seed"] == 1
    assert document["plan"]["capacity"] == Plan.of().capacity
    assert len(document["plan"]["backends"]) == 8
    assert set(document["machine"]) == {"cores", "python", "load_average"}
    assert document["seconds"] == 90.2
    assert document["figures"]["goodput"] == {
        "what": "the goodput",
        "value": 0.95,
        "bound": 0.9,
        "relation": "≥",
        "unit": "ratio",
        "is_met": True,
        "how": "so",
        "failed_by": {},
    }
    assert document["parts"][0]["ok"]["CRITICAL"] == 7
    assert document["demo_cores"] == 0.41
    assert document["is_met"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_missed_bound_is_an_error_that_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play_gives(monkeypatch, figure("goodput", 0.95), figure("rest", 0.8), figure("end", None))

    done = run("--seconds", "90", "--json", str(tmp_path / "out.json"))

    assert done.exit_code == 1
    assert "Missed: the rest: 80.00% (≥ 90.00%)\n" in done.stderr
    assert "Missed: the end: not measured (≥ 90.00%)\n" in done.stderr
    assert "Missed: the goodput" not in done.stderr
    # What was measured is written nevertheless.
    assert json.loads((tmp_path / "out.json").read_text())["is_met"] is False


def test_the_figures_are_shown_though_they_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play_gives(monkeypatch, figure("goodput", 0.95))

    done = run("--seconds", "90", "--json", "/dev/full")

    assert done.exit_code == 1
    assert re.search(r"met +the goodput +95.00% +≥ 90.00%", done.stdout)
    assert done.stderr == "Error: --json: cannot write /dev/full: No space left on device\n"


@pytest.mark.parametrize(
    ("load_average", "is_said"), [(3.0, False), (3.1, True)], ids=["quiet", "busy"]
)
def test_a_busy_machine_is_named_beside_what_was_missed(
    monkeypatch: pytest.MonkeyPatch, load_average: float, is_said: bool
) -> None:
    play_gives(monkeypatch, figure("rest", 0.8))
    monkeypatch.setattr(os, "getloadavg", lambda: (load_average, 0.0, 0.0))
    monkeypatch.setattr(demo_module, "effective_cores", lambda: 2.0)

    done = run("--seconds", "90")

    text = "This machine is busy (load average 3.1 on 2 cores): try again when it is quiet.\n"
    assert done.exit_code == 1
    assert done.stderr.endswith(text) is is_said


def test_figures_go_to_the_output_alone_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    play_gives(monkeypatch, figure("goodput", 0.95))

    done = run("--seconds", "90", "--json", "-")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["is_met"] is True
    assert "met" in done.stderr


def test_a_fleet_that_does_not_start_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(FakeFleet):
        async def __aenter__(self) -> Self:
            raise ChildError("b3 did not start (exit code 1): no room")

    monkeypatch.setattr(fleet_module, "Fleet", Broken)

    done = run("--seconds", "90")

    assert done.exit_code == 1
    assert done.stderr == "Error: b3 did not start (exit code 1): no room\n"


def test_a_signal_after_the_play_loses_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    is_closed = False

    class Closing(FakeFleet):
        async def __aexit__(self, *_error: object) -> None:
            nonlocal is_closed
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(10):
                await asyncio.sleep(0.01)
            is_closed = True

    play_gives(monkeypatch, figure("goodput", 0.95))
    monkeypatch.setattr(fleet_module, "Fleet", Closing)

    done = run("--seconds", "90", "--json", str(tmp_path / "out.json"))

    assert is_closed  # And not given up half-way.
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out.json").read_text())["is_met"] is True


def test_a_fleet_that_stops_reporting_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(FakeFleet):
        async def subscribe(self) -> AsyncGenerator[dict[str, Any]]:
            for frame in list[dict[str, Any]]():
                yield frame

        def totals(self) -> Totals:
            return Totals()

        def client_ends(self) -> int:
            return 0

        async def control(self, _name: str, _arguments: object) -> None:
            pass

    monkeypatch.setattr(fleet_module, "Fleet", Silent)

    done = run("--seconds", "90")

    assert done.exit_code == 1
    assert done.stderr == "Error: the fleet has stopped reporting\n"
