"""Several processes behind one address: the memory that they share, and their lives and deaths."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import socket
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.backend_task import BackendTaskConfig
from evenly.core.report import LoadReport
from evenly.errors import UsageError
from evenly.http.serve.serve import serve
from evenly.http.serve.workers import parent
from evenly.http.serve.workers.board import STALE_SECONDS, Board, Desk, make_memory, open_memory
from evenly.http.serve.workers.parent import restart_seconds
from evenly.http.serve.workers.slots import (
    SLOT_SIZE,
    Head,
    Slot,
    pack_head,
    pack_slot,
    slot_offset,
    unpack_head,
    unpack_slot,
)
from evenly.http.serve.workers.total import Total, total_of
from evenly.runtime.backend_config import BackendConfig
from evenly.testing import ManualClock
from tests.http.serve_process import (
    MOST_CALLERS,
    SOON,
    Caller,
    Load,
    Served,
    children_of,
    is_alive,
    is_refused,
    served,
    until,
)

BACKEND = LoadReport(boot=7, sequence=3, lame_duck=True, probe_port=5000)
BUSY = LoadReport(
    active=4, runnable=2.5, utilization=0.5, qps=100.0, eps=1.0, latency_seconds=0.25, cut=0.5
)

numbers = st.floats(0.0, 1e15)
reports = st.builds(
    LoadReport,
    cut=st.floats(0.0, 4.0),
    runnable=numbers,
    active=st.integers(0, 2**32 - 1),
    utilization=numbers,
    qps=numbers,
    eps=numbers,
    latency_seconds=numbers,
    compute_units=st.floats(0.001, 1e15),
)


# The sum.


def said(*parts: LoadReport) -> LoadReport:
    return total_of(parts).report(BACKEND)


def test_the_state_is_the_backends_and_the_load_is_the_workers() -> None:
    summed = said(LoadReport(boot=1, sequence=9, active=4), LoadReport(boot=2, active=5))

    assert (summed.boot, summed.sequence) == (7, 3)
    assert (summed.lame_duck, summed.probe_port) == (True, 5000)
    assert summed.active == 9


def test_counts_and_rates_add_up() -> None:
    summed = said(BUSY, BUSY, LoadReport(active=1, runnable=0.5, qps=10.0))

    assert summed.active == 4 + 4 + 1
    assert summed.runnable == 2.5 + 2.5 + 0.5
    assert (summed.qps, summed.eps) == (100.0 + 100.0 + 10.0, 1.0 + 1.0)


def test_utilization_is_the_mean_of_those_that_know_theirs() -> None:
    summed = said(
        LoadReport(utilization=0.9), LoadReport(utilization=0.3), LoadReport(utilization=0.0)
    )

    assert summed.utilization == pytest.approx((0.9 + 0.3) / 2)


def test_latency_is_that_of_a_request_and_not_of_a_worker() -> None:
    summed = said(
        LoadReport(qps=90.0, latency_seconds=0.1),
        LoadReport(qps=10.0, latency_seconds=1.1),
        LoadReport(qps=500.0),  # It does not know.
    )

    assert summed.latency_seconds == pytest.approx((90 * 0.1 + 10 * 1.1) / 100)


def test_latency_without_requests_is_the_mean() -> None:
    summed = said(LoadReport(latency_seconds=0.1), LoadReport(latency_seconds=0.3), LoadReport())

    assert summed.latency_seconds == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("cuts", "together"),
    [
        pytest.param((0.0, 0.0, 0.0), 0.0, id="all admit all"),
        pytest.param((0.0, 0.0, 0.0, 4.0), 1.0, id="one that is stuck"),
        pytest.param((0.0, 2.5, 2.0), 1.5, id="one that is idle"),
        pytest.param((4.0, 4.0), 4.0, id="none admits any"),
    ],
)
def test_the_cut_line_is_the_mean_of_the_workers(cuts: Sequence[float], together: float) -> None:
    assert said(*(LoadReport(cut=each) for each in cuts)).cut == together


def test_where_nobody_says_anything_the_backend_speaks_for_itself() -> None:
    assert Total().report(BACKEND) == BACKEND


@given(reports)
def test_one_worker_is_its_own_sum(report: LoadReport) -> None:
    summed = said(report)

    assert (summed.active, summed.cut, summed.runnable) == (
        report.active,
        report.cut,
        report.runnable,
    )
    assert (summed.utilization, summed.qps, summed.eps) == (
        report.utilization,
        report.qps,
        report.eps,
    )
    # The product may vanish where the time does.
    assert summed.latency_seconds == pytest.approx(report.latency_seconds, rel=1e-9, abs=1e-300)


@given(st.lists(reports, min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_the_sum_is_a_report_whatever_is_added_in_whatever_order(
    parts: list[LoadReport], rng: random.Random
) -> None:
    forwards = said(*parts)
    rng.shuffle(parts)
    shuffled = said(*parts)

    assert forwards.active == shuffled.active
    for name in ("cut", "runnable", "utilization", "qps", "eps", "latency_seconds"):
        assert getattr(forwards, name) == pytest.approx(getattr(shuffled, name), rel=1e-9)
    cuts = [part.cut for part in parts]
    assert min(cuts) * (1 - 1e-9) <= forwards.cut <= max(cuts) * (1 + 1e-9)
    least = min(part.latency_seconds for part in parts)
    most = max(part.latency_seconds for part in parts)
    assert least * (1 - 1e-9) <= forwards.latency_seconds <= most * (1 + 1e-9)


# The layout.


@given(
    st.builds(
        Slot,
        pid=st.integers(0, 2**32 - 1),
        written_at=st.floats(0.0, 1e12),
        report=reports,
        is_listening=st.booleans(),
        is_ready=st.booleans(),
        is_drained=st.booleans(),
    )
)
def test_a_slot_is_read_as_it_was_written(slot: Slot) -> None:
    assert unpack_slot(pack_slot(slot)) == slot


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.none() | st.integers(1, 65535),
    st.booleans(),
)
def test_the_head_is_read_as_it_was_written(
    boot: int, sequence: int, is_lame_duck: bool, port: int | None, is_leaving: bool
) -> None:
    backend = LoadReport(boot=boot, sequence=sequence, lame_duck=is_lame_duck, probe_port=port)
    head = Head(backend, is_leaving)

    assert unpack_head(pack_head(head)) == head


@given(st.lists(reports, min_size=2, max_size=2), st.integers(1, SLOT_SIZE - 1))
def test_half_of_one_slot_and_half_of_another_are_none(two: list[LoadReport], place: int) -> None:
    old, new = (pack_slot(Slot(1, 1.0 + index, report)) for index, report in enumerate(two))
    torn = new[:place] + old[place:]

    assert torn in {old, new} or unpack_slot(torn) is None


@pytest.mark.parametrize(
    ("place", "number"),
    [
        pytest.param(place, number, id=f"{name} {number}")
        for name, place in (
            ("written_at", 16),
            ("cut", 24),
            ("runnable", 32),
            ("qps", 48),
            ("compute", 72),
        )
        for number in (math.nan, math.inf, -math.inf, -1.0)
        if (name, number) != ("written_at", -1.0)
    ]
    + [
        pytest.param(72, 0.0, id="a CPU that does nothing"),
        pytest.param(24, 4.5, id="a cut at 4.5"),
    ],
)
def test_a_slot_with_a_good_checksum_and_bad_numbers_is_not_whole(
    place: int, number: float
) -> None:
    shared = Shared()
    shared.write(0, LoadReport(active=2))
    assert shared.board.total().active == 2
    data = bytearray(pack_slot(Slot(100, 1.0, LoadReport(active=77))))
    struct.pack_into("<d", data, place, number)
    struct.pack_into("<I", data, 0, zlib.crc32(data[4:]))
    shared.memory[slot_offset(0) : slot_offset(0) + SLOT_SIZE] = data

    assert unpack_slot(bytes(data)) is None
    assert shared.board.total().active == 2  # What it said before.


def test_a_head_with_a_good_checksum_and_a_bad_boot_is_not_whole() -> None:
    data = bytearray(pack_head(Head(BACKEND, is_leaving=False)))
    struct.pack_into("<Q", data, 4, 2**64 - 1)
    struct.pack_into("<I", data, 0, zlib.crc32(data[4:]))

    assert unpack_head(bytes(data)) is None


def test_memory_that_nobody_has_written_says_nothing() -> None:
    assert unpack_slot(bytes(SLOT_SIZE)) is None
    assert Board(bytearray(slot_offset(1)), 1, clock=ManualClock()).head() is None


# The board.


class Shared:
    """Three workers' memory, on a clock of our own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = bytearray(slot_offset(3))
        self.board = Board(self.memory, 3, clock=self.clock)
        self.board.write_head(Head(BACKEND, is_leaving=False))

    def write(self, index: int, report: LoadReport) -> None:
        self.board.write_slot(index, Slot(100 + index, self.clock(), report))

    def desk(self, index: int) -> Desk:
        return Desk(self.board, index, pid=1, is_drained=lambda: False, clock=self.clock)

    def tear(self, index: int, count: int) -> None:
        """Be a writer that stopped half-way."""
        begin = slot_offset(index)
        whole = pack_slot(
            Slot(100 + index, self.clock() + 1.0, LoadReport(active=77, compute_units=3.3))
        )
        self.memory[begin : begin + count] = whole[:count]


def test_a_worker_says_what_all_say_together() -> None:
    shared = Shared()
    shared.write(1, LoadReport(active=2))
    shared.write(2, LoadReport(active=3))
    shared.write(0, LoadReport(active=50))  # Its own slot is older than what it says now.

    summed = shared.desk(0).combine(LoadReport(active=4, boot=1))

    assert (summed.active, summed.boot, summed.lame_duck) == (2 + 3 + 4, 7, True)
    assert shared.board.total().active == 2 + 3 + 4  # It has written, too.


def test_it_looks_at_the_others_once_a_millisecond() -> None:
    shared = Shared()
    desk = shared.desk(0)
    shared.write(1, LoadReport(active=2))
    assert desk.combine(LoadReport(active=1)).active == 3
    shared.write(1, LoadReport(active=9))
    assert desk.combine(LoadReport(active=5)).active == 2 + 5  # Its own is always the latest.
    shared.clock.advance(0.002)
    assert desk.combine(LoadReport(active=5)).active == 9 + 5


def test_an_orphan_says_that_the_backend_is_leaving() -> None:
    shared = Shared()
    healthy = LoadReport(boot=7, sequence=3)
    shared.board.write_head(Head(healthy, is_leaving=False))
    desk = shared.desk(0)
    assert not desk.combine(LoadReport()).lame_duck
    desk.is_orphan = True
    summed = desk.combine(LoadReport())

    assert (summed.lame_duck, summed.boot, summed.sequence) == (True, 7, 4)


def test_a_stale_slot_is_ignored() -> None:
    shared = Shared()
    shared.write(0, LoadReport(active=2))
    shared.clock.advance(STALE_SECONDS)
    shared.write(1, LoadReport(active=3))
    assert shared.board.total().active == 5
    shared.clock.advance(0.001)
    assert shared.board.total().active == 3


def test_the_slot_of_a_dead_worker_is_gone_at_once() -> None:
    shared = Shared()
    shared.write(0, LoadReport(active=2))
    shared.write(1, LoadReport(active=3))
    assert shared.board.total().active == 5
    shared.board.clear_slot(0)
    assert shared.board.total().active == 3
    assert shared.board.slot(0) is None


@pytest.mark.parametrize("count", [1, 4, 20, 60])
def test_a_writer_that_died_half_way_leaves_what_it_said_before(count: int) -> None:
    shared = Shared()
    shared.write(0, LoadReport(active=2))
    assert shared.board.total().active == 2
    shared.tear(0, count)
    assert shared.board.total().active == 2
    # Whoever had not read it before knows nothing of it.
    assert Board(shared.memory, 3, clock=shared.clock).slot(0) is None


def test_the_memory_has_no_name_and_is_shared() -> None:
    descriptor = make_memory(2)
    try:
        assert not os.get_inheritable(descriptor)
        with open_memory(descriptor, 2) as one, open_memory(descriptor, 2) as other:
            one[5] = 9
            assert other[5] == 9
    finally:
        os.close(descriptor)


def test_who_dies_young_again_and_again_waits_longer() -> None:
    waits = [restart_seconds(count) for count in range(1, 11)]

    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert restart_seconds(10_000) == 30.0


# Processes.


async def workers_of(backend: Served, count: int = 3) -> set[int]:
    await until(lambda: len(children_of(backend.pid)) == count)
    return children_of(backend.pid)


async def serve_all(backend: Served, pids: set[int]) -> None:
    """Wait until each of these and no other has served."""
    seen: set[int] = set()

    async def has_seen_all() -> bool:
        seen.add(int((await backend.get()).body))
        return seen >= pids

    await until(has_seen_all)
    assert seen == pids


async def test_probes_and_responses_report_the_sum(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with served("--workers", "3", gate=gate) as backend:
        pids = await workers_of(backend)
        await serve_all(backend, pids)
        naps = [asyncio.ensure_future(backend.get("/?gate")) for _ in range(MOST_CALLERS)]

        async def is_known() -> bool:
            # Health is no request, and not counted.  Each worker's word is some 20 ms old.
            said = [(await backend.get("/healthz")).load, await backend.probe()]
            assert len({(load.boot, load.sequence) for load in said}) == 1
            return [load.active for load in said] == [MOST_CALLERS] * 2

        await until(is_known)
        gate.touch()
        assert [nap.status for nap in await asyncio.gather(*naps)] == [200] * MOST_CALLERS

        async def is_over() -> bool:
            return (await backend.probe()).active == 0

        await until(is_over)


async def test_sigterm_under_load_fails_no_request_and_leaves_nobody() -> None:
    async with served("--workers", "3") as backend:
        pids = await workers_of(backend)
        load = Load(backend, callers=MOST_CALLERS)
        await until(lambda: load.answered >= 300)
        backend.signal(signal.SIGTERM)
        await load.ends()

        assert load.failures == []
        assert await backend.status() == 0
        assert not any(is_alive(pid) for pid in pids)


async def test_a_signal_to_all_processes_is_the_parents_affair() -> None:
    # What a terminal does at Ctrl-C, and systemd at a stop.
    async with served("--workers", "2") as backend:
        pids = await workers_of(backend, 2)
        load = Load(backend, callers=MOST_CALLERS)
        await until(lambda: load.answered >= 50)
        os.killpg(backend.pid, signal.SIGINT)
        await load.ends()

        assert load.failures == []
        assert await backend.status() == 0
        assert not any(is_alive(pid) for pid in pids)


async def test_as_a_lame_duck_every_worker_says_so_and_serves(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with served("--workers", "3", gate=gate) as backend:
        pids = await workers_of(backend)
        held = asyncio.ensure_future(backend.get("/?gate"))  # While it runs, nobody stops.
        await until(lambda: _is_active(backend, 1))
        backend.signal(signal.SIGTERM)
        await until(lambda: _is_lame_duck(backend))
        callers = [backend.caller() for _ in range(MOST_CALLERS)]
        answers = await asyncio.gather(*(caller.get() for caller in callers))
        gate.touch()

        assert [answer.status for answer in answers] == [200] * MOST_CALLERS
        assert all(answer.load.lame_duck for answer in answers)
        assert {int(answer.body) for answer in answers} <= pids
        assert (await held).status == 200
        assert await backend.status() == 0


async def _is_active(backend: Served, count: int) -> bool:
    return (await backend.probe()).active == count


async def _is_lame_duck(backend: Served) -> bool:
    return (await backend.get("/readyz")).status == 503


async def test_a_second_signal_stops_them_all_at_once() -> None:
    async with served("--workers", "2") as backend:
        pids = await workers_of(backend, 2)
        call = asyncio.ensure_future(backend.get("/?3600"))
        await until(lambda: _is_active(backend, 1))
        backend.signal(signal.SIGTERM)
        await until(lambda: _is_lame_duck(backend))
        assert not call.done()
        await backend.signal_again(signal.SIGTERM)

        assert await backend.status() == 0
        assert not any(is_alive(pid) for pid in pids)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await call
        log = await backend.errors()
        assert log.count("second signal: ") == 1  # The parent says it for all.
        assert "second signal: stopping at once, 1 request is cut off" in log


async def test_a_killed_worker_is_started_again_and_the_service_goes_on() -> None:
    async with served("--workers", "3") as backend:
        pids = await workers_of(backend)
        caller = backend.caller()
        victim = int((await caller.get()).body)
        call = asyncio.ensure_future(caller.get("/?3600"))
        await until(lambda: _is_active(backend, 1))
        os.kill(victim, signal.SIGKILL)

        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await call
        await until(lambda: _is_active(backend, 0))  # What the dead one had is not counted.
        for _ in range(20):
            answer = await backend.get()
            assert (answer.status, answer.load.lame_duck) == (200, False)
        newcomers = await workers_of(backend) - pids
        assert len(newcomers) == 1
        await serve_all(backend, (pids - {victim}) | newcomers)
        backend.signal(signal.SIGTERM)
        assert await backend.status() == 0
        assert f"process {victim} ended by SIGKILL" in await backend.errors()


async def test_who_takes_the_place_of_another_warms_up_before_it_serves(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    arguments = ("--workers", "2", "--warm-up", "tests.http.serve_app:wait_for_gate")
    async with served(*arguments, gate=gate) as backend:
        pids = await workers_of(backend, 2)
        gate.unlink()
        victim, survivor = pids
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(list(tmp_path.glob("warming-up-*"))) == 3)
        for _ in range(10):
            answer = await backend.get()
            assert (int(answer.body), answer.load.lame_duck) == (survivor, False)
        gate.touch()

        newcomers = await workers_of(backend, 2) - pids
        await serve_all(backend, {survivor} | newcomers)


async def test_it_is_ready_when_all_are_warm(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    arguments = ("--workers", "2", "--warm-up", "tests.http.serve_app:wait_for_gate")
    async with served(*arguments, gate=gate, is_ready=False) as backend:
        await backend.listens()
        assert (await backend.get("/readyz")).status == 503
        assert (await backend.get("/")).status == 200
        assert (await backend.probe()).lame_duck
        gate.touch()
        await backend.is_ready()

        await until(lambda: _is_healthy(backend))


async def test_a_worker_that_is_killed_before_all_are_warm_is_started_again(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    arguments = ("--workers", "2", "--warm-up", "tests.http.serve_app:wait_for_gate")
    async with served(*arguments, gate=gate, is_ready=False) as backend:
        await backend.listens()
        await until(lambda: len(list(tmp_path.glob("warming-up-*"))) == 2)
        pids = await workers_of(backend, 2)
        os.kill(min(pids), signal.SIGKILL)
        await until(lambda: len(list(tmp_path.glob("warming-up-*"))) == 3)
        assert (await backend.get("/readyz")).status == 503
        gate.touch()
        await backend.is_ready()

        now = await workers_of(backend, 2)
        assert len(now & pids) == 1
        await serve_all(backend, now)
        backend.signal(signal.SIGTERM)
        assert await backend.status() == 0
        assert f"process {min(pids)} ended by SIGKILL" in await backend.errors()


async def test_a_worker_that_is_killed_again_and_again_before_all_are_warm_ends_them_all() -> None:
    async with served("--workers", "2", app="dies", is_ready=False) as backend:
        assert await backend.status() == 1
        errors = await backend.errors()

    assert errors.count(" is started again in ") >= parent.EARLY_ENDS_MOST - 1
    assert errors.splitlines()[-1].endswith("ended by SIGKILL")


async def _is_healthy(backend: Served) -> bool:
    return not (await backend.probe()).lame_duck


async def test_a_worker_whose_loop_is_blocked_does_not_keep_the_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parent, "_END_SECONDS", 0.3)
    others = children_of(os.getpid())
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve(
            "tests.http.serve_app:blocks",
            workers=2,
            port=0,
            on_listening=listening.set_result,
            log_config=None,
            grace_seconds=0.1,
            config=BackendConfig(task=BackendTaskConfig(quiet_seconds=0.0, drain_seconds=0.1)),
        )
    )
    caller = Caller(int((await asyncio.wait_for(listening, SOON)).rpartition(":")[2]))
    pids = set(children_of(os.getpid())) - set(others)
    assert len(pids) == 2
    call = asyncio.ensure_future(caller.get())
    await asyncio.sleep(0.2)  # Whether it has arrived cannot be asked: its worker is stuck.
    os.kill(os.getpid(), signal.SIGTERM)

    await asyncio.wait_for(task, SOON)
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await call
    assert not any(is_alive(pid) for pid in pids)
    await caller.close()


async def test_a_worker_that_has_not_begun_is_drained(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    arguments = ("--workers", "2", "--quiet-seconds", "0", "--drain-seconds", "3600")
    async with served(*arguments, gate=gate, app="app", module="tests.http.gated_app") as backend:
        pids = await workers_of(backend, 2)
        gate.unlink()
        os.kill(min(pids), signal.SIGKILL)
        await until(lambda: len(list(tmp_path.glob("warming-up-*"))) == 3)  # It imports.
        backend.signal(signal.SIGTERM)

        assert await backend.status() == 0


async def test_when_the_parent_is_killed_the_workers_leave(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with served("--workers", "3", "--grace-seconds", "60", gate=gate) as backend:
        pids = await workers_of(backend)
        call = asyncio.ensure_future(backend.get("/?gate"))
        await until(lambda: _is_active(backend, 1))
        backend.signal(signal.SIGKILL)
        await until(lambda: is_refused(backend.port))  # All have noticed: none listens.
        gate.touch()

        answer = await call
        assert answer.status == 200  # What is under way has its grace.
        assert answer.load.lame_duck
        await until(lambda: not any(is_alive(pid) for pid in pids))
        with socket.socket() as sock:  # The address is free for the next.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", backend.port))
            sock.listen()


async def test_what_keeps_a_worker_from_starting_is_said_once() -> None:
    async with served("--workers", "3", app="nothing", is_ready=False) as backend:
        assert await backend.status() == 1
        errors = await backend.errors()
    assert errors == "Error: 'tests.http.serve_app' has no attribute 'nothing'\n"


async def test_a_warm_up_that_raises_ends_them_all() -> None:
    arguments = ("--workers", "2", "--warm-up", "tests.http.serve_app:no_cache")
    async with served(*arguments, is_ready=False) as backend:
        assert await backend.status() == 1
        assert " failed: ValueError: no cache (" in (await backend.errors()).splitlines()[-1]


async def test_what_has_served_enough_is_replaced() -> None:
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve(
            "tests.http.serve_app:guarded",
            workers=2,
            port=0,
            on_listening=listening.set_result,
            log_config=None,
            limit_max_requests=5,
        )
    )
    port = int((await asyncio.wait_for(listening, 30.0)).rpartition(":")[2])
    seen: set[bytes] = set()

    async def has_seen_three() -> bool:
        caller = Caller(port)
        try:
            seen.add((await caller.get()).body)
        except (OSError, asyncio.IncompleteReadError):
            pass  # uvicorn closes what it has accepted and not read.
        finally:
            await caller.close()
        return len(seen) >= parent.EARLY_ENDS_MOST - 1

    await until(has_seen_three)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 30.0)


async def test_workers_need_a_warm_up_that_has_a_name() -> None:
    async def warm_up() -> None: ...

    with pytest.raises(UsageError, match="that they can import"):
        await serve("tests.http.serve_app:app", workers=2, port=0, warm_up=warm_up, log_config=None)
