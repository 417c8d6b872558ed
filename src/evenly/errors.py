"""The error tree: what can go wrong, and whose mistake it was.

Inside `core` a refusal is a value (`evenly.core.request.Rejection`), because being refused is an
expected result.  The adapters translate it into one of the exceptions below, or into the host
library's own type.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "ConfigError",
    "EvenlyError",
    "NoBackend",
    "Overloaded",
    "QuotaExceeded",
    "RejectedError",
    "Throttled",
    "UsageError",
]


class EvenlyError(Exception):
    """Be the base of every exception that this library raises."""


class ConfigError(EvenlyError, ValueError):
    """Report a programmer's or an operator's mistake: a value out of its range."""


class UsageError(EvenlyError, RuntimeError):
    """Report a misuse of the API, such as finishing an attempt twice."""


class RejectedError(EvenlyError):
    """Report that a request was refused.

    Adapters raise these mixed into their host library's own type.  Where the refusal happened is
    said here and never guessed from a message.
    """

    where: Literal["local", "remote"] = "local"
    """`local`: the request never left this process; `remote`: a backend said no."""

    def __init__(self, message: str = "", *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether the layer right above may try again."""


class Throttled(RejectedError):
    """Report that this client task throttles itself: the message says why."""


class NoBackend(RejectedError):
    """Report that there is no backend to send to, or that all are at their limit."""


class Overloaded(RejectedError):
    """Report that a backend refused for overload."""

    where = "remote"


class QuotaExceeded(RejectedError):
    """Report that a backend refused because the customer is out of quota."""

    where = "remote"
