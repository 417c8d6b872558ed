"""Be one backend process: `python -m tests.suites.transports.backend_main '{"port": 50051, …}'`.

It prints "ready" when it listens and has announced itself.  SIGUSR1 makes it fail every request at
once; SIGUSR2 closes its port without a word while the process lives on; SIGHUP has the next request
block the event loop for `block_seconds`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from typing import Any

from tests.suites.transports.work import Work


async def main(options: dict[str, Any]) -> None:
    """Serve with the transport that the options name."""
    if (core := options.get("core")) is not None:
        os.sched_setaffinity(0, {core})
    work = Work(
        cpu_seconds=options.get("cpu_seconds", 0.0),
        wait_seconds=options.get("wait_seconds", 0.0),
        block_seconds=options.get("block_seconds", 0.0),
    )
    # Imported here: what the other transport needs takes a second to load, 20 times in a deploy.
    transport = importlib.import_module(f"tests.suites.transports.{options['transport']}_backend")
    backend = transport.Backend(work, options["port"], options.get("host", "127.0.0.1"))
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGUSR1, work.fail)
    loop.add_signal_handler(signal.SIGHUP, work.block)
    loop.add_signal_handler(
        signal.SIGUSR2, lambda: closing.append(loop.create_task(backend.close_port()))
    )
    await (backend.serve_plain() if options.get("is_plain") else backend.serve())


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
