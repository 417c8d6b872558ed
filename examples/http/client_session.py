"""Ask to be greeted, by evenly's own client: `python -m examples.http.client_session --target …`.

It is lean: one service, HTTP/1.1, no cookies and no redirects.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

import evenly.http


async def main(target: str, times: int, pause_seconds: float) -> None:
    """Send some requests, and say which backend served how many."""
    served: Counter[str] = Counter()
    async with evenly.http.Session(target) as session:
        for number in range(times):
            response = await session.get("/hello/world", timeout_seconds=5.0)
            response.raise_for_status()
            served[str(response.backend)] += 1
            if number == 0:
                print(response.json()["text"], flush=True)
            await asyncio.sleep(pause_seconds)
    for backend, count in sorted(served.items()):
        print(f"{backend} served {count}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="static:127.0.0.1:8001")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--pause-seconds", type=float, default=0.01)
    options = parser.parse_args()
    asyncio.run(main(options.target, options.times, options.pause_seconds))
