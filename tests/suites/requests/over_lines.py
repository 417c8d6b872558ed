"""The example of a transport of one's own: its client, and its backend told what to admit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import evenly
from evenly.core.admission import Admission
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.exchange import Requests
from evenly.core.overload.utilization import UtilizationConfig
from evenly.core.request import Reason, Rejection, Request
from evenly.probe.config import ProbeConfig
from evenly.runtime.backend_config import BackendConfig
from examples.lines.backend import Backend as LinesBackend
from examples.lines.client import Client, ConnectionLost, Failed
from tests.suites.requests.script import Act, Script, What, what_of_rejection
from tests.suites.requests.world import LoopWorld, Sent, SentTask

_REFUSALS = {
    Act.OVERLOADED: Reason.OVERLOADED,
    Act.DONT_RETRY: Reason.DONT_RETRY,
    Act.OUT_OF_QUOTA: Reason.OUT_OF_QUOTA,
}
# A backend refuses nothing, however busy the machine is.
_CONFIG = BackendConfig(
    task=BackendTaskConfig(limits_queue=False, utilization=UtilizationConfig(signals={})),
    probe=ProbeConfig(is_on=False),
)


class Backend:
    """One that does what the script says: it refuses in place of its `BackendTask`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._port = 0
        self._backend: LinesBackend | None = None
        self._dying: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._backend = backend = LinesBackend(self._do, port=self._port, config=_CONFIG)
        self._admit = backend.runtime.admit
        backend.runtime.admit = self._admit_or_refuse  # type: ignore[method-assign]
        await backend.start()
        backend.announce_healthy()
        self._port = backend.port

    async def stop(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.stop(None)
            assert backend.active == 0
            backend.close()

    def _admit_or_refuse(
        self,
        request: Request,
        attempt: int = 1,
        *,
        luck: float | None = None,
        line: float = 0.0,
    ) -> Admission | Rejection:
        act = self._script.next[0] if self._script.next else self._script.then
        reason = _REFUSALS.get(act)
        if reason is None:
            return self._admit(request, attempt, luck=luck, line=line)
        self._script.arrive(self.address, "")
        if act is Act.DONT_RETRY and self._backend is not None:
            self._backend.runtime.combine = partial(replace, cut=4.0)  # It says that it does.
        return Rejection(reason, retryable=reason is Reason.OVERLOADED)

    async def _do(self, do: Any) -> object:
        act = self._script.arrive(self.address, do)
        if act is Act.HOLD:
            act = await self._script.held()
        if act is Act.OK:
            return "ok"
        if act is Act.DIE:
            self._dying = asyncio.create_task(self.stop())
            await asyncio.Event().wait()  # It is cancelled.
        raise LookupError(act)


class World(LoopWorld):
    """JSON lines."""

    def new_backend(self) -> Backend:
        return Backend(self.script)

    async def open(self) -> None:
        self._client = Client(self.listed, config=self.setup.config(), observer=self.counts)
        await self._client.__aenter__()

    async def shut(self) -> None:
        await self._client.close()

    @property
    def requests(self) -> Requests:
        return self._client.runtime.requests

    def send(
        self,
        name: str = "",
        *,
        is_idempotent: bool = False,
        is_patient: bool = False,
        seconds: float | None = None,
        is_stream: bool = False,
    ) -> Sent:
        assert not is_stream
        call = self._send(name, is_idempotent, is_patient, seconds)
        return SentTask(asyncio.create_task(call))

    async def _send(
        self, name: str, is_idempotent: bool, is_patient: bool, seconds: float | None
    ) -> What:
        try:
            with evenly.request_context(deadline_seconds=seconds):
                await self._client.call(name, idempotent=is_idempotent, wait_for_ready=is_patient)
        except evenly.RejectedError as error:
            return what_of_rejection(error, str(error))
        except ConnectionLost:
            return What.LOST
        except TimeoutError:
            return What.TIMEOUT
        except Failed:
            return What.ERROR
        return What.OK
