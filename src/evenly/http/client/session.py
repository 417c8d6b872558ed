"""A lean HTTP client of a service: every request goes to the backend that evenly picks.

    async with evenly.http.Session("dns:///search.prod:8080") as session:
        response = await session.get("/search", params={"q": "cats"})
        async with session.stream("GET", "/export") as response:
            async for chunk in response: ...

It follows no redirects, keeps no cookies and decodes no compression: services talk to one another.
"""

from __future__ import annotations

import contextlib
import json as json_module
import re
import ssl as tls
import sys
from collections.abc import AsyncIterable, Coroutine, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, TypedDict, Unpack, final
from urllib.parse import quote, urlencode

from evenly.context import outgoing_request
from evenly.core import check
from evenly.core.client_task import ClientTaskSnapshot
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.discovery.target import Discovery
from evenly.errors import ConfigError, UsageError
from evenly.http.client.base import HEALTH_PATH, IDEMPOTENT, Client
from evenly.http.client.errors import BodyTooLong, SessionErrors, refused_by_backend
from evenly.http.client.fetch import Fetch
from evenly.http.client.outgoing import Outgoing, Prepared, Upload
from evenly.http.client.response import Response, StreamedResponse
from evenly.http.client.service import Service, check_host
from evenly.runtime.client_config import ClientConfig

__all__ = ["Session"]

HeadersGiven = Mapping[str, str] | Iterable[tuple[str, str]]
Params = Mapping[str, object] | Iterable[tuple[str, object]]
Data = bytes | bytearray | memoryview | str | AsyncIterable[bytes]

_ERRORS: Final = SessionErrors()
_JSON: Final = b"content-type: application/json\r\n"
# What is left as it is in a path: all that a URL may have, so that nothing is quoted twice.
_SAFE: Final = "!$%&'()*+,/:;=?@[]~"
# "#" begins what is not sent, and "%" two digits.
_IS_VISIBLE: Final = re.compile(r"[!\"$&-~]*(?:%[0-9A-Fa-f]{2}[!\"$&-~]*)*").fullmatch
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


@final
class _Default:
    """Be the time-out of a request that has none of its own."""


_DEFAULT: Final = _Default()


class Options(TypedDict, total=False):
    """Say what may be said of a request."""

    params: Params | None
    headers: HeadersGiven | None
    json: object
    data: Data | None
    timeout_seconds: float | _Default | None
    idempotent: bool | None


@final
class Session:
    """Send requests to the backends of a service.

    `target` is `dns:///name:port`, `static:host:port,host:port`, `file:/path`, or a `Discovery` of
    your own.  `timeout_seconds` covers a request until the end of its response; `None` is for ever,
    and an inherited deadline can only shorten it.  Of a body that is read whole, at most
    `body_max_bytes` are kept; `None` is as many as come.  With `ssl`, connections are made with
    TLS, and backends have to be who `host` says: by default the name in the target.  Sessions and
    transports with the same arguments share their connections and decisions.
    """

    def __init__(
        self,
        target: str | Discovery,
        *,
        base_path: str = "",
        headers: HeadersGiven = (),
        timeout_seconds: float | None = 30.0,
        body_max_bytes: int | None = 64 * 2**20,
        config: ClientConfig | None = None,
        ssl: tls.SSLContext | None = None,
        host: str | None = None,
        health_path: str = HEALTH_PATH,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        if timeout_seconds is not None:
            check.positive("timeout_seconds", timeout_seconds)
        if body_max_bytes is not None:
            check.count("body_max_bytes", body_max_bytes, 1, sys.maxsize)
        if base_path and (not base_path.startswith("/") or base_path.endswith("/")):
            raise ConfigError(f"base_path must be like /v1 or empty, not {base_path!r:.100}")
        self._client = Client(
            target, config=config, ssl=ssl, observer=observer, health_path=health_path
        )
        self._base_path = base_path
        self._headers = tuple(_items(headers))
        self._prepared = Prepared(self._headers)
        self._timeout_seconds = timeout_seconds
        self._body_max_bytes = body_max_bytes
        self._host = None if host is None else check_host(host)

    async def __aenter__(self) -> Session:
        self._client.service(host=self._host)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go; the connections are closed if nobody else uses them."""
        await self._client.close()

    async def aclose(self) -> None:
        """Do what `close` does, under httpx's name."""
        await self.close()

    @property
    def service(self) -> Service:
        """What this session shares with others to the same target."""
        return self._client.service(host=self._host)

    def snapshot(self) -> ClientTaskSnapshot:
        """Return what is known of the service."""
        return self.service.runtime.task.snapshot()

    # Requests.

    async def request(self, method: str, path: str, **options: Unpack[Options]) -> Response:
        """Send a request and return its response with its whole body.

        Raises an `evenly.RejectedError` if it was refused, here or by a backend of ours; other
        statuses are for the caller to read.  `data` is bytes, text, or an async iterable of bytes;
        `json` is anything that JSON can say.  `idempotent` says of a POST that it may be done
        twice, and so be tried again after a lost connection.
        """
        try:
            fetch, url = self._fetch(method, path, **options)
        except TypeError:
            _check_options(method, options)  # Only now: it costs nothing where all is well.
            raise
        raw = await fetch.run(is_buffered=True)
        response = Response(raw, url, fetch, fetch.content)
        if response.status >= 400:
            refused = refused_by_backend(response, fetch.outcome)
            if refused is not None:
                raise refused
        return response

    def stream(self, method: str, path: str, **options: Unpack[Options]) -> Streaming:
        """Send a request on entering `async with`, and read its response as it arrives."""
        return Streaming(self._client, partial(self._fetch, method, path, **options))

    # These return the coroutine of `request`: awaiting one of their own would cost time.

    def get(self, path: str, **options: Unpack[Options]) -> Coroutine[Any, Any, Response]:
        """Send a GET; options as for `request`."""
        return self.request("GET", path, **options)

    def head(self, path: str, **options: Unpack[Options]) -> Coroutine[Any, Any, Response]:
        """Send a HEAD; options as for `request`."""
        return self.request("HEAD", path, **options)

    def options(self, path: str, **options: Unpack[Options]) -> Coroutine[Any, Any, Response]:
        """Send an OPTIONS; options as for `request`."""
        return self.request("OPTIONS", path, **options)

    def post(self, path: str, **options: Unpack[Options]) -> Coroutine[Any, Any, Response]:
        """Send a POST; options as for `request`."""
        return self.request("POST", path, **options)

    def put(self, path: str, **options: Unpack[Options]) -> Coroutine[Any, Any, Response]:
        """Send a PUT; options as for `request`."""
        return self.request("PUT", path, **options)

    def patch(self, path: str, **options: Unpack[Options]) -> Coroutine[Any, Any, Response]:
        """Send a PATCH; options as for `request`."""
        return self.request("PATCH", path, **options)

    def delete(self, path: str, **options: Unpack[Options]) -> Coroutine[Any, Any, Response]:
        """Send a DELETE; options as for `request`."""
        return self.request("DELETE", path, **options)

    def _fetch(  # noqa: PLR0917 -- they are given by name
        self,
        method: str,
        path: str,
        params: Params | None = None,
        headers: HeadersGiven | None = None,
        json: object = None,
        data: Data | None = None,
        timeout_seconds: float | _Default | None = _DEFAULT,
        idempotent: bool | None = None,
    ) -> tuple[Fetch, str]:
        service = self._client.service(host=self._host)
        url = self._base_path + path
        if not path.startswith("/") or not _IS_VISIBLE(url):
            url = _quoted(self._base_path, path)
        if idempotent is None:
            idempotent = method in IDEMPOTENT or self._client.is_idempotent(
                method, url.partition("?")[0]
            )
        if params is not None:
            query = urlencode(_pairs(params))
            if query:
                url += ("&" if "?" in url else "?") + query
        prepared = self._prepared
        if headers is not None:
            prepared = Prepared(_merged(self._headers, _items(headers)))
        if json is None and data is None:
            message = Outgoing(method, url, prepared)
        else:
            message = _with_body(method, url, prepared, json, data)
        if isinstance(timeout_seconds, _Default):
            timeout_seconds = self._timeout_seconds
        request = outgoing_request(service.loop.time(), timeout_seconds, idempotent=idempotent)
        fetch = Fetch(service, message, request, _ERRORS, body_max_bytes=self._body_max_bytes)
        return fetch, url


@final
class Streaming:
    """Be a request whose response is read as it arrives, inside `async with`."""

    __slots__ = ("_client", "_make", "_response")

    def __init__(self, client: Client, make: partial[tuple[Fetch, str]]) -> None:
        self._client = client
        self._make: partial[tuple[Fetch, str]] | None = make
        self._response: StreamedResponse | None = None

    async def __aenter__(self) -> StreamedResponse:
        make, self._make = self._make, None
        if make is None:
            raise UsageError("a stream is entered once: call session.stream again")
        try:
            fetch, url = make()  # Only now: the time of a request begins when it is sent.
        except TypeError:
            _check_options(make.args[0], make.keywords)
            raise
        fetch.keeper = self._client
        raw = await fetch.run(is_buffered=False)
        self._response = response = StreamedResponse(raw, url, fetch)
        if response.status >= 400:
            refused = refused_by_backend(response, fetch.outcome)
            if refused is not None:
                with contextlib.suppress(BodyTooLong):  # The refusal says enough.
                    await response.read()
                raise refused
        return response

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._response is not None:
            self._response.close()


def _check_options(method: str, options: Mapping[str, object]) -> None:
    """Raise `TypeError` for an option that no request has, in words of what the user called."""
    for name in options:
        if name not in Options.__annotations__:
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"the options of a {method} are {known}; not {name!r:.100}") from None


def _quoted(base_path: str, path: str) -> str:
    """Return the path and the query as they are sent; an empty path is the base path itself."""
    if not path.startswith("/") and (not base_path or path[:1] not in {"", "?"}):
        raise ConfigError(f"path must begin with /, not {path!r:.100}")
    url = (base_path + path).partition("#")[0]
    return quote(_BARE_PERCENT.sub("%25", url), safe=_SAFE)


def _items(headers: HeadersGiven) -> Iterable[tuple[str, str]]:
    return headers.items() if isinstance(headers, Mapping) else headers


def _pairs(params: Params) -> list[tuple[str, object]]:
    """Return the parameters one by one: several values of a name may come as a list.

    `None` is a parameter that is not given; true and false are written as JSON does.
    """
    pairs: list[tuple[str, object]] = []
    for name, value in params.items() if isinstance(params, Mapping) else params:
        values = value if isinstance(value, (list, tuple)) else (value,)
        pairs += [
            (name, str(one).lower() if isinstance(one, bool) else one)
            for one in values
            if one is not None
        ]
    return pairs


def _merged(
    ours: Iterable[tuple[str, str]], given: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the headers of a request: its own take the place of the session's."""
    own = list(given)
    names = {name.lower() for name, _ in own}
    return [*((name, value) for name, value in ours if name.lower() not in names), *own]


def _with_body(
    method: str, url: str, prepared: Prepared, json: object, data: Data | None
) -> Outgoing:
    if data is None:
        body = json_module.dumps(json, separators=(",", ":")).encode()
        return Outgoing(
            method, url, prepared, body, content_type=b"" if prepared.has_type else _JSON
        )
    if json is not None:
        raise ConfigError("a request has json or data, not both")
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return Outgoing(method, url, prepared, bytes(data))
    if not isinstance(data, AsyncIterable):
        raise ConfigError(
            f"data must be bytes, str or an async iterable of bytes, not {type(data).__name__}"
        )
    return Outgoing(method, url, prepared, Upload(data))
