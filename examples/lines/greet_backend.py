"""Greet: `python -m examples.lines.greet_backend --port 7001`, as many of them as you like."""

from __future__ import annotations

import argparse
import asyncio

from examples.lines.backend import Backend, serve


async def greet(do: dict[str, str]) -> str:
    """Greet by name."""
    return f"Hello, {do['greet']}!"


def say(address: str) -> None:
    """Say where it listens."""
    print(f"listening on {address}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=7001, help="0: any free one")
    asyncio.run(serve(Backend(greet, port=parser.parse_args().port, on_listening=say)))
