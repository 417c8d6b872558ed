"""Refuse a wrong value with its name, its range and itself.

The comparisons are written so that NaN fails them: it is inside no range.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from evenly.errors import ConfigError

__all__ = ["count", "fraction", "gone", "number", "positive"]

T = TypeVar("T")


def number(name: str, value: float, low: float, high: float) -> None:
    """Raise `ConfigError` unless `value` is a number in [low, high]."""
    if not (_is_number(value) and low <= value <= high):
        raise ConfigError(f"{name} must be in [{low:g}, {high:g}], not {value!r}")


def positive(name: str, value: float) -> None:
    """Raise `ConfigError` unless `value` is a finite number above zero."""
    # Bounded by the largest float, because a huge int is finite too until it meets one.
    if not (_is_number(value) and 0 < value <= sys.float_info.max):
        raise ConfigError(f"{name} must be finite and above 0, not {value!r}")


def fraction(name: str, value: float) -> None:
    """Raise `ConfigError` unless `value` is a number in [0, 1]."""
    number(name, value, 0.0, 1.0)


def count(name: str, value: int, low: int, high: int) -> None:
    """Raise `ConfigError` unless `value` is a whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number in [{low}, {high}], not {value!r}")


def gone(instead: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Have a config raise `ConfigError` for settings that it had once, with what to do instead."""

    def decorate(config: type[T]) -> type[T]:
        def new(cls: type[T], **settings: object) -> T:
            for name in settings:
                if name in instead:
                    raise ConfigError(f"{name} is gone: {instead[name]}")
            return object.__new__(cls)

        config.__new__ = new  # type: ignore[method-assign, assignment]  # the constructor stays
        return config

    return decorate


def _is_number(value: object) -> bool:
    # A caller that mypy has not seen may pass anything, and True would count as 1.
    return isinstance(value, int | float) and not isinstance(value, bool)
