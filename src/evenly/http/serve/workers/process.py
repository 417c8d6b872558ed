"""Start one worker's process, give it orders, and hear of its end.

Orders go through a socket that only the two of them hold, rather than by signals: a terminal sends
those to parent and workers alike, and only the parent knows what they mean.  When the parent dies,
however it dies, the worker reads the end of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final, final

from evenly.runtime.lifecycle import SIGNALS

__all__ = ["STOP", "STOP_AT_ONCE", "WorkerProcess", "describe_exit"]

STOP: Final = b"s"
"""Stop, with the grace."""
STOP_AT_ONCE: Final = b"n"

_MESSAGE_BYTES: Final = 65_536
# With the parent's path, so that the same modules are found.
_MAIN: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from evenly.http.serve.workers.worker import main; main()"
)


@final
class WorkerProcess:
    """Be one process, from its start to its end."""

    def __init__(self, arguments: Sequence[int], descriptors: Sequence[int]) -> None:
        """Start it: `arguments` are numbers for the worker, which inherits `descriptors`."""
        ours, theirs = socket.socketpair()
        self._control = ours
        self.began_at = time.monotonic()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit status, once there is one."""
        command = [sys.executable, "-c", _MAIN, json.dumps(sys.path)]
        command += [str(number) for number in (*arguments, theirs.fileno())]
        # Until it can handle them, a signal to everybody must not hit it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- ours
                command, pass_fds=(*descriptors, theirs.fileno()), stdin=subprocess.DEVNULL
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        threading.Thread(
            target=self._wait, args=(asyncio.get_running_loop(),), name="evenly-worker", daemon=True
        ).start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def order(self, what: bytes) -> None:
        """Tell it something; to a dead one, nothing."""
        with contextlib.suppress(OSError):
            self._control.send(what)

    def kill(self) -> None:
        """End it whatever it does."""
        if not self.exited.done():
            self._process.kill()

    def last_words(self) -> str:
        """Return what it has said of its failure, after its end."""
        self._control.setblocking(False)
        try:
            return self._control.recv(_MESSAGE_BYTES).decode(errors="replace")
        except OSError:
            return ""
        finally:
            self._control.close()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._process.wait()
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits.
            loop.call_soon_threadsafe(self._set_exited, status)

    def _set_exited(self, status: int) -> None:
        if not self.exited.done():
            self.exited.set_result(status)


def describe_exit(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
