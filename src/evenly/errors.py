"""The error tree: what can go wrong, and whose mistake it was.

Inside `core` a refusal is a value (`evenly.core.request.Rejection`), because being refused is an
expected result.  The adapters translate it into one of the exceptions below, or into the host
library's own type.
"""

from __future__ import annotations

__all__ = ["ConfigError", "EvenlyError", "UsageError"]


class EvenlyError(Exception):
    """Be the base of every exception that this library raises."""


class ConfigError(EvenlyError, ValueError):
    """Report a programmer's or an operator's mistake: a value out of its range."""


class UsageError(EvenlyError, RuntimeError):
    """Report a misuse of the API, such as finishing an attempt twice."""
