"""The same stack without evenly, to compare: each layer lets gRPC try three times.

Its DB frontend refuses everything.  Each layer hands up what it could not get, as usual; the layer
above cannot tell that from a refusal of its neighbour's, and tries again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal

import grpc
import grpc.aio

from examples.grpc.stack.log import say
from examples.grpc.stack.stack_pb2 import Answer, Item
from examples.grpc.stack.stack_pb2_grpc import ShopServicer, ShopStub, add_ShopServicer_to_server

RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],  # every method
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.01s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


class DbFrontend(ShopServicer):
    """Refuse."""

    async def Buy(self, item: Item, context: grpc.aio.ServicerContext) -> Answer:
        """Sell nothing."""
        say("db-frontend", f"Buy {item.name}: refused")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "overloaded")


class Layer(ShopServicer):
    """Ask the layer below."""

    def __init__(self, name: str, below: ShopStub) -> None:
        self._name = name
        self._below = below

    async def Buy(self, item: Item, context: grpc.aio.ServicerContext) -> Answer:
        """Sell something."""
        say(self._name, f"Buy {item.name}")
        try:
            return await self._below.Buy(item)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())


async def main(layer: str, below: str | None) -> None:
    """Serve one layer until SIGTERM."""
    shop: ShopServicer
    if below is None:
        shop = DbFrontend()
    else:
        options = [("grpc.service_config", RETRIES)]
        shop = Layer(layer, ShopStub(grpc.aio.insecure_channel(below, options=options)))
    server = grpc.aio.server()
    add_ShopServicer_to_server(shop, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await stopped.wait()
    await server.stop(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", required=True)
    parser.add_argument("--below", help="the layer below: ipv4:127.0.0.1:50051")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.layer, arguments.below))
