"""What gRPC is told about every channel to one backend, and about every server."""

from __future__ import annotations

from typing import Any

from evenly.discovery.target import Discovery
from evenly.grpc.server import _DEFAULT_OPTIONS
from evenly.grpc.service import _DEFAULTS, _OURS, Options
from evenly.grpc.target import authority_of

__all__ = ["channel_options", "server_options"]


def channel_options(target: str | Discovery, options: Options) -> Options:
    """Return the options of a channel to a backend of this service: ours, and the user's."""
    authority = authority_of(target) if isinstance(target, str) else None
    named = () if authority is None else (("grpc.default_authority", authority),)
    return (*_DEFAULTS, *named, *options, *_OURS)


def server_options(options: Options | None) -> Options:
    """Return the options of a server: the user's, and ours where there is none."""
    given: dict[str, Any] = dict(options or ())
    defaults = [(key, value) for key, value in _DEFAULT_OPTIONS.items() if key not in given]
    return (*(options or ()), *defaults)
