"""What a backend says about itself, in every response and every probe's answer.

SRE book, chapter 20, "Weighted Round Robin": "In each response (including responses to health
checks), backends include the current observed rates of queries and errors per second, in addition
to the utilization".  To these we add the state, so that a lame duck is known at once, and
`runnable`, the queue that a request sent now would join.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from evenly.errors import ConfigError

__all__ = ["LoadReport"]

_MAX_BOOT = 2**63 - 1
_MAX_COUNT = 2**32 - 1
_MAX_PORT = 65535
# Beyond any machine, and far from where sums and products of floats overflow.
_MAX_NUMBER = 1e15


@final
@dataclass(slots=True, kw_only=True)
class LoadReport:
    """Describe one backend at one instant.

    Treat it as immutable: it is not frozen only because one is made per response, and freezing
    would triple the price.  Every number is checked at construction, so nothing behind this class
    meets a NaN; whoever parses reports from the wire takes the `ConfigError` for "no report".
    """

    boot: int = 0
    """When the process started, in unix nanoseconds: a later boot is a later process."""
    sequence: int = 0
    """Grows with each change of state, so that a late report cannot undo a newer one."""
    lame_duck: bool = False
    """Whether the backend asks not to be sent to."""
    cut: float = 0.0
    """Its cut-line: it refuses requests below this level (`evenly.core.level`), 0 to 4."""
    runnable: float = 0.0
    """Requests on a CPU or waiting for one."""
    active: int = 0
    """Requests begun and not finished, from all clients."""
    utilization: float = 0.0
    """Used over provisioned, 0 to 1 and beyond; 0 means unknown."""
    qps: float = 0.0
    """Requests per second, all clients, failed ones included; 0 means unknown."""
    eps: float = 0.0
    """Failed requests per second, all clients."""
    latency_seconds: float = 0.0
    """Typical time to serve a request at the present `active`; 0 means unknown."""
    compute_units: float = 1.0
    """Speed of one of its CPUs in normalised CPUs (the book's GCU)."""
    probe_port: int | None = None
    """The UDP port that answers probes, or `None` where it is the port of the service."""

    def __post_init__(self) -> None:
        # One chain for the common case: this runs once per response.  NaN fails every comparison.
        try:
            is_fine = (
                0 <= self.boot <= _MAX_BOOT
                and 0 <= self.sequence <= _MAX_COUNT
                and 0.0 <= self.cut <= 4.0
                and 0 <= self.active <= _MAX_COUNT
                and 0.0 <= self.runnable <= _MAX_NUMBER
                and 0.0 <= self.utilization <= _MAX_NUMBER
                and 0.0 <= self.qps <= _MAX_NUMBER
                and 0.0 <= self.eps <= _MAX_NUMBER
                and 0.0 <= self.latency_seconds <= _MAX_NUMBER
                and 0.0 < self.compute_units <= _MAX_NUMBER
                and (self.probe_port is None or 0 < self.probe_port <= _MAX_PORT)
            )
        except TypeError:  # A parser's mistake, such as a string for a number.
            is_fine = False
        if not is_fine:
            raise ConfigError(f"load report out of bounds: {self!r}"[:500])
