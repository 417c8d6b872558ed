"""Run `evenly top`: look, draw, wait, until somebody ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from evenly.lab.top.cells import escaped
from evenly.lab.top.facts import Facts, make_facts
from evenly.lab.top.lookups import Lookups
from evenly.lab.top.table import PROBLEMS_ON_SCREEN, Picture
from evenly.lab.top.targets import Target
from evenly.lab.top.watch import Watch

try:
    import termios
    import tty
except ImportError:  # Windows: Ctrl-C ends it there too.
    HAS_KEYS = False
else:
    HAS_KEYS = True

__all__ = ["Wanted", "watch"]

_QUIT = b"qQ"
# What a service has around its tables: a summary of eight lines, headings, "… more" and a gap.
_FRAME_ROWS = 16
_ROWS_MIN = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Be what was asked for on the command line."""

    targets: Sequence[Target]
    interval_seconds: float = 2.0
    is_once: bool = False
    is_json: bool = False
    service: str | None = None


def watch(wanted: Wanted) -> int:
    """Show it until it is ended; return the exit code: 1 if nothing could ever be read."""
    watcher = Watch(wanted.targets, interval_seconds=wanted.interval_seconds)
    last: list[Facts] = []
    console = Console(highlight=False)
    try:
        asyncio.run(_show(wanted, watcher, console, last))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Whoever read has read enough.  What is still buffered must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if watcher.has_read:
        return 0
    _say_why(last)
    return 1


def _say_why(last: Sequence[Facts]) -> None:
    errors = Console(stderr=True, highlight=False)
    errors.print(Text("Error: nothing could be read."), soft_wrap=True)
    for end in last[-1].end_points if last else ():
        line = f"  {end.url}: {end.problem or 'no answer'}"
        errors.print(Text(escaped(line, is_ascii=True)), soft_wrap=True)


async def _show(wanted: Wanted, watcher: Watch, console: Console, last: list[Facts]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Lookups())
    ended = asyncio.Event()
    is_live = console.is_terminal and not (wanted.is_json or wanted.is_once)
    with (
        _signals(loop, ended.set),
        _output(wanted, console, is_live=is_live) as draw,
        _keys(loop, ended.set, is_on=is_live),
    ):
        async for facts in _facts(wanted, watcher, ended):
            last[:] = [facts]
            draw(facts)


async def _facts(wanted: Wanted, watcher: Watch, ended: asyncio.Event) -> AsyncIterator[Facts]:
    """Yield facts once per interval, from the second look on: one look has no rates.

    At a terminal the first look is worth showing too: it says what there is, and what is not.
    """
    loop = asyncio.get_running_loop()
    next_at = loop.time()
    looks = 0
    while not ended.is_set():
        looking = asyncio.ensure_future(watcher.look())
        ending = asyncio.ensure_future(ended.wait())
        await asyncio.wait({looking, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not looking.done():
            looking.cancel()
            return
        looks += 1
        sights = looking.result()
        is_shown = looks > 1 or not (wanted.is_once or wanted.is_json)
        if is_shown:
            yield make_facts(sights, at=time.time(), service=wanted.service)
        if looks > 1 and wanted.is_once:
            return
        # From when it should have been, so that intervals do not grow by what looking takes; but
        # never to catch up with what was missed.
        next_at = max(next_at + wanted.interval_seconds, loop.time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(next_at):
                await ended.wait()


@contextlib.contextmanager
def _output(
    wanted: Wanted, console: Console, *, is_live: bool
) -> Iterator[Callable[[Facts], None]]:
    """Give what draws facts: as JSON, on a screen of its own, or one below the other."""
    if wanted.is_json:
        yield _write_json
    elif not is_live:
        yield lambda facts: _print(console, Picture(facts, service=wanted.service), wanted)
    else:
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def draw(facts: Facts) -> None:
                live.update(_Screen(facts, wanted), refresh=True)

            yield draw


def _print(console: Console, picture: Picture, wanted: Wanted) -> None:
    console.print(picture)
    if not wanted.is_once:
        console.print()
    console.file.flush()


def _write_json(facts: Facts) -> None:
    # JSON's own escapes leave nothing that controls a terminal.
    line = json.dumps(facts.as_dict(), allow_nan=False)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@final
@dataclass(frozen=True, slots=True)
class _Screen:
    """Draw facts to fit a screen, with a line that says how to end."""

    facts: Facts
    wanted: Wanted

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.strftime("%H:%M:%S", time.localtime(self.facts.at))
        answering = sum(end.problem is None for end in self.facts.end_points)
        yield Text(
            f"evenly top  {now}, every {self.wanted.interval_seconds:g} s, {answering} of "
            f"{len(self.facts.end_points)} end points answer; q ends",
            style="dim",
        )
        services = max(1, len(self.facts.services))
        problems = sum(end.problem is not None for end in self.facts.end_points)
        room = (
            options.size.height - 1 - min(problems, PROBLEMS_ON_SCREEN + 1) - services * _FRAME_ROWS
        )
        yield Picture(
            self.facts,
            rows=max(_ROWS_MIN, room // (2 * services)),
            height=options.size.height - 1,
            service=self.wanted.service,
        )


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    """End in order at Ctrl-C and SIGTERM: the terminal is given back as it was."""
    handled = []
    for number in (signal.SIGINT, signal.SIGTERM):
        # Elsewhere than in the main thread, and on Windows, there are none.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, end)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _keys(
    loop: asyncio.AbstractEventLoop, end: Callable[[], None], *, is_on: bool
) -> Iterator[None]:
    """End when q is typed, where there is a keyboard."""
    if not (is_on and HAS_KEYS and sys.stdin.isatty()):
        yield
        return
    stdin = sys.stdin.fileno()

    def pressed() -> None:
        keys = os.read(stdin, 64)
        if not keys:
            loop.remove_reader(stdin)
        elif any(key in _QUIT for key in keys):
            end()

    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    loop.add_reader(stdin, pressed)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
