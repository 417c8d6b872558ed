"""Make a file without a name: processes that inherit it share it, and nothing is left of it."""

from __future__ import annotations

import os
import sys
import tempfile

__all__ = ["unnamed_file"]


def unnamed_file(purpose: str) -> int:
    """Return the descriptor of an empty file that is gone when all have closed it."""
    if sys.platform == "linux":
        descriptor = os.memfd_create(f"evenly-{purpose}", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    return descriptor
