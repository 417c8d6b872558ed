"""Show subset plans to a person: two tables, drawn distributions, and what to make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple

from rich.console import Console
from rich.table import Table

from evenly.core.balancing.subset_advice import SizeAdvice
from evenly.core.balancing.subset_plan import Balance, SubsetPlan, best_plan

__all__ = ["show_plans"]

# The drawn axis: clients per backend from 0 to 2.5 times the mean, in columns of a tenth of it.
_COLUMNS = 26
_COLUMNS_PER_MEAN = 10

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = " .:-=+*%@"  # for terminals and pipes that are not UTF-8

_MAX_BARS = 16
_BAR_WIDTH = 40

_CHURN_HEADINGS = (
    "backend\n+1",
    "backend\n-1",
    "backend\nrestart",
    "backends\n+10%",
    "backends\n-10%",
    "clients\n+10%",
    "clients\n-10%",
    "rolling\nrestart",
)


def show_plans(
    console: Console, plans: Sequence[SubsetPlan], *, advice: SizeAdvice, chosen: SizeAdvice
) -> None:
    """Print the plans of one fleet, with the recommended size and the one that was planned with."""
    first = plans[0]
    _say(
        console,
        f"[bold]{first.clients} clients, {first.backends} backends, about {first.size} connections "
        "per client: which ones?[/bold]",
    )
    _say(
        console,
        "Good looks like this: every backend has the same number of clients, because all have to "
        "be provisioned for the most loaded one; and few connections are opened when tasks come "
        "and go, because each costs a handshake just when the fleet has least to spare.",
    )
    _show_balance(console, plans)
    if len(plans) == 1:
        _show_histogram(console, first.balance)
    _show_churn(console, plans)
    if len(plans) > 1:
        _say(console, _verdict(best_plan(plans)))
    if chosen.size != advice.size:
        _say(console, f"[bold]Size {chosen.size}, asked for:[/bold] {chosen.room}.")
        _warn(console, chosen)
    _say(console, f"[bold]Size {advice.size}, recommended:[/bold] {advice.reason}; {advice.room}.")
    _warn(console, advice)


def _say(console: Console, text: str) -> None:
    console.print(text)
    console.print()


def _warn(console: Console, advice: SizeAdvice) -> None:
    for warning in advice.warnings:
        _say(console, f"[bold yellow]Warning for size {advice.size}:[/bold yellow] {warning}.")


def _show_balance(console: Console, plans: Sequence[SubsetPlan]) -> None:
    _heading(console, "Balance: clients per backend, and the share of backends that has so many")
    blocks = _ASCII_BLOCKS if console.options.ascii_only else _BLOCKS
    table = _table("subset\nsize", "\nleast", "\nmean", "\nmost", "spare\ncapacity")
    table.add_column("\n0         mean      twice", width=_COLUMNS)
    for plan in plans:
        balance = plan.balance
        table.add_row(
            _name(plan, plans),
            _range(balance.smallest_subset, balance.largest_subset),
            str(balance.least),
            f"{balance.mean:.1f}",
            str(balance.most),
            f"+{balance.most / balance.mean - 1:.0%}",
            _drawn(balance, blocks),
            style=_style(plan, plans),
        )
    console.print(table)
    console.print()
    seeds = max(plan.seeds for plan in plans)
    if seeds > 1:
        _say(console, f"random: the least and the most of {seeds} seeds.")


def _drawn(balance: Balance, blocks: str) -> str:
    """Return the distribution as one line of blocks; what lies beyond the axis is in the last."""
    columns = Counter(
        min(_COLUMNS - 1, round(_COLUMNS_PER_MEAN * count / balance.mean))
        for count in balance.counts
    )
    highest = max(columns.values())
    # Rounded up, so that even one backend in a thousand leaves a mark.
    return "".join(
        blocks[-(-columns[column] * (len(blocks) - 1) // highest)] for column in range(_COLUMNS)
    )


def _show_histogram(console: Console, balance: Balance) -> None:
    """Draw the distribution of one algorithm with a bar for each number of clients."""
    width = -(-(balance.most - balance.least + 1) // _MAX_BARS)
    bars = Counter((count - balance.least) // width for count in balance.counts)
    full = "#" if console.options.ascii_only else "█"
    table = Table(box=None, padding=(0, 1))
    table.add_column("clients", justify="right")
    table.add_column("backends", justify="right")
    table.add_column("")
    for bar in range((balance.most - balance.least) // width + 1):
        low = balance.least + bar * width
        length = -(-bars[bar] * _BAR_WIDTH // max(bars.values()))
        table.add_row(
            _range(low, min(low + width - 1, balance.most)), str(bars[bar]), full * length
        )
    console.print(table)
    console.print()


def _show_churn(console: Console, plans: Sequence[SubsetPlan]) -> None:
    _heading(console, "Churn: connections opened, as a share of all connections")
    table = _table(*_CHURN_HEADINGS)
    for plan in plans:
        cells = [_percent(ratio) for ratio in astuple(plan.churn)]
        table.add_row(_name(plan, plans), *cells, style=_style(plan, plans))
    console.print(table)
    console.print()
    if any(plan.is_sampled for plan in plans):
        fewest = min(min(plan.churn_clients.values()) for plan in plans)
        _say(
            console,
            f"Measured on whole lots of clients, at least {fewest} of {plans[0].clients}; clients "
            "per backend are of all.",
        )


def _verdict(best: SubsetPlan) -> str:
    balance = best.balance
    return (
        f"[bold green]Best here (*): {best.algorithm}.[/bold green] Every backend has "
        f"{_range(balance.least, balance.most)} clients, and a rolling restart, 5% of the backends "
        f"at a time, opens {_percent(best.churn.rolling_restart)} of the connections; as it ends "
        "each of them once, 100% is the least there can be if all are to come back."
    )


def _heading(console: Console, text: str) -> None:
    console.print(f"[bold]{text}[/bold]")


def _table(*headings: str) -> Table:
    """Return a table of numbers that fits into 80 columns: no lines, one space between columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\nalgorithm", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _name(plan: SubsetPlan, plans: Sequence[SubsetPlan]) -> str:
    return f"{plan.algorithm} *" if _style(plan, plans) else plan.algorithm


def _style(plan: SubsetPlan, plans: Sequence[SubsetPlan]) -> str:
    return "bold green" if len(plans) > 1 and plan is best_plan(plans) else ""


def _percent(ratio: float) -> str:
    if ratio == 0:
        return "0"
    return f"{ratio:.2%}" if ratio < 0.0995 else f"{ratio:.0%}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"
