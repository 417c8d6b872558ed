"""Show subset plans to a person: two tables, drawn distributions, and what to make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from rich.console import Console
from rich.table import Table

from evenly.cli.options import counted
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

# The distribution needs 26 columns beside the numbers; below so many the numbers come first.
_WIDTH_WITH_DISTRIBUTION = 76
_WIDTH_WITH_FULL_HEADINGS = 60

_BALANCE_HEADINGS = ("subset\nsize", "least", "mean", "most", "spare\ncapacity")
_SHORT_BALANCE_HEADINGS = ("size", "min", "mean", "max", "spare")
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

# A rolling restart ends every connection once; this much above that is as good as the least.
_NEARLY_LEAST_ROLL = 1.06


def show_plans(
    console: Console, plans: Sequence[SubsetPlan], *, advice: SizeAdvice, chosen: SizeAdvice
) -> None:
    """Print the plans of one fleet, with the recommended size and the one that was planned with."""
    first = plans[0]
    _say(console, f"[bold]{_question(first)}[/bold]")
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
    _say(console, _verdict(plans))
    # How far a fleet may grow and shrink is a question that only nested subsets raise.
    is_nested = any(plan.algorithm == "nested" for plan in plans)
    if chosen.size != advice.size:
        if is_nested:
            _say(console, f"[bold]Size {chosen.size}, asked for:[/bold] {chosen.room}.")
        _warn(console, chosen, is_nested=is_nested)
    why = advice.reason
    if is_nested:
        why += f"; {advice.room}"
    elif advice.doubles_below is not None:
        why += "; which of the sizes near it is taken matters to nested only"
    _say(console, f"[bold]Size {advice.size}, recommended:[/bold] {why}.")
    _warn(console, advice, is_nested=is_nested)


def _question(plan: SubsetPlan) -> str:
    fleet = f"{counted(plan.clients, 'client')}, {counted(plan.backends, 'backend')}"
    if plan.size >= plan.backends:
        return f"{fleet}: every client holds {'it' if plan.backends == 1 else 'all of them'}"
    return f"{fleet}, at least {counted(plan.size, 'connection')} per client: which ones?"


def _say(console: Console, text: str) -> None:
    console.print(text)
    console.print()


def _warn(console: Console, advice: SizeAdvice, *, is_nested: bool) -> None:
    for warning in advice.warnings + (advice.nested_warnings if is_nested else ()):
        _say(console, f"[bold yellow]Warning for size {advice.size}:[/bold yellow] {warning}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Be one column of a table: its heading, and a cell for each plan."""

    heading: str
    cells: Sequence[str]
    justify_left: bool = False

    @property
    def width(self) -> int:
        return max(len(text) for text in (*self.heading.split("\n"), *self.cells))


def _show_balance(console: Console, plans: Sequence[SubsetPlan]) -> None:
    is_narrow = console.width < _WIDTH_WITH_FULL_HEADINGS
    headings = _SHORT_BALANCE_HEADINGS if is_narrow else _BALANCE_HEADINGS
    rows = [_balance_cells(plan.balance) for plan in plans]
    columns = _columns(headings, rows)
    if console.width >= _WIDTH_WITH_DISTRIBUTION:
        _heading(
            console, "Balance: clients per backend, and the share of backends that has so many"
        )
        blocks = _ASCII_BLOCKS if console.options.ascii_only else _BLOCKS
        drawn = [_drawn(plan.balance, blocks) for plan in plans]
        heading = "0         mean      twice"
        columns.append(_Column(heading=heading, cells=drawn, justify_left=True))
    else:
        _heading(console, "Balance: clients per backend")
    _show_columns(console, plans, columns)
    seeds = max(plan.seeds for plan in plans)
    if seeds > 1:
        _say(console, f"random: the least and the most of {seeds} seeds.")


def _balance_cells(balance: Balance) -> list[str]:
    return [
        _range(balance.smallest_subset, balance.largest_subset),
        str(balance.least),
        f"{balance.mean:.1f}",
        str(balance.most),
        f"+{_spare(balance):.0%}",
    ]


def _spare(balance: Balance) -> float:
    """Return how much more than the mean every backend has to be provisioned for."""
    return balance.most / balance.mean - 1


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
    lows = range(balance.least, balance.most + 1, width)
    clients = [_range(low, min(low + width - 1, balance.most)) for low in lows]
    backends = [str(bars[bar]) for bar in range(len(clients))]
    labels = ("clients", clients), ("backends", backends)
    table = Table(box=None, padding=(0, 1))
    left = console.width - 2  # A space on either side of every column.
    for heading, cells in labels:
        table.add_column(heading, justify="right", no_wrap=True)
        left -= max(len(text) for text in (heading, *cells)) + 2
    table.add_column("", no_wrap=True)
    longest = max(1, min(_BAR_WIDTH, left))
    full = "#" if console.options.ascii_only else "█"
    for bar, (low_to_high, count) in enumerate(zip(clients, backends, strict=True)):
        table.add_row(low_to_high, count, full * -(-bars[bar] * longest // max(bars.values())))
    console.print(table)
    console.print()


def _show_churn(console: Console, plans: Sequence[SubsetPlan]) -> None:
    _heading(console, "Churn: connections opened, as a share of the algorithm's own connections")
    rows = [[_percent(ratio) for ratio in astuple(plan.churn)] for plan in plans]
    _show_columns(console, plans, _columns(_CHURN_HEADINGS, rows))
    if any(plan.is_sampled for plan in plans):
        fewest = min(min(plan.churn_clients.values()) for plan in plans)
        _say(
            console,
            f"Churn is measured on the first clients only, at least {fewest} of "
            f"{plans[0].clients}, in whole lots: groups of clients that cover the backends evenly. "
            "Clients per backend are counted over all clients.",
        )


def _columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[_Column]:
    return [
        _Column(heading=heading, cells=cells)
        for heading, cells in zip(headings, zip(*rows, strict=True), strict=True)
    ]


def _show_columns(
    console: Console, plans: Sequence[SubsetPlan], columns: Sequence[_Column]
) -> None:
    """Print a row for each plan; what is too wide goes on below, so that no number is cut off."""
    best = None if len(plans) == 1 or _is_all_the_same(plans) else best_plan(plans)
    names = [f"{plan.algorithm} *" if plan is best else plan.algorithm for plan in plans]
    first = _Column(heading="algorithm", cells=names, justify_left=True)
    for part in _parts(columns, console.width - first.width):
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for column in (first, *part):
            table.add_column(
                column.heading,
                justify="left" if column.justify_left else "right",
                vertical="bottom",
                no_wrap=True,
                min_width=column.width,
            )
        rows = zip(*(column.cells for column in (first, *part)), strict=True)
        for plan, cells in zip(plans, rows, strict=True):
            table.add_row(*cells, style="bold green" if plan is best else "")
        console.print(table)
        console.print()


def _parts(columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    """Yield the columns in as few parts as fit the width, with one space before each column."""
    part: list[_Column] = []
    left = width
    for column in columns:
        if part and column.width + 1 > left:
            yield part
            part, left = [], width
        part.append(column)
        left -= column.width + 1
    yield part


def _verdict(plans: Sequence[SubsetPlan]) -> str:
    best = best_plan(plans)
    if len(plans) > 1 and _is_all_the_same(plans):
        return f"[bold green]All the same here.[/bold green] {_findings(best)}"
    if len(plans) > 1:
        return f"[bold green]Best here (*): {best.algorithm}.[/bold green] {_findings(best)}"
    text = f"[bold]{best.algorithm}:[/bold] {_findings(best)}"
    if best.algorithm != "nested":
        text += " See the other algorithms beside it with --compare."
    return text


def _findings(plan: SubsetPlan) -> str:
    """Return what the two tables say of one plan, in words."""
    balance = plan.balance
    most = counted(balance.most, "client")
    if balance.smallest_subset == plan.backends:
        text = f"Every client holds {_all_of(plan.backends)}"
    elif balance.most - balance.least <= 1:
        clients = most if balance.least == balance.most else f"{balance.least} or {most}"
        text = f"Every backend has {clients}"
    else:
        text = (
            f"Backends have {balance.least} to {most}, so that each has to be provisioned for "
            f"{_spare(balance):.0%} more than the mean"
        )
    roll = plan.churn.rolling_restart
    # Five per cent of twenty is one.
    batch = "one backend" if plan.backends <= 20 else "5% of the backends"
    text += (
        f", and a rolling restart, {batch} at a time, opens {_percent(roll)} of the connections; "
    )
    if roll <= _NEARLY_LEAST_ROLL:
        return text + "as it ends each of them once, less is not possible."
    return text + "100% would be the least, because it ends each of them once."


def _is_all_the_same(plans: Sequence[SubsetPlan]) -> bool:
    """Whether the plans differ in nothing that the tables show."""
    first = plans[0]
    return all((plan.balance, plan.churn) == (first.balance, first.churn) for plan in plans[1:])


def _heading(console: Console, text: str) -> None:
    console.print(f"[bold]{text}[/bold]")


def _percent(ratio: float) -> str:
    if ratio == 0:
        return "0"
    if ratio < 0.00005:
        return "<0.01%"
    return f"{ratio:.2%}" if ratio < 0.0995 else f"{ratio:.0%}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _all_of(backends: int) -> str:
    return "the one backend" if backends == 1 else f"all {backends} backends"
