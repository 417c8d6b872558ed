"""Be one backend process: `python -m tests.suites.transports.backend_main '{"port": 50051}'`.

It prints "ready" when it listens and has announced itself.  SIGUSR1 makes it fail every request at
once; SIGUSR2 closes its port without a word while the process lives on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

import grpc
import grpc.aio

from evenly.grpc.serve import serve
from evenly.grpc.server import server as evenly_server

METHOD = "Do"
SERVICE = "test.Work"


def burn(cpu_seconds: float) -> None:
    """Use so much CPU, as a handler that computes does."""
    until = time.thread_time() + cpu_seconds
    while time.thread_time() < until:
        sum(range(200))


class Work:
    def __init__(self, *, cpu_seconds: float, wait_seconds: float) -> None:
        self.is_failing = False
        self._cpu_seconds = cpu_seconds
        self._wait_seconds = wait_seconds

    async def do(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if self.is_failing:
            await context.abort(grpc.StatusCode.INTERNAL, "told to fail")
        if self._wait_seconds:
            await asyncio.sleep(self._wait_seconds)
        if self._cpu_seconds:
            burn(self._cpu_seconds)
        return request

    def handlers(self) -> grpc.GenericRpcHandler:
        method = grpc.unary_unary_rpc_method_handler(self.do)
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})


async def main(options: dict[str, object]) -> None:
    core = options.get("core")
    if isinstance(core, int):
        os.sched_setaffinity(0, {core})
    work = Work(
        cpu_seconds=float(str(options.get("cpu_seconds", 0.0))),
        wait_seconds=float(str(options.get("wait_seconds", 0.0))),
    )
    is_plain = bool(options.get("is_plain"))
    server = grpc.aio.server() if is_plain else evenly_server()
    server.add_generic_rpc_handlers((work.handlers(),))
    address = f"127.0.0.1:{options['port']}"
    if server.add_insecure_port(address) == 0:
        raise SystemExit(f"cannot listen on {address}")
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(work, "is_failing", True))
    closing: list[asyncio.Task[None]] = []

    async def close_port() -> None:
        # Without the lame duck that ours would be first.
        await (server if is_plain else server._inner).stop(None)

    loop.add_signal_handler(signal.SIGUSR2, lambda: closing.append(loop.create_task(close_port())))
    if is_plain:
        await serve_plain(server, loop)
    else:
        await serve(server, warm_up=say_ready)


async def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def serve_plain(server: grpc.aio.Server, loop: asyncio.AbstractEventLoop) -> None:
    """Stop as gRPC's documentation has it: with a grace on SIGTERM."""
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await server.start()
    await say_ready()
    await stopped.wait()
    await server.stop(5)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
