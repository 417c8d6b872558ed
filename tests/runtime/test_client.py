"""What a client task needs from an event loop: order of waiting, probes, timers, discovery."""

from __future__ import annotations

import asyncio
import time

import pytest

from evenly.core.attempt import Ask, Attempt
from evenly.core.client_task import ClientTask
from evenly.core.exchange import Exchange, Park, Step
from evenly.core.report import LoadReport
from evenly.core.request import Outcome, Reason, Request
from evenly.wire.load_header import format_load
from tests.runtime.driven import (
    A,
    B,
    Listed,
    answering_backend,
    configured,
    healthy,
    silent_backend,
    started,
    until,
)

# Waiting for a backend.


async def test_what_waits_for_the_first_list_goes_on_in_its_order() -> None:
    discovery = Listed()
    async with started(discovery) as (_, _, requests):
        for name in "abcd":
            requests.begin(name, is_patient=name in "bd")
        assert requests.names == []
        discovery.say(A, B)
        await until(lambda: len(requests.gone_on) == 4)

        assert requests.names == list("abcd")
        assert all(isinstance(step, Attempt) for _, step in requests.gone_on)


async def test_without_backends_only_the_patient_wait_on() -> None:
    discovery = Listed()
    async with started(discovery) as (_, _, requests):
        for name in "abcd":
            requests.begin(name, is_patient=name in "ac")
        discovery.say()  # There are none, and that is known.
        await until(lambda: len(requests.gone_on) == 2)
        requests.begin("e")

        assert requests.names == ["b", "d", "e"]
        assert {requests.reason(name) for name in "bde"} == {Reason.NO_BACKEND}
        discovery.say(A)
        await until(lambda: len(requests.gone_on) == 5)
        assert requests.names[3:] == ["a", "c"]


async def test_the_wait_for_the_first_list_ends() -> None:
    async with started(Listed(), configured(discovery_seconds=0.02)) as (runtime, _, requests):
        requests.begin("a")
        requests.begin("b", is_patient=True)
        await until(lambda: requests.gone_on)

        assert runtime.is_discovered
        assert (requests.names, requests.reason("a")) == (["a"], Reason.NO_BACKEND)
        assert runtime.requests.parked == 1


async def test_at_the_limit_the_patient_go_on_one_by_one_in_their_order() -> None:
    config = configured(active_limit=1)
    async with started(Listed([A]), config) as (runtime, _, requests):
        await until(lambda: healthy(runtime) == 1)
        for name in "abc":
            requests.begin(name, is_patient=True)
        requests.begin("impatient")

        assert requests.names == ["a", "impatient"]
        assert requests.reason("impatient") is Reason.AT_LIMIT
        requests.finish("a")
        assert requests.names[2:] == ["b"]
        requests.begin("d", is_patient=True)
        requests.finish("b")
        requests.finish("c")
        assert requests.names[2:] == ["b", "c", "d"]


async def test_nobody_overtakes_who_waits_and_who_came_first_waits_first() -> None:
    config = configured(active_limit=1)
    async with started(Listed([A]), config) as (runtime, _, requests):
        await until(lambda: healthy(runtime) == 1)
        requests.begin("a", is_patient=True)
        requests.begin("b", is_patient=True)
        requests.exchanges["a"].ended(Outcome.OK)  # There is a place, and b has not been told.
        requests.begin("c", is_patient=True)
        assert requests.names == ["a"]
        runtime.follow_up()
        assert requests.names == ["a", "b"]
        requests.cannot_send("b")  # It had been begun before c, and came to nothing.

        assert requests.names == ["a", "b", "b"]
        requests.finish("b")
        assert requests.names == ["a", "b", "b", "c"]


async def test_who_gives_up_is_forgotten_and_holds_up_nobody() -> None:
    config = configured(active_limit=1)
    async with started(Listed([A]), config) as (runtime, _, requests):
        await until(lambda: healthy(runtime) == 1)
        for name in "abcd":
            requests.begin(name, is_patient=True)
        requests.exchanges["b"].cancel()
        requests.exchanges["c"].cancel()
        requests.exchanges["c"].cancel()  # A second time does nothing.

        assert runtime.requests.parked == 1
        requests.finish("a")
        assert requests.names == ["a", "d"]


async def test_more_can_wait_than_python_can_nest() -> None:
    discovery = Listed()
    async with started(discovery, configured(active_limit=10_000)) as (_, _, requests):
        requests.settles = True  # As a transport does that has to open a connection first.
        for number in range(3000):
            requests.begin(str(number), is_patient=number % 2 == 0)
        discovery.say(A, B)
        await until(lambda: len(requests.gone_on) == 3000)

        assert requests.names == [str(number) for number in range(3000)]


async def test_who_waits_again_does_not_keep_the_loop_busy() -> None:
    """A request that goes on, cannot be sent and waits again is begun once per change."""
    async with started(Listed([A])) as (runtime, _, _requests):
        await until(lambda: healthy(runtime) == 1)
        begun: list[Attempt] = []
        exchange = Exchange(runtime.requests, Request(), is_patient=True)

        def cannot_send(step: Step) -> None:
            if not isinstance(step, Attempt):
                return  # It has stopped.
            begun.append(step)
            while isinstance(step, Attempt):
                step = exchange.not_sent()  # It is sent nowhere.
            assert isinstance(step, Park)
            runtime.hold(exchange, step, cannot_send)
            runtime.follow_up()

        cannot_send(runtime.begin(exchange))
        assert len(begun) == 2
        runtime.follow_up()
        assert len(begun) == 3


async def test_what_waits_when_it_stops_is_rejected() -> None:
    async with started(Listed()) as (runtime, _, requests):
        requests.begin("a")
        requests.begin("b", is_patient=True)
        runtime.stop()

        assert requests.names == ["a", "b"]
        assert {requests.reason(name) for name in "ab"} == {Reason.NO_BACKEND}


# Asking.


async def test_a_question_that_nobody_answers_holds_the_request_for_its_time() -> None:
    with silent_backend() as first, silent_backend() as second:
        config = configured(policy="probing", ask_seconds=0.03)
        async with started(Listed([first, second]), config) as (runtime, _, requests):
            await until(lambda: healthy(runtime) == 2)
            requests.begin("a")
            assert requests.names == []
            await until(lambda: requests.gone_on)

            assert isinstance(requests.step("a"), Attempt)
            assert runtime.prober.snapshot().answered == 0


async def test_an_answered_question_does_not_wait_for_the_rest_of_its_time() -> None:
    busy, free = LoadReport(boot=1, runnable=9.0), LoadReport(boot=2, runnable=0.0)
    with answering_backend(busy) as first, answering_backend(free) as second:
        # If it waited for its time, this would take ten seconds and then be cut off.
        config = configured(policy="probing", ask_seconds=10.0)
        async with started(Listed([first, second]), config) as (runtime, _, requests):
            await until(lambda: healthy(runtime) == 2)
            requests.begin("a")
            async with asyncio.timeout(9):
                await until(lambda: requests.gone_on)

            attempt = requests.step("a")
            assert isinstance(attempt, Attempt)
            assert attempt.backend == second


async def test_a_request_given_up_while_it_asks_is_not_begun() -> None:
    with silent_backend() as first, silent_backend() as second:
        config = configured(policy="probing", ask_seconds=0.02)
        async with started(Listed([first, second]), config) as (runtime, _, requests):
            await until(lambda: healthy(runtime) == 2)
            requests.begin("a")
            requests.exchanges["a"].cancel()
            await asyncio.sleep(0.1)

            assert requests.gone_on == []
            assert runtime.task.snapshot().active == 0


async def test_without_probes_nobody_waits_for_answers() -> None:
    config = configured(policy="probing", ask_seconds=10.0, is_probing=False)
    async with started(Listed([A, B]), config) as (runtime, _, requests):
        await until(lambda: healthy(runtime) == 2)
        requests.begin("a")

        assert requests.names == ["a"]
        assert runtime.task.snapshot().policy == "weighted_least_loaded"


async def test_without_probes_a_question_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A throttle asks too, whatever the policy."""

    def ask(task: ClientTask, request: Request) -> Ask:
        return task._ask(task._resume, request, list(task._membership.views), time.monotonic())

    config = configured(ask_seconds=10.0, is_probing=False)
    async with started(Listed([A, B]), config) as (runtime, _, requests):
        await until(lambda: healthy(runtime) == 2)
        with monkeypatch.context() as patched:
            patched.setattr(ClientTask, "begin", ask)
            requests.begin("a")

        assert requests.names == []  # Never from within.
        async with asyncio.timeout(9):
            await until(lambda: requests.names == ["a"])
        assert isinstance(requests.step("a"), Attempt)


async def test_a_patient_request_that_asked_waits_on_where_nobody_is_free() -> None:
    with silent_backend() as first, silent_backend() as second:
        config = configured(policy="probing", ask_seconds=0.02, active_limit=1)
        async with started(Listed([first, second]), config) as (runtime, _, requests):
            await until(lambda: healthy(runtime) == 2)
            for name in "abc":  # All three ask, and there are two places.
                requests.begin(name, is_patient=True)
            requests.begin("d", is_patient=False)
            await until(lambda: len(requests.gone_on) >= 3)

            assert requests.names[:2] == ["a", "b"]
            assert requests.reason("d") is Reason.AT_LIMIT
            assert "c" not in requests.names
            requests.finish("a")
            await until(lambda: "c" in requests.names)


# What was heard.


async def test_what_a_backend_repeats_is_heard_each_time_and_parsed_once() -> None:
    text = format_load(LoadReport(boot=7, runnable=2.0, probe_port=4711))
    async with started(Listed([A])) as (runtime, _, _):
        await until(lambda: healthy(runtime) == 1)
        view = runtime.task._membership.view(A)  # Nothing public has the instant.
        assert view is not None
        assert runtime.heard_load(A, text)
        first, first_at = view.report, view.reported_at
        await asyncio.sleep(0.001)
        assert runtime.heard_load(A, text.encode().decode())

        assert view.report is first
        assert view.reported_at > first_at
        assert runtime.heard_load(A, text.replace("r=2", "r=3"))
        assert view.report is not None
        assert view.report.runnable == 3.0
        assert not runtime.heard_load(A, text[:10])


async def test_a_wake_that_raises_is_logged_once_and_comes_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("evenly.runtime.client._WAKE_RETRY_SECONDS", 0.001)
    wakes = 0

    def wake(task: ClientTask) -> None:
        nonlocal wakes
        wakes += 1
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(ClientTask, "wake", wake)
    async with started(Listed([A])):
        await until(lambda: wakes >= 3)
    said = [one for one in caplog.records if "periodic work failed" in one.message]
    assert len(said) == 1
    assert said[0].exc_info is not None
