"""Know where to ask a backend: at an address as it is, or wherever its name leads to."""

from __future__ import annotations

import asyncio
import math
import random
import re
import socket
from collections.abc import Sequence
from contextvars import Context
from typing import Any, Final, final

__all__ = ["Target", "Whereabouts", "parse"]

Target = tuple[int, tuple[Any, ...]]
"""Where to send: a family, and a socket address of it."""

_ADDRESS: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:/]+)):([0-9]{1,5})", re.ASCII)
_MAX_PORT = 65535
_TARGETS_MAX = 4
_LOOK_UP_SECONDS = 1.0
_LOOK_UP_MOST_SECONDS = 60.0
_JITTER_RATIO = 0.2


def parse(address: str) -> tuple[str, int] | None:
    """Return host and port of `host:port` or `[address]:port`; `None` for all else (`unix:`)."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    port = int(match[3])
    return (match[1] or match[2], port) if 0 < port <= _MAX_PORT else None


@final
class Whereabouts:
    """Hold the socket addresses of one backend.

    A name can have several, of which perhaps only one has a responder.  Questions go to them in
    turn until one answers, and to that one until the name is looked up again.
    """

    __slots__ = (
        "_host",
        "_look_up",
        "_look_up_at",
        "_look_up_seconds",
        "_port",
        "_service_port",
        "_targets",
    )

    def __init__(self, address: str) -> None:
        self._host, self._service_port = parse(address) or ("", 0)
        self._port = self._service_port
        self._targets = _of_literal(self._host, self._port)
        self._look_up: asyncio.Task[None] | None = None
        is_name = self._host != "" and not self._targets
        self._look_up_at = -math.inf if is_name else math.inf
        self._look_up_seconds = _LOOK_UP_SECONDS

    def target(self, number: int) -> Target | None:
        """Return where to send question `number`, or `None` while that is unknown."""
        targets = self._targets
        return targets[number % len(targets)] if targets else None

    def use_port(self, port: int | None) -> None:
        """Ask on this port from now on; `None` is the service's."""
        port = self._service_port if port is None else port
        if port != self._port:
            self._port = port
            self._targets = _with_port(self._targets, port)

    def record_answer(self, target: Target) -> None:
        """Stay with the address that answered; it may have moved to another port meanwhile."""
        self._look_up_seconds = _LOOK_UP_SECONDS
        if len(self._targets) > 1:
            host = target[1][0]
            self._targets = tuple(at for at in self._targets if at[1][0] == host) or self._targets

    def may_look_up(self, now: float) -> bool:
        """Return whether there is a name, and it was not looked up just now."""
        return now >= self._look_up_at and (self._look_up is None or self._look_up.done())

    def look_up(self, loop: asyncio.AbstractEventLoop, now: float, rng: random.Random) -> None:
        """Look the name up in the background; each time that no answer follows, wait longer."""
        jitter = rng.uniform(-_JITTER_RATIO, _JITTER_RATIO)
        self._look_up_at = now + self._look_up_seconds * (1.0 + jitter)
        self._look_up_seconds = min(2.0 * self._look_up_seconds, _LOOK_UP_MOST_SECONDS)
        # In an empty context: the one that is current may belong to a request.
        self._look_up = Context().run(loop.create_task, self._find(loop))

    def cancel(self) -> None:
        """End a look-up that is under way."""
        if self._look_up is not None:
            self._look_up.cancel()

    async def _find(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
        except (OSError, ValueError):  # Unknown, or no resolver; ValueError: not even a name.
            return  # What was known before may still be right.
        self._use([(family, address) for family, _, _, _, address in found])

    def _use(self, found: Sequence[Target]) -> None:
        distinct = tuple(dict.fromkeys(found))[:_TARGETS_MAX]
        self._targets = _with_port(distinct, self._port) or self._targets


def _of_literal(host: str, port: int) -> tuple[Target, ...]:
    # An IPv6 address with a zone (fe80::1%eth0) counts as a name: only a look-up finds its number.
    for family, rest in ((socket.AF_INET, ()), (socket.AF_INET6, (0, 0))):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return ((family, (host, port, *rest)),)
    return ()


def _with_port(targets: tuple[Target, ...], port: int) -> tuple[Target, ...]:
    return tuple((family, (where[0], port, *where[2:])) for family, where in targets)
