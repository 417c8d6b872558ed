"""Ask to be greeted, without asyncio: `python -m examples.grpc.hello.client_threads --target …`.

The line marked CHANGED is all that makes a `grpc` client one of evenly's.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import evenly.grpc.sync
from examples.grpc.hello.hello_pb2 import HelloRequest
from examples.grpc.hello.hello_pb2_grpc import GreeterStub


def main(target: str, times: int, pause_seconds: float) -> None:
    """Send some requests, and say which backend served how many."""
    served: Counter[str] = Counter()
    with evenly.grpc.sync.channel(target) as channel:  # CHANGED: was grpc.insecure_channel(target)
        stub = GreeterStub(channel)
        for number in range(times):
            reply, call = stub.SayHello.with_call(HelloRequest(name="world"), timeout=5)
            served[call.backend] += 1
            if number == 0:
                print(reply.text, flush=True)
            time.sleep(pause_seconds)
    for backend, count in sorted(served.items()):
        print(f"{backend} served {count}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="static:127.0.0.1:50051")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--pause-seconds", type=float, default=0.01)
    options = parser.parse_args()
    main(options.target, options.times, options.pause_seconds)
