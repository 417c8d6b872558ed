"""Greet: `python -m examples.grpc.hello.backend --port 50051`, as many of them as you like.

The lines marked CHANGED are all that makes a `grpc.aio` server one of evenly's.
"""

from __future__ import annotations

import argparse
import asyncio

from grpc.aio import ServicerContext

import evenly.grpc
from examples.grpc.hello.hello_pb2 import HelloReply, HelloRequest
from examples.grpc.hello.hello_pb2_grpc import GreeterServicer, add_GreeterServicer_to_server


class Greeter(GreeterServicer):
    """Be a servicer as anybody writes it."""

    async def SayHello(self, request: HelloRequest, context: ServicerContext) -> HelloReply:
        """Greet by name."""
        return HelloReply(text=f"Hello, {request.name}!")


async def main(port: int) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    server = evenly.grpc.server()  # CHANGED: was grpc.aio.server()
    add_GreeterServicer_to_server(Greeter(), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await evenly.grpc.serve(server)  # CHANGED: was server.start(), server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=50051, help="0: any free one")
    asyncio.run(main(parser.parse_args().port))
