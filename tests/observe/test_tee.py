from __future__ import annotations

import pytest

from evenly.core.criticality import Criticality
from evenly.core.observer import NO_OBSERVER, Observer
from evenly.core.request import Outcome, Reason, Request
from evenly.observe import tee

REQUEST = Request()
CALLS: tuple[tuple[str, tuple[object, ...], dict[str, object]], ...] = (
    ("attempt_begun", ("a:1", REQUEST, 1), {}),
    ("attempt_finished", ("a:1", Outcome.OK, 0.5), {}),
    ("request_refused", (REQUEST, Reason.THROTTLED), {}),
    ("retry_refused", (REQUEST,), {}),
    ("asked", (2,), {}),
    ("backend_moved", ("a:1", "healthy"), {}),
    ("subset_changed", (3,), {}),
    ("request_admitted", (REQUEST,), {}),
    ("request_rejected", (REQUEST, Reason.OVERLOADED), {}),
    ("request_finished", (REQUEST, Outcome.OK, 0.25, 0.5), {}),
    ("admission_changed", (Criticality.CRITICAL,), {"is_admitted": True}),
    ("lame_duck_changed", (), {"is_lame_duck": True}),
)


class Recorder(Observer):
    def __init__(self, name: str, heard: list[tuple[object, ...]]) -> None:
        self._name = name
        self._heard = heard

    def __getattribute__(self, name: str) -> object:
        if name.startswith("_"):
            return super().__getattribute__(name)
        return lambda *args, **kwargs: self._heard.append((self._name, name, args, kwargs))


def test_the_calls_below_are_all_of_an_observer() -> None:
    assert {name for name, _, _ in CALLS} == {n for n in vars(Observer) if not n.startswith("_")}


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS, ids=[name for name, _, _ in CALLS])
def test_each_is_told_the_same_in_order(
    name: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    heard: list[tuple[object, ...]] = []
    observer = tee(Recorder("first", heard), Recorder("second", heard))

    getattr(observer, name)(*args, **kwargs)

    assert heard == [("first", name, args, kwargs), ("second", name, args, kwargs)]


def test_one_is_itself_and_none_is_nobody() -> None:
    one = Observer()

    assert tee(one) is one
    assert tee() is NO_OBSERVER


@pytest.mark.parametrize("odd", [None, -1, float("nan"), "\n", [], object()])
def test_it_looks_at_nothing(odd: object) -> None:
    observer = tee(Observer(), Observer())
    for name, args, kwargs in CALLS:
        getattr(observer, name)(*(odd for _ in args), **dict.fromkeys(kwargs, odd))


def test_a_mistake_is_not_hidden() -> None:
    class Broken(Observer):
        def asked(self, count: int) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tee(Broken(), Observer()).asked(1)
