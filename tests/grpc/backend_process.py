"""Be a backend in a process of its own: `python -m tests.grpc.backend_process KIND [WARM_UP]`.

It prints its port, and then what happens to it.  It is warm after `WARM_UP` seconds, or when it is
told so by a line.  A `hasty` one does not wait for its requests, but gives them an hour of grace;
a `brief` one, and a `brief-interceptor`, is quiet soon and gives no grace at all.
"""

# ruff: noqa: T201 -- gRPC has no types; printing is how this talks

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from evenly.core.backend_task import BackendTaskConfig
from evenly.grpc.server.interceptor import interceptor
from evenly.grpc.server.serve import serve
from evenly.grpc.server.server import server
from evenly.runtime.backend_config import BackendConfig

PATIENT = BackendConfig(task=BackendTaskConfig(quiet_seconds=1.0, drain_seconds=60.0))
BRIEF = BackendConfig(task=BackendTaskConfig(quiet_seconds=0.2, drain_seconds=60.0))
HASTY = BackendConfig(task=BackendTaskConfig(drain_seconds=0.0))


CONFIGS = {"hasty": HASTY, "brief": BRIEF, "brief-interceptor": BRIEF}
GRACE_SECONDS = {"hasty": 3600.0, "brief": 0.0, "brief-interceptor": 0.0}


async def nap(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(float(request))
    return b"rested"


async def main(kind: str, warm_up: str) -> None:
    config = CONFIGS.get(kind, PATIENT)
    handlers = {"Nap": grpc.unary_unary_rpc_method_handler(nap)}
    generic = grpc.method_handlers_generic_handler("test.Naps", handlers)
    guard = interceptor(config=config) if kind.endswith("interceptor") else None
    made: grpc.aio.Server
    made = server(config=config) if guard is None else grpc.aio.server(interceptors=(guard,))
    made.add_generic_rpc_handlers((generic,))
    port = made.add_insecure_port("127.0.0.1:0")
    if guard is not None:
        guard.attach(made, f"127.0.0.1:{port}", services=("test.Naps",))
    print(port, flush=True)

    async def warm() -> None:
        print("warming up", flush=True)
        if warm_up == "raises":
            raise ValueError("no cache")
        if warm_up == "told":
            await asyncio.to_thread(sys.stdin.readline)
        else:
            await asyncio.sleep(float(warm_up))
        print("warm", flush=True)

    await serve(
        made,
        interceptor=guard,
        warm_up=warm if warm_up else None,
        grace_seconds=GRACE_SECONDS.get(kind, 1.0),
    )
    print("served", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
