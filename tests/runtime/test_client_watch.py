"""What a client runtime does by itself: reconnect, check, follow discovery, hear reports."""

from __future__ import annotations

import asyncio

import pytest

from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionEvent
from evenly.core.report import LoadReport
from evenly.errors import ConfigError
from evenly.runtime.client import ClientRuntime
from evenly.wire.load_header import format_load
from tests.runtime.driven import (
    A,
    B,
    C,
    Listed,
    answering_backend,
    configured,
    healthy,
    silent_backend,
    started,
    until,
)


async def test_a_refusing_backend_is_tried_again() -> None:
    async with started(Listed([A, B]), closed=[B]) as (runtime, transport, _):
        await until(lambda: transport.connects.count(B) >= 3)
        assert healthy(runtime) == 1

        transport.closed.clear()

        await until(lambda: healthy(runtime) == 2)
        tried = transport.connects.count(B)
        assert transport.connects.count(A) == 1
        await asyncio.sleep(0.1)
        assert transport.connects.count(B) == tried  # It has a connection now.


async def test_backends_that_answer_no_probes_are_checked_over_their_connections() -> None:
    report = LoadReport(boot=1)
    # A check that is skipped because something was heard counts as one interval: be patient.
    health = HealthConfig(check_seconds=0.05, connect_jitter_seconds=0.0, unanswered_checks=1000)
    with silent_backend() as silent, answering_backend(report) as answering:
        config = configured(health=health)
        async with started(Listed([silent, answering]), config) as (runtime, transport, _):
            await until(lambda: runtime.prober.is_answering(answering))
            transport.checks.clear()
            await until(lambda: len(transport.checks) >= 3)

            assert set(transport.checks) == {silent}


async def test_a_backend_that_answers_nothing_is_given_up_and_comes_back() -> None:
    discovery = Listed([A, B, C])
    async with started(discovery, configured(is_probing=False)) as (runtime, transport, _):
        await until(lambda: healthy(runtime) == 3)
        # Half of three, rounded down, may go silent: the panic rule.
        await until(lambda: healthy(runtime) == 2)
        (silent,) = [
            view for view in runtime.task.snapshot().backends if view.state is State.REFUSING
        ]

        runtime.heard_serving(Backend(silent.address), is_serving=True)

        assert healthy(runtime) == 3
        assert set(transport.checks) == {A, B, C}


async def test_nothing_is_timed_after_it_stopped() -> None:
    discovery = Listed([A])
    async with started(discovery) as (runtime, transport, requests):
        await until(lambda: healthy(runtime) == 1)
        requests.begin("a")
        runtime.stop()
        await runtime.stopped()
        runtime.connection_changed(A, ConnectionEvent.LOST)  # The last word of a connection.
        requests.finish("a")
        seen = (len(transport.connects), len(transport.checks))
        discovery.say(B)
        await asyncio.sleep(0.1)

        assert (len(transport.connects), len(transport.checks)) == seen
        assert runtime._timer is not None
        assert runtime._timer.cancelled()
        assert not [task for task in asyncio.all_tasks() if "ClientRuntime" in repr(task)]


def test_it_has_no_loop_before_it_was_started() -> None:
    runtime = ClientRuntime(Listed.__new__(Listed), configured())

    with pytest.raises(RuntimeError, match="started"):
        _ = runtime.loop


def test_what_is_no_discovery_is_refused() -> None:
    with pytest.raises(ConfigError, match="target must be a string or a Discovery, not None"):
        ClientRuntime(None, configured())  # type: ignore[arg-type]  # the mistake


async def test_a_list_that_is_refused_leaves_the_last_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    discovery = Listed([A], [B, B], [Backend("x:1", 5), Backend("y:1", 5)])
    async with started(discovery) as (runtime, _, _requests):
        await until(lambda: "same index" in caplog.text)

        assert "same address" in caplog.text
        assert [view.address for view in runtime.task.snapshot().backends] == [A.address]
        assert discovery.watched == 1  # It is listened to still.


async def test_a_discovery_that_raises_is_asked_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenly.runtime.client._DISCOVERY_RETRY_SECONDS", 0.01)
    discovery = Listed([A], OSError("the source is gone"), [B])
    async with started(discovery) as (runtime, transport, _):
        await until(
            lambda: [view.address for view in runtime.task.snapshot().backends] == [B.address]
        )

        assert discovery.watched == 2
        assert "the source is gone" in caplog.text
        assert A in transport.disconnects


async def test_what_has_left_is_forgotten_and_what_was_renumbered_is_not() -> None:
    with answering_backend(LoadReport(boot=1)) as staying:
        discovery = Listed([staying, A])
        async with started(discovery) as (runtime, _, _requests):
            await until(lambda: runtime.prober.is_answering(staying))
            discovery.say(Backend(staying.address, 7))
            await until(lambda: runtime.task.snapshot().known == 1)

            assert runtime.prober.is_answering(staying)
            assert runtime.prober.snapshot().peers == 1


async def test_a_report_says_where_to_probe() -> None:
    report = LoadReport(boot=1, utilization=0.5)
    with answering_backend(report) as elsewhere:
        port = int(elsewhere.address.rpartition(":")[2])
        async with started(Listed([A])) as (runtime, _, _requests):
            await until(lambda: healthy(runtime) == 1)
            said = format_load(LoadReport(boot=1, probe_port=port))

            assert runtime.heard_load(A, said)
            await until(lambda: runtime.prober.is_answering(A))
            assert runtime.task.snapshot().backends[0].utilization == 0.5


async def test_what_a_stranger_says_changes_nothing() -> None:
    async with started(Listed([A]), configured(is_probing=False)) as (runtime, _, _requests):
        await until(lambda: healthy(runtime) == 1)
        for value in (None, b"", "nonsense", "1;b=5;r=nan", 5, "9" * 10_000):
            assert not runtime.heard_load(A, value)
        before = runtime.prober.snapshot().peers
        # A backend that has left may still answer: it is not to be probed for that.
        assert runtime.heard_load(B, format_load(LoadReport(boot=1, probe_port=9)))

        assert runtime.prober.snapshot().peers == before
        assert runtime.task.snapshot().backends[0].utilization is None
