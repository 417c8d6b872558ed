"""How the rows of a simulation are shown: units, medians, widths, violations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

from rich.console import Console

from evenly.cli.simulate_table import Origin, show_results
from evenly.lab.sim.result import Result, Row, Series

PLAIN = Row(
    policy="probing",
    seed=1,
    load=0.9,
    requests=1000,
    cpu_seconds_spent=0.25,
    goodput_ratio=1.0,
    errors_ratio=0.0,
    p50_seconds=0.010,
    p99_seconds=0.050,
    p99_over_ideal=1.25,
    cpu_p95_over_p5=1.5,
    cpu_max_over_min=2.0,
    wasted_ratio=0.1,
    success_by_criticality={"CRITICAL": 1.0},
    attempts_per_request=1.0,
    probes_per_request=0.5,
    recovery_seconds=None,
    violations=(),
)
SERIES = Series(
    measured=(0, 1),
    has_recovered=True,
    capacity=1000.0,
    cpu=((0.5,),),
    spread=(1.0,),
    wasted_ratio=(0.0,),
    offered={"CRITICAL": (1000,)},
    succeeded={"CRITICAL": (1000,)},
    p50_seconds=(0.01,),
    p99_seconds=(0.05,),
    attempts=(1000,),
    probes=(500,),
    throttled=(0,),
    rejected=(0,),
    connections=(0,),
)
ORIGIN = Origin(scenario="tiny", seed=1, commit="0123456789ab", command="evenly simulate tiny")


def results_shown(results: Sequence[Result], width: int = 120) -> str:
    file = StringIO()
    console = Console(file=file, width=width)
    show_results(console, results, title="Title", about="About", origin=ORIGIN)
    return file.getvalue()


def shown(rows: Sequence[Row], width: int = 120) -> str:
    return results_shown([Result(row=row, series=SERIES) for row in rows], width)


def recovered_in(seconds: float | None, *, seed: int = 1, has_recovered: bool = True) -> Result:
    return Result(
        row=replace(PLAIN, seed=seed, recovery_seconds=seconds),
        series=replace(SERIES, has_recovered=has_recovered),
    )


def of_customers(seed: int = 1, **ratios: float) -> Result:
    return Result(row=replace(PLAIN, seed=seed), series=replace(SERIES, success_by_customer=ratios))


def cells(text: str, label: str) -> list[str]:
    """Return the figures of the last line that begins with the label."""
    (*_, line) = (line for line in text.splitlines() if re.match(rf"{label} ", line))
    return line.removeprefix(label).split()


def test_figures_are_in_units_that_people_use() -> None:
    text = shown(
        [replace(PLAIN, errors_ratio=0.00001, goodput_ratio=0.99999, recovery_seconds=2.25)]
    )

    assert cells(text, "probing") == [
        "10.00", "50.00", "1.25", "1.50", "2.00", "10.00%", ">99.99%", "<0.01%",
        "1.000", "0.500", "2.2",
    ]  # fmt: skip


def test_figures_of_one_column_have_the_same_decimals() -> None:
    text = shown(
        [replace(PLAIN, policy="random", p99_seconds=12.3456), replace(PLAIN, p99_seconds=0.00123)]
    )

    assert cells(text, "random")[1] == "12345.6"
    assert cells(text, "probing")[1] == "1.2"


def test_what_could_not_be_measured_is_a_dash() -> None:
    text = shown([replace(PLAIN, policy="random", p99_seconds=None, p99_over_ideal=None), PLAIN])

    assert cells(text, "random")[:4] == ["10.00", "-", "-", "1.50"]


def test_medians_are_of_each_figure_over_the_seeds() -> None:
    text = shown(
        [
            replace(PLAIN, seed=1, p50_seconds=0.030, p99_seconds=0.040),
            replace(PLAIN, seed=2, p50_seconds=0.010, p99_seconds=0.090),
            replace(PLAIN, seed=3, p50_seconds=0.020, p99_seconds=0.050),
        ]
    )

    assert "Medians of 3 seeds" in text
    assert cells(text, "probing")[:2] == ["20.00", "50.00"]


def test_a_recovery_that_did_not_come_is_longer_than_the_run() -> None:
    text = results_shown([recovered_in(7.0, has_recovered=False)])

    assert cells(text, "probing")[-1] == ">7.0"


def test_a_seed_that_never_recovers_counts_as_the_worst() -> None:
    def median(*recoveries: tuple[float, bool]) -> str:
        results = [
            recovered_in(seconds, seed=seed, has_recovered=has_recovered)
            for seed, (seconds, has_recovered) in enumerate(recoveries, start=1)
        ]
        return cells(results_shown(results), "probing")[-1]

    assert median((2.0, True), (4.0, True), (7.0, False)) == "4.0"
    assert median((2.0, True), (7.0, False), (7.0, False)) == ">7.0"
    # Half way from 2.0 to something above 7.0 is above 4.5.
    assert median((2.0, True), (7.0, False)) == ">4.5"


def test_a_seed_with_nothing_to_recover_from_is_left_out() -> None:
    text = results_shown(
        [
            recovered_in(2.0, seed=1),
            recovered_in(None, seed=2, has_recovered=False),
            recovered_in(None, seed=3),
        ]
    )

    assert cells(text, "probing")[-1] == "2.0"


def test_customers_have_a_table_and_the_command_is_still_last() -> None:
    text = results_shown([of_customers(gold=1.0, lead=0.25)])

    assert "Success by customer\n" in text
    assert cells(text, "probing") == ["100.00%", "25.00%"]
    assert text.rstrip().splitlines()[-1].strip() == ORIGIN.command


def test_customers_have_medians_over_the_seeds() -> None:
    text = results_shown(
        [
            of_customers(1, gold=0.9, lead=0.1),
            of_customers(2, gold=0.7, lead=0.3),
            of_customers(3, gold=0.8),
        ]
    )

    assert "Success by customer, medians of 3 seeds\n" in text
    # Of lead, the seed without it counts as the worst: the median of (none, 10 %, 30 %).
    assert cells(text, "probing") == ["80.00%", "10.00%"]


def test_the_ideal_is_the_last_line_of_its_load_and_has_no_seed() -> None:
    ideal = {"CRITICAL": 1.0, "SHEDDABLE": 0.0}
    lost = {"CRITICAL": 0.9, "SHEDDABLE": 0.1}
    row = replace(PLAIN, load=2.0, success_by_criticality=lost, ideal_by_criticality=ideal)
    text = shown([replace(row, seed=1), replace(row, seed=2)], width=200)

    assert cells(text, "ideal") == [
        *("-", "-", "-", "-", "-", "-", "100.00%", "50.00%", "100.00%", "0.00%", "-", "-"),
    ]
    assert text.count("\nideal ") == 1
    assert "ideal " not in shown([PLAIN]).replace("/ideal", "")


def test_users_have_columns_and_so_has_what_client_tasks_differ_by() -> None:
    rates = {
        "CRITICAL": {"seldom": 1.0, "often": 0.99},
        "SHEDDABLE": {"seldom": 0.25, "often": 0.5},
    }
    users = {"CRITICAL": 0.875}
    text = shown(
        [replace(PLAIN, users_by_criticality=users, success_by_client_rate=rates)], width=200
    )

    assert cells(text, "probing")[8:10] == ["87.50%", "25.00%"]


def test_one_customer_is_no_table() -> None:
    assert "customer" not in shown([PLAIN])


def test_a_criticality_that_some_seed_lacks_does_not_flatter() -> None:
    def seen(*shares: float | None) -> str:
        successes = [
            {"CRITICAL": 1.0} | ({} if share is None else {"SHEDDABLE": share}) for share in shares
        ]
        text = shown(
            [
                replace(PLAIN, seed=seed, success_by_criticality=seen)
                for seed, seen in enumerate(successes)
            ],
            width=200,
        )
        return cells(text, "probing")[9]

    assert seen(0.5, 0.9, None) == "50.00%"
    assert seen(0.5, None, None) == "-"


def test_violations_are_shown_in_full_below_and_name_their_row() -> None:
    long = "backend 3 served a request that [nobody] sent " * 4
    text = shown(
        [
            replace(PLAIN, violations=(long.strip(), "an attempt finished twice")),
            replace(PLAIN, policy="random"),
        ]
    )

    assert "Violations in probing, load 0.9, seed 1:" in text
    assert long.strip() in " ".join(text.split())
    assert text.index("an attempt finished twice") > text.index("random")


def test_a_terminal_that_is_too_narrow_gets_whole_figures() -> None:
    text = shown([replace(PLAIN, policy="weighted_least_loaded")], width=10)

    assert ["10.00%"] in [cells_of.split()[1:] for cells_of in text.splitlines()]


def test_a_pipe_that_is_not_utf_8_gets_plain_characters() -> None:
    class Ascii(StringIO):
        encoding = "ascii"

    file = Ascii()
    results = [of_customers(Zoë=1.0, lead=0.5)]
    show_results(Console(file=file), results, title="2 × load", about="—", origin=ORIGIN)

    assert file.getvalue().isascii()
