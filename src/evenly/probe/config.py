"""Configure probes: whether, with which key, on which port."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import final

from evenly.core import check
from evenly.errors import ConfigError

__all__ = ["KEY_VARIABLE", "ProbeConfig"]

KEY_VARIABLE = "EVENLY_PROBE_KEY"
# Shorter keys could be tried out offline by whoever has seen one datagram; 16 bytes are as many as
# the datagram's tag has.
_LEAST_KEY_BYTES = 16
_MOST_KEY_BYTES = 1024


def _key_of_the_environment() -> bytes | None:
    text = os.environ.get(KEY_VARIABLE)
    return None if text is None else os.fsencode(text)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """Say how this process probes, or is probed."""

    is_on: bool = True
    """Whether there are probes by UDP at all."""
    key: bytes | None = field(default_factory=_key_of_the_environment, repr=False)
    """The HMAC key that both ends share; by default `EVENLY_PROBE_KEY`, and `None` is no HMAC."""
    port: int | None = None
    """A backend's UDP port: `None` is the service's own number, 0 any free one."""

    def __post_init__(self) -> None:
        if not isinstance(self.is_on, bool):
            raise ConfigError(f"is_on must be True or False, not {self.is_on!r}")
        # An empty variable fails too: a secret that was not mounted must not mean "no HMAC".
        if self.key is not None and not (
            isinstance(self.key, bytes) and _LEAST_KEY_BYTES <= len(self.key) <= _MOST_KEY_BYTES
        ):
            size = f"{len(self.key)} bytes" if isinstance(self.key, bytes) else type(self.key)
            raise ConfigError(
                f"key ({KEY_VARIABLE}) must have {_LEAST_KEY_BYTES} to {_MOST_KEY_BYTES} bytes, "
                f"not {size}"
            )
        if self.port is not None:
            check.count("port", self.port, 0, 65535)
