"""How much a request matters, in the book's four values.

SRE book, chapter 21, "Criticality".  Everything that refuses requests (throttle, admission, quota)
refuses a criticality only where it refuses all lower ones.
"""

from __future__ import annotations

import enum
from typing import final

__all__ = ["Criticality"]


@final
class Criticality(enum.IntEnum):
    """Order requests by how much their failure hurts; a higher value is refused later."""

    SHEDDABLE = 0
    """Frequent partial unavailability, and now and then full unavailability, is expected."""

    SHEDDABLE_PLUS = 1
    """Partial unavailability is expected: the default for batch jobs, which can retry later."""

    CRITICAL = 2
    """The default.  A failure is visible to users; capacity is provisioned for all of these."""

    CRITICAL_PLUS = 3
    """A failure has serious visible impact."""
