"""Ask to be greeted: `python -m examples.lines.greet_client --target static:…`."""

from __future__ import annotations

import argparse
import asyncio

from examples.lines.client import Client


async def main(target: str, times: int, pause_seconds: float) -> None:
    """Send some requests, and say how many were answered."""
    async with Client(target) as client:
        for number in range(times):
            greeting = await client.call({"greet": "world"}, timeout_seconds=5.0)
            if number == 0:
                print(greeting, flush=True)
            await asyncio.sleep(pause_seconds)
    print(f"{times} served")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="static:127.0.0.1:7001")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--pause-seconds", type=float, default=0.01)
    options = parser.parse_args()
    asyncio.run(main(options.target, options.times, options.pause_seconds))
