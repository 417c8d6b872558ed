"""Use several observers where one is wanted."""

from __future__ import annotations

from typing import final

from evenly.core.criticality import Criticality
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Outcome, Reason, Request

__all__ = ["tee"]


def tee(*observers: Observer) -> Observer:
    """Return an observer that tells each of these, in this order, what it is told.

    It looks at nothing and catches nothing: an observer must not raise, and the runtimes log what
    one that does has raised.
    """
    if not observers:
        return NO_OBSERVER
    return observers[0] if len(observers) == 1 else _Tee(observers)


@final
class _Tee(Observer):
    __slots__ = ("_observers",)

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers

    def attempt_begun(self, address: str, request: Request, number: int) -> None:
        for observer in self._observers:
            observer.attempt_begun(address, request, number)

    def attempt_finished(self, address: str, outcome: Outcome, seconds: float) -> None:
        for observer in self._observers:
            observer.attempt_finished(address, outcome, seconds)

    def request_refused(self, request: Request, reason: Reason) -> None:
        for observer in self._observers:
            observer.request_refused(request, reason)

    def retry_refused(self, request: Request) -> None:
        for observer in self._observers:
            observer.retry_refused(request)

    def asked(self, count: int) -> None:
        for observer in self._observers:
            observer.asked(count)

    def backend_moved(self, address: str, state: str) -> None:
        for observer in self._observers:
            observer.backend_moved(address, state)

    def subset_changed(self, size: int) -> None:
        for observer in self._observers:
            observer.subset_changed(size)

    def request_admitted(self, request: Request) -> None:
        for observer in self._observers:
            observer.request_admitted(request)

    def request_rejected(self, request: Request, reason: Reason) -> None:
        for observer in self._observers:
            observer.request_rejected(request, reason)

    def request_finished(
        self, request: Request, outcome: Outcome, cost: float, seconds: float
    ) -> None:
        for observer in self._observers:
            observer.request_finished(request, outcome, cost, seconds)

    def admission_changed(self, criticality: Criticality, *, is_admitted: bool) -> None:
        for observer in self._observers:
            observer.admission_changed(criticality, is_admitted=is_admitted)

    def lame_duck_changed(self, *, is_lame_duck: bool) -> None:
        for observer in self._observers:
            observer.lame_duck_changed(is_lame_duck=is_lame_duck)
