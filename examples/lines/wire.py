"""What the two sides say to one another: objects of JSON, one to a line, in UTF-8.

    client   {"id": 7, "do": …, "criticality": …, "customer": …, "attempt": …, "deadline_ms": …,
              "luck": 37, "line": 133}      both in 64ths, where there is something to say
             {"cancel": 7}      its caller gave up
             {"check": true}    how are you?
    backend  {"load": …}        when a connection opens, to a check, and whenever its state changes
             {"id": 7, "outcome": "OK", "answer": …, "load": …}
             {"id": 7, "outcome": "OVERLOADED", "error": …, "load": …}

A connection takes any number of requests at a time, so a client needs one to each backend.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from evenly.core.request import Outcome

__all__ = ["LINE_MAX_BYTES", "OUTCOMES", "Message", "receive", "send"]

Message = dict[str, Any]
"""Everything in one is as the other side sent it: any type, any length, not believed."""

LINE_MAX_BYTES: Final = 2**20
OUTCOMES: Final = {
    outcome.name: outcome for outcome in Outcome if outcome.is_answer or outcome is Outcome.TIMEOUT
}
"""How a backend may say that a request ended."""


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Put a line on its way; what is lost of it shows when the connection breaks."""
    writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; `None` at the end, and where what comes is no message."""
    try:
        line = await reader.readline()
        message = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError, RecursionError):  # Broken; too long or no JSON; nested.
        return None
    return message if isinstance(message, dict) else None
