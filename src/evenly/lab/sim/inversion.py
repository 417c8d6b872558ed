"""Tell bad luck from a criticality that is refused more often than a lower one.

SRE book, chapter 21, "Criticality": requests of one criticality are rejected only where all lower
ones are.  Of two criticalities, the higher must then not be refused more often than the lower, but
for chance.  How much chance explains, Fisher's exact test says.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

__all__ = ["Fared", "inversion_chance"]

# What is left of the tail is then less than a millionth of what has been added up.
_NEGLIGIBLE = 1e-8


@final
class Fared(NamedTuple):
    """Count the requests of one criticality, and those that were refused."""

    offered: int
    refused: int

    def __str__(self) -> str:
        return f"{self.refused} of {self.offered}"


def inversion_chance(lower: Fared, higher: Fared) -> float:
    """Return how likely the higher criticality fares so much worse if refusals know none.

    With m requests of the higher and n of the lower, of which t were refused in all, k refusals of
    the higher have the probability  C(m, k) · C(n, t − k) / C(m + n, t).  The answer is the sum
    from the number that there was, up.  1.0 if the higher did not fare worse.
    """
    n, m = lower.offered, higher.offered
    k = higher.refused
    total = k + lower.refused
    # Above its mean m · t / (m + n) each term is smaller than the one before.
    if k * (m + n) <= m * total:
        return 1.0
    # By logarithms, since the binomials themselves have thousands of digits.
    term = math.exp(_log_comb(m, k) + _log_comb(n, total - k) - _log_comb(m + n, total))
    tail = term
    while term > _NEGLIGIBLE * tail:
        term *= (m - k) * (total - k) / ((k + 1) * (n - total + k + 1))
        tail += term
        k += 1
    return min(1.0, tail)


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
