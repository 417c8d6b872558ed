"""Be one layer of a shop: `python -m examples.grpc.stack.layer --layer b --below static:…`.

The frontend says how much a request matters, once, and every layer below knows.  A shows old prices
when it has to.  The DB frontend has a disk, and refuses when that is too busy.  Nobody handles an
overload error; see `run.py` for what becomes of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from grpc.aio import ServicerContext as Context

import evenly
import evenly.grpc
from evenly.config import (
    BackendTaskConfig,
    ClientTaskConfig,
    Ramp,
    SignalConfig,
    ThrottleConfig,
    UtilizationConfig,
    default_signals,
)
from examples.grpc.stack.log import Log, say
from examples.grpc.stack.stack_pb2 import Answer, Item
from examples.grpc.stack.stack_pb2_grpc import ShopServicer, ShopStub, add_ShopServicer_to_server

# How busy the disk is: SHEDDABLE requests are refused from 0.7 on, all of them at 0.8, and so on.
DISK = SignalConfig(
    ramps=(Ramp(0.7, 0.8), Ramp(0.8, 0.9), Ramp(0.9, 1.0), Ramp(1.0, 1.1)), decay_seconds=0.1
)


class Layer(ShopServicer):
    """Ask the layer below: backend B is just this."""

    def __init__(self, name: str, below: ShopStub) -> None:
        self.name = name
        self.below = below

    async def Show(self, item: Item, context: Context) -> Answer:
        """Say what something costs."""
        say(self.name, f"Show {item.name}")
        call = self.below.Show(item)
        answer = await call
        if (await call.trailing_metadata()).get("evenly-degraded"):
            evenly.mark_degraded()  # What is made of a degraded answer is one itself.
        return answer

    async def Buy(self, item: Item, context: Context) -> Answer:
        """Sell something."""
        say(self.name, f"Buy {item.name}")
        return await self.below.Buy(item)


class Frontend(Layer):
    """Say how much each request matters, as close to the user as can be."""

    async def Show(self, item: Item, context: Context) -> Answer:
        """Say what something costs."""
        with evenly.request_context(criticality=evenly.Criticality.SHEDDABLE):
            return await super().Show(item, context)

    async def Buy(self, item: Item, context: Context) -> Answer:
        """Sell something."""
        with evenly.request_context(criticality=evenly.Criticality.CRITICAL_PLUS):
            return await super().Buy(item, context)


class BackendA(Layer):
    """Have something to show where the layer below refuses."""

    async def show_cached(self, item: Item, context: Context) -> Answer:
        """Say what something cost yesterday."""
        say(self.name, f"degraded: yesterday's price of {item.name}")
        return Answer(text=f"{item.name} was 3 yesterday")

    @evenly.degradable(show_cached)
    async def Show(self, item: Item, context: Context) -> Answer:
        """Say what something costs."""
        return await super().Show(item, context)


class DbFrontend(ShopServicer):
    """Answer from a disk, which can be too busy."""

    def __init__(self, name: str, disk: Path) -> None:
        self.name = name
        self._disk = disk

    def utilization(self) -> float:
        """Read how busy the disk is: the number in a file, so that you can set it."""
        with contextlib.suppress(OSError, ValueError):
            return float(self._disk.read_text())
        return 0.0

    async def record_utilization(self, server: evenly.grpc.Server) -> None:
        """Tell evenly again and again, which refuses accordingly."""
        while True:
            server.runtime.task.record_signal("disk", self.utilization())
            await asyncio.sleep(0.1)

    async def Show(self, item: Item, context: Context) -> Answer:
        """Say what something costs."""
        say(self.name, f"Show {item.name}")
        return Answer(text=f"{item.name} is 4")

    async def Buy(self, item: Item, context: Context) -> Answer:
        """Sell something."""
        say(self.name, f"Buy {item.name}")
        return Answer(text=f"{item.name} is yours")


LAYERS = {"frontend": Frontend, "a": BackendA, "b": Layer}


async def serve_layer(options: argparse.Namespace) -> None:
    """Serve the frontend, A or B."""
    throttle = ThrottleConfig(name=options.throttle)
    config = evenly.grpc.ClientConfig(task=ClientTaskConfig(throttle=throttle))
    log = Log(options.layer)
    async with evenly.grpc.channel(options.below, config=config, observer=log) as channel:
        layer = LAYERS[options.layer](options.layer, ShopStub(channel))
        await run(layer, evenly.grpc.server(observer=log), options.port)


async def serve_db_frontend(options: argparse.Namespace) -> None:
    """Serve the DB frontend, which has a signal of its own besides CPU, queue and memory."""
    utilization = UtilizationConfig(signals={**default_signals(), "disk": DISK})
    config = evenly.grpc.BackendConfig(task=BackendTaskConfig(utilization=utilization))
    server = evenly.grpc.server(config=config, observer=Log(options.layer))
    layer = DbFrontend(options.layer, options.disk)
    reader = asyncio.create_task(layer.record_utilization(server))
    await run(layer, server, options.port)
    reader.cancel()


async def run(layer: ShopServicer, server: evenly.grpc.Server, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    add_ShopServicer_to_server(layer, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await evenly.grpc.serve(server)


def main() -> None:
    """Serve the layer that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", choices=[*LAYERS, "db-frontend"], required=True)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--below", help="the layer below: static:127.0.0.1:50051,…")
    parser.add_argument("--throttle", default="responsive", help="off: leave it to retry budgets")
    parser.add_argument("--disk", type=Path, help="of the DB frontend: a file with a number")
    options = parser.parse_args()
    serve = serve_db_frontend if options.layer == "db-frontend" else serve_layer
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
