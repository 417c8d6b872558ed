"""Order is part of behaviour: what is due, when, and what comes first of two at one instant."""

from __future__ import annotations

from functools import partial

from evenly.lab.sim.events import Events


def test_events_come_in_order_of_time_whatever_the_order_of_asking() -> None:
    events = Events()
    seen: list[tuple[str, float]] = []
    for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.5)):
        events.at(at, lambda name=name: seen.append((name, events.now)))  # type: ignore[misc]

    events.run(3.0)

    assert seen == [("a", 1.0), ("b", 2.5), ("c", 3.0)]


def test_events_at_one_instant_come_in_order_of_asking() -> None:
    events = Events()
    seen: list[int] = []
    for i in range(100):
        # The same instant, asked for in both ways.
        if i % 2:
            events.at(1.0, partial(seen.append, i))
        else:
            events.after(1.0, partial(seen.append, i))

    events.run(1.0)

    assert seen == list(range(100))


def test_what_an_event_asks_for_now_comes_after_what_was_asked_before() -> None:
    events = Events()
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        events.after(0.0, partial(seen.append, "asked by the first"))

    events.at(1.0, first)
    events.at(1.0, partial(seen.append, "second"))

    events.run(1.0)

    assert seen == ["first", "second", "asked by the first"]


def test_after_counts_from_the_event_that_asks() -> None:
    events = Events()
    instants: list[float] = []

    def tick() -> None:
        instants.append(events.clock())
        events.after(0.25, tick)

    events.at(1.0, tick)
    events.run(1.5)

    assert instants == [1.0, 1.25, 1.5]


def test_a_run_ends_at_its_end_and_the_next_goes_on() -> None:
    events = Events()
    seen: list[str] = []
    events.at(2.0, partial(seen.append, "at the end"))
    events.at(2.0 + 1e-9, partial(seen.append, "later"))

    events.run(2.0)
    assert (seen, events.now) == (["at the end"], 2.0)
    events.run(5.0)
    assert (seen, events.now) == (["at the end", "later"], 5.0)
    events.run(4.0)  # Time does not go back.
    assert events.now == 5.0
