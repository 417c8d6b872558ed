"""What the tests of a client task's subset and its connections are made of."""

from __future__ import annotations

import random

from evenly.core.balancing.backend import Backend, BackendView
from evenly.core.balancing.candidates import Candidates
from evenly.core.balancing.health import HealthConfig
from evenly.core.balancing.membership import ConnectionEvent, Membership, MembershipConfig
from evenly.core.balancing.policies.round_robin import RoundRobin

START = 1_000.0
LATER = START + 60.0
OPENED = ConnectionEvent.OPENED
REFUSED = ConnectionEvent.REFUSED
LOST = ConnectionEvent.LOST


class NoJitter(random.Random):
    """Draw the middle of every range, so that delays are what they are called."""

    def random(self) -> float:
        return 0.5


# When a connection is opened that nobody waits for: half of the jitter of 1 s.
SOON = 0.5


def new_membership(
    *,
    subset_size: int = 20,
    client_index: int | None = None,
    subset_algorithm: str = "nested",
    connecting_max: int = 10,
    health: HealthConfig | None = None,
    rng: random.Random | None = None,
) -> Membership:
    config = MembershipConfig(
        subset_size=subset_size,
        client_index=client_index,
        subset_algorithm=subset_algorithm,
        connecting_max=connecting_max,
        health=health or HealthConfig(),
    )
    candidates = Candidates(RoundRobin(), active_limit=100)
    return Membership(config, candidates, rng=rng or NoJitter(0))


def fleet(count: int, *, indexed: bool = False) -> list[Backend]:
    return [Backend(f"b{number}", number if indexed else None) for number in range(count)]


def names(membership: Membership) -> set[str]:
    return {view.backend.address for view in membership.views if view.in_subset}


def view_of(membership: Membership, backend: Backend) -> BackendView:
    view = membership.view(backend)
    assert view is not None
    return view


def tell(membership: Membership, backend: Backend, event: ConnectionEvent, now: float) -> None:
    membership.connection(view_of(membership, backend), event, now)


def connected(membership: Membership, backends: list[Backend], now: float = START) -> Membership:
    """Return it with all of its subset connected, and a first health check over."""
    membership.update(backends, now)
    membership.take_connections(now)
    for view in list(membership.views):
        membership.connection(view, OPENED, now)
    membership.check_health(now)  # Nobody is asked: the openings were something heard.
    return membership


def opens(membership: Membership, now: float = LATER) -> set[str]:
    return {backend.address for backend in membership.take_connections(now).open}
