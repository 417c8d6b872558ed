from __future__ import annotations

import logging

import pytest

from evenly.core.attempt import Attempt
from evenly.core.backend_task import Admission
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.criticality import Criticality
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Next, Outcome, Reason, Request
from evenly.observe.guard import guarded
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.client import ClientRuntime
from tests.runtime.driven import A, Listed, configured

METHODS = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Raising(Observer):
    """Raise whatever is told."""

    def __getattribute__(self, name: str) -> object:
        if name not in METHODS:
            return super().__getattribute__(name)

        def tell(*args: object, **kwargs: object) -> None:
            raise ZeroDivisionError(name)

        return tell


def test_every_method_is_guarded_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    observer = guarded(Raising())
    request = Request()
    for _ in range(3):
        observer.attempt_begun("a:1", request, 1)
        observer.attempt_finished("a:1", Outcome.OK, 0.1)
        observer.request_refused(request, Reason.THROTTLED)
        observer.retry_refused(request)
        observer.asked(2)
        observer.backend_moved("a:1", "healthy")
        observer.subset_changed(1)
        observer.request_admitted(request)
        observer.request_rejected(request, Reason.OVERLOADED)
        observer.request_finished(request, Outcome.OK, 0.1, 0.1)
        observer.admission_changed(Criticality.CRITICAL, is_admitted=True)
        observer.lame_duck_changed(is_lame_duck=True)
    assert sorted(
        record.getMessage().split("'s ")[1].split()[0] for record in caplog.records
    ) == sorted(METHODS)
    assert all(record.levelno == logging.ERROR for record in caplog.records)


def test_nothing_is_put_around_no_observer() -> None:
    assert guarded(NO_OBSERVER) is NO_OBSERVER


def test_an_observer_that_raises_leaks_no_count_of_a_client_task() -> None:
    runtime = ClientRuntime(Listed(), configured(), observer=Raising())
    runtime.task.update([A])
    runtime.task.record_connection(A, ConnectionEvent.OPENED)
    attempt = runtime.task.begin(Request())
    assert isinstance(attempt, Attempt)
    assert runtime.task.snapshot().active == 1
    assert attempt.finish(Outcome.OVERLOADED) is Next.RETRY
    retry = runtime.task.begin(Request(), attempt)
    assert isinstance(retry, Attempt)
    assert retry.finish(Outcome.OK) is Next.DONE
    assert runtime.task.snapshot().active == 0


def test_an_observer_that_raises_leaks_no_count_of_a_backend() -> None:
    runtime = BackendRuntime(observer=Raising())
    assert runtime.task.announce_healthy()
    admission = runtime.task.admit(Request())
    assert isinstance(admission, Admission)
    admission.finish(Outcome.OK, 0.001)
    assert runtime.task.active == 0
    assert runtime.task.finished == 1
