"""Speak the protocol of the demo's children, and do nothing else: it starts in no time.

What it is told goes to the file `$FAKE_LOG`, a line each: its name and a word or a command.
`$FAKE_MODE` is `NAME=MODE`: `broken` (says so and exits), `mute` (never ready), `deaf` (ignores
SIGTERM), `garbage` (writes other things, too), `crash` (says why, and ends when told to fail).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

_REPORT_SECONDS = 0.05


class Fake:
    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.name = given["name"]
        self.is_backend = "port" in given
        self.is_leaving = False
        self.count = 0
        name, _, mode = os.environ.get("FAKE_MODE", "").partition("=")
        self.mode = mode if name == self.name else ""

    def log(self, what: str) -> None:
        path = os.environ.get("FAKE_LOG")
        if path:
            with Path(path).open("a") as file:
                file.write(f"{self.name} {what}\n")

    def write(self, line: object) -> None:
        os.write(1, json.dumps(line).encode() + b"\n")

    def run(self) -> None:
        if self.mode == "broken":
            raise SystemExit(f"{self.name} has no bananas")
        listener = self.listen()
        signal.signal(signal.SIGTERM, self.leave)
        self.log(f"start {json.dumps(self.given)}")
        if self.mode != "mute":
            self.ready(listener)
        rest = b""
        while not self.is_leaving:
            if select.select([0], [], [], _REPORT_SECONDS)[0]:
                data = os.read(0, 65536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.log(line.decode())
                    if self.mode == "crash" and json.loads(line)["do"] == "fail":
                        raise SystemExit("out of bananas")
            self.report("healthy")
        self.report("lame duck")

    def listen(self) -> socket.socket | None:
        if not self.is_backend:
            return None
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.given["host"], self.given["port"]))
            listener.listen()
        except OSError as error:
            raise SystemExit(f"port {self.given['port']}: {error.strerror}") from None
        return listener

    def ready(self, listener: socket.socket | None) -> None:
        line: dict[str, object] = {"is": "ready", "pid": os.getpid(), "metrics_port": os.getpid()}
        if listener is not None:
            line |= {"is": "listening", "port": listener.getsockname()[1]}
        self.write(line)

    def report(self, state: str) -> None:
        if self.mode == "mute":
            return
        if self.mode == "garbage":
            os.write(1, b"[1, 2]\n{'no': json}\n\xff\xfe\n\n" + b"x" * 300_000 + b"\n")
            os.write(2, b"a word of \xff warning\n")
        self.count += 1
        line: dict[str, object] = {"at": time.monotonic(), "cpu_seconds": time.process_time()}
        if self.is_backend:
            line |= {"is": "backend", "state": state, "utilization": 0.5, "ok": self.count}
        else:
            counts = {"CRITICAL": self.count}
            line |= {"is": "client", "asked": counts, "ok": counts, "active": 0}
            line["subset"] = [
                {"address": address, "state": "healthy", "weight": 1.0, "active": 0}
                for address in self.given["backends"].values()
            ]
        self.write(line)

    def leave(self, number: int, frame: FrameType | None) -> None:
        self.log("term")
        self.is_leaving = self.mode != "deaf"


if __name__ == "__main__":
    try:
        Fake(json.loads(sys.argv[1])).run()
    except BrokenPipeError:
        os._exit(0)
