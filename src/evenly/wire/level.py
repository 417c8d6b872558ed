"""A request's luck and its client's line, as text: `evenly-level: u=37;l=133`.

    u = luck · 64      0 to 63; absent where nobody has needed it yet
    l = line · 64      0 to 255, rounded down; absent where the client holds nothing back

The luck travels in W3C `baggage` too (`evenly-luck=37`), where the criticality does.  It differs
from request to request, so it is read here, apart from what `KnownClaims` remembers.

A backend's cut-line goes back in 64ths as well.  It is rounded up: luck is a multiple of 1/64, so
the same requests are below it as before.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, final

from evenly.core import claim
from evenly.core.criticality import Criticality
from evenly.core.level import LUCK_STEPS

__all__ = [
    "LEVEL_KEY",
    "LUCK_KEY",
    "NO_LEVEL",
    "TWICE",
    "Level",
    "Levels",
    "admits_of_cut",
    "cut_of_admits",
    "cut_steps",
    "line_steps",
    "luck_steps",
    "without_luck",
]

LEVEL_KEY: Final = "evenly-level"
LUCK_KEY: Final = "evenly-luck"
"""In `baggage`."""

Level = tuple[float | None, float]
"""A request's luck, if it is known, and its client's line."""
NO_LEVEL: Final[Level] = (None, 0.0)
TWICE: Final = ""
"""What to look up where several say it: nothing is believed then."""

_LINE_MOST: Final = 255
# "u=63;l=255": no honest one is longer.
_LENGTH_MOST: Final = 10
_REMEMBERED_MOST: Final = 4096
_LEVEL: Final = re.compile("u=([0-9]{1,2})(?:;l=([0-9]{1,3}))?|l=([0-9]{1,3})").fullmatch

# What everyone has to pass on (W3C Baggage, "Limits").
_BAGGAGE_LOOKED_AT: Final = 8192
# With the properties behind a ";", which go with their member.
_MEMBER: Final = (
    rf"(?:\A|,)[ \t]*+{LUCK_KEY}[ \t]*+=[ \t]*+([0-9]{{1,2}})[ \t]*+(?:;[^,]*+)?(?=,|\Z)"
)
_MEMBERS: Final[dict[type, tuple[re.Pattern[Any], str | bytes]]] = {
    str: (re.compile(_MEMBER), ""),
    bytes: (re.compile(_MEMBER.encode()), b""),
}


def luck_steps(luck: float | None) -> int | None:
    """Return a luck in 64ths."""
    return None if luck is None else int(luck * LUCK_STEPS)


def line_steps(line: float) -> int:
    """Return a line in 64ths, rounded down: what is above it is sent."""
    return min(_LINE_MOST, int(line * LUCK_STEPS))


def admits_of_cut(cut: float) -> int:
    """Return a bit for each criticality: whether all of it is admitted, above this cut-line."""
    return sum(1 << criticality for criticality in Criticality if cut <= criticality)


def cut_of_admits(admits: int) -> float:
    """Return the cut-line of a backend that tells the four bits alone.

    It is the lowest criticality that it admits: what it may refuse is not sent, as old clients do.
    """
    for criticality in Criticality:
        if admits >> criticality & 1:
            return float(criticality)
    return float(len(Criticality))


def cut_steps(cut: float, most: int) -> int:
    """Return a cut-line in 64ths, rounded up, and at most `most`."""
    return min(most, math.ceil(cut * LUCK_STEPS))


@final
class Levels(dict[object, Level]):
    """Look up what an `evenly-level` says, and read it where it is new."""

    __slots__ = ()

    def of(self, value: object) -> Level:
        """Return luck and line; nothing raises."""
        try:
            return self[value]
        except TypeError:  # It cannot be looked up, and so is no text.
            return NO_LEVEL

    def __missing__(self, value: object) -> Level:
        if type(value) is str:
            text = value[: _LENGTH_MOST + 1]
        elif type(value) is bytes:
            text = value[: _LENGTH_MOST + 1].decode("latin-1")
        else:
            return NO_LEVEL
        match = _LEVEL(text)
        if match is None:
            return NO_LEVEL
        luck, line, line_alone = match.groups()
        if len(self) >= _REMEMBERED_MOST:
            self.clear()
        level = self[value] = (
            claim.believe_luck(luck),
            claim.believe_line(line_alone if luck is None else line),
        )
        return level


def without_luck(baggage: Any) -> tuple[Any, float | None]:  # noqa: ANN401 -- whatever it is
    """Return a `baggage` without its luck, and the luck, if it has one: the first that it says."""
    if type(baggage) not in _MEMBERS or len(baggage) > _BAGGAGE_LOOKED_AT:
        return baggage, None
    pattern, nothing = _MEMBERS[type(baggage)]
    for said in pattern.findall(baggage):
        luck = claim.believe_luck(said)
        if luck is not None:
            return pattern.sub(nothing, baggage), luck
    return baggage, None
