"""Figure 21-2: a stack of services whose lowest is overloaded, and what retries make of that.

SRE book, chapter 21, "Deciding to Retry": "requests should only be retried at the layer immediately
above the layer that is rejecting them", or attempts multiply: three at each of three layers are 27.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import AttemptHistogramConfig, RetryConfig
from evenly.core.overload.throttle_catalogue import ThrottleConfig
from evenly.core.request import Outcome, Reason, Request
from evenly.lab.sim.figures.small_world import Caller, SmallWorld
from evenly.lab.sim.job import Call
from evenly.lab.sim.scenario import ClientsConfig, PhaseConfig, Scenario, WorkloadConfig
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig

__all__ = ["ATTEMPTS", "CHEAP", "DEAR", "LAYERS", "MODES", "Mode", "StackRun", "run_stack"]

ATTEMPTS: Final = 3
LAYERS: Final = ("backend A", "backend B", "DB frontend")
"""Below the frontend, whose tasks are the clients."""
CHEAP: Final = 0.01
"""What a rejection costs the DB frontend, in mean costs, so that it can reject all that comes."""
DEAR: Final = ServiceConfig().reject_cost_ratio
"""What it costs elsewhere in the simulator; most attempts then wait in vain to be rejected."""
_LOAD: Final = 3.0
_POLICY: Final = ClientTaskConfig().policy.name


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Say who retries."""

    name: str
    rules: str
    """In two short lines."""
    client_task: ClientTaskConfig
    backend_task: BackendTaskConfig = BackendTaskConfig()  # noqa: RUF009  It is frozen.
    insists: bool = False
    """Whether the code at every layer tries three times, whatever it is answered."""


MODES: Final = (
    Mode(
        name="naive",
        rules="three attempts\nat every layer",
        client_task=ClientTaskConfig(
            retry=RetryConfig(attempts=1), throttle=ThrottleConfig(name="off")
        ),
        # Never above all of the arrivals, so that no backend says "don't retry".
        backend_task=BackendTaskConfig(attempts=AttemptHistogramConfig(widespread_ratio=1.0)),
        insists=True,
    ),
    Mode(
        name="book",
        rules="10 % budget,\n“don’t retry”",
        client_task=ClientTaskConfig(throttle=ThrottleConfig(name="off")),
    ),
    Mode(name="evenly", rules="and client-side\nthrottling", client_task=ClientTaskConfig()),
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StackRun:
    """Hold what one mode did to the stack."""

    mode: str
    scenario: Scenario
    load: float
    attempts_per_request: tuple[float, ...]
    """Attempts sent to each of `LAYERS`, over the requests of the frontend."""
    goodput_ratio: float
    """Requests that succeeded, over what the DB frontend can serve."""


@final
class Insistent:
    """Be the code of a handler that tries three times, whatever it is answered.

    It is a loop around a call: it knows neither a budget nor "don't retry".
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def issue(self, request: Request, on_end: Callable[[Call, Outcome | Reason], None]) -> None:
        """Send a request, and again if it is refused."""
        self._try(request, on_end, ATTEMPTS)

    def retire(self) -> None:
        """Send nothing more."""
        self._caller.retire()

    def _try(
        self, request: Request, on_end: Callable[[Call, Outcome | Reason], None], left: int
    ) -> None:
        def ended(call: Call, end: Outcome | Reason) -> None:
            is_rejection = isinstance(end, Outcome) and end.is_rejection
            if is_rejection and left > 1:
                self._try(request, on_end, left - 1)
            else:
                on_end(call, end)

        self._caller.issue(request, ended)


def run_stack(
    seed: int,
    *,
    mode: str,
    reject_cost_ratio: float = CHEAP,
    seconds: int = 12,
    settle_seconds: int = 4,
    backends: int = 8,
) -> StackRun:
    """Run the stack in one of `MODES`; the DB frontend is asked for three times what it can do.

    Then nothing more is sent for as long as a request may take, so that every attempt is counted.
    What succeeds is counted from `settle_seconds` on: at first the queues are empty.
    """
    chosen = next(each for each in MODES if each.name == mode)
    scenario = _scenario(chosen, backends, seconds, reject_cost_ratio)
    world = SmallWorld(
        scenario,
        policy=_POLICY,
        load=_LOAD,
        seed=seed,
        wrap=Insistent if chosen.insists else _as_it_is,
    )
    world.run()
    top = world.layers[0].seconds
    requests = sum(sum(second.offered) for second in top)
    succeeded = sum(sum(second.succeeded) for second in top[settle_seconds:seconds])
    attempts = [sum(second.attempts for second in layer.seconds) for layer in world.layers]
    return StackRun(
        mode=mode,
        scenario=scenario,
        load=_LOAD,
        attempts_per_request=tuple(count / requests for count in attempts),
        goodput_ratio=succeeded / (scenario.capacity * (seconds - settle_seconds)),
    )


def _as_it_is(caller: Caller) -> Caller:
    return caller


def _scenario(mode: Mode, backends: int, seconds: int, reject_cost_ratio: float) -> Scenario:
    """Return three services, of which only the lowest is short of CPUs.

    A and B could bear the attempts of all their callers.  At 1 % of a request, 27 attempts for each
    of three times the requests that it can serve take 81 % of the DB frontend's time; at 10 % they
    would take eight times what it has.
    """
    cheap = RequestCostConfig(mean_seconds=0.0002)
    above = [ServiceConfig(name=name, count=backends, cores=4, cost=cheap) for name in LAYERS[:-1]]
    lowest = ServiceConfig(
        name=LAYERS[-1],
        count=backends,
        cores=1,
        cost=RequestCostConfig(mean_seconds=0.08),
        reject_cost_ratio=reject_cost_ratio,
    )
    return Scenario(
        title=f"A stack of dependencies: {mode.name}",
        phases=(
            PhaseConfig(seconds=seconds),
            PhaseConfig(seconds=WorkloadConfig().timeout_seconds, load=0.0),
        ),
        settle_seconds=0.0,
        loads=(_LOAD,),
        policies=(_POLICY,),
        ideal=False,
        clients=ClientsConfig(count=backends),
        backends=above[0],
        below=(*above[1:], lowest),
        client_task=mode.client_task,
        backend_task=mode.backend_task,
    )
