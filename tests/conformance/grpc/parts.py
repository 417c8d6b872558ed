"""What the cases share: a service of bytes without a .proto, and certificates."""

from __future__ import annotations

import functools
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from tests.conformance.servers import program

SERVICE = "test.Echo"
UNARY_UNARY = f"/{SERVICE}/UnaryUnary"
UNARY_STREAM = f"/{SERVICE}/UnaryStream"
STREAM_UNARY = f"/{SERVICE}/StreamUnary"
STREAM_STREAM = f"/{SERVICE}/StreamStream"
SOON = 20.0  # Nothing in these cases takes so long, unless it hangs.
NAME = "search.test"
"""The only name that the server's certificate is for."""
CLIENT_NAME = "client.test"
"""The name in the client's certificate."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Be a key and its certificate, signed by itself."""

    key: bytes
    chain: bytes


@dataclass(frozen=True, slots=True)
class Certificates:
    """Hold one for the server and one for the client."""

    server: Pair
    client: Pair

    def for_server(self, *, mutual: bool = False) -> grpc.ServerCredentials:
        """Return what a server listens with; a `mutual` one wants the client's certificate."""
        pairs = [(self.server.key, self.server.chain)]
        if mutual:
            return grpc.ssl_server_credentials(pairs, self.client.chain, require_client_auth=True)
        return grpc.ssl_server_credentials(pairs)

    def for_client(self, *, mutual: bool = False) -> grpc.ChannelCredentials:
        """Return what a client connects with; a `mutual` one shows a certificate of its own."""
        if mutual:
            return grpc.ssl_channel_credentials(
                self.server.chain, self.client.key, self.client.chain
            )
        return grpc.ssl_channel_credentials(self.server.chain)


@contextmanager
def unused_port() -> Iterator[int]:
    """Give a port where nobody listens yet, and nobody but gRPC can."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@functools.cache
def certificates() -> Certificates:
    """Make the certificates, once for all cases."""
    with tempfile.TemporaryDirectory() as folder:
        return Certificates(_made(Path(folder), NAME), _made(Path(folder), CLIENT_NAME))


def _made(folder: Path, name: str) -> Pair:
    key, chain = folder / f"{name}.key", folder / f"{name}.pem"
    command = (
        f"{program('openssl')} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        f" -days 2 -subj /CN={name} -addext subjectAltName=DNS:{name} -keyout {key} -out {chain}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return Pair(key.read_bytes(), chain.read_bytes())
