"""Say what the dashboard needs of whatever it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

__all__ = ["Source"]


class Source(Protocol):
    """Be what is shown, and what is acted on.

    What it returns and yields must be JSON: no NaN and no infinity.
    """

    def describe(self) -> dict[str, object]:
        """Return what a page needs once: names, texts, what can be chosen."""

    def targets(self, address: str) -> Sequence[Mapping[str, object]]:
        """Return where the metrics of all processes are, as Prometheus' HTTP service discovery.

        `address` is the dashboard's own, host and port, as whoever asks has it.
        """

    def metrics(self) -> str:
        """Return the source's own metrics, in Prometheus' text format."""

    def frames(self) -> AsyncIterator[dict[str, object]]:
        """Yield each frame as it is made, from now on.

        It is called once per dashboard, which keeps the last frames itself and gives them to
        whoever opens the page later.
        """

    async def control(self, name: str, arguments: dict[str, object]) -> None:
        """Do what was asked for; raise `evenly.ConfigError` for an unknown name or a bad value.

        What takes long is begun here and shown by the frames: the page waits for the return.
        """
