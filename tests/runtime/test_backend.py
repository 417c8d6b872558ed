from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evenly.core.backend_task import Admission, BackendTaskConfig
from evenly.core.overload.utilization_config import UtilizationConfig, default_signals
from evenly.core.request import Outcome, Reason, Rejection, Request
from evenly.errors import ConfigError, UsageError
from evenly.probe.config import ProbeConfig
from evenly.runtime.backend import BackendRuntime
from evenly.runtime.backend_config import BackendConfig
from evenly.runtime.client_config import ClientConfig
from evenly.wire import datagram
from tests.runtime.threads import threads_that_call

SOON = 10.0  # Nothing here takes so long, unless it hangs.
NO_WAIT = BackendTaskConfig(quiet_seconds=0.0, drain_seconds=60.0)


@pytest.fixture
async def runtime() -> AsyncIterator[BackendRuntime]:
    made = BackendRuntime(BackendConfig(task=NO_WAIT))
    made.start(asyncio.get_running_loop())
    yield made
    made.stop()


def admitted(runtime: BackendRuntime) -> Admission:
    answer = runtime.admit(Request())
    assert isinstance(answer, Admission)
    return answer


def is_timing(runtime: BackendRuntime) -> bool:
    return runtime.readings.is_timing


async def test_a_request_is_active_from_its_admission_to_its_end(runtime: BackendRuntime) -> None:
    first, second = admitted(runtime), admitted(runtime)
    assert (runtime.active, runtime.snapshot().task.active) == (2, 2)

    runtime.task.finish(first, Outcome.OK, 0.001)
    runtime.task.pass_on(second, 0.001)

    assert (runtime.active, runtime.snapshot().task.active, runtime.task.finished) == (0, 0, 2)


async def test_a_refused_request_is_not_active(runtime: BackendRuntime) -> None:
    answer = runtime.admit(Request(deadline_at=time.monotonic() - 1.0))

    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.EXPIRED
    assert runtime.active == 0


async def test_a_burst_shows_before_its_first_request_has_ended(runtime: BackendRuntime) -> None:
    for _ in range(20):
        admitted(runtime)
    assert runtime.gate.try_enter()
    waiting = [asyncio.ensure_future(runtime.wait_for_turn()) for _ in range(19)]
    for _ in range(2):
        await asyncio.sleep(0)

    # The first holds the gate for a slice of unknown length; nobody has ended yet.
    assert runtime.snapshot().waiting == 19
    assert runtime.task.report().runnable == 19.0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert runtime.snapshot().waiting == 0
    assert runtime.task.report().runnable == 0.0


async def test_a_burst_shows_no_longer_than_it_lasts(runtime: BackendRuntime) -> None:
    runtime.readings._lag = None  # No reading comes to help.
    for _ in range(20):
        admitted(runtime)
    assert runtime.gate.try_enter()
    waiting = [asyncio.ensure_future(runtime.wait_for_turn()) for _ in range(19)]
    await asyncio.sleep(0)
    assert runtime.task.report().runnable == 19.0
    runtime.gate.left(0.001)
    await asyncio.gather(*waiting)

    assert runtime.task.report().runnable == 0.0


async def test_a_report_has_the_queue_of_now(runtime: BackendRuntime) -> None:
    runtime.task.record_signal("runnable", 7.0)
    runtime.readings._shown_runnable = 7.0

    assert runtime.report().runnable == 0.0


async def test_the_loop_is_timed_while_there_are_requests_and_only_then(
    runtime: BackendRuntime,
) -> None:
    assert not is_timing(runtime)
    admission = admitted(runtime)
    assert is_timing(runtime)

    runtime.task.finish(admission, Outcome.OK, 0.001)
    async with asyncio.timeout(SOON):
        while is_timing(runtime):
            await asyncio.sleep(0.01)


async def test_a_blocked_loop_is_runnable_requests(runtime: BackendRuntime) -> None:
    for _ in range(4):
        admitted(runtime)
    runtime.measured(0.01)
    assert runtime.readings.mean_cost_seconds() == 0.01
    await asyncio.sleep(0.05)
    time.sleep(0.2)  # a handler that blocks

    # At least 0.1 s of lag at 0.01 s a request, but no more than are active.
    assert runtime.report().runnable == 4.0


async def test_mean_cost_is_the_loops_time_where_handlers_take_little() -> None:
    seconds = 0.0
    runtime = BackendRuntime(thread_clock=lambda: seconds)
    runtime.start(asyncio.get_running_loop())
    runtime.measured(0.000005)
    assert runtime.readings.mean_cost_seconds() == 0.000005

    for _ in range(100):
        runtime.task.finish(admitted(runtime), Outcome.OK, 0.000005)
    seconds = 0.02
    for _ in range(5):  # as many ticks as there are in a second
        runtime.readings._tick()

    # 0.02 s of the loop's thread over 100 requests.
    assert runtime.readings.mean_cost_seconds() == pytest.approx(0.0002)
    runtime.stop()


async def test_a_few_requests_do_not_pay_for_what_the_loop_does_by_itself() -> None:
    seconds = 0.0
    runtime = BackendRuntime(thread_clock=lambda: seconds)
    runtime.start(asyncio.get_running_loop())
    runtime.measured(0.001)
    for _ in range(19):
        runtime.task.finish(admitted(runtime), Outcome.OK, 0.001)
    seconds = 1.0
    for _ in range(5):
        runtime.readings._tick()

    assert runtime.readings.mean_cost_seconds() == 0.001
    runtime.stop()


async def test_a_full_loop_is_full_however_many_cores_are_idle() -> None:
    now = 0.0
    runtime = BackendRuntime(thread_clock=lambda: now)
    loop = asyncio.get_running_loop()
    runtime.start(loop)
    now = 1_000_000.0  # The thread has used more CPU than there was time: certainly all of it.
    await asyncio.sleep(0.01)
    runtime.readings._read_cpu()

    assert runtime.report().utilization > 1.0
    runtime.stop()


async def test_signals_that_a_config_leaves_out_are_not_recorded() -> None:
    signals = {"memory": default_signals()["memory"]}
    task = BackendTaskConfig(utilization=UtilizationConfig(signals=signals))
    runtime = BackendRuntime(BackendConfig(task=task))
    runtime.start(asyncio.get_running_loop())
    runtime.task.finish(admitted(runtime), Outcome.OK, 0.001)
    for _ in range(5):
        runtime.readings._tick()
    runtime.report()
    runtime.stop()

    assert runtime.snapshot().task.utilization.signals["memory"].value is not None


async def test_it_starts_as_a_lame_duck_and_tells_observers_of_each_change(
    runtime: BackendRuntime,
) -> None:
    heard: list[bool] = []
    runtime.on_state(heard.append)
    states = [runtime.is_lame_duck]

    assert runtime.announce_healthy()
    assert runtime.announce_healthy()
    states.append(runtime.is_lame_duck)
    runtime.enter_lame_duck()
    runtime.enter_lame_duck()
    assert not runtime.announce_healthy()

    states.append(runtime.is_lame_duck)
    assert heard == [False, True]
    assert states == [True, False, True]


async def test_drained_waits_for_the_last_request(runtime: BackendRuntime) -> None:
    runtime.announce_healthy()
    first, second = admitted(runtime), admitted(runtime)
    drained = asyncio.ensure_future(runtime.drained())
    await asyncio.sleep(0.01)
    runtime.enter_lame_duck()
    runtime.task.finish(first, Outcome.OK)
    await asyncio.sleep(0.01)
    assert not drained.done()

    runtime.task.finish(second, Outcome.OK)
    await asyncio.wait_for(drained, SOON)


async def test_drained_waits_on_while_the_shutdown_has_not_begun(runtime: BackendRuntime) -> None:
    drained = asyncio.ensure_future(runtime.drained())
    runtime.task.finish(admitted(runtime), Outcome.OK)
    await asyncio.sleep(0.01)
    assert not drained.done()

    runtime.enter_lame_duck()
    await asyncio.wait_for(drained, SOON)


async def test_time_up_drains_too() -> None:
    task = BackendTaskConfig(drain_seconds=0.05, quiet_seconds=0.0)
    runtime = BackendRuntime(BackendConfig(task=task))
    runtime.start(asyncio.get_running_loop())
    admitted(runtime)
    runtime.enter_lame_duck()

    await asyncio.wait_for(runtime.drained(), SOON)
    assert runtime.active == 1
    runtime.stop()


async def ask(port: int) -> tuple[datagram.Kind, int, object]:
    """Probe, as a client would."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", port))
        await loop.sock_sendall(sock, datagram.question(7, None))
        data = await asyncio.wait_for(loop.sock_recv(sock, 1024), SOON)
    parsed = datagram.parse_answer(data, None)
    assert parsed is not None
    return parsed


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def test_probes_are_answered_at_the_number_of_the_service(runtime: BackendRuntime) -> None:
    port = free_port()

    assert runtime.bind_probe("127.0.0.1", port) == port
    assert runtime.report().probe_port is None
    kind, nonce, report = await ask(port)
    assert (kind, nonce) == (datagram.Kind.ANSWER, 7)
    assert report.boot == runtime.report().boot  # type: ignore[attr-defined]


async def test_a_port_that_is_taken_is_replaced_by_another_and_announced(
    runtime: BackendRuntime,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        other = runtime.bind_probe("127.0.0.1", port)

    assert other is not None
    assert other != port
    assert runtime.report().probe_port == other
    assert (await ask(other))[1] == 7


async def test_a_second_address_is_told_the_port_of_the_first(runtime: BackendRuntime) -> None:
    first = runtime.bind_probe("127.0.0.1", free_port())
    second = runtime.bind_probe("127.0.0.1", free_port())

    assert first == second == runtime.report().probe_port


async def test_without_udp_it_says_so_once_and_goes_on(
    runtime: BackendRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="evenly.runtime"):
        assert runtime.bind_probe("192.0.2.1", 1) is None  # an address of nobody
        assert runtime.bind_probe("192.0.2.1", 2) is None

    assert [record.message[:18] for record in caplog.records] == ["no probes by UDP, "]
    assert runtime.report().probe_port is None


async def test_probes_can_be_turned_off() -> None:
    runtime = BackendRuntime(BackendConfig(probe=ProbeConfig(is_on=False)))
    assert runtime.bind_probe("127.0.0.1", free_port()) is None
    runtime.stop()


async def test_stopping_leaves_nothing_in_the_loop() -> None:
    loop = asyncio.get_running_loop()
    runtime = BackendRuntime()
    runtime.start(loop)
    runtime.start(loop)
    port = runtime.bind_probe("127.0.0.1", 0)
    assert port is not None
    admitted(runtime)
    runtime.stop()
    runtime.stop()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", port))  # It is free again.
    handles = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    assert not handles


async def test_a_request_that_comes_too_late_does_not_start_it_again() -> None:
    runtime = BackendRuntime()
    runtime.start(asyncio.get_running_loop())
    runtime.stop()
    runtime.start(asyncio.get_running_loop())

    assert not runtime.is_started


async def run_in_threads(count: int, work: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(count) as threads:
        await asyncio.gather(*(loop.run_in_executor(threads, work) for _ in range(count)))


async def test_many_threads_may_admit_and_finish_under_the_lock() -> None:
    runtime = BackendRuntime(BackendConfig(task=NO_WAIT), lock=threading.RLock())
    runtime.start(asyncio.get_running_loop())

    def work() -> None:
        for _ in range(300):
            with runtime.lock:
                answer = runtime.admit(Request())
            runtime.should_degrade(2.0)
            runtime.record_signal("memory", 0.1)
            if isinstance(answer, Admission):
                with runtime.lock:
                    runtime.task.finish(answer, Outcome.OK, 0.00001)
            runtime.report()

    await run_in_threads(4, work)
    assert (runtime.active, runtime.snapshot().task.active) == (0, 0)
    assert runtime.task.finished == 4 * 300
    with runtime.lock:
        runtime.admit(Request())
    assert (await asyncio.to_thread(runtime.report)).active == 1  # Made there, and so the latest.
    runtime.stop()


async def test_what_another_thread_records_is_heard_on_the_loop(runtime: BackendRuntime) -> None:
    heard_on = threads_that_call(runtime, "record_signal")

    def work() -> None:
        for _ in range(100):
            runtime.record_signal("memory", 0.25)
            assert not runtime.should_degrade(0.0)

    await run_in_threads(4, work)
    assert heard_on == {threading.get_ident()}
    signal = runtime.snapshot().task.utilization.signals["memory"]
    assert signal.value is not None


async def test_a_misspelt_signal_is_an_error_where_it_is_recorded(runtime: BackendRuntime) -> None:
    with pytest.raises(UsageError, match=r"unknown signal 'memroy'; there are .*memory"):
        await asyncio.to_thread(runtime.record_signal, "memroy", 0.1)


def test_while_its_loop_does_not_run_any_thread_may_have_it() -> None:
    loop = asyncio.new_event_loop()
    runtime = BackendRuntime(BackendConfig(probe=ProbeConfig(is_on=False)))
    runtime.start(loop)

    def use() -> None:
        admitted(runtime)
        runtime.record_signal("memory", 0.1)
        assert runtime.report().active == runtime.snapshot().task.active == 1
        assert runtime.announce_healthy()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(use).result(SOON)
    runtime.stop()
    loop.close()


def test_a_loop_that_is_closed_meanwhile_costs_the_value_only() -> None:
    runtime = BackendRuntime()
    loop = asyncio.new_event_loop()
    loop.close()
    runtime._elsewhere = lambda: loop  # type: ignore[method-assign]  # It has looked before.

    runtime.record_signal("memory", 0.1)
    assert runtime.task.snapshot().utilization.signals["memory"].value is None


async def test_another_thread_gets_the_last_report(runtime: BackendRuntime) -> None:
    made_on = threads_that_call(runtime, "report")
    last = runtime.report()
    admitted(runtime)

    assert await asyncio.to_thread(runtime.report) is last
    assert made_on == {threading.get_ident()}
    assert runtime.report().active == 1


async def test_another_threads_snapshot_is_taken_on_the_loop(runtime: BackendRuntime) -> None:
    taken_on = threads_that_call(runtime, "snapshot")
    admitted(runtime)

    assert (await asyncio.to_thread(runtime.snapshot)).task.active == 1
    assert taken_on == {threading.get_ident()}


async def test_another_thread_may_change_the_state(runtime: BackendRuntime) -> None:
    heard_on = []
    runtime.on_state(lambda _: heard_on.append(threading.get_ident()))
    drained = asyncio.ensure_future(runtime.drained())

    assert await asyncio.to_thread(runtime.announce_healthy)
    assert not await asyncio.to_thread(lambda: runtime.is_lame_duck)
    await asyncio.to_thread(runtime.enter_lame_duck)
    assert await asyncio.to_thread(lambda: runtime.is_lame_duck)
    assert not await asyncio.to_thread(runtime.announce_healthy)
    assert heard_on == [threading.get_ident()] * 2
    await asyncio.wait_for(drained, SOON)


async def test_after_the_stop_another_thread_is_answered_too(runtime: BackendRuntime) -> None:
    runtime.stop()

    assert (await asyncio.to_thread(runtime.snapshot)).task.active == 0
    assert (await asyncio.to_thread(runtime.report)).active == 0
    await asyncio.to_thread(runtime.record_signal, "memory", 0.5)


async def test_another_thread_may_ask_whether_to_degrade() -> None:
    runtime = BackendRuntime(BackendConfig(task=NO_WAIT, own_signals=("cpu",)))
    runtime.start(asyncio.get_running_loop())
    assert not await asyncio.to_thread(runtime.should_degrade, 0.0)

    runtime.record_signal("cpu", 1.3)
    assert await asyncio.to_thread(runtime.should_degrade, 2.5)
    runtime.stop()


def test_cores_are_those_that_one_event_loop_can_use() -> None:
    assert BackendRuntime().task._config.cores <= 1.0
    config = BackendConfig(task=BackendTaskConfig(cores=4.0))
    assert BackendRuntime(config).task._config.cores == 4.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trusted_networks", ("not a network",)),
        ("trusted_networks", "10.0.0.0/8"),
        ("orca", "sometimes"),
        ("orca_least_seconds", float("nan")),
        ("orca_least_seconds", 0.0),
    ],
)
def test_a_wrong_config_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError):
        BackendConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config", [{}, ClientConfig(), BackendConfig], ids=["dict", "client", "class"]
)
def test_a_config_of_something_else_is_refused(config: Any) -> None:
    message = f"config must be a BackendConfig of evenly.http or evenly.grpc, not {config!r:.100}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        BackendRuntime(config)


async def test_signals_of_ones_own_are_not_read_from_the_system() -> None:
    config = BackendConfig(task=NO_WAIT, own_signals=("cpu", "runnable"))
    runtime = BackendRuntime(config)
    runtime.start(asyncio.get_running_loop())
    runtime.record_signal("cpu", 0.75)
    admission = admitted(runtime)
    await asyncio.sleep(0.5)  # Two readings of the CPU, and many of the loop, if there were any.

    signals = runtime.snapshot().task.utilization.signals
    assert signals["cpu"].value == 0.75
    assert signals["memory"].value is not None
    assert not runtime.readings.is_timing

    runtime.record_signal("runnable", 400.0)
    assert runtime.task.report().runnable == 400.0
    runtime.task.finish(admission, Outcome.OK)
    runtime.stop()


def test_a_signal_of_ones_own_has_to_be_one_of_the_task() -> None:
    with pytest.raises(ConfigError, match=r"own_signals must be .*runnable.*; not 'gpu'"):
        BackendConfig(own_signals=("gpu",))


async def test_what_is_charged_counts_as_the_process_too() -> None:
    runtime = BackendRuntime(BackendConfig(task=NO_WAIT))
    runtime._record_process(1.0)
    first = admitted(runtime)
    runtime.charged(0.5)
    runtime.task.finish(first, Outcome.OK, 0.5)
    runtime.task._cost._period_began_at -= 2.0  # The period is over.
    runtime._record_process(1.25)

    # The quarter of a second that nobody was metered for is the overhead, and not a debt.
    assert runtime.task._cost.snapshot().pool_seconds == pytest.approx(0.25)


async def test_copies_that_a_fork_has_made_are_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = [BackendRuntime(BackendConfig(task=NO_WAIT)) for _ in range(2)]
    for copied in copies:
        copied.rng.seed(1)
        copied.task.update_boot(7)
    monkeypatch.setattr("evenly.runtime.backend.os.getpid", lambda: -1)
    for copied in copies:
        copied.start(asyncio.get_running_loop())
    boots = {copied.report().boot for copied in copies}
    draws = {copied.rng.random() for copied in copies}
    for copied in copies:
        copied.stop()

    assert len(boots | {7}) == 3
    assert len(draws) == 2


async def test_a_process_that_was_not_copied_keeps_its_boot() -> None:
    runtime = BackendRuntime(BackendConfig(task=NO_WAIT))
    before = runtime.report().boot
    runtime.start(asyncio.get_running_loop())
    after = runtime.report().boot
    runtime.stop()

    assert after == before
