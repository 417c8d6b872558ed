"""Put a world together from the simulator's parts, for what a scenario cannot say.

Two figures of the book need that: in figure 20-6 the client tasks change their policy half way, and
in figure 21-2 attempts are counted at every layer of a stack, whose callers may insist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, final

from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.client import Client
from evenly.lab.sim.cpu_samples import CpuSamples
from evenly.lab.sim.events import Events
from evenly.lab.sim.fleet import Fleet
from evenly.lab.sim.job import Call
from evenly.lab.sim.recorder import Recorder, Second
from evenly.lab.sim.scenario import Scenario
from evenly.lab.sim.service import ServiceConfig
from evenly.lab.sim.source import Mix, Profile, Source
from evenly.lab.sim.stage import Stage

__all__ = ["Caller", "Layer", "SmallWorld"]


class Caller(Protocol):
    """Be what the code that sends requests calls: a client task, or something around one."""

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        """Send a request, and call `on_end` exactly once when it is over."""

    def retire(self) -> None:
        """Send nothing more."""


@final
@dataclass(frozen=True, slots=True)
class Layer:
    """Hold one service, and the stage on which what is sent to it is counted."""

    fleet: Fleet
    stage: Stage

    @property
    def seconds(self) -> list[Second]:
        """Return the counts of every second."""
        return self.stage.recorder.seconds


@final
class SmallWorld:
    """Run a scenario's services and client tasks, which all send alike.

    Nothing goes wrong here: faults, datacenters and quotas are `World`'s.  Every process's client
    task is handed to `wrap`, and what that returns is called in its place.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        policy: str,
        load: float,
        seed: int,
        wrap: Callable[[Caller], Caller] = lambda caller: caller,
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._wrap = wrap
        self.events = Events()
        self.layers = self._build_layers(policy)
        """The topmost first."""
        self.samples = CpuSamples(self.events, self.layers[0].fleet.machines)
        for layer in self.layers:
            layer.fleet.start()
        self._callers: list[Caller] = []
        self._sources: list[Source] = []
        self._start_clients(policy, load)

    def run(self) -> None:
        """Tell the story to its end."""
        self.events.run(self._scenario.total_seconds)

    def switch_policy(self, policy: str, *, at_seconds: float, seconds: float) -> None:
        """Let the client tasks restart with another policy, one by one within so many seconds."""

        def restart(index: int) -> None:
            self._callers[index].retire()
            caller = self._make_caller(index, f"/{policy}", policy, 0.0)
            self._callers[index] = self._sources[index].sender = caller

        count = len(self._callers)
        for index in range(count):
            self.events.at(at_seconds + seconds * index / count, partial(restart, index))

    def _build_layers(self, policy: str) -> list[Layer]:
        """Build the services from the lowest up; all have the same time."""
        layers: list[Layer] = []
        for service in reversed(self._scenario.services):
            stage = Stage(self._scenario, self._seed)
            stage.events = self.events
            stage.recorder = Recorder(self.events)
            layers.insert(
                0, self._build_layer(stage, service, layers[0] if layers else None, policy)
            )
        return layers

    def _build_layer(
        self, stage: Stage, service: ServiceConfig, below: Layer | None, policy: str
    ) -> Layer:
        def make_below(fleet: Fleet, index: int) -> Caller:
            return self._start_client(fleet, index, f"{service.name}-{index}/client", policy, 0.0)

        delay_seconds = self._scenario.network.delay_seconds
        fleet = Fleet(
            stage,
            service,
            name=service.name,
            is_lowest=True,  # Its attempts are to be counted.
            delay_seconds=lambda _client: delay_seconds,
            make_below=None if below is None else partial(make_below, below.fleet),
        )
        return Layer(fleet, stage)

    def _start_clients(self, policy: str, load: float) -> None:
        scenario = self._scenario
        profile = Profile(scenario, load)
        mix = Mix(scenario.workload)
        count = scenario.clients.count
        for index in range(count):
            at_seconds = scenario.clients.start_seconds * index / count
            caller = self._make_caller(index, "", policy, at_seconds)
            source = Source(
                self.layers[0].stage,
                caller,
                name=f"client-{index}",
                requests_per_second=scenario.capacity / count,
                profile=profile,
                mix=mix,
            )
            self.events.at(at_seconds, source.start)
            self._callers.append(caller)
            self._sources.append(source)

    def _make_caller(self, index: int, suffix: str, policy: str, after_seconds: float) -> Caller:
        top = self.layers[0].fleet
        return self._start_client(top, index, f"client-{index}{suffix}", policy, after_seconds)

    def _start_client(
        self, fleet: Fleet, index: int, name: str, policy: str, after_seconds: float
    ) -> Caller:
        client = Client(fleet, index, name, policy=policy)
        self.events.after(after_seconds, client.start)
        return self._wrap(client)
