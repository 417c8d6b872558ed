"""Ask to be greeted, by aiohttp as it is: `python -m examples.http.client_aiohttp --url http://…`.

Nothing of evenly is in this process: it shows what a backend of evenly's gives everyone.  A request
may say what it is worth in a header; each answer says how busy the backend is, in words that Envoy
and others read too; a backend that has too much refuses at once, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

import aiohttp


async def main(url: str, times: int, pause_seconds: float, criticality: str) -> None:
    """Send some requests; say what became of them, and what the backend said of itself."""
    ends: Counter[str] = Counter()
    headers = {"evenly-criticality": criticality}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        for number in range(times):
            async with session.get("/hello/world") as response:
                told = await response.json()
            if response.status == 200:
                ends["served"] += 1
            else:
                ends[f"{response.status} {told['error']}"] += 1
            if number == 0:
                print(told.get("text", told.get("detail")))
                print(response.headers["endpoint-load-metrics"], flush=True)
            await asyncio.sleep(pause_seconds)
    for end, count in sorted(ends.items()):
        print(f"{count} × {end}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8001")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--pause-seconds", type=float, default=0.01)
    parser.add_argument("--criticality", default="CRITICAL")
    options = parser.parse_args()
    asyncio.run(main(options.url, options.times, options.pause_seconds, options.criticality))
