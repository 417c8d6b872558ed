"""What evenly itself asks a backend over its connection, to be known from what a user asks."""

from __future__ import annotations

from typing import final

__all__ = ["Question", "serialize"]


@final
class Question:
    """Stand for a message until gRPC serializes it: interceptors see what it is before that."""

    __slots__ = ("message",)

    def __init__(self, message: bytes) -> None:
        self.message = message


def serialize(question: Question) -> bytes:
    """Return the message."""
    return question.message
