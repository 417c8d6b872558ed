"""Say what the dashboard needs of whatever it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

__all__ = ["Source"]


class Source(Protocol):
    """Be what is shown, and what is acted on.

    What it returns and yields must be JSON: no NaN and no infinity.
    """

    def describe(self) -> dict[str, object]:
        """Return what a page needs once: names, texts, what can be chosen."""

    def frames(self) -> AsyncIterator[dict[str, object]]:
        """Yield each frame as it is made, from now on.

        It is called once per dashboard, which keeps the last frames itself and gives them to
        whoever opens the page later.
        """

    async def control(self, name: str, arguments: dict[str, object]) -> None:
        """Do what was asked for; raise `evenly.ConfigError` for an unknown name or a bad value.

        What takes long is begun here and shown by the frames: the page waits for the return.
        """
