"""Which backends a client task talks to: its subset, their health and their connections.

SRE book, chapter 20, "Limiting the Connections Pool with Subsetting" and "Identifying Bad Tasks".
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from evenly.core import check
from evenly.core.balancing.backend import Backend, BackendView, check_distinct
from evenly.core.balancing.candidates import Candidates
from evenly.core.balancing.connecting import Connecting
from evenly.core.balancing.health import Health, HealthConfig, State
from evenly.core.balancing.subset import SUBSET_ALGORITHMS
from evenly.core.balancing.subset_input import MAX_CLIENT_INDEX, MAX_SUBSET_SIZE
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.errors import ConfigError

__all__ = ["ConnectionEvent", "ConnectionOrders", "Membership", "MembershipConfig"]


@final
class ConnectionEvent(enum.Enum):
    """Say what happened to a connection."""

    OPENED = enum.auto()
    """It can take requests: where the transport has a handshake of its own, that is done too."""
    REFUSED = enum.auto()
    """It could not be opened."""
    LOST = enum.auto()
    """It stood and broke; one that was replaced is not spoken of."""


@final
class ConnectionOrders(NamedTuple):
    """Say which connections a transport is to open and to close."""

    open: tuple[Backend, ...]
    """A connection that stands but is silent is to be replaced."""
    close: tuple[Backend, ...]
    """No attempt uses these any more: they have left the subset, or are idle and only probed."""


_NOTHING = ConnectionOrders((), ())
# A client task that starts connects to so many at once, to serve its first requests.
_FIRST_CONNECTIONS = 2
# Who answers probes has answered one in this many checks: of two in a row one asks, because the
# other one heard the answer.
_HEARD_CHECKS = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """Set how the subset is cut and how its members are watched."""

    health: HealthConfig = field(default_factory=HealthConfig)
    subset_algorithm: str = "nested"
    """Used where the client task has an index and all backends have one; else rendezvous."""
    subset_size: int = 20
    """Book: 20 to 100."""
    client_index: int | None = None
    """This task's place in its job, from 0 without gaps; `None` where nobody can tell."""
    enough_ratio: float = 0.7
    """Below this part of its subset not refusing, a client task takes in as many again."""
    error_decay_seconds: float = 5.0
    """How long an error goes on weighing on a backend's load."""
    connecting_max: int = 10
    """Connections that are opened at a time, beyond those that a request waits for."""

    def __post_init__(self) -> None:
        if self.subset_algorithm not in SUBSET_ALGORITHMS:
            raise ConfigError(
                f"subset_algorithm must be one of {', '.join(SUBSET_ALGORITHMS)},"
                f" not {self.subset_algorithm!r}"
            )
        check.count("subset_size", self.subset_size, 1, MAX_SUBSET_SIZE)
        if self.client_index is not None:
            check.count("client_index", self.client_index, 0, MAX_CLIENT_INDEX)
        check.fraction("enough_ratio", self.enough_ratio)
        check.positive("error_decay_seconds", self.error_decay_seconds)
        check.count("connecting_max", self.connecting_max, 1, 100_000)


@final
class Membership:
    """Keep a view of every backend in the subset, and of those that left with attempts unfinished.

    Views are keyed by address, so that counters survive a new list of backends.
    """

    def __init__(
        self,
        config: MembershipConfig,
        candidates: Candidates,
        *,
        rng: random.Random,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._config = config
        self._observer = observer
        self._candidates = candidates
        self._rng = rng
        # Without an index, rendezvous hashing needs only that client tasks differ.
        self._client_key = (
            rng.getrandbits(31) if config.client_index is None else config.client_index
        )
        self._known: tuple[Backend, ...] = ()
        self._base: tuple[Backend, ...] = ()
        self._base_addresses: frozenset[str] = frozenset()
        self._refusing = 0  # How many of them do.
        self._spares: list[Backend] | None = None
        self._is_widened = False
        self._views: dict[str, BackendView] = {}
        self._connecting = Connecting(connecting_max=config.connecting_max, rng=rng)
        self._to_close: list[Backend] = []

    @property
    def connect_at(self) -> float:
        """When the next refusing backend is to be tried again."""
        return self._connecting.connect_at

    @property
    def known(self) -> int:
        """How many backends the service has, in the subset or not."""
        return len(self._known)

    @property
    def views(self) -> Iterable[BackendView]:
        """Every backend that is in the subset or has unfinished attempts."""
        return self._views.values()

    def view(self, backend: Backend) -> BackendView | None:
        """Return what is known of a backend, or `None` if it is not in the subset."""
        return self._views.get(backend.address)

    def update(self, backends: Sequence[Backend], now: float) -> None:
        """Learn the service's backends, and cut the subset anew."""
        check_distinct(backends)
        self._known = tuple(backends)
        self._base = self._subset(self._config.subset_size)
        self._base_addresses = frozenset(backend.address for backend in self._base)
        self._refusing = sum(self._is_refusing(backend) for backend in self._base)
        self._spares = None
        self._is_widened = self._should_widen()
        self._apply(now)
        self._forgive_surplus(now)

    def moved(self, view: BackendView, now: float) -> None:
        """Act on what may be a change of a backend's health."""
        state = view.health.state
        if state is not view.shown_state:
            view.shown_state = state
            self._observer.backend_moved(view.backend.address, state.value)
        self._candidates.place(view, now)
        self._connecting.ended(view)
        if view.health.is_refusing != view.counts_as_refusing:
            view.counts_as_refusing = view.health.is_refusing
            if view.backend.address in self._base_addresses:
                self._count_refusing(1 if view.counts_as_refusing else -1, now)

    def connection(self, view: BackendView, event: ConnectionEvent, now: float) -> None:
        """Learn what happened to a connection."""
        health = view.health
        was_outage = not self._candidates.exist
        match event:
            case ConnectionEvent.OPENED:
                health.opened(now)
                view.unused_since = now  # What counts is how long this one is unused.
            case ConnectionEvent.REFUSED:
                health.refused(now)
                self._connecting.waived(view)  # Who waited has heard.
            case ConnectionEvent.LOST:
                health.lost(now)
        self.moved(view, now)
        self._connecting.schedule(view, now)
        if _is_out(view):
            self._connecting.refused(view)
        # The first that is back must not serve alone for as long as the others' delays last.
        if was_outage and health.state is not State.REFUSING:
            self._connecting.hope(now)

    def answered_probe(self, view: BackendView, now: float) -> None:
        """Learn that a backend answers by UDP; one that refuses and is heard again is tried.

        Only where it was not heard before, because it may answer there and refuse all the same.
        """
        seconds = now - view.answered_probe_at
        view.answered_probe_at = now
        if _is_out(view) and seconds > _HEARD_CHECKS * self._config.health.check_seconds:
            view.health.hope(now)
            self._connecting.schedule(view, now)

    def want(self, now: float) -> None:
        """Learn that a request found no backend."""
        self._connecting.want(now)

    def finished(self, view: BackendView) -> None:
        """Let go of a backend that has left the subset, with its last attempt."""
        if view.active == 0 and not view.in_subset:
            del self._views[view.backend.address]
            self._connecting.forget(view)
            self._to_close.append(view.backend)

    def take_connections(self, now: float) -> ConnectionOrders:
        """Return what to connect to and what to disconnect from; each is said once.

        What is beyond the cap is said when others have been opened or refused.
        """
        if self._connecting.is_empty and not self._to_close:
            return _NOTHING  # This is asked after every response.
        opens = self._connecting.take(now)
        closes = tuple(self._to_close)
        self._to_close = []
        return ConnectionOrders(tuple(opens), closes)

    def demand(self, view: BackendView, now: float) -> None:
        """Line up a backend that a request is to be sent to and that has no connection."""
        self._connecting.demand(view, now)

    def reconnect(self, now: float) -> None:
        """Line up the refusing backends whose delay is over."""
        self._connecting.wake(now)

    def check_health(self, now: float) -> list[BackendView]:
        """End a check interval; return the backends that have to be asked."""
        allowance = self._forgive_surplus(now)
        due: list[BackendView] = []
        for view in [view for view in self._views.values() if view.in_subset]:
            health = view.health
            self._let_rest(view, now)
            was_silent = health.is_silent
            is_due = health.check(now, may_go_silent=allowance > 0)
            # One that refuses is asked by UDP, where it ever answered: that is cheaper than to
            # connect, and tells sooner than its delay.
            if is_due or (_is_out(view) and view.answered_probe_at > -math.inf):
                due.append(view)
            if health.is_silent and not was_silent:
                allowance -= 1
                self._connecting.waived(view)
                self.moved(view, now)
                self._connecting.schedule(view, now)
        return due

    def _let_rest(self, view: BackendView, now: float) -> None:
        """Close the connection of a backend that was not used for long, if probes reach it.

        Not of a lame duck: that NOT_SERVING has ended, its connection alone may say.
        """
        config = self._config.health
        health = view.health
        if view.was_used or view.active:
            view.was_used = False
            view.unused_since = now
        elif (
            now - view.unused_since >= config.idle_seconds
            and health.is_connected
            and not health.is_connecting  # A silent one's was being replaced when it spoke.
            and health.state is State.HEALTHY
            and now - view.answered_probe_at <= _HEARD_CHECKS * config.check_seconds
        ):
            health.rest()
            self._to_close.append(view.backend)

    def _forgive_surplus(self, now: float) -> int:
        """Keep the panic rule where the subset shrank; return how many more may go silent."""
        members = [view for view in self._views.values() if view.in_subset]
        silent = [view for view in members if view.health.is_silent]
        allowance = int(self._config.health.silent_max_ratio * len(members)) - len(silent)
        for view in silent[: max(0, -allowance)]:
            view.health.forgive()
            self.moved(view, now)
        return max(0, allowance)

    def _apply(self, now: float) -> None:
        """Bring the views in line with the subset and with what refuses."""
        members = list(self._base)
        if self._is_widened:
            members += self._more()
        wanted = {backend.address: backend for backend in members}
        is_smaller = False
        for view in list(self._views.values()):
            if view.in_subset and view.backend.address not in wanted:
                is_smaller = True
                view.in_subset = False
                self._connecting.left(view)
                self._candidates.place(view, now)
                self.finished(view)
        joining: list[Backend] = []
        for backend in members:
            member = self._views.get(backend.address)
            if member is None or not member.in_subset:
                joining.append(backend)
            else:
                member.backend = backend  # Its index may have changed.
        # Client tasks that start together must not all begin with the same backend.
        self._rng.shuffle(joining)
        # It starts, or the list is a wholly new one.
        urgent = _FIRST_CONNECTIONS if len(joining) == len(members) else 0
        for place, backend in enumerate(joining):
            self._join(backend, now, is_urgent=place < urgent)
        if joining or is_smaller:
            self._observer.subset_changed(len(members))

    def _count_refusing(self, change: int, now: float) -> None:
        """Replace refusing backends when they are many, and give back when they are few."""
        self._refusing += change
        should_widen = self._should_widen()
        if should_widen != self._is_widened:
            self._is_widened = should_widen
            self._apply(now)

    def _should_widen(self) -> bool:
        """Return whether too many of the subset refuse; once widened, half of them must return.

        Without that gap, one flapping backend would open and close a subset's worth of connections
        each time.
        """
        enough = self._config.enough_ratio
        if self._is_widened:
            enough = (1.0 + enough) / 2.0
        return len(self._base) - self._refusing < enough * len(self._base)

    def _more(self) -> Sequence[Backend]:
        """Return as many backends again, and no more.

        If the whole service is down, widening further would only send every client everywhere.
        """
        if self._spares is None:
            base = {backend.address for backend in self._base}
            wider = self._subset(2 * self._config.subset_size)
            others = [backend for backend in wider if backend.address not in base]
            # Not every algorithm's larger subset contains the smaller one.
            self._spares = others[: len(wider) - len(self._base)]
        return self._spares

    def _join(self, backend: Backend, now: float, *, is_urgent: bool) -> None:
        view = self._views.get(backend.address)
        if view is None:
            view = BackendView(
                backend,
                Health(self._config.health, now=now, rng=self._rng),
                error_decay_seconds=self._config.error_decay_seconds,
                now=now,
            )
            self._views[backend.address] = view
            if not is_urgent:
                view.health.connect_at = view.health.spread(now)
        view.backend = backend
        view.in_subset = True
        view.unused_since = now  # Outside of the subset nobody looked.
        if _is_out(view):
            self._connecting.refused(view)
        self._candidates.place(view, now)
        self._connecting.schedule(view, now)

    def _subset(self, size: int) -> tuple[Backend, ...]:
        known = self._known
        algorithm = SUBSET_ALGORITHMS["rendezvous"]
        slots: Sequence[Backend | None] = known
        if self._config.client_index is not None:
            indices = [backend.index for backend in known if backend.index is not None]
            if len(indices) == len(known):
                algorithm = SUBSET_ALGORITHMS[self._config.subset_algorithm]
                by_index = dict(zip(indices, known, strict=True))
                slots = [by_index.get(index) for index in range(max(indices, default=-1) + 1)]
        return algorithm(slots, self._client_key, min(size, MAX_SUBSET_SIZE))

    def _is_refusing(self, backend: Backend) -> bool:
        view = self._views.get(backend.address)
        return view is not None and view.counts_as_refusing


def _is_out(view: BackendView) -> bool:
    """Return whether it refuses connections, rather than being silent on one."""
    return view.health.is_refusing and not view.health.is_connected
