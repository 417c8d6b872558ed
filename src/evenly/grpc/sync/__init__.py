"""gRPC for threads: the channel and the server of `evenly.grpc`, without asyncio.

Clients write

    channel = evenly.grpc.sync.channel("dns:///search.prod:50051")      # a grpc.Channel

and backends

    server = evenly.grpc.sync.server(max_workers=10)                    # a grpc.Server
    evenly.grpc.sync.serve(server)                                      # SIGTERM: lame duck, drain
"""

from __future__ import annotations

from evenly.grpc.sync.client.channel import Channel, channel
from evenly.grpc.sync.client.errors import (
    NoBackendRpcError,
    OverloadedRpcError,
    QuotaExceededRpcError,
    RejectedRpcError,
    ThrottledRpcError,
)
from evenly.grpc.sync.server.serve import serve
from evenly.grpc.sync.server.server import Server, server

__all__ = [
    "Channel",
    "NoBackendRpcError",
    "OverloadedRpcError",
    "QuotaExceededRpcError",
    "RejectedRpcError",
    "Server",
    "ThrottledRpcError",
    "channel",
    "serve",
    "server",
]
