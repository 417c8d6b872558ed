"""The scripted play: what it does, what it measures, and that every figure can be missed."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from evenly.errors import ConfigError, EvenlyError
from evenly.lab.demo import script as script_module
from evenly.lab.demo.plan import Plan
from evenly.lab.demo.played import Played
from evenly.lab.demo.script import Lengths, Script
from evenly.lab.demo.totals import Totals
from evenly.lab.demo.verdict import Track


def test_what_is_left_is_divided_in_proportion() -> None:
    assert Lengths.of(60.0) == Lengths(fast_fail=18.0, repair=10.0, overload=19.0, recovery=13.0)
    assert Lengths.of(120.0) == Lengths(fast_fail=36.0, repair=20.0, overload=38.0, recovery=26.0)
    # Too short a part shows nothing.
    assert Lengths.of(-3.0) == Lengths(fast_fail=12.0, repair=8.0, overload=10.0, recovery=7.0)


class World:
    """A fleet of numbers in virtual time, which passes when everybody sleeps."""

    def __init__(self, plan: Plan) -> None:
        self.capacity = plan.capacity
        self.now = 100.0
        self.done: list[tuple[float, str, dict[str, object]]] = []
        self.load = 0.7
        self.overload_ended_at = 0.0
        self.recovers_after = 1.0
        self.goodput_ratio = 0.97
        self.critical_plus_ratio = 1.0
        self.errors = {False: 0.008, True: 0.001}  # Within 3 s, and later.
        self.restart_errors = 0
        self.restart_refusals = 0
        self.restart_losses = 0
        self.overload_losses = 0
        self.relapses_after = 1e9
        self.ends = 0
        self.restart_ends = 0
        self.clients = 2
        self.served = 10.0
        self.is_quiet = False
        self.lost = {"CRITICAL_PLUS": 0, "CRITICAL": 0}
        self.failing_since: float | None = None
        self.restart_seconds: float = 24.0
        self.restarted_at: float | None = None
        self._names = [backend.name for backend in plan.backends]
        self._sums: dict[tuple[str, ...], float] = {("failed", "CRITICAL"): 0.0}
        self._counted_at = self.now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._sleepers, (self.now + seconds, self._number, woken))
        await woken

    async def live(self) -> None:
        while True:
            for _ in range(20):  # Let everybody go to sleep.
                await asyncio.sleep(0)
            if self._sleepers:
                at, _, woken = heapq.heappop(self._sleepers)
                self._count(at)
                self.now = at
                if not woken.done():
                    woken.set_result(None)

    async def control(self, name: str, arguments: dict[str, Any]) -> None:
        self.done.append((self.now - 100.0, name, arguments))
        if name == "load":
            if arguments["load"] < self.load:
                self.overload_ended_at = self.now
                self.lost["CRITICAL_PLUS"] += self.overload_losses
            self.load = arguments["load"]
        elif name == "fail":
            self.failing_since = self.now if arguments["is_on"] else None
        elif name == "rolling_restart":
            self.restarted_at = self.now
            self.ends += self.restart_ends
            self._sums["failed", "CRITICAL"] += self.restart_errors
            self._add("refused", "shed", "CRITICAL", number=self.restart_refusals)
            self.lost["CRITICAL"] += self.restart_losses

    def quiet(self, *, is_on: bool) -> None:
        self.is_quiet = is_on
        self.done.append((self.now - 100.0, "quiet", {"is_on": is_on}))

    def client_ends(self) -> int:
        return self.ends

    def totals(self) -> Totals:
        # Whole requests, which end at once here, or never.
        sums: dict[tuple[str, ...], float] = {}
        sums |= {place: int(number) for place, number in self._sums.items()}
        for level, lost in self.lost.items():
            ended = sum(number for place, number in sums.items() if place[-1] == level)
            sums["asked", level] = ended + lost
        return Totals(self.now, sums)

    async def subscribe(self) -> AsyncGenerator[dict[str, Any]]:
        while True:
            await self.sleep(0.5)
            backends = [self._backend(name) for name in self._names]
            yield {"backends": backends, "demo_cores": 0.4, "seconds": 0.5}

    def _backend(self, name: str) -> dict[str, Any]:
        since = self.now - self.restarted_at if self.restarted_at is not None else -1.0
        place = self._names.index(name)
        each = self.restart_seconds / len(self._names)
        is_new = since >= each * (place + 1)
        is_down = each * place <= since and not is_new
        return {
            "name": name,
            "pid": place + (1000 if is_new else 0),
            "state": "down" if is_down else "healthy",
            "clients": self.clients,
            "ok": self.served,
        }

    def _count(self, until: float) -> None:
        seconds, self._counted_at = until - self._counted_at, until
        asked = 0.0 if self.is_quiet else seconds * self.load * self.capacity
        since = self.now - self.overload_ended_at
        is_recovering = since < self.recovers_after or since >= self.relapses_after
        ok = asked
        if self.load > 1:
            ok = seconds * self.capacity * self.goodput_ratio
        elif self.overload_ended_at and is_recovering:
            ok = 0.5 * asked
        failed = 0.0
        if self.failing_since is not None:
            failed = asked * self.errors[self.now - self.failing_since > 3.0]
        plus = 0.1 * asked * (self.critical_plus_ratio if self.load > 1 else 1.0)
        self._add("ok", "CRITICAL_PLUS", number=plus)
        self._add("ok", "CRITICAL", number=max(0.0, ok - plus - failed))
        self._add("failed", "CRITICAL", number=failed)
        self._add("refused", "throttled", "CRITICAL_PLUS", number=0.1 * asked - plus)
        self._add("refused", "throttled", "CRITICAL", number=asked - ok - (0.1 * asked - plus))

    def _add(self, *place: str, number: float) -> None:
        self._sums[place] = self._sums.get(place, 0.0) + max(0.0, number)


async def played(
    seconds: float = 90.0,
    spoil: Callable[[World], None] = lambda _world: None,
    parts: list[str] | None = None,
) -> tuple[Played, World]:
    plan = Plan()
    world = World(plan)
    spoil(world)
    living = asyncio.create_task(world.live())

    def on_part(name: str, _text: str) -> None:
        if parts is not None:
            parts.append(name)

    try:
        script = Script(world, plan, seconds, sleep=world.sleep, on_part=on_part)
        return await script.play(), world
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


def setting(**values: object) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        for name, value in values.items():
            assert hasattr(world, name)
            setattr(world, name, value)

    return spoil


async def test_the_play_takes_what_was_asked_for_and_meets_every_bound() -> None:
    parts: list[str] = []

    result, world = await played(parts=parts)

    assert result.missed == []
    assert parts == [
        "warm-up", "rolling restart", "as usual", "fast-fail backend", "repair", "overload",
        "recovery",
    ]  # fmt: skip
    assert [part.name for part in result.parts] == parts
    assert result.seconds == pytest.approx(90.0, abs=1.0)
    assert result.demo_cores == pytest.approx(0.4)
    assert [(name, arguments) for _, name, arguments in world.done] == [
        ("load", {"load": 0.7}),
        ("rolling_restart", {}),
        ("quiet", {"is_on": True}),
        ("quiet", {"is_on": False}),
        ("fail", {"backend": "b3", "is_on": True}),
        ("fail", {"backend": "b3", "is_on": False}),
        ("load", {"load": 5.0}),
        ("load", {"load": 0.7}),
        ("quiet", {"is_on": True}),
        ("quiet", {"is_on": False}),
    ]


async def test_the_figures_are_what_the_clients_counted() -> None:
    result, _ = await played()

    values = {figure.name: figure.value for figure in result.figures}
    assert values["rolling_restart_failed"] == 0
    # 0.8 % for 3 s, 0.1 % for another 9.
    assert values["fast_fail_errors"] == pytest.approx(0.0026, abs=0.0007)
    assert values["overload_goodput"] == pytest.approx(0.97, abs=0.01)
    assert values["overload_critical_plus"] == pytest.approx(1.0)
    # A bad second, then the last of those that have a part in it, and samples every quarter.
    assert values["recovery_seconds"] == pytest.approx(2.0, abs=0.3)
    assert values["never_ended"] == 0


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (setting(restart_errors=1), ["rolling_restart_failed"]),
        (setting(restart_seconds=1e9), ["rolling_restart_failed", "rolling_restart_refused"]),
        (setting(restart_losses=1), ["rolling_restart_failed", "never_ended"]),
        (setting(restart_ends=1), ["rolling_restart_failed", "never_ended"]),
        (setting(restart_refusals=100), ["rolling_restart_refused"]),
        (setting(errors={False: 0.02, True: 0.01}), ["fast_fail_errors"]),
        (setting(errors={False: 0.001, True: 0.003}), ["fast_fail_errors_late"]),
        (setting(clients=0), ["fast_fail_errors", "fast_fail_errors_late"]),
        (setting(served=0.0), ["fast_fail_errors", "fast_fail_errors_late"]),
        (setting(goodput_ratio=0.85), ["overload_goodput"]),
        (setting(critical_plus_ratio=0.98), ["overload_critical_plus"]),
        (setting(overload_losses=99), ["overload_critical_plus", "never_ended"]),
        (setting(recovers_after=5.0), ["recovery_seconds"]),
        (setting(recovers_after=1e9), ["recovery_seconds"]),
        (setting(relapses_after=4.0), ["recovery_seconds"]),
    ],
    ids=[
        "a request failed in the restart", "the restart never ends", "a request never ends",
        "a client ends", "refused in the restart", "many errors", "errors rise",
        "nobody has the failing backend", "nobody uses the failing backend", "low goodput",
        "CRITICAL_PLUS refused", "CRITICAL_PLUS hangs", "slow recovery", "no recovery", "a relapse",
    ],
)  # fmt: skip
async def test_what_goes_wrong_is_a_missed_figure(
    spoil: Callable[[World], None], names: list[str]
) -> None:
    result, _ = await played(spoil=spoil)

    assert [figure.name for figure in result.missed] == names
    assert result.describe()["is_met"] is False


async def test_a_short_play_gives_each_part_what_it_needs() -> None:
    result, _ = await played(30.0)

    assert result.missed == []
    lengths = {part.name: part.ended_at - part.began_at for part in result.parts}
    assert lengths["warm-up"] == pytest.approx(4.0, abs=0.3)
    assert lengths["fast-fail backend"] == pytest.approx(12.0, abs=0.3)
    assert lengths["repair"] == pytest.approx(8.0, abs=0.3)
    assert lengths["overload"] == pytest.approx(10.0, abs=0.3)
    assert lengths["recovery"] == pytest.approx(7.0, abs=0.3)


async def test_the_restart_counts_until_what_was_under_way_could_have_failed() -> None:
    result, _ = await played()

    restart = result.parts[1]
    # 24 s for the restart, a frame of half a second, the timeout and 0.5 s to hear of it.
    seconds = 24 + 0.5 + Plan().timeout_seconds + 0.5
    assert restart.ended_at - restart.began_at == pytest.approx(seconds, abs=0.6)
    assert result.figures[0].value == 0


async def test_few_samples_are_kept_and_none_before_the_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Sequence[Totals]] = []

    class Watching(Track):  # type: ignore[misc]  # It is final, but this only looks.
        def __init__(self, samples: Sequence[Totals]) -> None:
            kept.append(samples)
            super().__init__(samples)

    monkeypatch.setattr(script_module, "Track", Watching)

    result, _ = await played(600.0)

    calm = result.parts[-1]
    assert len(kept) == 1
    assert len(kept[0]) == pytest.approx(4 * (calm.ended_at - calm.began_at), abs=3)
    assert all(len(sample.counters) == 4 for sample in kept[0])


async def test_the_document_is_json_with_every_figure_and_part() -> None:
    result, _ = await played()

    document = json.loads(json.dumps(result.describe(), allow_nan=False))

    assert list(document) == ["seconds", "figures", "parts", "demo_cores", "is_met"]
    assert list(document["figures"]) == [figure.name for figure in result.figures]
    goodput = document["figures"]["overload_goodput"]
    assert (goodput["bound"], goodput["relation"], goodput["unit"]) == (0.9, "≥", "ratio")
    assert f"over the capacity of {Plan().capacity:g} per second" in goodput["how"]
    overload = document["parts"][5]
    assert overload["name"] == "overload"
    assert overload["refused_by"]["throttled"] > 1000
    assert set(overload["ok"]) == {"CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"}


async def test_a_fleet_that_stops_reporting_ends_the_play() -> None:
    class Silent(World):
        async def subscribe(self) -> AsyncGenerator[dict[str, Any]]:
            frames: list[dict[str, Any]] = []
            for frame in frames:
                yield frame

    plan = Plan()
    world = Silent(plan)

    with pytest.raises(EvenlyError, match="the fleet has stopped reporting"):
        await Script(world, plan, 30.0, sleep=world.sleep).play()


@pytest.mark.parametrize("seconds", [29.9, 0.0, -1.0, float("nan"), float("inf"), 3601.0])
def test_a_length_out_of_bounds_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"seconds must be in \[30, 3600\], not "):
        Script(World(Plan()), Plan(), seconds)


async def test_the_backend_fails_in_the_flow_of_requests() -> None:
    result, world = await played()

    at = {(name, str(arguments.get("is_on"))): at for at, name, arguments in reversed(world.done)}
    # Not when nobody asks yet, which would find it out too cheaply.
    assert at["fail", "True"] - at["quiet", "False"] >= 4.0
    assert [part.counts.asked > 0 for part in result.parts] == [True] * 7
