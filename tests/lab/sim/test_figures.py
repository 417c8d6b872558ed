from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from evenly.lab.sim.figures.attempt_histograms import PERCENTS, Situation, run_situation
from evenly.lab.sim.figures.canvas import Canvas, Picture
from evenly.lab.sim.figures.catalogue import FIGURES
from evenly.lab.sim.figures.cpu_lines import smoothed, spread
from evenly.lab.sim.figures.even_subsets import plan
from evenly.lab.sim.figures.files import figure_json
from evenly.lab.sim.figures.model import BookFigure, Job, Results, Story
from evenly.lab.sim.figures.page import render_page
from evenly.lab.sim.figures.policy_switch import run_switches
from evenly.lab.sim.figures.random_subsets import draw_subsets
from evenly.lab.sim.figures.retry_stack import CHEAP, DEAR, LAYERS, MODES, run_stack
from evenly.lab.sim.figures.small_world import SmallWorld
from evenly.lab.sim.figures.two_scenarios import POLICIES, PolicyRun, run_policy, two_scenarios
from evenly.lab.sim.figures.workers import DrawnFigure, draw_figure, produce
from evenly.lab.sim.simulate import simulate

SEED = 1


@pytest.fixture(scope="module")
def small() -> Results:
    """Return what the jobs of all figures give in a small world, by the jobs' own names."""
    story = two_scenarios(backends=6, step_seconds=1, seconds=10)
    runs: dict[str, Any] = {
        f"two scenarios, {policy}": run_policy(SEED, policy=policy, scenario=story)
        for policy in POLICIES
    }
    for size in (90, 30, 10):
        runs[f"random subsets of {size}"] = draw_subsets(SEED, size=size, draws=3)
    for algorithm in ("deterministic", "nested"):
        runs[f"{algorithm} subsets"] = plan(SEED, algorithm=algorithm)
    runs["policy switches"] = run_switches(SEED, backends=4, act_seconds=6, settle_seconds=2)
    for percent in PERCENTS:
        situation = run_situation(SEED, percent=percent, backends=10, first_attempts=120)
        runs[f"{percent} % of backends reject"] = situation
    for mode in MODES:
        for cost in (CHEAP, DEAR):
            run = run_stack(SEED, mode=mode.name, reject_cost_ratio=cost, seconds=5, backends=3)
            runs[f"stack, {mode.name}, rejecting at {cost:g}"] = run
    return runs


def test_the_small_world_is_the_simulators_own() -> None:
    scenario = two_scenarios(backends=4, step_seconds=1, seconds=4)

    for policy in POLICIES:
        result = simulate(scenario, policy=policy, load=0.6, seed=SEED)
        world = SmallWorld(scenario, policy=policy, load=0.6, seed=SEED)
        world.run()

        assert [tuple(used[:10]) for used in world.samples.used] == list(result.series.cpu)


def test_a_switch_changes_what_comes_after_it_and_nothing_before() -> None:
    scenario = two_scenarios(backends=4, step_seconds=1, seconds=6)
    worlds = [SmallWorld(scenario, policy="round_robin", load=0.6, seed=SEED) for _ in range(2)]
    worlds[1].switch_policy("least_loaded", at_seconds=5.0, seconds=0.5)
    for world in worlds:
        world.run()
    stayed, switched = (world.samples.used for world in worlds)

    assert [used[:5] for used in stayed] == [used[:5] for used in switched]
    assert [used[6:] for used in stayed] != [used[6:] for used in switched]


def test_every_run_has_the_same_numbers_again(small: Results) -> None:
    assert (
        run_situation(SEED, percent=10, backends=10, first_attempts=120)
        == (small["10 % of backends reject"])
    )
    again = run_stack(SEED, mode="evenly", seconds=5, backends=3)
    assert again == small["stack, evenly, rejecting at 0.01"]
    switches = run_switches(SEED, backends=4, act_seconds=6, settle_seconds=2)
    assert switches == small["policy switches"]


def test_smoothing_is_a_mean_of_the_seconds_that_there_are() -> None:
    assert smoothed([2.0, 4.0, 6.0, 8.0], 2) == [2.0, 3.0, 5.0, 7.0]


def test_spread_is_the_median_of_windows_of_ten_seconds() -> None:
    flat = [1.0] * 30
    # Two, three and four times the flat one's CPU.
    steps = [2.0] * 10 + [3.0] * 10 + [4.0] * 10

    assert spread([flat, steps], 0, 30) == 3.0
    assert spread([flat, steps], 0, 4) == 2.0
    assert spread([[0.0] * 10, [1.0] * 10], 0, 10) == math.inf


def test_waste_is_the_books_sum(small: Results) -> None:
    for policy in POLICIES:
        run: PolicyRun = small[f"two scenarios, {policy}"]
        cpus = run.cpus

        assert cpus == sorted(cpus, reverse=True)
        # Σ(CPU[0] − CPU[i]) = n · CPU[0] − Σ CPU[i]
        assert run.wasted_cpus == pytest.approx(len(cpus) * cpus[0] - sum(cpus))
        assert run.usable_ratio == pytest.approx(sum(cpus) / (len(cpus) * cpus[0]))


def test_round_robin_wastes_what_our_default_does_not(small: Results) -> None:
    bad, good = (small[f"two scenarios, {policy}"] for policy in POLICIES)

    # Six machines with speeds from 0.72 to 1.28: 1.77 by arithmetic.  Over 10 s a backend serves
    # 1,240 requests, whose CPU varies by √(2 / 1240) = 4 %; 25 % are six times that.
    assert bad.spread == pytest.approx(1.77, rel=0.25)
    assert good.spread < 1.25
    assert good.wasted_cpus < bad.wasted_cpus / 2


def test_deterministic_subsets_give_every_backend_exactly_ten_clients() -> None:
    assert plan(SEED, algorithm="deterministic").balance.counts == (10,) * 300


def test_nested_subsets_differ_by_one_client_at_most() -> None:
    # 300 / 10 = 30: lots of 16, so that 300 clients are 18 lots and a part of one.
    assert set(plan(SEED, algorithm="nested").balance.counts) == {18, 19}


def test_random_subsets_are_counted_whole() -> None:
    subsets = draw_subsets(SEED, size=3, clients=20, backends=10, draws=4)

    assert [sum(draw) for draw in subsets.draws] == [20 * 3] * 4
    assert len(set(subsets.draws)) == 4
    assert (
        draw_subsets(SEED + 1, size=3, clients=20, backends=10, draws=1).draws[0]
        == (subsets.draws[1])
    )
    assert subsets.leasts == [draw[0] for draw in subsets.draws]
    assert subsets.mosts == [draw[-1] for draw in subsets.draws]


def test_the_books_63_percent_is_far_out(small: Results) -> None:
    subsets = small["random subsets of 90"]

    assert subsets.mean == 90.0
    assert subsets.sigma == pytest.approx(math.sqrt(300 * 0.3 * 0.7))
    assert subsets.sigmas(57) == pytest.approx((57 - 90) / 7.937, abs=1e-3)  # −4.2
    assert 0.001 < subsets.chance_least_at_most(57) < 0.01


def test_chances_are_binomial() -> None:
    # Two clients that each draw one of two backends: 0, 1 or 2 connections in 1, 2, 1 of 4 cases.
    subsets = draw_subsets(SEED, size=1, clients=2, backends=2, draws=1)

    assert [subsets.chance_at_most(count) for count in range(3)] == [0.25, 0.75, 1.0]
    assert subsets.chance_least_at_most(0) == 1.0 - 0.75**2
    assert subsets.chance_most_at_most(1) == 0.75**2


def test_arrivals_by_the_books_rules() -> None:
    situation = Situation(
        percent=10,
        counts=(1000, 90, 10),
        is_widespread=True,
        attempts_per_request=1.11,
        obeyed_attempts_per_request=1.05,
    )

    assert situation.expected == pytest.approx((1000, 100, 10))
    assert situation.retries_ratio == 100 / 1100
    assert situation.answer == "overloaded; don’t retry"


@pytest.mark.parametrize(
    ("percent", "attempts", "is_widespread"),
    [
        pytest.param(0, 1.0, False, id="nobody rejects"),
        pytest.param(100, 3.0, True, id="everybody rejects"),
    ],
)
def test_attempts_where_chance_has_no_part(
    small: Results, percent: int, attempts: float, is_widespread: bool
) -> None:
    situation: Situation = small[f"{percent} % of backends reject"]

    assert situation.attempts_per_request == attempts
    assert situation.is_widespread is is_widespread
    assert situation.obeyed_attempts_per_request <= attempts


def test_backends_that_say_dont_retry_keep_retries_at_their_limit(small: Results) -> None:
    # A backend that rejects everything says "don't retry" whenever more than 1 in 20 arrivals was a
    # retry; a retry may itself be retried before that is known.
    assert small["100 % of backends reject"].obeyed_attempts_per_request < 1.3


def test_naive_retries_multiply_and_the_books_do_not(small: Results) -> None:
    naive, book, ours = (
        small[f"stack, {mode.name}, rejecting at 0.01"].attempts_per_request for mode in MODES
    )

    assert all(ratio <= limit for ratio, limit in zip(naive, (3, 9, 27), strict=True))
    # A third of the requests can be served, if any; the others are tried as often as can be.
    assert naive[2] > 2 / 3 * 20
    # Only the layer right above the DB frontend retries, within its budget: three at the start
    # for each of 3 clients, and a tenth of what is sent.
    assert book[:2] == pytest.approx((1.0, 1.0), abs=0.02)
    assert 1.0 <= book[2] <= 1.12
    assert ours[2] < book[2]
    assert len(naive) == len(LAYERS)


@pytest.mark.parametrize("number", FIGURES)
def test_every_figure_is_told_and_drawn(small: Results, number: str) -> None:
    figure = FIGURES[number]
    results = {name: small[name] for name in figure.jobs}
    story = figure.tell(results)

    assert story.comparisons
    assert all(row.what and row.book and row.ours for row in story.comparisons)
    for picture in (Picture("wide", "light"), Picture("narrow", "dark")):
        canvas = Canvas(picture, height=figure.height)
        figure.draw(canvas, results)
        assert canvas.png().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def drawn(small: Results) -> DrawnFigure:
    return draw_figure(FIGURES["20-5"], small)


def test_the_page_asks_nobody_for_anything(drawn: DrawnFigure) -> None:
    page = render_page([drawn], seed=SEED, commit="<abc>", command="evenly figures")

    assert not re.search(r"https?:|src=\"(?!data:)|srcset=\"(?!data:)|@import|url\(", page)
    assert page.count("data:image/png;base64,") == 4
    assert "<abc>" not in page
    for row in drawn.story.comparisons:
        assert row.what in page


def test_json_has_the_books_words_beside_ours(drawn: DrawnFigure) -> None:
    document = json.loads(figure_json(drawn, seed=7, commit="abc"))

    assert (document["figure"], document["seed"], document["commit"]) == ("20-5", 7, "abc")
    assert document["comparisons"][0]["book"] == "“exactly the same number” each"
    assert document["comparisons"][0]["ours"] == "exactly 10 each"
    assert document["numbers"]["deterministic"]["connections_by_backend"] == [10] * 300
    assert document["scenario"]["backends"] == 300


CALLS: list[int] = []


def _count(seed: int) -> int:
    CALLS.append(seed)
    return seed * 2


def _fail(_seed: int) -> int:
    raise ValueError("broken")


def _figure(number: str, **jobs: Job) -> BookFigure:
    def tell(results: Results) -> Story:
        return Story(caption=str(results), comparisons=(), note="", scenario={}, numbers=results)

    return BookFigure(
        number=number,
        title=number,
        jobs=jobs,
        tell=tell,
        draw=lambda canvas, _results: canvas.dress(*canvas.panels(1)),
        height=1.0,
        narrow_height=1.0,
    )


def test_figures_share_a_job_and_come_in_the_order_asked_for() -> None:
    CALLS.clear()
    shared = Job(run=_count, seconds=1.0)
    told: list[tuple[str, float]] = []
    drawn: list[DrawnFigure] = produce(
        [_figure("b", shared=shared), _figure("a", shared=shared, own=Job(run=abs, seconds=3.0))],
        seed=21,
        processes=1,
        progress=lambda name, fraction: told.append((name, fraction)),
    )

    assert [each.figure.number for each in drawn] == ["b", "a"]
    assert [each.story.numbers for each in drawn] == [{"shared": 42}, {"shared": 42, "own": 21}]
    assert CALLS == [21]
    # The longest first; 3 of 3 + 1 + 2 · 1.5 seconds are done after it, and so on.
    assert [name for name, _ in told] == ["own", "shared", "figure a", "figure b"]
    assert [fraction for _, fraction in told] == pytest.approx([3 / 7, 4 / 7, 5.5 / 7, 1.0])


def test_a_job_that_fails_is_named() -> None:
    with pytest.raises(ValueError, match="broken") as caught:
        produce(
            [_figure("x", bad=Job(run=_fail, seconds=1.0))],
            seed=1,
            processes=1,
            progress=lambda _name, _fraction: None,
        )

    assert caught.value.__notes__ == ["while working on bad"]
