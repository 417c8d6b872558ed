"""Be one backend process: `python -m tests.grpc_sync.backend_main '{"quiet_seconds": 0.2}'`.

It prints its port when it listens, and "ready" when it has announced itself.
"""

from __future__ import annotations

import json
import sys
import time

import grpc

import evenly.grpc.sync
from evenly.core.backend_task import BackendTaskConfig
from evenly.grpc import BackendConfig

SERVICE = "test.Service"


def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request


def nap(request: bytes, context: grpc.ServicerContext) -> bytes:
    time.sleep(float(request))
    return request


def burn(request: bytes, context: grpc.ServicerContext) -> bytes:
    until = time.thread_time() + float(request)
    while time.thread_time() < until:
        sum(range(200))
    return request


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(options: dict[str, float]) -> None:
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Burn": grpc.unary_unary_rpc_method_handler(burn),
        "Nap": grpc.unary_unary_rpc_method_handler(nap),
    }
    config = None
    if "quiet_seconds" in options:
        task = BackendTaskConfig(
            quiet_seconds=options["quiet_seconds"], drain_seconds=options.get("drain_seconds", 20.0)
        )
        config = BackendConfig(task=task)
    server = evenly.grpc.sync.server(
        max_workers=int(options.get("max_workers", 8)),
        config=config,
        handlers=(grpc.method_handlers_generic_handler(SERVICE, methods),),
    )
    say(server.add_insecure_port("127.0.0.1:0"))

    def warm_up() -> None:
        say("warming up")
        if options.get("warm_up_seconds", 0.0) < 0.0:
            raise ZeroDivisionError
        time.sleep(options.get("warm_up_seconds", 0.0))
        say("ready")

    evenly.grpc.sync.serve(server, warm_up=warm_up, grace_seconds=options.get("grace_seconds", 5.0))
    say("done")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
