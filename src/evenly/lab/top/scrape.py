"""Fetch many pages at once, each within its time and size.

asyncio rather than threads with urllib: a limit there holds for each read and not for the whole, so
that an end point which sends a byte now and then would hold its thread for as long as it likes.
Here one deadline covers name, connection, TLS and answer, and its end leaves nothing behind.  It
also means that no proxy of the environment comes between: what is asked is what was typed.
"""

from __future__ import annotations

import asyncio
import http
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import urljoin

from evenly.errors import ConfigError
from evenly.lab.top.fetch import Budget, FetchError, fetch
from evenly.lab.top.targets import Target, parse_target

__all__ = ["Answer", "fetch_all"]

_REDIRECTS_MAX = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Be what came of asking one target: a body, or why there is none."""

    at: float
    """When it came, on the monotonic clock."""
    body: bytes | None = None
    problem: str | None = None


async def fetch_all(
    targets: Iterable[Target], timeout_seconds: float, budget: Budget | None = None
) -> Mapping[Target, Answer]:
    """Ask all targets at once; return when each has answered or had its time."""
    wanted = list(targets)
    shared = budget or Budget()
    answers = await asyncio.gather(*(_answer(target, timeout_seconds, shared) for target in wanted))
    return dict(zip(wanted, answers, strict=True))


async def _answer(target: Target, timeout_seconds: float, budget: Budget) -> Answer:
    try:
        async with asyncio.timeout(timeout_seconds):
            body = await _fetch(target, budget)
        return Answer(at=time.monotonic(), body=body)
    except TimeoutError:
        problem = f"no answer within {timeout_seconds:g} s"
    except FetchError as error:
        problem = str(error)
    except OSError as error:
        problem = _of_network(error)
    except UnicodeError:  # A label of the name is empty, or too long (RFC 1035).
        problem = "the name cannot be resolved"
    except Exception as error:  # noqa: BLE001 -- no end point may end what is shown of the others
        problem = f"could not be asked: {type(error).__name__}"
    return Answer(at=time.monotonic(), problem=problem)


def _of_network(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name cannot be resolved"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'no reason given'}"
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return "connection refused"
    return f"connection failed: {error.strerror or type(error).__name__}"


async def _fetch(target: Target, budget: Budget) -> bytes:
    for _ in range(_REDIRECTS_MAX + 1):
        response = await fetch(target, budget)
        if response.status in _REDIRECTS:
            target = _moved(target, response.location)
        elif response.status != http.HTTPStatus.OK:
            raise FetchError(f"answered with status {response.status}")
        else:
            return response.body
    raise FetchError(f"more than {_REDIRECTS_MAX} redirections")


def _moved(target: Target, location: str) -> Target:
    """Return where to look instead: a page may have moved, but not to another host."""
    try:
        moved = parse_target(urljoin(target.url, location))
    except (ConfigError, ValueError):
        raise FetchError("redirected to what is no address") from None
    if moved.origin != target.origin:
        scheme, host, port = moved.origin
        shown = f"[{host}]" if ":" in host else host
        raise FetchError(f"redirected to {scheme}://{shown}:{port}: not followed")
    return moved
