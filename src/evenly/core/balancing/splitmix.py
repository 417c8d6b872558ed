"""Turn integers into well-mixed 64-bit integers, alike in every process and every Python.

SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014):
output n of the generator seeded with s is `mix(s + (n + 1) * GOLDEN)`, so that any output can be
had without those before it.  Client tasks that are to agree on their subsets have to compute the
same integers, whatever they are written in: the constants are part of that contract and never
change.
"""

from __future__ import annotations

__all__ = ["FIRST_FACTOR", "GOLDEN", "MASK", "SECOND_FACTOR", "mix", "output"]

MASK = 2**64 - 1
GOLDEN = 0x9E37_79B9_7F4A_7C15  # 2**64 divided by the golden ratio, made odd
FIRST_FACTOR = 0xBF58_476D_1CE4_E5B9
SECOND_FACTOR = 0x94D0_49BB_1331_11EB


def mix(value: int) -> int:
    """Return SplitMix64's finalizer of `value`: flipping one bit flips every other with 1/2."""
    value &= MASK
    value = ((value ^ (value >> 30)) * FIRST_FACTOR) & MASK
    value = ((value ^ (value >> 27)) * SECOND_FACTOR) & MASK
    return value ^ (value >> 31)


def output(seed: int, number: int) -> int:
    """Return output `number`, counted from 0, of the SplitMix64 generator with this seed."""
    return mix(seed + (number + 1) * GOLDEN)
