"""One line for everything that a layer does: its name, the request's criticality, what happened.

An observer is told of decisions, also of those that no handler sees: a request refused before its
handler ran, one throttled before it was sent, a retry.
"""

from __future__ import annotations

from typing import final

import evenly
from evenly.core.request import Reason


def say(layer: str, what: str, request: evenly.Request | None = None) -> None:
    """Write one line, with the criticality of the request that is being served."""
    criticality = (request or evenly.current_request()).criticality
    print(f"{layer:<12} {criticality.name:<14} {what}", flush=True)


@final
class Log(evenly.Observer):
    """Write what is refused, throttled and tried again, of requests served and of requests sent."""

    def __init__(self, layer: str) -> None:
        self._layer = layer

    def request_rejected(self, request: evenly.Request, reason: Reason) -> None:
        """See this layer refuse a request, or pass a refusal from below on."""
        say(self._layer, f"refused: {reason.value}", request)

    def request_refused(self, request: evenly.Request, reason: Reason) -> None:
        """See a request that this layer did not even send."""
        say(self._layer, f"not sent: {reason.value}", request)

    def attempt_begun(self, address: str, request: evenly.Request, number: int) -> None:
        """See this layer ask the layer below."""
        if number > 1:
            say(self._layer, f"attempt {number}, at {address}", request)
