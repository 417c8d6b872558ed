"""gRPC: a channel that balances, and a server that refuses what it cannot do.

    channel = evenly.grpc.channel("dns:///search.prod:50051")       # a grpc.aio.Channel

    server = evenly.grpc.server()                                   # a grpc.aio.Server
    await evenly.grpc.serve(server)                                 # SIGTERM: lame duck, drain

The same for threads is in `evenly.grpc.sync`.
"""

from __future__ import annotations

try:
    import grpc as _grpc
    import grpc_health.v1 as _grpc_health
    import xds as _xds
except ImportError as error:
    raise ImportError(f'evenly.grpc needs gRPC: pip install "evenly[grpc]" ({error})') from error

from evenly.grpc.client.channel import Channel, channel
from evenly.grpc.client.errors import (
    NoBackendRpcError,
    OverloadedRpcError,
    QuotaExceededRpcError,
    RejectedRpcError,
    ThrottledRpcError,
)
from evenly.grpc.server.interceptor import Interceptor, interceptor
from evenly.grpc.server.serve import serve
from evenly.grpc.server.server import Server, server
from evenly.probe.config import ProbeConfig
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.client_config import ClientConfig

__all__ = [
    "BackendConfig",
    "Channel",
    "ClientConfig",
    "Interceptor",
    "NoBackendRpcError",
    "OverloadedRpcError",
    "ProbeConfig",
    "QuotaExceededRpcError",
    "RejectedRpcError",
    "Server",
    "ThrottledRpcError",
    "channel",
    "interceptor",
    "serve",
    "server",
]

del _grpc, _grpc_health, _xds
