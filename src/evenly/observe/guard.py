"""Keep an observer that raises from breaking what it observes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from evenly.core.observer import NO_OBSERVER, Observer

__all__ = ["guarded"]

_LOGGER = logging.getLogger("evenly.observe")
_METHODS = tuple(name for name in vars(Observer) if not name.startswith("_"))


def guarded(observer: Observer) -> Observer:
    """Return an observer that tells this one, and logs what it raises, once per method.

    An observer is called in the middle of a decision: if it raised there, an attempt would be
    counted in and never handed out, or ended by half.
    """
    return observer if observer is NO_OBSERVER else _Guarded(observer)


@final
class _Guarded(Observer):
    def __init__(self, observer: Observer) -> None:
        for name in _METHODS:
            setattr(self, name, _guard(getattr(observer, name), name))


def _guard(tell: Callable[..., None], name: str) -> Callable[..., None]:
    is_logged = False

    def told(*args: object, **kwargs: object) -> None:
        nonlocal is_logged
        try:
            tell(*args, **kwargs)
        except Exception:
            if not is_logged:
                is_logged = True
                _LOGGER.exception("an observer's %s raises; said once", name)

    return told
