"""Figure 20-6: what happens to the backends' CPU when clients change their policy.

SRE book, chapter 20, "Weighted Round Robin".  One run: the client tasks begin with least loaded,
restart with weighted round robin, and later with evenly's default.  Requests mostly wait, for
something else than a CPU, which is where counting active requests fails (chapter 20, "Least-Loaded
Round Robin": "requests spend most of their life just waiting for the network").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.lab.sim.figures.canvas import Canvas
from evenly.lab.sim.figures.cpu_lines import draw_cpu_lines, spread
from evenly.lab.sim.figures.model import BookFigure, Comparison, Job, Results, Story
from evenly.lab.sim.figures.small_world import SmallWorld
from evenly.lab.sim.load import to_table
from evenly.lab.sim.scenario import ClientsConfig, Scenario
from evenly.lab.sim.service import RequestCostConfig, ServiceConfig

__all__ = ["FIGURE_20_6", "Act", "SwitchRun", "run_switches"]

_DEFAULT: Final = PolicyConfig().name
_LOAD: Final = 0.6
_JOB: Final = "policy switches"
# The clients restart one after another within so long.
_SWITCH_SECONDS: Final = 2
# How long a policy may take to find its weights: 10 s pass before reports count (gRFC A58).
_SETTLE_SECONDS: Final = 20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Be the part of the run that has one policy."""

    policy: str
    begin: int
    settled: int
    end: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRun:
    """Hold the CPU of every backend through all acts."""

    scenario: Scenario
    acts: tuple[Act, ...]
    cpu: tuple[tuple[float, ...], ...]

    def spread(self, act: Act) -> float:
        """Return the most loaded backend's CPU over the least loaded one's, once settled."""
        return spread(self.cpu, act.settled, act.end)


def run_switches(
    seed: int, *, backends: int = 20, act_seconds: int = 40, settle_seconds: int = _SETTLE_SECONDS
) -> SwitchRun:
    """Run one world through the three policies."""
    policies = ("least_loaded", "weighted_round_robin", _DEFAULT)
    acts = tuple(
        Act(
            policy=policy,
            begin=place * act_seconds,
            settled=place * act_seconds + settle_seconds,
            end=(place + 1) * act_seconds,
        )
        for place, policy in enumerate(policies)
    )
    scenario = Scenario(
        title="Clients that switch policies",
        seconds=acts[-1].end,
        settle_seconds=0.0,
        loads=(_LOAD,),
        policies=policies,
        ideal=False,
        clients=ClientsConfig(count=4 * backends),
        backends=ServiceConfig(
            count=backends,
            cores=2,
            speeds=(2 / 3, 4 / 3),
            cost=RequestCostConfig(mean_seconds=0.015),
            io_seconds=0.5,
        ),
    )
    world = SmallWorld(scenario, policy=policies[0], load=_LOAD, seed=seed)
    for act in acts[1:]:
        world.switch_policy(act.policy, at_seconds=act.begin, seconds=_SWITCH_SECONDS)
    world.run()
    cpu = tuple(tuple(used[: acts[-1].end]) for used in world.samples.used)
    return SwitchRun(scenario=scenario, acts=acts, cpu=cpu)


def _tell(results: Results) -> Story:
    run: SwitchRun = results[_JOB]
    before, after, ours = (run.spread(act) for act in run.acts)
    return Story(
        caption=(
            "One run, one line per backend task, on machines of which the fastest is twice as fast"
            f" as the slowest. At {run.acts[1].begin} s the clients restart with weighted round"
            f" robin, at {run.acts[2].begin} s with evenly’s default. For its first 10 s weighted"
            " round robin has no weights yet and is plain round robin."
        ),
        comparisons=(
            Comparison(
                what="Least loaded: the most loaded task’s CPU over the least loaded one’s",
                book="“twice as much”",
                ours=f"{before:.2f}×",
            ),
            Comparison(
                what="After the switch to weighted round robin",
                book="“decreased drastically”",
                ours=f"{after:.2f}×",
            ),
            Comparison(
                what=f"After the switch to evenly’s default ({_DEFAULT})",
                book="not known to the book",
                ours=f"{ours:.2f}×",
            ),
        ),
        note=(
            "The book draws a random subset of the tasks of a Google service, and names no number;"
            " we draw all tasks of ours. Its clients switched while they ran; ours restart with the"
            f" new policy, within {_SWITCH_SECONDS} s, on backends that go on. Each multiple is the"
            " median of windows of 10 s, from 20 s after the switch on. Equally many requests for"
            f" every machine would make {_speed_ratio(run.scenario):.2f}×."
        ),
        scenario={
            **to_table(run.scenario),
            "switches": [{"at_seconds": act.begin, "policy": act.policy} for act in run.acts],
        },
        numbers={
            "cpu_by_backend_and_second": [[round(used, 4) for used in line] for line in run.cpu],
            "max_over_min": {act.policy: run.spread(act) for act in run.acts},
        },
    )


def _speed_ratio(scenario: Scenario) -> float:
    """Return the fastest machine's speed over the slowest one's: they stand half a step inside."""
    low, high = scenario.backends.speeds
    half_step = (high - low) / (2 * scenario.backends.count)
    return (high - half_step) / (low + half_step)


def _draw(canvas: Canvas, results: Results) -> None:
    run: SwitchRun = results[_JOB]
    theme = canvas.theme
    (axes,) = canvas.panels(1)
    first = run.acts[0]
    draw_cpu_lines(canvas, axes, run.cpu, begin=first.settled, end=first.end, when=" at first")
    for act in run.acts:
        if act.begin:
            axes.plot((act.begin, act.begin), (0.0, 1.0), color=theme.ink, lw=1.2)
        name = act.policy.replace("_", "\n" if canvas.is_narrow else " ")
        text = f"{name}\n{run.spread(act):.2f}×"
        canvas.write(
            axes, (act.begin + act.end) / 2, 0.03, text, va="bottom", ha="center", where="across"
        )
    canvas.label(axes, x="seconds", y="CPU of a task, % of its CPUs")
    canvas.legend_above(axes)


FIGURE_20_6: Final = BookFigure(
    number="20-6",
    title="CPU distribution before and after enabling Weighted Round Robin",
    jobs={_JOB: Job(run=run_switches, seconds=14.0)},
    tell=_tell,
    draw=_draw,
    height=4.2,
    narrow_height=4.4,
)
