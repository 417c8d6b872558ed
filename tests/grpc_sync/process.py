"""Start, signal and await backend processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.grpc_sync.backends import LONG_SECONDS

ROOT = Path(__file__).parents[2]


class Process:
    """One backend process."""

    def __init__(self, **options: float) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.grpc_sync.backend_main",
                json.dumps(options),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = f"127.0.0.1:{self.said()}"

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ready(self) -> Process:
        assert self.said() == "warming up"
        assert self.said() == "ready"
        return self

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def errors(self) -> str:
        """Return the next line that it logs."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def wait(self) -> tuple[int, str, str]:
        """Wait until it is gone; return its exit status, and what it said last."""
        out, err = self._process.communicate(timeout=LONG_SECONDS)
        return self._process.returncode, out.strip(), err
