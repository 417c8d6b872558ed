"""Draw facts as tables: one summary, the backends and the clients of each service.

Names and labels come from the network.  They are drawn as `Text`, so that markup means nothing, and
what is not printable is escaped, so that nothing of it controls the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from evenly.lab.top.cells import Cells
from evenly.lab.top.facts import BackendFacts, ClientFacts, CustomerFacts, Facts, ServiceFacts

__all__ = ["PROBLEMS_ON_SCREEN", "Picture"]

T = TypeVar("T")

_SERVICES_MAX = 20
_PROBLEMS_MAX = 10
PROBLEMS_ON_SCREEN = 3
_CUSTOMERS_MAX = 8
_LEVELS = ("critical_plus", "critical", "sheddable_plus", "sheddable")
_LEVEL_MARKS = {"critical_plus": "C+", "critical": "C", "sheddable_plus": "S+", "sheddable": "S"}
_WIDE = 120


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """Draw facts; with `rows`, for a screen, no table has more lines than that."""

    facts: Facts
    rows: int | None = None
    height: int | None = None
    """How many lines the screen has: what is least needed is left out where it does not fit."""
    service: str | None = None
    """The service that was asked for, to say so where there is no such."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = Cells(is_ascii=options.ascii_only, is_wide=options.max_width >= _WIDE)
        facts = self.facts
        # On a screen they come first, because what does not fit is cut off below.
        problems = list(
            _problems(facts, cells, _PROBLEMS_MAX if self.rows is None else PROBLEMS_ON_SCREEN)
        )
        if self.rows is not None:
            yield from problems
        shown = [
            (service, [*_summary(service, cells), *self._tables(service, cells)])
            for service in facts.services[:_SERVICES_MAX]
        ]
        room = _Room(console, options, self.height)
        room.take(problems)
        for _, parts in shown:
            room.take([Text(), *parts])
        for number, (service, parts) in enumerate(shown):
            yield from [Text(), *parts] if number else parts
            customers = list(self._customers(service, cells))
            if room.has(customers):
                room.take(customers)
                yield from customers
        if len(facts.services) > _SERVICES_MAX:
            yield Text(f"{len(facts.services) - _SERVICES_MAX} more services: name one (--service)")
        if not facts.services:
            yield Text(self._nothing(), style="yellow")
        if self.rows is None:
            yield from [Text(), *problems] if problems else []

    def _nothing(self) -> str:
        if self.service is None or all(end.problem is not None for end in self.facts.end_points):
            return "Nothing has been read yet."
        return f"No end point has metrics of the service {self.service!a:.80}."

    def _tables(self, service: ServiceFacts, cells: Cells) -> Iterator[Table | Text]:
        if service.backends:
            shown, more = _chosen(service.backends, self.rows, _trouble_of_backend)
            yield Text()
            yield _backends(shown, cells)
            yield from _more(more, "backend", ", in less trouble", cells)
        if service.clients:
            clients, more = _chosen(service.clients, self.rows, _trouble_of_client)
            yield Text()
            yield _clients(clients, cells)
            yield from _more(more, "client", ", in less trouble", cells)

    def _customers(self, service: ServiceFacts, cells: Cells) -> Iterator[Table | Text]:
        # Where nobody is listed, everybody is "other", and the backends have said it all.
        if len(service.customers) > 1:
            limit = _CUSTOMERS_MAX if self.rows is None else min(self.rows, _CUSTOMERS_MAX)
            yield Text()
            yield _customers(service.customers[:limit], cells)
            yield from _more(len(service.customers) - limit, "customer", "", cells)


@final
class _Room:
    """Count the lines of a screen that are left; `None` is no screen, and has room for all."""

    def __init__(self, console: Console, options: ConsoleOptions, height: int | None) -> None:
        self._console = console
        self._options = options.reset_height()
        # A gap is counted for each service, and the first has none.
        self._left = None if height is None else height + 1

    def has(self, parts: Sequence[Table | Text]) -> bool:
        return self._left is None or self._lines(parts) <= self._left

    def take(self, parts: Sequence[Table | Text]) -> None:
        if self._left is not None:
            self._left -= self._lines(parts)

    def _lines(self, parts: Sequence[Table | Text]) -> int:
        return sum(len(self._console.render_lines(part, self._options)) for part in parts)


def _summary(service: ServiceFacts, cells: Cells) -> Iterator[Table | Text]:
    yield Text.assemble(("service ", "dim"), (cells.name(service.service), "bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    good = f"{cells.rate(service.goodput_per_second)}/s"
    if service.goodput_of == "clients":
        good += " as clients see it"
    if service.clients:
        good += f", sent {cells.rate(service.requests_per_second)}/s"
    table.add_row("goodput", good)
    if service.backends:
        table.add_row("rejected", _reasons(service.rejected_per_second, cells))
    if service.clients:
        table.add_row("refused", _reasons(service.refused_per_second, cells, " by clients"))
        table.add_row("retry ratio", cells.ratio(service.retry_ratio))
        latency = service.latency
        if latency is None:
            table.add_row("latency", cells.none)
        else:
            table.add_row(
                "latency",
                f"p50 {cells.duration(latency.p50_seconds)}, "
                f"p95 {cells.duration(latency.p95_seconds)}, "
                f"p99 {cells.duration(latency.p99_seconds)} (attempts that succeeded)",
            )
    if service.backends:
        table.add_row("utilization", _spread(service, cells))
        table.add_row("lame ducks", f"{service.lame_ducks} of {len(service.backends)} backends")
    yield table


def _spread(service: ServiceFacts, cells: Cells) -> str:
    most, mean = cells.percent(service.utilization_most), cells.percent(service.utilization_mean)
    text = f"mean {mean}, most {most}"
    return text if service.spread is None else f"{text}: spread {service.spread:.2f} (1 is even)"


def _reasons(rates: Mapping[str, float], cells: Cells, where: str = "") -> Text:
    if not rates:
        return Text(f"none{where}")
    shown = list(rates.items())[:6]
    text = ", ".join(f"{cells.name(reason)} {cells.rate(rate)}/s" for reason, rate in shown)
    return Text(text + where)


def _backends(backends: Iterable[BackendFacts], cells: Cells) -> Table:
    table = _table("backend", cells)
    table.add_column("state", no_wrap=True)
    table.add_column("utilization" if cells.is_wide else "utiliza-\ntion", no_wrap=True)
    _number_columns(table, cells, "active", "admitted/s")
    if cells.is_wide:
        _number_columns(table, cells, "ok/s")
    _number_columns(table, cells, "rejected/s", "CPU/s")
    table.add_column("refuses", no_wrap=True)
    if cells.is_wide:
        table.add_column("degrading", no_wrap=True)
    for each in backends:
        table.add_row(
            _name(each.instance, cells),
            _state(each, cells),
            cells.bar(each.utilization),
            cells.count(each.active),
            cells.rate(each.admitted_per_second),
            *([cells.rate(each.ok_per_second)] if cells.is_wide else []),
            cells.rate(each.rejected_per_second),
            cells.cost(each.cost_per_second),
            cells.cut(each.cut),
            *([_degrading(each, cells)] if cells.is_wide else []),
        )
    return table


def _degrading(backend: BackendFacts, cells: Cells) -> str:
    if backend.is_degrading is None:
        return cells.none
    return "yes" if backend.is_degrading else ""


def _state(backend: BackendFacts, cells: Cells) -> Text:
    is_listed = backend.state != "no longer listed"
    text = backend.state if is_listed else _UNLISTED[cells.is_wide]
    return Text(text, style=_STATE_STYLES[backend.state])


_STATE_STYLES = {
    "healthy": "green",
    "lame duck": "yellow",
    "unknown": "yellow",
    "no answer": "red",
    "no longer listed": "dim",
}
_UNLISTED = {False: "unlisted", True: "no longer listed"}
"""What there is room for, by whether the terminal is wide."""


def _clients(clients: Iterable[ClientFacts], cells: Cells) -> Table:
    table = _table("client", cells)
    _number_columns(table, cells, "requests/s", "refused/s", "retry ratio")
    for mark in _LEVEL_MARKS.values():
        heading = f"throttle\n{mark}" if mark == "C+" else f"\n{mark}"
        table.add_column(heading, justify="right", no_wrap=True)
    heading = "throttled\ncustomers" if cells.is_wide else "\ncust."
    table.add_column(heading, justify="right", no_wrap=True)
    heading = "healthy/lame/refusing" if cells.is_wide else "h/l/r"
    table.add_column(f"backends\n{heading}", no_wrap=True)
    for each in clients:
        if each.is_answering:
            states = (each.healthy, each.lame_ducks, each.refusing)
            backends = Text("/".join(cells.count(value) for value in states))
        elif each.is_listed:
            backends = Text("no answer", style="red")
        else:
            backends = Text(_UNLISTED[cells.is_wide], style="dim")
        table.add_row(
            _name(each.instance, cells),
            cells.rate(each.requests_per_second),
            cells.rate(each.refused_per_second),
            cells.ratio(each.retry_ratio),
            *(cells.percent(each.throttle_probability.get(level)) for level in _LEVELS),
            cells.count(each.throttled_customers),
            backends,
        )
    return table


def _customers(customers: Iterable[CustomerFacts], cells: Cells) -> Table:
    table = _table("customer", cells)
    _number_columns(table, cells, "CPU/s", "quota CPU/s", "demand CPU/s", "rejected/s")
    for each in customers:
        table.add_row(
            _name(each.customer, cells),
            cells.cost(each.cost_per_second),
            cells.cost(each.limit_per_second),
            cells.cost(each.demand_per_second),
            cells.rate(each.rejected_per_second),
        )
    return table


def _table(heading: str, cells: Cells) -> Table:
    padding = (0, 2 if cells.is_wide else 1, 0, 0)
    table = Table(box=None, padding=padding, header_style="bold", pad_edge=False)
    # It may wrap as far as the table is concerned, so that it is the column that gives way.
    table.add_column(heading, vertical="bottom")
    return table


def _name(text: str, cells: Cells) -> Text:
    return Text(cells.name(text), no_wrap=True, overflow="crop" if cells.is_ascii else "ellipsis")


def _number_columns(table: Table, cells: Cells, *headings: str) -> None:
    for heading in headings:
        lines = heading if cells.is_wide else heading.replace(" ", "\n").replace("/s", "\n/s", 1)
        table.add_column(lines, justify="right", no_wrap=True)


def _chosen(
    every: Sequence[T], rows: int | None, trouble: Callable[[T], tuple[float, ...]]
) -> tuple[Sequence[T], int]:
    """Return what there is room for: those in most trouble, but in the order they always have."""
    if rows is None or len(every) <= rows:
        return every, 0
    worst = sorted(range(len(every)), key=lambda index: trouble(every[index]), reverse=True)[:rows]
    return [every[index] for index in sorted(worst)], len(every) - rows


def _trouble_of_backend(backend: BackendFacts) -> tuple[float, ...]:
    return (backend.state != "healthy", backend.utilization or 0.0)


def _trouble_of_client(client: ClientFacts) -> tuple[float, ...]:
    return (not client.is_answering, client.refused_per_second or 0.0)


def _more(count: int, noun: str, which: str, cells: Cells) -> Iterator[Text]:
    if count > 0:
        plural = "" if count == 1 else "s"
        yield Text(f"{cells.ellipsis} {count} more {noun}{plural}{which}", style="dim")


def _problems(facts: Facts, cells: Cells, most: int) -> Iterator[Text]:
    lines = [
        Text(f"{cells.name(end.instance)}: {cells.name(end.problem)}", style="red")
        for end in facts.end_points
        if end.problem is not None
    ]
    lines += [
        Text(
            f"{cells.name(end.instance)}: {cells.count(end.odd)} values could not be counted, "
            "or its event loop was blocked",
            style="yellow",
        )
        for end in facts.end_points
        if end.odd > 0.0
    ]
    yield from lines[:most]
    if len(lines) > most:
        yield Text(f"{cells.ellipsis} {len(lines) - most} more of these", style="red")
