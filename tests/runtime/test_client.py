"""What a client task needs from an event loop: order of waiting, probes, timers, discovery."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from evenly.core.attempt import Attempt
from evenly.core.balancing.backend import Backend
from evenly.core.balancing.health import HealthConfig, State
from evenly.core.balancing.membership import ConnectionEvent, MembershipConfig
from evenly.core.balancing.policies.catalogue import PolicyConfig
from evenly.core.client_task import ClientTaskConfig
from evenly.core.report import LoadReport
from evenly.core.request import Next, Outcome, Reason, Rejection, Request
from evenly.errors import ConfigError
from evenly.probe.config import ProbeConfig
from evenly.probe.responder import ProbeResponder
from evenly.runtime.client import ClientRuntime, Waiting
from evenly.runtime.client_config import ClientConfig
from evenly.wire.load_header import format_load

A, B, C = Backend("127.0.0.1:1"), Backend("127.0.0.1:2"), Backend("127.0.0.1:3")
HEALTH = HealthConfig(
    check_seconds=0.02,
    connect_jitter_seconds=0.0,
    backoff_first_seconds=0.02,
    backoff_max_seconds=0.02,
)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; the time-out only keeps a failure from hanging."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


class Listed:
    """Be a discovery that says what the test says."""

    def __init__(self, *first: Sequence[Backend] | Exception) -> None:
        self.watched = 0
        self._lists: asyncio.Queue[Sequence[Backend] | Exception] = asyncio.Queue()
        for backends in first:
            self._lists.put_nowait(backends)

    def say(self, *backends: Backend) -> None:
        self._lists.put_nowait(backends)

    async def watch(self) -> AsyncIterator[Sequence[Backend]]:
        self.watched += 1
        while True:
            said = await self._lists.get()
            if isinstance(said, Exception):
                raise said
            yield said


class Transport:
    """Connect at once to everyone who is not in `closed`."""

    def __init__(self) -> None:
        self.runtime: ClientRuntime | None = None
        self.closed: set[Backend] = set()
        self.connects: list[Backend] = []
        self.disconnects: list[Backend] = []
        self.checks: list[Backend] = []

    def connect(self, backend: Backend) -> None:
        self.connects.append(backend)
        event = ConnectionEvent.OPENED if backend not in self.closed else ConnectionEvent.REFUSED
        assert self.runtime is not None
        loop = asyncio.get_running_loop()
        loop.call_soon(self.runtime.connection_changed, backend, event)

    def disconnect(self, backend: Backend) -> None:
        self.disconnects.append(backend)

    def check(self, backend: Backend) -> None:
        self.checks.append(backend)


class Requests:
    """Begin requests by name, and keep what became of each, in order."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self.runtime = runtime
        self.settles = False
        self.ended: list[tuple[str, Attempt | Rejection]] = []
        self.waiting: dict[str, Waiting] = {}

    def begin(self, name: str, *, is_patient: bool = False) -> None:
        def go_on(answer: Attempt | Rejection) -> None:
            self.ended.append((name, answer))
            if self.settles:
                self.runtime.settled()

        answer = self.runtime.begin(Request(), go_on, is_patient=is_patient)
        if isinstance(answer, Waiting):
            self.waiting[name] = answer
        else:
            go_on(answer)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ended]

    def answer(self, name: str) -> Attempt | Rejection:
        return dict(self.ended)[name]

    def reason(self, name: str) -> Reason:
        answer = self.answer(name)
        assert isinstance(answer, Rejection)
        return answer.reason

    def finish(self, name: str) -> None:
        attempt = self.answer(name)
        assert isinstance(attempt, Attempt)
        assert attempt.finish(Outcome.OK) is Next.DONE
        self.runtime.settled()


def configured(
    *,
    policy: str = "round_robin",
    active_limit: int = 100,
    ask_seconds: float = 0.05,
    is_probing: bool = True,
    discovery_seconds: float = 3600.0,
    health: HealthConfig = HEALTH,
) -> ClientConfig:
    task = ClientTaskConfig(
        policy=PolicyConfig(name=policy),
        membership=MembershipConfig(health=health),
        active_limit=active_limit,
        ask_seconds=ask_seconds,
    )
    return ClientConfig(
        task=task, probe=ProbeConfig(is_on=is_probing), discovery_seconds=discovery_seconds
    )


@contextlib.asynccontextmanager
async def started(
    discovery: Listed, config: ClientConfig | None = None, *, closed: Sequence[Backend] = ()
) -> AsyncIterator[tuple[ClientRuntime, Transport, Requests]]:
    runtime = ClientRuntime(discovery, configured() if config is None else config)
    transport = Transport()
    transport.runtime = runtime
    transport.closed.update(closed)
    runtime.start(asyncio.get_running_loop(), transport)
    try:
        yield runtime, transport, Requests(runtime)
    finally:
        runtime.stop()
        await runtime.stopped()


def healthy(runtime: ClientRuntime) -> int:
    return sum(view.state is State.HEALTHY for view in runtime.task.snapshot().backends)


# Waiting for a backend.


async def test_what_waits_for_the_first_list_goes_on_in_its_order() -> None:
    discovery = Listed()
    async with started(discovery) as (_, _, requests):
        for name in "abcd":
            requests.begin(name, is_patient=name in "bd")
        assert requests.names == []
        discovery.say(A, B)
        await until(lambda: len(requests.ended) == 4)

        assert requests.names == list("abcd")
        assert all(isinstance(answer, Attempt) for _, answer in requests.ended)


async def test_without_backends_only_the_patient_wait_on() -> None:
    discovery = Listed()
    async with started(discovery) as (_, _, requests):
        for name in "abcd":
            requests.begin(name, is_patient=name in "ac")
        discovery.say()  # There are none, and that is known.
        await until(lambda: len(requests.ended) == 2)
        requests.begin("e")

        assert requests.names == ["b", "d", "e"]
        assert {requests.reason(name) for name in "bde"} == {Reason.NO_BACKEND}
        discovery.say(A)
        await until(lambda: len(requests.ended) == 5)
        assert requests.names[3:] == ["a", "c"]


async def test_the_wait_for_the_first_list_ends() -> None:
    async with started(Listed(), configured(discovery_seconds=0.02)) as (runtime, _, requests):
        requests.begin("a")
        requests.begin("b", is_patient=True)
        await until(lambda: requests.ended)

        assert runtime.is_discovered
        assert (requests.names, requests.reason("a")) == (["a"], Reason.NO_BACKEND)
        assert not requests.waiting["b"].is_over


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
        attempt = requests.answer("a")
        assert isinstance(attempt, Attempt)
        attempt.finish(Outcome.OK)  # There is a place, and b has not been told.
        requests.begin("c", is_patient=True)
        assert requests.names == ["a"]
        requests.begin("d", is_patient=True)
        runtime.park_first(requests.waiting["d"])  # It had been begun before, and came to nothing.
        runtime.settled()

        for name in ("d", "b", "c"):
            assert requests.names[-1] == name
            requests.finish(name)


async def test_who_gives_up_is_forgotten_and_holds_up_nobody() -> None:
    config = configured(active_limit=1)
    async with started(Listed([A]), config) as (runtime, _, requests):
        await until(lambda: healthy(runtime) == 1)
        for name in "abcd":
            requests.begin(name, is_patient=True)
        requests.waiting["b"].cancel()
        requests.waiting["c"].cancel()
        requests.waiting["c"].cancel()  # A second time does nothing.

        assert len(runtime._parked) == 1
        requests.finish("a")
        assert requests.names == ["a", "d"]


async def test_more_can_wait_than_python_can_nest() -> None:
    discovery = Listed()
    async with started(discovery, configured(active_limit=10_000)) as (_, _, requests):
        requests.settles = True  # As a transport does that has to open a connection first.
        for number in range(3000):
            requests.begin(str(number), is_patient=number % 2 == 0)
        discovery.say(A, B)
        await until(lambda: len(requests.ended) == 3000)

        assert requests.names == [str(number) for number in range(3000)]


async def test_who_waits_again_does_not_keep_the_loop_busy() -> None:
    """A request that goes on, cannot be sent and waits again is begun once per change."""
    async with started(Listed([A])) as (runtime, _, _requests):
        await until(lambda: healthy(runtime) == 1)
        begun: list[Attempt] = []

        def cannot_send(answer: Attempt | Rejection) -> None:
            if not isinstance(answer, Attempt):
                return  # It has stopped.
            begun.append(answer)
            answer.finish(Outcome.NOT_SENT, is_final=True)
            runtime.settled()
            runtime.park(Request(), cannot_send, is_patient=True)

        runtime.park(Request(), cannot_send, is_patient=True)
        runtime.settled()
        assert len(begun) == 1
        runtime.settled()
        assert len(begun) == 2


async def test_what_waits_when_it_stops_is_rejected() -> None:
    async with started(Listed()) as (runtime, _, requests):
        requests.begin("a")
        requests.begin("b", is_patient=True)
        runtime.stop()

        assert requests.names == ["a", "b"]
        assert {requests.reason(name) for name in "ab"} == {Reason.NO_BACKEND}


# Asking.


@contextlib.contextmanager
def silent_backend() -> Iterator[Backend]:
    """Be a backend whose UDP port takes questions and never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield Backend(f"127.0.0.1:{sock.getsockname()[1]}")


@contextlib.contextmanager
def answering_backend(report: LoadReport) -> Iterator[Backend]:
    responder = ProbeResponder(lambda: report)
    port = responder.bind("127.0.0.1", 0)
    responder.start(asyncio.get_running_loop())
    try:
        yield Backend(f"127.0.0.1:{port}")
    finally:
        responder.stop()


async def test_a_question_that_nobody_answers_holds_the_request_for_its_time() -> None:
    with silent_backend() as first, silent_backend() as second:
        config = configured(policy="probing", ask_seconds=0.03)
        async with started(Listed([first, second]), config) as (runtime, _, requests):
            await until(lambda: healthy(runtime) == 2)
            requests.begin("a")
            assert not requests.waiting["a"].is_over
            await until(lambda: requests.ended)

            assert isinstance(requests.answer("a"), Attempt)
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
                await until(lambda: requests.ended)

            attempt = requests.answer("a")
            assert isinstance(attempt, Attempt)
            assert attempt.backend == second


async def test_a_request_given_up_while_it_asks_is_not_begun() -> None:
    with silent_backend() as first, silent_backend() as second:
        config = configured(policy="probing", ask_seconds=0.02)
        async with started(Listed([first, second]), config) as (runtime, _, requests):
            await until(lambda: healthy(runtime) == 2)
            requests.begin("a")
            requests.waiting["a"].cancel()
            await asyncio.sleep(0.1)

            assert requests.ended == []
            assert runtime.task.snapshot().active == 0


async def test_without_probes_nobody_waits_for_answers() -> None:
    config = configured(policy="probing", ask_seconds=10.0, is_probing=False)
    async with started(Listed([A, B]), config) as (runtime, _, requests):
        await until(lambda: healthy(runtime) == 2)
        requests.begin("a")

        assert requests.names == ["a"]
        assert runtime.task.snapshot().policy == "weighted_least_loaded"


async def test_without_probes_a_question_is_not_waited_for() -> None:
    """A throttle asks too, whatever the policy."""
    config = configured(ask_seconds=10.0, is_probing=False)
    async with started(Listed([A, B]), config) as (runtime, _, _requests):
        await until(lambda: healthy(runtime) == 2)
        gone_on: list[Attempt | Rejection] = []
        views = list(runtime.task._membership.views)
        ask = runtime.task._ask(runtime.task._resume, Request(), views, time.monotonic())

        waiting = runtime.ask(ask, gone_on.append)

        assert not waiting.is_over  # Never from within.
        async with asyncio.timeout(9):
            await until(lambda: gone_on)
        assert isinstance(gone_on[0], Attempt)


async def test_a_patient_request_that_asked_waits_on_where_nobody_is_free() -> None:
    with silent_backend() as first, silent_backend() as second:
        config = configured(policy="probing", ask_seconds=0.02, active_limit=1)
        async with started(Listed([first, second]), config) as (runtime, _, requests):
            await until(lambda: healthy(runtime) == 2)
            for name in "abc":  # All three ask, and there are two places.
                requests.begin(name, is_patient=True)
            requests.begin("d", is_patient=False)
            await until(lambda: len(requests.ended) >= 3)

            assert requests.names[:2] == ["a", "b"]
            assert requests.reason("d") is Reason.AT_LIMIT
            assert "c" not in requests.names
            requests.finish("a")
            await until(lambda: "c" in requests.names)


# Periodic work.


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
        assert not [task for task in asyncio.all_tasks() if "_watch" in repr(task)]


def test_it_has_no_loop_before_it_was_started() -> None:
    runtime = ClientRuntime(Listed.__new__(Listed), configured())

    with pytest.raises(RuntimeError, match="started"):
        _ = runtime.loop


# Discovery and reports.


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


# The config.


@pytest.mark.parametrize(
    "wrong",
    [
        {"connect_seconds": 0.0},
        {"connect_seconds": float("nan")},
        {"patience_seconds": 0.0},
        {"discovery_seconds": -1.0},
        {"discovery_seconds": float("nan")},
        {"idempotent_methods": "/a/B"},
        {"idempotent_methods": ("/a/B", 5)},
    ],
    ids=str,
)
def test_a_wrong_config_says_which_field(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ClientConfig(**wrong)  # type: ignore[arg-type]


def test_methods_are_idempotent_by_name_or_by_service() -> None:
    config = ClientConfig(idempotent_methods=("/a.A/Get", "/b.B/*"))

    assert config.is_idempotent("/a.A/Get")
    assert config.is_idempotent("/b.B/Anything")
    assert not config.is_idempotent("/a.A/Set")
    assert not config.is_idempotent("/b/B")


def test_the_environment_says_the_client_s_index_where_the_config_does_not() -> None:
    config = ClientConfig()
    given = ClientConfig(task=ClientTaskConfig(membership=MembershipConfig(client_index=3)))
    environment = {"EVENLY_CLIENT_INDEX": "7"}

    assert config.resolved_task({}).membership.client_index is None
    assert config.resolved_task(environment).membership.client_index == 7
    assert given.resolved_task(environment).membership.client_index == 3
