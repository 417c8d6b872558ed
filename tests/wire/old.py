"""How versions before the cut-line read and wrote reports, in a few lines: for mixed fleets."""

from __future__ import annotations

import re
import struct
from typing import Any

from hypothesis import strategies as st

_CANONICAL = re.compile(
    "1;b=([0-9]+);n=([0-9]+);s=([hl]);a=([01]{4});r=([0-9][0-9.e+-]*);c=([0-9]+)"
    ";u=([0-9][0-9.e+-]*);q=([0-9][0-9.e+-]*)(?:;e=([0-9][0-9.e+-]*))?(?:;t=([0-9][0-9.e+-]*))?"
    "(?:;g=([0-9][0-9.e+-]*))?(?:;p=([0-9]+))?"
)
_DATAGRAM = struct.Struct("!4sBBHQQIBBHffffffI4x16s")

admits = st.sampled_from([0b1111, 0b1110, 0b1100, 0b1000, 0b0000])
"""What they say of the criticalities: in order, so that the higher are admitted longer."""


def parse_load(text: str) -> dict[str, str] | None:
    """Return what they make of a header, key by key; `None` where it is no report to them."""
    if len(text) > 160:
        return None
    version, *pieces = text.split(";")
    values = dict(piece.split("=", 1) for piece in pieces)
    if version != "1" or len(values) != len(pieces):
        return None
    known = {key: value for key, value in values.items() if key in "bnsarcuqetgp"}
    rebuilt = ";".join(["1", *(f"{key}={value}" for key, value in known.items())])
    return known if _CANONICAL.fullmatch(rebuilt) is not None else None


def format_load(admits: int) -> str:
    """Write a header as they do."""
    return f"1;b=5;n=6;s=h;a={admits:04b};r=1.5;c=7;u=0.25;q=100"


def unpack(data: bytes) -> dict[str, Any]:
    """Return what they make of an answer."""
    names = (
        "magic version kind flags nonce boot sequence state admits port runnable utilization qps"
        " eps latency units active tag"
    )
    return dict(zip(names.split(), _DATAGRAM.unpack(data), strict=True))


def pack(nonce: int, admits: int) -> bytes:
    """Write an answer as they do."""
    fields = (b"EVNL", 1, 2, 0, nonce, 5, 6, 0, admits, 0, 1.5, 0.25, 100.0, 0.0, 0.0, 1.0, 7)
    return _DATAGRAM.pack(*fields, bytes(16))
