"""Send requests over HTTP: through `evenly.http.Session`, and by aiohttp in turns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType

import aiohttp

import evenly
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.criticality import Criticality
from evenly.http.client.errors import HttpError
from evenly.http.client.session import Session
from evenly.runtime.client_config import ClientConfig

_PATH = "/work"


class SessionClient:
    """Send through a session of evenly's."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> SessionClient:
        await self._session.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    def snapshot(self) -> ClientTaskSnapshot:
        return self._session.snapshot()

    @property
    def rests(self) -> bool:
        views = self._session.service.runtime.task._membership.views
        return all(view.health.is_idle for view in views)

    async def send(
        self, criticality: Criticality, timeout_seconds: float
    ) -> tuple[str, str | None, str]:
        try:
            with evenly.request_context(criticality=criticality):
                response = await self._session.post(
                    _PATH, data=b"work", timeout_seconds=timeout_seconds
                )
        except HttpError as error:
            return _name(error), getattr(error, "backend", None), str(error)
        if response.status != 200:
            return str(response.status), response.backend, response.text()
        return "OK", response.backend, ""


def _name(error: HttpError) -> str:
    where = f" ({error.where})" if isinstance(error, evenly.RejectedError) else ""
    return f"{type(error).__name__}{where}"


def evenly_client(addresses: Sequence[str], config: ClientConfig | None) -> SessionClient:
    """Return a client that balances through evenly."""
    return SessionClient(Session(f"static:{','.join(addresses)}", config=config))


class PlainClient:
    """Send to one address after the other, as a client without a balancer does."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = itertools.cycle(addresses)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> PlainClient:
        # No limit: what waits for a connection here would not be under way at the backend.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def snapshot(self) -> ClientTaskSnapshot:
        raise NotImplementedError("it knows nothing of its backends")

    @property
    def rests(self) -> bool:
        raise NotImplementedError("it knows nothing of its backends")

    async def send(self, criticality: Criticality, timeout_seconds: float) -> tuple[str, str, str]:
        assert self._session is not None
        address = next(self._addresses)
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        try:
            async with self._session.post(
                f"http://{address}{_PATH}", data=b"work", timeout=timeout
            ) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__, address, str(error)
        is_ok = response.status == 200
        return "OK" if is_ok else str(response.status), address, ""


def round_robin_client(addresses: Sequence[str]) -> PlainClient:
    """Return a client that sends to each address in turn."""
    return PlainClient(addresses)
