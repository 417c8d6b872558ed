"""Run a fleet on this machine, to watch and to hurt (`evenly demo`)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evenly.cli.browser import opened
from evenly.cli.commit import describe_commit
from evenly.cli.options import counted, number, whole
from evenly.cli.outputs import STANDARD_OUTPUT, check_output, write_output
from evenly.errors import EvenlyError
from evenly.lab.demo.bounds import (
    LEAST_BACKENDS,
    LEAST_LOAD,
    LEAST_SECONDS,
    MOST_EACH,
    MOST_LOAD,
    MOST_SECONDS,
)
from evenly.signals.cpu import effective_cores

if TYPE_CHECKING:  # They need extras, and are slow to import.
    from evenly.lab.demo.fleet import Fleet
    from evenly.lab.demo.plan import Plan
    from evenly.lab.demo.played import Played
    from evenly.lab.demo.table import Show

__all__ = ["demo"]

_JSON: Final = "--json"
_LOOPBACK: Final = "127.0.0.1"
_EXTRA_OF: Final = {
    "grpc": "grpc",
    "grpc_health": "grpc",
    "httptools": "http",
    "prometheus_client": "prometheus",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
}
# The children have been killed by then; this is for the loop to get round to it.
_KILL_SECONDS: Final = 0.2
_BUSY_RATIO: Final = 1.5


def demo(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(
            parser=number(LEAST_SECONDS, MOST_SECONDS),
            metavar="N",
            help="Play a scripted story for about so many seconds"
            f" ({LEAST_SECONDS:g} to {MOST_SECONDS:g}), without a page, and exit with 1 if it shows"
            " less than it should.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            _JSON, metavar="FILE", help="Write its figures to FILE; - is standard output."
        ),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Speak HTTP instead of gRPC.")] = False,
    real_cpu: Annotated[
        bool,
        typer.Option(
            "--real-cpu", help="Burn CPU instead of emulating machines: this machine is the limit."
        ),
    ] = False,
    backends: Annotated[
        int,
        typer.Option(
            parser=whole(LEAST_BACKENDS, MOST_EACH),
            metavar="N",
            help="Run so many backends.",
        ),
    ] = 8,
    clients: Annotated[
        int,
        typer.Option(parser=whole(1, MOST_EACH), metavar="N", help="Run so many clients."),
    ] = 4,
    load: Annotated[
        float | None,
        typer.Option(
            parser=number(LEAST_LOAD, MOST_LOAD),
            metavar="X",
            help="Begin with this load, as a multiple of the capacity; 0.7 if omitted.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Show the page on this address; {_LOOPBACK} if omitted."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            parser=whole(0, 65535),
            metavar="N",
            help="Show the page, and the list of all metrics, on this port; a free one if omitted.",
        ),
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open/--no-browser", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Watch a fleet being balanced and an overload being survived, on this machine."""
    of_page = {"load": load, "host": host, "port": port, "open": is_opened or None}
    _check_usage(seconds, json_file, of_page)
    _check_extras(is_http=http, has_page=seconds is None)
    from evenly.lab.demo.plan import Plan  # noqa: PLC0415 -- slow

    try:
        plan = Plan.of(
            backends=backends,
            clients=clients,
            transport="http" if http else "grpc",
            is_real_cpu=real_cpu,
        )
        if seconds is None:
            where = _LOOPBACK if host is None else host
            page = _Page(host=where, port=port or 0, is_opened=is_opened, load=load)
            code = asyncio.run(_show_page(plan, page))
        else:
            code = asyncio.run(_play(plan, seconds, json_file))
    except (EvenlyError, OSError) as error:  # A port that is taken is somebody else's.
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _check_usage(
    seconds: float | None, json_file: Path | None, of_page: Mapping[str, object]
) -> None:
    if seconds is None:
        if json_file is not None:
            raise typer.BadParameter("needs --seconds", param_hint=f"'{_JSON}'")
        return
    for name, value in of_page.items():
        if value is not None:
            raise typer.BadParameter("must not be given with --seconds", param_hint=f"'--{name}'")
    if json_file is not None:
        check_output(json_file, _JSON)  # First: nobody should wait for what cannot be written.


def _check_extras(*, is_http: bool, has_page: bool) -> None:
    """Say in one line which packages are missing, and how to get them, before anything starts."""
    wanted = ["prometheus_client"]
    wanted += ["httptools", "uvicorn"] if is_http else ["grpc", "grpc_health"]
    wanted += ["starlette", "uvicorn"] if has_page else []
    missing = [name for name in dict.fromkeys(wanted) if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(dict.fromkeys(_EXTRA_OF[name] for name in missing))
        names = " and ".join(missing)
        typer.echo(f'Error: evenly demo needs {names}: pip install "evenly[{extras}]"', err=True)
        raise typer.Exit(1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """Say where the page is shown, and what it shows first."""

    host: str
    port: int
    is_opened: bool
    load: float | None


@final
@dataclass(slots=True)
class _Stop:
    """Hold that somebody wants us to stop, and what must not be left behind."""

    signal: int | None = None
    is_over: bool = False
    """Whether there is nothing left to cancel: all is closed already."""
    fleet: Fleet | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """Cancel this task at the first Ctrl-C or SIGTERM, and end everything at once at the second.

    The first changes nothing if it comes when the work is over and all is being closed.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    stop = _Stop()

    def ask(received: int) -> None:
        if stop.signal is None:
            stop.signal = received
            if task is not None and not stop.is_over:
                task.cancel()
            return
        # Closing begins by killing every child, without waiting for anything.
        if stop.fleet is not None:
            stop.tasks.add(asyncio.create_task(stop.fleet.close()))
        loop.call_later(_KILL_SECONDS, os._exit, 128 + received)

    for wanted in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(wanted, ask, wanted)
    try:
        yield stop
    finally:
        for wanted in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(wanted)


@asynccontextmanager
async def _running(fleet: Fleet, stop: _Stop, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Start a fleet, telling a person who waits how far it is."""
    plan = fleet.plan
    began_at = time.monotonic()
    transport = "HTTP" if plan.transport == "http" else "gRPC"
    what = f"{counted(len(plan.backends), 'backend')} and {counted(plan.clients, 'client')}"
    say(f"Starting {what} that speak {transport} ...")
    stop.fleet = fleet
    async with fleet:
        say(f"All processes run after {time.monotonic() - began_at:.1f} s.")
        yield


async def _show_page(plan: Plan, page: _Page) -> int:
    from evenly.lab.dashboard.server import Dashboard  # noqa: PLC0415 -- an extra, and slow
    from evenly.lab.demo.fleet import Fleet  # noqa: PLC0415 -- slow

    console = Console(highlight=False)
    with _stopping() as stop, contextlib.suppress(asyncio.CancelledError):
        fleet = Fleet(plan)
        # The page first: if its port is taken, no process need be started.
        async with (
            Dashboard(fleet, host=page.host, port=page.port) as dashboard,
            _running(fleet, stop, console.print),
        ):
            if page.load is not None:
                await fleet.control("load", {"load": page.load})
            _say_where(console, dashboard.url, dashboard.targets_url)
            with opened(dashboard.url) if page.is_opened else contextlib.nullcontext():
                await asyncio.Event().wait()
    if stop.signal is None:
        raise asyncio.CancelledError  # It was not ours.
    console.print("Stopped; nothing is left behind.")
    return 0


def _say_where(console: Console, url: str, targets_url: str) -> None:
    # Not wrapped, so that they can be clicked and copied.
    console.print()
    console.print(Text.assemble("  Open  ", (url, "bold")), soft_wrap=True)
    console.print(Text(f"  Or    evenly top {targets_url}"), soft_wrap=True)
    console.print()
    console.print("Whoever has the address with its token can act on the fleet.  Ctrl-C stops it.")


async def _play(plan: Plan, seconds: float, json_file: Path | None) -> int:
    from evenly.lab.demo.fleet import Fleet  # noqa: PLC0415 -- slow
    from evenly.lab.demo.played import document  # noqa: PLC0415 -- with it
    from evenly.lab.demo.script import Script  # noqa: PLC0415 -- with it
    from evenly.lab.demo.table import showing  # noqa: PLC0415 -- with it

    commit = describe_commit()  # Before the play: somebody may commit meanwhile.
    console = Console(highlight=False, stderr=json_file == STANDARD_OUTPUT)
    result: Played | None = None
    with _stopping() as stop, contextlib.suppress(asyncio.CancelledError):
        fleet = Fleet(plan)
        async with _running(fleet, stop, console.print):
            with showing(console) as show:
                watching = asyncio.create_task(_watch(fleet, show))
                try:
                    result = await Script(fleet, plan, seconds, on_part=show.part).play()
                    stop.is_over = True
                finally:
                    watching.cancel()
                    await asyncio.wait([watching])
    if result is None:
        if stop.signal is None:
            raise asyncio.CancelledError  # It was not ours.
        typer.echo("Stopped before the end: no figures.", err=True)
        return 128 + stop.signal
    # The figures first: whatever becomes of the file, they have been seen.
    _show_figures(console, result)
    code = _say_missed(result)
    if json_file is not None:
        content = document(result, plan, version=version("evenly"), commit=commit)
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        code = code if _is_written(json_file, text) else 1
    return code


def _is_written(json_file: Path, text: str) -> bool:
    try:
        write_output(json_file, _JSON, text)
    except typer.BadParameter as error:  # It could be written when the play began.
        typer.echo(f"Error: {_JSON}: {error.message}", err=True)
        return False
    return True


def _say_missed(played: Played) -> int:
    """Say which figures miss their bounds, and return the exit code."""
    for figure in played.missed:
        typer.echo(f"Missed: {figure}", err=True)
    load_average, cores = os.getloadavg()[0], effective_cores()
    # The demo itself is less than one process that runs.
    if played.missed and load_average > _BUSY_RATIO * cores:
        busy = f"load average {load_average:.1f} on {cores:g} cores"
        typer.echo(f"This machine is busy ({busy}): try again when it is quiet.", err=True)
    return 1 if played.missed else 0


async def _watch(fleet: Fleet, show: Show) -> None:
    async for frame in fleet.subscribe():
        show.frame(frame)


def _show_figures(console: Console, played: Played) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("figure")
    for heading in ("measured", "bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in played.figures:
        mark = Text("met", "green") if figure.is_met else Text("MISSED", "bold red")
        table.add_row(mark, figure.what, figure.shown_value, figure.shown_bound)
    console.print()
    console.print(table)
    if played.demo_cores is not None:
        console.print(
            f"It took {played.seconds:.0f} s and {played.demo_cores:.2f} CPUs on average."
        )
    sys.stdout.flush()
