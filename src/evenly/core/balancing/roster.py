"""A set of backends with a fair random choice, all in constant time."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import final

from evenly.core.balancing.backend import BackendView

__all__ = ["Roster"]


@final
class Roster:
    """Keep backends in a list, so that one can be drawn, and their places, so that one can leave.

    The order is that of arrival, except that the last takes the place of one that leaves.
    """

    __slots__ = ("_places", "_views")

    def __init__(self) -> None:
        self._views: list[BackendView] = []
        self._places: dict[BackendView, int] = {}

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[BackendView]:
        return iter(self._views)

    def __contains__(self, view: BackendView) -> bool:
        return view in self._places

    def __getitem__(self, place: int) -> BackendView:
        return self._views[place]

    def add(self, view: BackendView) -> None:
        """Put a backend last."""
        self._places[view] = len(self._views)
        self._views.append(view)

    def remove(self, view: BackendView) -> None:
        """Take a backend out."""
        place = self._places.pop(view)
        last = self._views.pop()
        if last is not view:
            self._views[place] = last
            self._places[last] = place

    def draw(self, rng: random.Random, avoid: Collection[BackendView] = ()) -> BackendView | None:
        """Return one at random; one in `avoid` only where there is no other."""
        views = self._views
        size = len(views)
        if not size:
            return None
        view = views[int(rng.random() * size)]
        if avoid and view in avoid:
            # Draw again rather than take the neighbour, which would get a double share.
            others = [other for other in views if other not in avoid]
            if others:
                return others[int(rng.random() * len(others))]
        return view
