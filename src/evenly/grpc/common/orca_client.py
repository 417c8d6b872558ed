"""Ask a backend for its load out of band, over its connection, and hear the answers.

This is what asyncio and threads share: both drive it on their loop's thread, and add a stream.
When to ask is the core's decision.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, final

import grpc
from google.protobuf.duration_pb2 import Duration
from xds.service.orca.v3 import orca_pb2

from evenly.core.balancing.backend import Backend
from evenly.runtime.client import ClientRuntime
from evenly.wire import orca

__all__ = ["ORCA_STREAM", "OrcaFollower"]

ORCA_STREAM: Final = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
_NANOS: Final = 1e9

Subscribe = Callable[["OrcaFollower"], Callable[[], object]]
"""Opens the stream, and returns what cancels it; it tells `heard` and `ended`."""


@final
class OrcaFollower:
    """Follow one connection from when it stands; on the loop's thread."""

    def __init__(self, backend: Backend, runtime: ClientRuntime, subscribe: Subscribe) -> None:
        self._backend = backend
        self._runtime = runtime
        self._subscribe = subscribe
        seconds = runtime.config.orca_seconds
        interval = Duration()
        interval.FromNanoseconds(int(seconds * _NANOS))
        self.message: bytes = orca_pb2.OrcaLoadReportRequest(
            report_interval=interval
        ).SerializeToString()
        """What to send."""
        self.pause_seconds = seconds / 2
        """How long to read nothing after a report: a backend may send more than it was asked."""
        self._plan = runtime.out_of_band(backend) if seconds > 0.0 else None
        self._timer: asyncio.TimerHandle | None = None
        self._cancel: Callable[[], object] | None = None
        self._look_later()

    def end(self) -> None:
        """Ask no more: the connection ends, or the backend is one of ours."""
        self._plan = None
        if self._timer is not None:
            self._timer.cancel()
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def heard(self, data: bytes) -> None:
        """Learn what the backend says."""
        plan = self._plan
        if plan is None:
            return
        if plan.is_over:
            self.end()
            return
        report = orca.parse_message(data)
        if report is not None:
            plan.heard()
            self._runtime.heard_orca(self._backend, report)

    def ended(self, code: grpc.StatusCode) -> None:
        """Learn that the stream is over."""
        if self._plan is not None:
            self._cancel = None
            self._plan.ended(is_offered=code is not grpc.StatusCode.UNIMPLEMENTED)
            self._look_later()

    def _look(self) -> None:
        if self._plan is not None and self._plan.may_ask(time.monotonic()):
            self._cancel = self._subscribe(self)
        else:
            self._look_later()

    def _look_later(self) -> None:
        seconds = None if self._plan is None else self._plan.wait_seconds()
        if seconds is not None:
            self._timer = self._runtime.loop.call_later(seconds, self._look)
