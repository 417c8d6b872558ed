"""Two backends on one core, offered three times what they can do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from tests.suites.transports.processes import ROOT
from tests.suites.transports.transport import Transport

CPU_SECONDS = 0.02


async def overloaded(
    transport: Transport,
    *,
    is_plain: bool,
    overload_seconds: float,
    calm_seconds: float,
    capacity: float = 0.0,
) -> dict[str, Any]:
    """Overload a service, evenly's or a plain one, and return what its client saw."""
    # The client has the first core that we may use, the backends share the last.
    cores = sorted(os.sched_getaffinity(0))
    work = {"cpu_seconds": CPU_SECONDS, "core": cores[-1], "is_plain": is_plain}
    async with transport.backends(2, **work) as backends:
        options = {
            "transport": transport.name,
            "addresses": backends.addresses,
            "is_plain": is_plain,
            "core": cores[0],
            "times": 3.0,
            "overload_seconds": overload_seconds,
            "calm_seconds": calm_seconds,
            "capacity": capacity,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.suites.transports.overload_main",
            json.dumps(options),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(60.0 + 2.0 * (overload_seconds + 3.0 * calm_seconds)):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output)
    return result
