"""How much one request matters: one number that every refusal compares.

    level = criticality + luck,    0 <= luck < 1

SRE book, chapter 21, "Criticality", has four values.  Where part of one of them is refused, chance
decides; and a user whose page takes four calls, each with a chance of its own, hardly ever gets the
page.  So the chance is taken once, and carried: the luck is drawn by the first who needs it, or
made of the user's name, and every call below shares it.  The idea is DAGOR's (Zhou et al.,
"Overload Control for Scaling WeChat Microservices", 2018), with 64 levels for the business and 128
for users.

Luck is a multiple of 1/64, so that a level is one byte on the wire and the same at both ends.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from typing import Final

from evenly.core.criticality import Criticality
from evenly.core.request import Request

__all__ = ["LUCK_STEPS", "TOP", "draw_luck", "level_of", "luck_of_user"]

LUCK_STEPS: Final = 64
"""How many levels a criticality has."""
TOP: Final = float(len(Criticality))
"""Above every level."""
_HOUR_SECONDS: Final = 3600.0


def draw_luck(rng: random.Random, most: float = 1.0) -> float:
    """Return the luck, below `most`, of a request that belongs to nobody in particular."""
    return int(rng.random() * most * LUCK_STEPS) / LUCK_STEPS


def luck_of_user(user: str, key: bytes, unix_seconds: float) -> float:
    """Return a user's luck: the same for all requests of an hour, and another one in the next.

    Without the hour the same users would always lose.  Without the key users could choose their
    names by it.
    """
    hour = int(unix_seconds // _HOUR_SECONDS)
    digest = hmac.digest(key, f"{hour}/{user}".encode(errors="surrogatepass"), hashlib.sha256)
    return digest[0] % LUCK_STEPS / LUCK_STEPS


def level_of(request: Request, rng: random.Random) -> float:
    """Return a request's level.  If it has no luck yet, it is drawn here, and stays its own."""
    luck = request.luck
    if luck is None:
        luck = request.luck = draw_luck(rng)
    return request.criticality + luck
