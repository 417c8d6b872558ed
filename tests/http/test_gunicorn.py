"""Several processes behind one address that know nothing of one another: gunicorn's workers."""

from __future__ import annotations

import os
import signal

from tests.http.gunicorn_process import WORKERS, gunicorn
from tests.http.serve_process import until


async def test_each_worker_that_was_forked_is_a_process_of_its_own() -> None:
    async with gunicorn("--preload") as backend:
        pids = backend.workers()
        boots = await backend.boots(pids)
        assert len(set(boots.values())) == WORKERS

        os.kill(min(pids), signal.SIGTERM)
        await until(lambda: min(pids) not in (now := backend.workers()) and len(now) == WORKERS)
        [newcomer] = backend.workers() - pids
        found = await backend.boots({newcomer})
        assert found[newcomer] > max(boots.values())
