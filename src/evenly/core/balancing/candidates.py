"""Which backends may be picked now.

Health and flow control meet here.  SRE book, chapter 20, "A Simple Approach to Unhealthy Tasks:
Flow Control": a backend at the limit of active requests is not sent more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from itertools import islice
from typing import Final, final

from evenly.core.balancing.backend import BackendView
from evenly.core.balancing.health import State
from evenly.core.balancing.policies.policy import Policy

__all__ = ["Candidates"]

_NOWHERE: Final = -1
_HEALTHY: Final = 0
_LAME_DUCK: Final = 1
_UNTRIED: Final = 2


@final
class Candidates:
    """Keep the policy filled with exactly the backends that may be picked.

    Those are the members of the best tier that is not empty, below their limit of active requests.
    The tiers are: healthy; lame ducks, the last resort, because they can still serve; and backends
    not yet tried, which may not exist.  A tier whose backends are all at their limit does not give
    way to the next, but `spare` finds a backend there before a request has to be rejected.
    """

    __slots__ = ("_active_limit", "_policy", "_tier", "_tiers")

    def __init__(self, policy: Policy, *, active_limit: int) -> None:
        self._policy = policy
        self._active_limit = active_limit
        # OrderedDicts, so that the order of backends does not depend on their hash.
        self._tiers: tuple[OrderedDict[BackendView, None], ...] = (
            OrderedDict(),
            OrderedDict(),
            OrderedDict(),
        )
        self._tier = _NOWHERE

    @property
    def are_healthy(self) -> bool:
        """Whether the backends that may be picked are healthy ones."""
        return self._tier == _HEALTHY

    @property
    def exist(self) -> bool:
        """Whether there is any backend that could be picked, were it below its limit."""
        return self._tier != _NOWHERE

    def place(self, view: BackendView, now: float) -> None:
        """Put a backend where its state and membership belong."""
        tier = _tier_of(view)
        if tier == view.tier:
            return
        if view.tier != _NOWHERE:
            del self._tiers[view.tier][view]
            self._withdraw(view)
        # A lame duck that announces itself is cold.  After a reconnect a new boot will tell, where
        # backends report; where they do not, it may be a new process.
        if tier == _HEALTHY and (view.tier == _LAME_DUCK or view.report is None):
            view.healthy_since = now
            view.forget_orca()
        view.tier = tier
        if tier != _NOWHERE:
            self._tiers[tier][view] = None
        best = next((level for level, views in enumerate(self._tiers) if views), _NOWHERE)
        if best != self._tier:
            self._open_tier(best, now)
        elif tier == best and tier != _NOWHERE:
            self._offer(view, now)

    def spare(self, avoid: Collection[BackendView]) -> BackendView | None:
        """Return a backend of a lower tier, for when the best tier is at its limit.

        A service that comes back announces one backend after the other, and the first must not get
        all the load while lame ducks could serve; and a burst at the start must not be rejected
        because connections are a few milliseconds late.
        """
        for tier in (self._tiers[_LAME_DUCK], self._tiers[_UNTRIED]):
            for view in tier:
                if view.active < self._active_limit and view not in avoid:
                    tier.move_to_end(view)
                    return view
        return None

    def some(self, count: int) -> list[BackendView]:
        """Return a few of the best tier, in turns: whom to ask when any will do."""
        if self._tier == _NOWHERE:
            return []
        tier = self._tiers[self._tier]
        chosen = list(islice(tier, count))
        for view in chosen:
            tier.move_to_end(view)
        return chosen

    def renew(self, view: BackendView, now: float) -> None:
        """Have the policy meet a backend anew: another process answers at its address."""
        view.healthy_since = now
        view.reports_since = None
        if view.is_pickable:
            self._withdraw(view)
            self._offer(view, now)

    def begin(self, view: BackendView) -> None:
        """Count an attempt to a backend."""
        view.begin()
        if view.active >= self._active_limit:
            self._withdraw(view)
        elif view.is_pickable and self._policy.follows_load:
            self._policy.changed(view)

    def finish(self, view: BackendView, now: float) -> None:
        """Count the end of an attempt to a backend, whatever has become of it in between."""
        view.finish()
        if view.is_pickable:
            if self._policy.follows_load:
                self._policy.changed(view)
        elif view.tier == self._tier and view.tier != _NOWHERE:
            self._offer(view, now)

    def _open_tier(self, tier: int, now: float) -> None:
        if self._tier != _NOWHERE:
            for view in self._tiers[self._tier]:
                self._withdraw(view)
        self._tier = tier
        if tier != _NOWHERE:
            for view in self._tiers[tier]:
                self._offer(view, now)

    def _offer(self, view: BackendView, now: float) -> None:
        if view.active < self._active_limit and not view.is_pickable:
            view.is_pickable = True
            self._policy.add(view, now)

    def _withdraw(self, view: BackendView) -> None:
        if view.is_pickable:
            view.is_pickable = False
            self._policy.remove(view)


def _tier_of(view: BackendView) -> int:
    if not view.in_subset:
        return _NOWHERE
    health = view.health
    if health.state is State.HEALTHY:
        return _HEALTHY
    if health.state is State.LAME_DUCK:
        return _LAME_DUCK
    return _UNTRIED if health.is_untried else _NOWHERE
