"""Ask to be greeted, by httpx: `python -m examples.http.client_httpx --target static:…`.

The line marked CHANGED is all that makes an httpx client balance through evenly: it names the
service, `http://hello`, and the transport knows where its backends are.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

import httpx

import evenly.http


async def main(target: str, times: int, pause_seconds: float) -> None:
    """Send some requests, and say which backend served how many."""
    served: Counter[str] = Counter()
    transport = evenly.http.Transport(target)
    mounts = {"http://hello": transport}  # CHANGED: and it is given below
    async with httpx.AsyncClient(mounts=mounts, base_url="http://hello") as client:
        for number in range(times):
            response = await client.get("/hello/world", timeout=5.0)
            response.raise_for_status()
            served[response.extensions["evenly_backend"]] += 1
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
