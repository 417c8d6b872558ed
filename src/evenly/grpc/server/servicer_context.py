"""What handlers get as their `context`: gRPC's own, with our trailers in every ending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, final

import grpc
import grpc.aio

from evenly.context import Serving
from evenly.core.backend_task import Admission
from evenly.grpc.common.answer import Entries, Trailers

__all__ = ["ServicerContext"]


@final
class ServicerContext(grpc.aio.ServicerContext):
    """Pass everything on to gRPC's context; an `abort` carries the load report too.

    Trailers that a handler sets stay with the inner context, and ours are added when it has ended.
    """

    __slots__ = ("_to_evenly", "_trailers", "abort_code", "admission", "inner", "scope")

    def __init__(
        self,
        inner: Any,
        trailers: Trailers,
        admission: Admission,
        scope: Serving,
        to_evenly: bool,  # By position, since one is made per request.
    ) -> None:
        self.inner = inner
        self.admission = admission
        self.scope = scope
        self.abort_code: grpc.StatusCode | None = None
        """With which status the handler has aborted, if it has."""
        self._trailers = trailers
        self._to_evenly = to_evenly

    def add_trailers(self) -> None:
        """Put ours behind those that the handler has set, for when it has ended."""
        inner = self.inner
        inner.set_trailing_metadata(self._with_ours(inner.trailing_metadata()))

    def _with_ours(self, others: Iterable[tuple[str, str | bytes]]) -> Entries:
        return self._trailers.added_to(
            others, to_evenly=self._to_evenly, is_degraded=self.scope.was_degraded
        )

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the request with this status, and raise."""
        if self.abort_code is None:
            self.abort_code = code
        # As gRPC has it: given ones replace those that were set before.
        others = tuple(trailing_metadata or ()) or self.inner.trailing_metadata()
        await self.inner.abort(code, details, self._with_ours(others))
        raise AssertionError  # It raises.

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the request with this status, and raise."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def read(self) -> Any:
        """Read the next message; `grpc.aio.EOF` after the last."""
        return await self.inner.read()

    async def write(self, message: object) -> None:
        """Send a message."""
        await self.inner.write(message)

    async def send_initial_metadata(
        self, initial_metadata: Iterable[tuple[str, str | bytes]]
    ) -> None:
        """Send the initial metadata."""
        await self.inner.send_initial_metadata(initial_metadata)

    def set_trailing_metadata(self, trailing_metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Set the trailers; ours will be added."""
        self.inner.set_trailing_metadata(trailing_metadata)

    def trailing_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """Return the trailers that were set."""
        return self.inner.trailing_metadata()  # type: ignore[no-any-return]

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """Return what the client sent beside the request."""
        return self.inner.invocation_metadata()  # type: ignore[no-any-return]

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status with which the request ends."""
        self.inner.set_code(code)

    def code(self) -> grpc.StatusCode:
        """Return the status that was set."""
        return self.inner.code()

    def set_details(self, details: str) -> None:
        """Set the message that goes with the status."""
        self.inner.set_details(details)

    def details(self) -> str:
        """Return the message that was set."""
        return self.inner.details()  # type: ignore[no-any-return]

    def set_compression(self, compression: grpc.Compression) -> None:
        """Set how responses are compressed."""
        self.inner.set_compression(compression)

    def disable_next_message_compression(self) -> None:
        """Send the next message as it is."""
        self.inner.disable_next_message_compression()

    def peer(self) -> str:
        """Return the client's address."""
        return self.inner.peer()  # type: ignore[no-any-return]

    def peer_identities(self) -> Iterable[bytes] | None:
        """Return who the client has proved to be."""
        return self.inner.peer_identities()  # type: ignore[no-any-return]

    def peer_identity_key(self) -> str | None:
        """Return by which property of `auth_context` the client is known."""
        return self.inner.peer_identity_key()  # type: ignore[no-any-return]

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what is known of the connection's security."""
        return self.inner.auth_context()  # type: ignore[no-any-return]

    def time_remaining(self) -> float:
        """Return the seconds left; `None` without a deadline."""
        return self.inner.time_remaining()  # type: ignore[no-any-return]

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have `callback` called with this context when the request has ended."""
        self.inner.add_done_callback(lambda _: callback(self))

    def cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        return self.inner.cancelled()  # type: ignore[no-any-return]

    def done(self) -> bool:
        """Return whether the request has ended."""
        return self.inner.done()  # type: ignore[no-any-return]
