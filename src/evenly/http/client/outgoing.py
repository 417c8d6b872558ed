"""What a request is on the wire: its headers, made ready once, and a body that can be sent again.

Ours are `evenly-…`, the attempt's number and an entry of `baggage`; where the user sends some of
the same name (a handler that passes on what it received), ours take their place.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from functools import lru_cache
from typing import Final, final

from evenly.core.request import Request
from evenly.errors import ConfigError
from evenly.http.client.errors import Phase
from evenly.http1.head import WITH_BODY, request_head
from evenly.wire.level import LEVEL_KEY
from evenly.wire.metadata import (
    ATTEMPT_COUNT_KEY,
    BAGGAGE_KEY,
    CRITICALITY_KEY,
    CUSTOMER_KEY,
    DEADLINE_KEY,
    to_http,
)

__all__ = ["AGENT", "PIECE_BYTES", "HeaderItems", "Outgoing", "Pieces", "Prepared", "Upload"]

HeaderItems = Iterable[tuple[str | bytes, str | bytes]]

AGENT: Final = b"evenly/1"
"""Tells a backend that it need not send ORCA."""
PIECE_BYTES: Final = 65_536
"""What a connection takes at once; more of a body has to wait until some of it has gone out."""

_OURS: Final = frozenset(
    key.encode()
    for key in (CRITICALITY_KEY, CUSTOMER_KEY, DEADLINE_KEY, ATTEMPT_COUNT_KEY, LEVEL_KEY)
)
_AGENT_NAME: Final = b"user-agent"
_BAGGAGE: Final = BAGGAGE_KEY.encode()
_HOST: Final = b"host"
_LENGTH: Final = b"content-length"
_SPECIAL: Final = _OURS | {_AGENT_NAME, _BAGGAGE, _HOST, _LENGTH, b"transfer-encoding"}
_END: Final = b"\r\n"
_BEFORE_LINES: Final = len(b"GET / HTTP/1.1\r\nHost: h\r\n")


@final
class Prepared:
    """Hold a user's headers as they are sent, and what has to be known of them."""

    __slots__ = ("baggage", "block", "has_type", "host", "length")

    def __init__(self, headers: HeaderItems) -> None:
        sent: list[tuple[bytes, bytes]] = []
        agent = AGENT
        baggage: list[bytes] = []
        self.host: str | None = None
        self.length: int | None = None
        """The `content-length` of a body whose length only the user knows."""
        for key, given in headers:
            name = key.encode("latin-1") if isinstance(key, str) else key
            value = given.encode("latin-1") if isinstance(given, str) else given
            lowered = name.lower()
            if lowered not in _SPECIAL:
                sent.append((name, value))
            elif lowered == _AGENT_NAME:
                agent = value if value.endswith(AGENT) else value + b" " + AGENT
            elif lowered == _BAGGAGE:
                baggage.append(value)
            elif lowered == _HOST:
                self.host = value.decode("latin-1")
            elif lowered == _LENGTH:
                self.length = _length(value)
        sent.append((_AGENT_NAME, agent))
        self.has_type = any(name.lower() == b"content-type" for name, _ in sent)
        self.block = _lines(sent)
        """All lines but those that depend on the request."""
        self.baggage = b",".join(baggage)

    def own(self, request: Request, number: int, now: float, line: float) -> bytes:
        """Return the lines that depend on the attempt."""
        entries = to_http(request, number, now, line)
        baggage = self.baggage
        if not baggage:
            # These need no check: they were checked where they are made.
            text = ""
            for name, value in entries:
                text += f"{name}: {value}\r\n"
            return text.encode("latin-1")
        lines: list[tuple[str, str | bytes]] = []
        for name, value in entries:
            if name == BAGGAGE_KEY:
                # Ours first: readers take the first, and need not read on beyond some length.
                baggage = value.encode() + b"," + baggage
            else:
                lines.append((name, value))
        return _lines((*lines, (BAGGAGE_KEY, baggage)))


@final
class Upload:
    """Be a body that is made while it is sent: it can be sent again while nothing was taken."""

    __slots__ = ("_iterator", "_source", "is_untouched", "on_phase")

    def __init__(self, source: AsyncIterable[bytes]) -> None:
        self._source = source
        self._iterator: AsyncIterator[bytes] | None = None
        self.is_untouched = True
        self.on_phase: Callable[[Phase | None], None] | None = None
        """Told what comes next: a chunk is made (`None`), or sent, or all were."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk."""
        self.is_untouched = False
        if self._iterator is None:
            self._iterator = aiter(self._source)
        on_phase = self.on_phase
        if on_phase is None:
            return await anext(self._iterator)
        on_phase(None)
        try:
            chunk = await anext(self._iterator)
        except StopAsyncIteration:
            on_phase(Phase.READ)
            raise
        on_phase(Phase.WRITE)
        return chunk

    async def aclose(self) -> None:
        """End what makes the chunks, if it was begun: nobody takes the rest."""
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


@final
class Pieces:
    """Be bytes that are sent piece by piece, so that writing them has a time of its own."""

    __slots__ = ("content", "on_phase")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.on_phase: Callable[[Phase | None], None] | None = None
        """Told what comes next: a piece is sent, or all were."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content, on_phase = self.content, self.on_phase
        for at in range(0, len(content), PIECE_BYTES):
            if on_phase is not None:
                on_phase(Phase.WRITE)
            yield content[at : at + PIECE_BYTES]
        if on_phase is not None:
            on_phase(Phase.READ)


@final
class Outgoing:
    """Be one request, to be sent once or more."""

    __slots__ = ("_block", "_length", "_prepared", "_target", "body", "method")

    def __init__(
        self,
        method: str,
        target: str,
        prepared: Prepared,
        body: bytes | Upload | Pieces = b"",
        *,
        content_type: bytes = b"",
    ) -> None:
        self.method = method
        self.body = body
        self._target = target
        self._prepared = prepared
        self._block = content_type + prepared.block
        if isinstance(body, bytes):
            self._length: int | None = len(body)
        elif isinstance(body, Pieces):
            self._length = len(body.content)
        else:
            self._length = prepared.length
            if self._length == 0 and method not in WITH_BODY:
                # Else nothing would say so, and it is to be held against what is made.
                self._block = b"content-length: 0\r\n" + self._block

    @property
    def can_replay(self) -> bool:
        """Whether the body could be sent again."""
        body = self.body
        return not isinstance(body, Upload) or body.is_untouched

    def head(
        self, request: Request, number: int, now: float, host: str, line: float = 0.0
    ) -> bytes:
        """Return the head of one attempt; `host` is to be named where the user named none."""
        prepared = self._prepared
        first = _first_lines(self.method, self._target, prepared.host or host, self._length)
        return first + self._block + prepared.own(request, number, now, line) + _END


# Most requests are like one of the last, and this is checked character by character.
@lru_cache(maxsize=256)
def _first_lines(method: str, target: str, host: str, length: int | None) -> bytes:
    """Return the request line, the host and how long the body is; `None` is a body in chunks."""
    is_chunked = length is None
    head = request_head(method, target, (), host=host, body_length=length, is_chunked=is_chunked)
    return head[: -len(_END)]


def _lines(headers: HeaderItems) -> bytes:
    """Return headers as they are sent, if they can be."""
    head = request_head("GET", "/", headers, host="h", body_length=None, is_chunked=False)
    return head[_BEFORE_LINES : -len(_END)]


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise ConfigError(f"header Content-Length must be a number, not {value!r:.100}")
    return int(value)
