"""Set HAProxy up as well as we know to: one queue for all backends, and the critical ones first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.acceptance.live.settings import CORES, DEADLINE_SECONDS, MIX

# Tuned by hand: of 1, 0.5, 0.3 and 0.2 of the deadline, 0.2 serves most.  At twice the capacity
# those serve 5, 19, 28 and 33 % of SHEDDABLE_PLUS, for who waits longer is served too late.
QUEUE_SECONDS: Final = 0.2 * DEADLINE_SECONDS


def configuration(port: int, addresses: Sequence[str]) -> str:
    """Return what its file says.

    A backend gets no more requests than it has cores, so all who wait, wait here, in the order of
    their classes; those whose clients have left are forgotten.
    """
    lines = [
        "global",
        "  maxconn 4000",
        "defaults",
        "  mode http",
        "  timeout connect 1s",
        "  timeout client 60s",
        "  timeout server 60s",
        f"  timeout queue {round(1000 * QUEUE_SECONDS)}ms",
        "frontend all",
        f"  bind 127.0.0.1:{port}",
        "  default_backend service",
        "backend service",
        "  balance leastconn",
        "  option abortonclose",
    ]
    # The least class is the first.
    lines += [
        f"  http-request set-priority-class int({-level.value}) "
        f"if {{ req.hdr(x-criticality) {level.name} }}"
        for level in MIX
    ]
    lines += [
        f"  server backend{index} {address} maxconn {CORES}"
        for index, address in enumerate(addresses)
    ]
    return "\n".join(lines) + "\n"
