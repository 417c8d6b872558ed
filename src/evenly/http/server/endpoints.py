"""Answer whoever asks whether this process lives, and whether it wants requests.

Two questions, because their answers have different consequences: who is not alive is killed, who is
not ready is merely not sent to.  A lame duck is alive and not ready.  Overload changes neither: a
backend that is taken out for it leaves its share to the others, and they follow.
"""

from __future__ import annotations

from typing import Final, final

from evenly.errors import ConfigError
from evenly.http.server.answer import Answers, send_json
from evenly.http.server.asgi import Header, Scope, Send
from evenly.runtime.backend import BackendRuntime

__all__ = ["Endpoints"]

_METHODS: Final = frozenset({"GET", "HEAD"})
# Envoy stops sending at once, rather than after so many failures.
_FAIL_AT_ONCE: Final[tuple[Header, ...]] = ((b"x-envoy-immediate-health-check-fail", b"true"),)


@final
class Endpoints:
    """Serve health and readiness, without admission; a path that is `None` is not served."""

    def __init__(
        self,
        runtime: BackendRuntime,
        answers: Answers,
        *,
        health_path: str | None,
        ready_path: str | None,
    ) -> None:
        for name, path in (("health_path", health_path), ("ready_path", ready_path)):
            if path is not None and not (isinstance(path, str) and path.startswith("/")):
                raise ConfigError(f"{name} must begin with a slash or be None, not {path!r}")
        if health_path is not None and health_path == ready_path:
            raise ConfigError(f"health_path and ready_path must differ: {health_path!r}")
        self._ready_path = ready_path
        self._runtime = runtime
        self._answers = answers

    def serves(self, scope: Scope) -> bool:
        """Return whether a request for one of the paths is ours: others may `POST` there."""
        return scope.get("method") in _METHODS

    async def answer(self, path: str, send: Send) -> None:
        """Answer; with the load report, as every response."""
        is_lame_duck = self._answers.is_lame_duck
        said: dict[str, object] = {
            "status": "lame duck" if is_lame_duck else "healthy",
            "active": self._runtime.active,
        }
        load = self._answers.load(True)
        if path == self._ready_path and is_lame_duck:
            await send_json(send, 503, said, (*load, *_FAIL_AT_ONCE))
        else:
            await send_json(send, 200, said, load)
