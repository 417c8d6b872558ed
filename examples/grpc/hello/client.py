"""Ask to be greeted: `python -m examples.grpc.hello.client --target static:127.0.0.1:50051,…`.

The line marked CHANGED is all that makes a `grpc.aio` client one of evenly's.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

import evenly.grpc
from examples.grpc.hello.hello_pb2 import HelloRequest
from examples.grpc.hello.hello_pb2_grpc import GreeterStub


async def main(target: str, times: int, pause_seconds: float) -> None:
    """Send some requests, and say which backend served how many."""
    served: Counter[str] = Counter()
    async with evenly.grpc.channel(target) as channel:  # CHANGED: was grpc.aio.insecure_channel
        stub = GreeterStub(channel)
        for number in range(times):
            call = stub.SayHello(HelloRequest(name="world"), timeout=5)
            reply = await call
            served[call.backend] += 1
            if number == 0:
                print(reply.text, flush=True)
            await asyncio.sleep(pause_seconds)
    for backend, count in sorted(served.items()):
        print(f"{backend} served {count}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="static:127.0.0.1:50051")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--pause-seconds", type=float, default=0.01)
    options = parser.parse_args()
    asyncio.run(main(options.target, options.times, options.pause_seconds))
