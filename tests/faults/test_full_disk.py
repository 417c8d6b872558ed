"""A disk without a byte left, under the list of backends and under what a backend writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenly.http.client.session import Session
from evenly.runtime.client_config import ClientConfig
from tests.http.raw_backend import RawBackend
from tests.http.serve_process import SOON, Caller, children_of
from tests.suites.transports.load import eventually

pytestmark = pytest.mark.faults

BYTES = 64 * 1024
LOOKS_SECONDS = 4.0  # `file:` looks about once a second.


@contextmanager
def small_disk(where: Path) -> Iterator[Path]:
    where.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={BYTES}", "tmpfs", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["/bin/umount", "--lazy", where], check=True)


def fill(disk: Path) -> Path:
    """Take all that is left."""
    ballast = disk / "ballast"
    descriptor = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    with contextlib.suppress(OSError):
        while True:
            os.write(descriptor, bytes(4_096))
    os.close(descriptor)
    assert os.statvfs(disk).f_bavail == 0
    return ballast


async def test_a_list_that_cannot_be_written_stays_in_use(tmp_path: Path) -> None:
    backends = [RawBackend() for _ in range(3)]
    for backend in backends:
        await backend.start()
    ended: Counter[str] = Counter()
    with small_disk(tmp_path / "disk") as disk:
        listed = disk / "backends"
        listed.write_text("".join(f"{backend.address}\n" for backend in backends[:2]))
        async with Session(f"file:{listed}", config=ClientConfig()) as session:

            async def ask() -> None:
                try:
                    ended[str((await session.get("/", timeout_seconds=5.0)).status)] += 1
                except Exception as error:  # noqa: BLE001 -- it is counted
                    ended[repr(error)] += 1

            await ask()
            ballast = fill(disk)
            comments = "# as long as a list of many backends\n" * 1_000
            with pytest.raises(OSError, match="No space left"):
                listed.write_text(comments + "".join(f"{b.address}\n" for b in backends))
            left = listed.stat().st_size
            until = asyncio.get_running_loop().time() + LOOKS_SECONDS
            while asyncio.get_running_loop().time() < until:
                await ask()
                await asyncio.sleep(0.01)
            kept = {seen.address for seen in session.snapshot().backends}
            ballast.unlink()
            listed.write_text("".join(f"{backend.address}\n" for backend in backends))
            seconds = await eventually(lambda: len(session.snapshot().backends) == 3)
    for backend in backends:
        await backend.stop()
    print(
        f"{dict(ended)} on a full disk, which left {left} bytes of the list;"
        f" the new one after {seconds:.2f} s"
    )
    assert set(ended) == {"200"}
    assert kept == {backend.address for backend in backends[:2]}
    assert seconds <= LOOKS_SECONDS


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_backend_whose_log_does_not_fit_serves_on(tmp_path: Path, workers: int) -> None:
    root = Path(__file__).parents[2]
    with small_disk(tmp_path / "disk") as disk:
        with (disk / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *(
                    "-u",
                    "-m",
                    "evenly",
                    "serve",
                    "tests.http.serve_app:app",
                    "--app-dir",
                    str(root),
                ),
                *("--port", "0", "--workers", str(workers), "--quiet-seconds", "0.2"),
                stdout=log,
                stderr=log,
                cwd=disk,
                env={**os.environ, "TMPDIR": str(disk)},
            )
        try:
            await eventually(lambda: b"listening on" in (disk / "log").read_bytes())
            text = (disk / "log").read_text().partition("listening on http://127.0.0.1:")[2]
            port = int(text.split()[0])
            await eventually_ready(port)
            fill(disk)
            statuses = Counter([await get(port) for _ in range(500)])
            before = children_of(process.pid)
            lost = 0
            if workers > 1:  # Another takes its place, and its memory is not on a disk.
                os.kill(min(before), 9)
                await eventually(lambda: len(children_of(process.pid) - before) == 1)
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    lost = 1
                    statuses[await get(port)] += 1
                    lost = 0
                statuses.update([await get(port) for _ in range(100)])
            process.terminate()
            status = await asyncio.wait_for(process.wait(), SOON)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    print(
        f"{workers} workers, logging to a full disk: {dict(statuses)}, {lost} lost; exit {status}"
    )
    assert set(statuses) == {200}
    assert status == 0


async def get(port: int) -> int:
    caller = Caller(port)
    try:
        return (await asyncio.wait_for(caller.get(), SOON)).status
    finally:
        await caller.close()


async def eventually_ready(port: int) -> None:
    async with asyncio.timeout(SOON):
        caller = Caller(port)
        while (await caller.get("/readyz")).status != 200:
            await asyncio.sleep(0.02)
        await caller.close()
