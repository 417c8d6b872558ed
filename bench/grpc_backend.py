"""Be a backend that echoes: `python -m bench.grpc_backend bare|evenly`; it prints its port."""

from __future__ import annotations

import asyncio
import sys

import grpc
import grpc.aio

from evenly.grpc.server.server import server as evenly_server


async def _echo(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
    return request


async def main(kind: str) -> None:
    server = evenly_server() if kind == "evenly" else grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(_echo)
    handlers = grpc.method_handlers_generic_handler("bench.Echo", {"Do": method})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
