"""The network between client tasks and backends: how long a message takes, and whether it passes.

Every sender draws its delays from a generator of its own, so that another client task does not
shift them.
"""

from __future__ import annotations

import math
from typing import final

from evenly.lab.sim.scenario import NetworkConfig

__all__ = ["Network"]


@final
class Network:
    """Know what is wrong with the network at present."""

    __slots__ = ("_cut", "_losses", "_mended_at", "config", "is_cut", "loss_ratio")

    def __init__(self, config: NetworkConfig) -> None:
        self.config = config
        self.loss_ratio = config.loss_ratio
        self.is_cut = False
        """Whether there is any partition: asked once per message."""
        self._cut: dict[tuple[int, str], int] = {}
        self._losses = [config.loss_ratio]
        self._mended_at = -math.inf

    def slowest_seconds(self, base_seconds: float) -> float:
        """Return the longest that a message takes while nothing is lost."""
        return base_seconds * (1.0 + self.config.jitter_ratio)

    def was_fine_since(self, instant: float) -> bool:
        """Return whether nothing has been lost, of what was sent then or later."""
        return not self.is_cut and not self.loss_ratio and self._mended_at < instant

    def lose(self, ratio: float, now: float) -> None:
        """Lose this part of all messages from now on."""
        self._losses.append(ratio)
        self.loss_ratio = ratio
        self._mended_at = now

    def stop_losing(self, ratio: float, now: float) -> None:
        """End one loss; of those that remain, the latest counts."""
        self._losses.remove(ratio)
        self.loss_ratio = self._losses[-1]
        self._mended_at = now

    def cut(self, client: int, address: str) -> None:
        """Let nothing pass between a client task and a backend."""
        pair = (client, address)
        self._cut[pair] = self._cut.get(pair, 0) + 1
        self.is_cut = True

    def mend(self, client: int, address: str, now: float) -> None:
        """Take one partition between the two away; another may remain."""
        self._mended_at = now
        pair = (client, address)
        left = self._cut.get(pair, 0) - 1
        if left > 0:
            self._cut[pair] = left
        else:
            self._cut.pop(pair, None)
        self.is_cut = bool(self._cut)

    def passes(self, client: int, address: str) -> bool:
        """Return whether messages pass between the two now."""
        return (client, address) not in self._cut
