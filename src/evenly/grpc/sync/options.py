"""What gRPC is told about every server."""

from __future__ import annotations

from typing import Any

from evenly.grpc.server import _DEFAULT_OPTIONS
from evenly.grpc.service import Options

__all__ = ["server_options"]


def server_options(options: Options | None) -> Options:
    """Return the options of a server: the user's, and ours where there is none."""
    given: dict[str, Any] = dict(options or ())
    defaults = [(key, value) for key, value in _DEFAULT_OPTIONS.items() if key not in given]
    return (*(options or ()), *defaults)
