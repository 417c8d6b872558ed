"""What the commands have in common: how they read numbers, count things and say what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import typer

from evenly.core import check
from evenly.errors import ConfigError

__all__ = [
    "MOST_PROCESSES",
    "MOST_SEED",
    "counted",
    "naming_dead_workers",
    "naming_extra",
    "number",
    "whole",
]

MOST_SEED = 2**63 - 1
MOST_PROCESSES = 1_000

_SIMULATOR_PACKAGES = ("matplotlib", "numpy", "PIL")


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers that refuses in the words of `evenly.core.check`."""

    def parse(text: str) -> int:
        try:
            value: object = int(text)
        except ValueError:
            value = text
        try:
            check.count("", value, low, high)  # type: ignore[arg-type]  # That is what it finds out.
        except ConfigError as error:
            raise typer.BadParameter(str(error).strip()) from None
        return int(text)

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of numbers that refuses in the words of `evenly.core.check`."""

    def parse(text: str) -> float:
        try:
            value: object = float(text)
        except ValueError:
            value = text
        try:
            check.number("", value, low, high)  # type: ignore[arg-type]  # That is what it finds out.
        except ConfigError as error:
            raise typer.BadParameter(str(error).strip()) from None
        return float(text)

    return parse


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 backend, 2 backends."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def naming_extra(what: str) -> Iterator[None]:
    """Say in one line which package is missing for what, and how to get it."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        # Anything else that cannot be imported is our mistake, and deserves its traceback.
        if package not in _SIMULATOR_PACKAGES:
            raise
        typer.echo(f'Error: {what} needs {package}: pip install "evenly[sim]"', err=True)
        raise typer.Exit(1) from None


@contextmanager
def naming_dead_workers() -> Iterator[None]:
    """Say in words that a process died in which work was done."""
    try:
        yield
    except BrokenProcessPool:
        typer.echo("Error: a worker died, of memory perhaps: try fewer --processes.", err=True)
        raise typer.Exit(1) from None
