"""An `evenly serve` in a process of its own, and a client that sees every byte of its answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from evenly.core.report import LoadReport
from evenly.runtime.lifecycle import SAME_SIGNAL_SECONDS
from evenly.wire.datagram import parse_answer, question
from evenly.wire.load_header import parse_load

SOON = 30.0
# At most so many are runnable, on however slow a machine: (6 - 4) / 1 core is below 2.75, where
# requests of the usual criticality begin to be refused.
MOST_CALLERS = 6
APP = "tests.http.serve_app"
_nonces = itertools.count(1)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def load(self) -> LoadReport:
        report = parse_load(self.headers["evenly-load"])
        assert report is not None
        return report


class Caller:
    """One connection, kept alive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, target: str = "/") -> Answer:
        """Send one request; raise if it is not answered in full."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        # As one of ours, so that a lame duck does not close the connection.
        writer.write(f"GET {target} HTTP/1.1\r\nhost: a\r\nuser-agent: evenly/1\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        return Answer(int(head[0].split(" ")[1]), headers, body)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(ConnectionError):
                await self._streams[1].wait_closed()
            self._streams = None


class Served:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.callers: list[Caller] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    async def line(self) -> str:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), SOON)
        # An empty line is no end: of two workers that print unbuffered, one may end the other's.
        assert line, await self.errors()
        return line.decode().strip()

    async def listens(self) -> None:
        while "listening on http://127.0.0.1:" not in (text := await self.line()):
            pass
        self.port = int(text.rpartition(":")[2])

    async def is_ready(self) -> None:
        await until(self.answers_ready)

    async def answers_ready(self) -> bool:
        return (await self.get("/readyz")).status == 200

    def caller(self) -> Caller:
        caller = Caller(self.port)
        self.callers.append(caller)
        return caller

    async def get(self, target: str = "/") -> Answer:
        """Send a request on a connection of its own."""
        caller = Caller(self.port)
        try:
            return await asyncio.wait_for(caller.get(target), SOON)
        finally:
            await caller.close()

    async def probe(self) -> LoadReport:
        """Ask by UDP."""
        nonce = next(_nonces)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(("127.0.0.1", self.port))
            await loop.sock_sendall(sock, question(nonce, None))
            answer = parse_answer(await asyncio.wait_for(loop.sock_recv(sock, 1000), SOON), None)
        assert answer is not None
        assert answer[1] == nonce
        return answer[2]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def signal_again(self, number: int) -> None:
        """Send a signal that is no echo of one that has been heard."""
        await asyncio.sleep(SAME_SIGNAL_SECONDS + 0.1)
        self.signal(number)

    async def status(self) -> int:
        return await asyncio.wait_for(self.process.wait(), SOON)

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), SOON)).decode()


@asynccontextmanager
async def served(
    *arguments: str,
    app: str = "app",
    module: str = APP,
    gate: Path | None = None,
    is_ready: bool = True,
) -> AsyncIterator[Served]:
    """Run `evenly serve` on a free port; without `is_ready`, do not wait for anything."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "evenly", "serve", f"{module}:{app}", "--port", "0", "--no-access-log", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "EVENLY_TEST_GATE": str(gate)},
        start_new_session=True,
    )
    made = Served(process)
    try:
        if is_ready:
            await made.listens()
            await made.is_ready()
        yield made
    finally:
        for caller in made.callers:
            await caller.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become so; the time-out only keeps a failure from hanging."""
    async with asyncio.timeout(SOON):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.01)


async def is_refused(port: int) -> bool:
    """Tell whether nobody listens there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def children_of(pid: int) -> set[int]:
    """Return the processes whose parent this is."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name, which may have anything in it: state, parent, ...
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


class Load:
    """Callers that send one request after the other, and go on for a while after they heard that
    they should not: word takes time to get around.  Every other one connects anew each time.
    """

    def __init__(self, backend: Served, callers: int) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._tasks = [
            asyncio.ensure_future(self._call(backend.caller(), is_stranger=index % 2 == 1))
            for index in range(callers)
        ]

    async def _call(self, caller: Caller, *, is_stranger: bool) -> None:
        left = 40
        is_told = False
        while left:
            try:
                answer = await caller.get("/?0.005")
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failures.append(repr(error))
                return
            if answer.status != 200:
                self.failures.append(repr(answer))
            self.answered += 1
            # What was said over this connection is not said again.
            is_told = answer.load.lame_duck if "evenly-load" in answer.headers else is_told
            if is_told:
                left -= 1
            if is_stranger:
                await caller.close()

    async def ends(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self._tasks), SOON)
