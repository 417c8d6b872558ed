"""Greet: `python -m examples.http.backend --port 8001`, as many of them as you like.

The line marked CHANGED is all that makes a FastAPI application one of evenly's backends; it is the
same with Starlette and every other ASGI framework.  `evenly serve examples.http.backend:app` needs
no change at all.
"""

from __future__ import annotations

import argparse
import asyncio

from fastapi import FastAPI

import evenly.http

app = FastAPI()


@app.get("/hello/{name}")
async def hello(name: str) -> dict[str, str]:
    """Greet by name."""
    return {"text": f"Hello, {name}!"}


async def main(port: int) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    # CHANGED: was uvicorn.run(app, port=port)
    await evenly.http.serve(app, port=port, log_level="warning", on_listening=say)


def say(url: str) -> None:
    """Say where it listens."""
    print(f"listening on {url}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8001, help="0: any free one")
    asyncio.run(main(parser.parse_args().port))
