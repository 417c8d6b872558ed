"""Log each problem of discovery once, not once per look."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, final

__all__ = ["ProblemLog"]

_LOGGER: Final = logging.getLogger("evenly.discovery")
# A file may be wrong in a new way each second, and what is remembered has to be bounded.
_REMEMBERED: Final = 16


@final
class ProblemLog:
    """Tell the operator what is wrong with one source, and when it is right again."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._logged: deque[str] = deque(maxlen=_REMEMBERED)

    def report(self, problem: str, kept: int | None) -> None:
        """Log a problem unless it is known; `kept` backends of the last good list stay in use."""
        if problem in self._logged:
            return
        self._logged.append(problem)
        if kept is None:
            _LOGGER.warning("%s: %s; no backends are known yet", self._source, problem)
        else:
            _LOGGER.warning("%s: %s; keeping the last list (%d)", self._source, problem, kept)

    def emptied(self, before: int) -> None:
        """Say that a good list has no backends, where there were some."""
        _LOGGER.warning("%s: lists no backends any more (%d before)", self._source, before)

    def solved(self, count: int) -> None:
        """Note a good list of `count` backends: the next problem is a new one."""
        if self._logged:
            self._logged.clear()
            _LOGGER.info("%s: good again (%d)", self._source, count)
