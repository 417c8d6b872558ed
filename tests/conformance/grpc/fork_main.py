"""Use a channel for threads, fork, and use it and a new one on both sides.

python -m tests.conformance.grpc.fork_main plain|evenly, with a server of its own; the exit code is
the child's, or 9 where that was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import evenly.grpc.sync
from tests.conformance.grpc.parts import SERVICE, SOON, UNARY_UNARY

SERVE = "serve"


def serve() -> None:
    """Serve in a process that does not fork, until its input ends."""
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {"UnaryUnary": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    sys.stdout.write(f"{server.add_insecure_port('127.0.0.1:0')}\n")
    sys.stdout.flush()
    server.start()
    sys.stdin.read()
    server.stop(None)


def opened(kind: str, port: int) -> Any:
    """Open a channel of this kind."""
    if kind == "plain":
        return grpc.insecure_channel(f"127.0.0.1:{port}")
    return evenly.grpc.sync.channel(f"static:127.0.0.1:{port}")


def use(channel: Any) -> None:
    """Call a few times."""
    for _ in range(5):
        assert channel.unary_unary(UNARY_UNARY)(b"a", timeout=SOON) == b"a"


def forked(kind: str, port: int) -> int:
    """Fork with an open channel that was used; return how the child ended."""
    channel = opened(kind, port)
    use(channel)
    child = os.fork()
    if child == 0:
        status = 3
        try:
            use(channel)
            use(opened(kind, port))
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    use(channel)
    return 9 if os.WIFSIGNALED(ended) else os.WEXITSTATUS(ended)


def main() -> int:
    """Start the server, and fork beside it."""
    if sys.argv[1] == SERVE:
        serve()
        return 0
    command = [sys.executable, "-m", "tests.conformance.grpc.fork_main", SERVE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            return forked(sys.argv[1], int(server.stdout.readline()))
        finally:
            server.kill()


if __name__ == "__main__":
    sys.exit(main())
