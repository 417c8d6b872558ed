"""Check what every subset function is given, in one place."""

from __future__ import annotations

from evenly.core import check

__all__ = ["MAX_CLIENT_INDEX", "MAX_SUBSET_SIZE", "check_subset_input"]

MAX_SUBSET_SIZE = 10_000
MAX_CLIENT_INDEX = 2**31 - 1


def check_subset_input(client_index: int, subset_size: int) -> None:
    """Raise `ConfigError` unless both numbers are whole and in range."""
    check.count("client_index", client_index, 0, MAX_CLIENT_INDEX)
    check.count("subset_size", subset_size, 1, MAX_SUBSET_SIZE)
