"""The network between client tasks and backends: how long a message takes, and whether it passes.

Every sender draws its delays from a generator of its own, so that another client task does not
shift them.
"""

from __future__ import annotations

from typing import final

from evenly.sim.scenario import NetworkConfig

__all__ = ["Network"]


@final
class Network:
    """Know what is wrong with the network at present."""

    __slots__ = ("_cut", "config", "is_cut", "loss_ratio")

    def __init__(self, config: NetworkConfig) -> None:
        self.config = config
        self.loss_ratio = config.loss_ratio
        self.is_cut = False
        """Whether there is any partition: asked once per message."""
        self._cut: dict[tuple[int, str], int] = {}

    def slowest_seconds(self, base_seconds: float) -> float:
        """Return the longest that a message takes which is lost at most once."""
        config = self.config
        resend = config.resend_seconds if self.loss_ratio else 0.0
        return base_seconds * (1.0 + config.jitter_ratio) + resend

    def cut(self, client: int, address: str) -> None:
        """Let nothing pass between a client task and a backend."""
        pair = (client, address)
        self._cut[pair] = self._cut.get(pair, 0) + 1
        self.is_cut = True

    def mend(self, client: int, address: str) -> None:
        """Take one partition between the two away; another may remain."""
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
