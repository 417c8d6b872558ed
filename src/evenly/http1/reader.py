"""Make responses of the bytes that arrive: httptools tells, this judges and keeps.

It does no I/O.  httptools (llhttp) is strict about what attacks are made of: line breaks, lengths
that contradict each other, control characters.  What it does not know is kept here: which request
is answered (a response to HEAD has no body, whatever it says), how much is too much, and that
nobody may send what nobody asked for.
"""

from __future__ import annotations

import re
from typing import Final, final

try:
    import httptools
except ImportError as error:
    raise ImportError(
        'evenly.http1 needs httptools: pip install "evenly[http]"', name=error.name
    ) from error

from evenly.http1.reply import BadResponse, Reply, Source

__all__ = ["HEADERS_MAX", "HEAD_MAX_BYTES", "Reader"]

HEAD_MAX_BYTES: Final = 65_536
HEADERS_MAX: Final = 256
_VERSIONS: Final = ("1.1", "1.0")
_TIMEOUT: Final = re.compile(rb"(?:^|[,;\s])timeout\s*=\s*\"?([0-9]{1,6})", re.IGNORECASE)


@final
class Reader:
    """Read the responses of one connection, one after the other."""

    __slots__ = (
        "_fault",
        "_head_bytes",
        "_headers",
        "_is_fresh",
        "_is_head",
        "_is_interim",
        "_parser",
        "_reason",
        "_source",
        "can_reuse",
        "in_body",
        "is_complete",
        "keep_alive_seconds",
        "response",
    )

    def __init__(self, source: Source) -> None:
        self._source = source
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._head_bytes = 0
        self._is_interim = False
        self._is_head = False
        self._is_fresh = True
        self._fault: str | None = None
        self.response: Reply | None = None
        """The final response, once its head is there; kept by the connection between two feeds."""
        self.in_body = False
        """Whether the head of the final response is there."""
        self.is_complete = False
        self.can_reuse = False
        """Whether the connection may serve another request: asked when the response is complete."""
        self.keep_alive_seconds: int | None = None
        """How long the other side keeps an idle connection, where it says so."""

    def begin(self, *, is_head: bool) -> None:
        """Expect the response to the next request."""
        if not self._is_fresh:
            # llhttp waits for a body that does not come after a head.
            self._parser = httptools.HttpResponseParser(self)
            self._is_fresh = True
        self._is_head = is_head
        self._head_bytes = 0
        self.response = None
        self.in_body = False
        self.is_complete = False

    def feed(self, data: bytes | memoryview) -> None:
        """Take what arrived; raise `BadResponse` if it is none."""
        try:
            if self.in_body:
                self._feed_body(data)
                return
            self._head_bytes += len(data)
            if self._is_head:
                self._feed_head_only(data)
            else:
                self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            fault, self._fault = self._fault, None
            self.can_reuse = False
            if not self.is_complete:
                raise BadResponse(fault or str(error) or "no HTTP") from None
        else:
            if self._head_bytes > HEAD_MAX_BYTES and not self.in_body:
                raise BadResponse(f"the head has more than {HEAD_MAX_BYTES} bytes")

    def ends_with_connection(self, response: Reply) -> bool:
        """Return whether a body that is not complete was to last until the connection ends."""
        if self.can_reuse:
            return False
        codings = _joined(response, b"transfer-encoding")
        if codings:
            return codings.rpartition(b",")[2].strip() != b"chunked"
        return response.get(b"content-length") is None

    def _feed_body(self, data: bytes | memoryview) -> None:
        response = self.response
        before = None if response is None else response.unread
        self._parser.feed_data(data)
        if response is None or response.unread != before or self.is_complete:
            self._head_bytes = 0
            return
        # Sizes of chunks, their extensions and trailers are kept or skipped, but not without end.
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_MAX_BYTES or len(self._headers) > HEADERS_MAX:
            raise BadResponse(f"more than {HEAD_MAX_BYTES} bytes around the body")

    def _feed_head_only(self, data: bytes | memoryview) -> None:
        # Line by line, to know that the empty one was the last: what follows is not wanted.
        for line in bytes(data).splitlines(keepends=True):
            if self.is_complete:
                self.can_reuse = False
                return
            self._parser.feed_data(line)

    # Called by httptools.  An exception stops it: what follows is not looked at.

    def on_message_begin(self) -> None:
        """Begin with a status line."""
        if self.is_complete:
            raise self._refused("bytes that nobody asked for")

    def on_status(self, reason: bytes) -> None:
        """Take a piece of the phrase behind the status."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Make the response, unless this is only an interim one."""
        parser = self._parser
        headers, self._headers = self._headers, []
        reason, self._reason = self._reason, b""
        status = parser.get_status_code()
        if len(headers) > HEADERS_MAX:
            raise self._refused(f"more than {HEADERS_MAX} headers")
        if self._head_bytes > HEAD_MAX_BYTES and _size(reason, headers) > HEAD_MAX_BYTES:
            raise self._refused(f"the head has more than {HEAD_MAX_BYTES} bytes")
        if status < 200:
            if status < 100 or status == 101:
                raise self._refused(f"status {status}, which nobody asked for")
            self._is_interim = True
            return
        version = parser.get_http_version()
        if version not in _VERSIONS:
            raise self._refused(f"HTTP version {version}")
        response = Reply(self._source, status, reason, version, headers)
        self.can_reuse = parser.should_keep_alive()
        if version == "1.0" and response.get(b"transfer-encoding") is not None:
            self.can_reuse = False  # RFC 9112, section 6.1: its framing is to be thought faulty.
        for name, value in headers:
            if len(name) == 10 and name.lower() == b"keep-alive":
                said = _TIMEOUT.search(value)
                self.keep_alive_seconds = None if said is None else int(said[1])
        self.response = response
        self.in_body = True
        if self._is_head:
            self._complete_head(response)

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        response = self.response
        if response is None:
            raise self._refused("an interim response with a body")
        response.add(data)

    def on_message_complete(self) -> None:
        """End the response, unless it was only an interim one."""
        if self._is_interim:
            self._is_interim = False
            return
        self.is_complete = True
        if self._headers:
            trailers, self._headers = self._headers, []
            if self.response is not None:
                self.response.trailers = trailers

    def _complete_head(self, response: Reply) -> None:
        self.is_complete = True
        self._is_fresh = False
        if not self.can_reuse and response.http_version == "1.1":
            # llhttp takes a head without a length for a body that lasts until the end.
            self.can_reuse = b"close" not in _joined(response, b"connection")

    def _refused(self, fault: str) -> BadResponse:
        self._fault = fault  # httptools raises an error of its own instead of ours.
        return BadResponse(fault)


def _joined(response: Reply, name: bytes) -> bytes:
    """Return all values of a header as one list, in lower case."""
    return b",".join(value for key, value in response.headers if key.lower() == name).lower()


def _size(reason: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    # ": " and the line's end are four bytes, "HTTP/1.1 200 " and the two ends seventeen.
    return 17 + len(reason) + sum(len(name) + len(value) + 4 for name, value in headers)
