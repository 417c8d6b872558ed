"""What gRPC is told about each connection and each server: ours, the user's, and our defaults.

Of two options with one name gRPC takes the first and ignores the other.  So those that evenly does
not work without stand first, then come the user's, and last our defaults, without those for which
the user gave a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from evenly.discovery.authority import authority_of
from evenly.discovery.target import Discovery

__all__ = ["Options", "channel_options", "merged", "server_options"]

Options = Sequence[tuple[str, Any]]

_FORCED: Final[Options] = (
    ("grpc.use_local_subchannel_pool", 1),  # One connection per channel, never a shared one.
    ("grpc.enable_retries", 0),  # Retries are ours; and grpc would remove the attempt's number.
)
_CHANNEL_DEFAULTS: Final[Options] = (
    ("grpc.secondary_user_agent", "evenly/1"),  # Tells a backend that it need not send ORCA.
    # Health checks notice a dead connection.  A ping keeps what is between alive; a server that
    # nobody configured takes one in five minutes for abuse if it comes sooner.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_SERVER_DEFAULTS: Final[Options] = (
    # Clients of ours keep idle connections alive; gRPC's default is to disconnect who pings more
    # often than every five minutes.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_AUTHORITY: Final = "grpc.default_authority"
# gRPC makes the authority of it, unless it is told one: then calls are for a name that the
# certificate does not have.
_TLS_NAME: Final = "grpc.ssl_target_name_override"


def merged(forced: Options, given: Options, defaults: Options) -> Options:
    """Return all options in the order in which gRPC gives `forced` and then `given` the last word.

    A default whose name is given is left out.
    """
    names = _names(given)
    return (*forced, *given, *(option for option in defaults if option[0] not in names))


def channel_options(target: str | Discovery, options: Options) -> Options:
    """Return what each channel to one backend of this service is told."""
    authority = authority_of(target) if isinstance(target, str) else None
    is_named = authority is None or _TLS_NAME in _names(options)
    named = () if is_named else ((_AUTHORITY, authority),)
    return merged(_FORCED, options, (*_CHANNEL_DEFAULTS, *named))


def server_options(options: Options | None) -> Options:
    """Return what a server is told."""
    return merged((), tuple(options or ()), _SERVER_DEFAULTS)


def _names(options: Options) -> set[str]:
    return {name for name, _ in options}
