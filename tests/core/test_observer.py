from __future__ import annotations

import inspect
import random
from typing import Any

from evenly.core.attempt import Ask, Attempt
from evenly.core.backend_task import Admission, BackendTask, BackendTaskConfig
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.client_task import ClientTask, ClientTaskConfig
from evenly.core.criticality import Criticality
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.overload.retry import RetryConfig
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from evenly.testing import ManualClock

METHODS = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Recorder(Observer):
    """Keep every call, bound to the signature that `Observer` gives it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in METHODS:
            return super().__getattribute__(name)

        def record(*args: object, **kwargs: object) -> None:
            bound = inspect.signature(getattr(Observer, name)).bind(self, *args, **kwargs)
            self.calls.append((name, {k: v for k, v in bound.arguments.items() if k != "self"}))

        return record

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        calls, self.calls = self.calls, []
        return calls


A, B = Backend("a:1"), Backend("b:1")
REQUEST = Request(criticality=Criticality.SHEDDABLE, customer="indexer")


def client_story(recorder: Recorder) -> list[tuple[str, dict[str, Any]]]:
    clock = ManualClock()
    config = ClientTaskConfig(retry=RetryConfig(initial_balance=1.0, budget_ratio=0.0))
    task = ClientTask(config, clock=clock, rng=random.Random(1), observer=recorder)
    assert isinstance(task.begin(REQUEST), Rejection)
    task.update([A, B])
    for backend in task.take_connections().open:
        task.record_connection(backend, ConnectionEvent.OPENED)
    ask = task.begin(REQUEST)
    assert isinstance(ask, Ask)
    first = ask.resume()
    assert isinstance(first, Attempt)
    clock.advance(0.25)
    assert first.finish(Outcome.OVERLOADED) is Next.RETRY
    second = task.begin(REQUEST, first)
    assert isinstance(second, Attempt)
    assert second.finish(Outcome.OVERLOADED) is Next.GIVE_UP  # The budget had one.
    return recorder.take()


def backend_story(recorder: Recorder) -> list[tuple[str, dict[str, Any]]]:
    clock = ManualClock()
    task = BackendTask(
        BackendTaskConfig(), clock=clock, rng=random.Random(1), boot=1, observer=recorder
    )
    task.announce_healthy()
    admission = task.admit(REQUEST)
    assert isinstance(admission, Admission)
    clock.advance(0.25)
    admission.finish(Outcome.OK, 0.125)
    task.record_signal("memory", 0.91)  # the head of the SHEDDABLE ramp
    assert isinstance(task.admit(REQUEST), Rejection)
    clock.advance(5.25)
    task.report()  # The signal has expired, and who asks finds out.
    task.enter_lame_duck()
    return recorder.take()


def test_a_client_task_tells_every_decision() -> None:
    calls = client_story(Recorder())
    moves = [call for call in calls if call[0] == "backend_moved"]
    attempts = [call for call in calls if call[0] == "attempt_begun"]
    first, second = (arguments["address"] for _, arguments in attempts)

    assert {first, second} == {"a:1", "b:1"}
    assert sorted(arguments["address"] for _, arguments in moves) == ["a:1", "b:1"]
    assert {arguments["state"] for _, arguments in moves} == {"healthy"}
    assert [call for call in calls if call not in moves] == [
        ("request_refused", {"request": REQUEST, "reason": Reason.NO_BACKEND}),
        ("subset_changed", {"size": 2}),
        ("asked", {"count": 2}),
        ("attempt_begun", {"address": first, "request": REQUEST, "number": 1}),
        ("attempt_finished", {"address": first, "outcome": Outcome.OVERLOADED, "seconds": 0.25}),
        ("attempt_begun", {"address": second, "request": REQUEST, "number": 2}),
        ("attempt_finished", {"address": second, "outcome": Outcome.OVERLOADED, "seconds": 0.0}),
        ("retry_refused", {"request": REQUEST}),
    ]


def test_a_backend_task_tells_every_decision() -> None:
    finished = {"request": REQUEST, "outcome": Outcome.OK, "cost": 0.125, "seconds": 0.25}

    assert backend_story(Recorder()) == [
        ("lame_duck_changed", {"is_lame_duck": False}),
        ("request_admitted", {"request": REQUEST}),
        ("request_finished", finished),
        ("admission_changed", {"criticality": Criticality.SHEDDABLE, "is_admitted": False}),
        ("request_rejected", {"request": REQUEST, "reason": Reason.OVERLOADED}),
        ("admission_changed", {"criticality": Criticality.SHEDDABLE, "is_admitted": True}),
        ("lame_duck_changed", {"is_lame_duck": True}),
    ]


def test_no_method_is_left_uncalled() -> None:
    calls = client_story(Recorder()) + backend_story(Recorder())

    assert {name for name, _ in calls} == set(METHODS)


def test_the_default_does_nothing_and_keeps_nothing() -> None:
    assert type(NO_OBSERVER) is Observer
    for name, arguments in client_story(Recorder()) + backend_story(Recorder()):
        getattr(NO_OBSERVER, name)(**arguments)  # Every method takes what it is told ...
    assert vars(NO_OBSERVER) == {}  # ... and remembers none of it.
