"""What a `Session` returns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from email.message import Message
from typing import Any, Final, final

from evenly.errors import UsageError
from evenly.http.client.errors import StatusError
from evenly.http.client.fetch import Fetch
from evenly.http1.reply import Reply
from evenly.wire.metadata import DEGRADED

__all__ = ["Headers", "Response", "StreamedResponse"]

_DEGRADED: Final = DEGRADED[0].encode()


@final
class Headers(Mapping[str, str]):
    """Look up headers whatever the case of their names; several of a name are joined by commas."""

    __slots__ = ("raw",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self.raw = raw
        """As received."""

    def __getitem__(self, name: str) -> str:
        values = self.get_all(name)
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.decode("latin-1").lower() for name, _ in self.raw))

    def __len__(self) -> int:
        return len({name.lower() for name, _ in self.raw})

    def __repr__(self) -> str:
        return f"Headers({dict(self)!r})"

    def get_all(self, name: str) -> list[str]:
        """Return every value of a header: `set-cookie` must not be joined."""
        wanted = name.lower().encode("latin-1", "replace")
        return [value.decode("latin-1") for name, value in self.raw if name.lower() == wanted]


class Response:
    """Be a response with its whole body."""

    __slots__ = ("_content", "_headers", "_raw", "attempts", "backend", "status", "url")

    def __init__(self, raw: Reply, url: str, fetch: Fetch, content: bytes | None) -> None:
        self._raw = raw
        self._content = content
        self._headers: Headers | None = None
        self.status = raw.status
        self.url = url
        """The path and the query that it answers."""
        self.backend = fetch.backend or ""
        """The address of the backend that answered."""
        self.attempts = fetch.attempts
        """How often the request was sent."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.status} {self.reason} from {self.backend}>"

    @property
    def reason(self) -> str:
        """What stands behind the status: `Not Found`."""
        return self._raw.reason

    @property
    def http_version(self) -> str:
        """`1.1`, or `1.0`."""
        return self._raw.http_version

    @property
    def headers(self) -> Headers:
        """The headers, by name."""
        if self._headers is None:
            self._headers = Headers(self._raw.headers)
        return self._headers

    @property
    def is_success(self) -> bool:
        """Whether the status is below 400."""
        return self.status < 400

    @property
    def is_degraded(self) -> bool:
        """Whether the backend says that it gave a cheaper answer, because it is busy."""
        return self._raw.get(_DEGRADED) is not None

    @property
    def content(self) -> bytes:
        """The body."""
        if self._content is None:
            raise UsageError("the body has not been read: await response.read()")
        return self._content

    def text(self, encoding: str | None = None) -> str:
        """Return the body as text, in the encoding that the response names, or UTF-8."""
        content = self.content
        if encoding is not None:
            return content.decode(encoding, "replace")
        try:
            return content.decode(self._charset(), "replace")
        except (LookupError, ValueError):  # Nobody knows it, or it is for something else: `idna`.
            return content.decode("utf-8", "replace")

    def json(self) -> Any:  # noqa: ANN401 -- anything that JSON can say
        """Return what the body says in JSON."""
        return json.loads(self.content)

    def raise_for_status(self) -> Response:
        """Raise `StatusError` for a status of 400 and above; return the response otherwise."""
        if self.status >= 400:
            raise StatusError(f"{self.status} {self.reason} from {self.backend}: {self.url}", self)
        return self

    def _charset(self) -> str:
        content_type = self._raw.get(b"content-type")
        if content_type is None or b"charset" not in content_type.lower():
            return "utf-8"
        message = Message()
        message["content-type"] = content_type.decode("latin-1")
        return message.get_content_charset("utf-8")


@final
class StreamedResponse(Response):
    """Be a response whose body is read in chunks: `async for chunk in response`."""

    __slots__ = ("_fetch", "_is_read")

    def __init__(self, raw: Reply, url: str, fetch: Fetch) -> None:
        super().__init__(raw, url, fetch, fetch.content)
        self._fetch = fetch
        self._is_read = False

    def __del__(self) -> None:
        if not self._fetch.is_over:
            self._fetch.abandon()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk of the body, as it arrives."""
        if self._content is not None:
            # It came whole: it was a refusal, or somebody read it.
            if self._is_read or not self._content:
                raise StopAsyncIteration
            self._is_read = True
            return self._content
        chunk = await self._fetch.next_chunk()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def read(self) -> bytes:
        """Read what has not been read yet, and keep it as `content`.

        Raise `BodyTooLong` if that is more than the session's `body_max_bytes`.
        """
        if self._content is None:
            chunks, size, most = [], 0, self._fetch.body_max_bytes
            while chunk := await self._fetch.next_chunk():
                chunks.append(chunk)
                size += len(chunk)
                if most is not None and size > most:
                    self.close()
                    what = f"the body has more than the {most} bytes that are taken"
                    raise self._fetch.too_long(what)
            self._content = b"".join(chunks)
            self._is_read = True
        return self._content

    def close(self) -> None:
        """Give up what has not arrived; leaving `async with` does this."""
        self._fetch.close()
