from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.errors import UsageError
from evenly.lab.demo.child import Child, ChildError, LineSplitter, python_module
from tests.lab.demo.waiting import is_alive, until

FAKE = (sys.executable, "-I", str(Path(__file__).with_name("fake_child.py")))
SETTINGS: dict[str, object] = {"name": "c1", "backends": {}}
# Sleeps without an end, whatever it is told.
STUBBORN = (
    sys.executable,
    "-I",
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('{}', flush=1); time.sleep(99)",
)


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    children: list[Child] = []

    async def started(program: tuple[str, ...] = FAKE, **more: Any) -> Child:
        child = Child("c1", program, SETTINGS, **more)
        children.append(child)
        await child.start()
        return child

    yield started
    for child in children:
        await child.close()


async def test_lines_come_in_order_and_the_last_is_kept(start: Callable[..., Any]) -> None:
    lines: list[dict[str, Any]] = []
    child = await start(on_line=lines.append)

    await until(lambda: len(lines) >= 3)

    assert [line["is"] for line in lines[:3]] == ["ready", "client", "client"]
    assert lines[0]["pid"] == child.pid
    assert [line["ok"] for line in lines[1:3]] == [{"CRITICAL": 1}, {"CRITICAL": 2}]
    assert child.latest is lines[-1]
    assert child.is_running
    assert child.exit_code is None


async def test_commands_arrive(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    child = await start()

    child.command({"do": "load", "rate": 1.5})
    child.command({"do": "wild", "rate": 0})

    await until(lambda: log.exists() and len(log.read_text().splitlines()) == 3)
    assert log.read_text().splitlines()[1:] == [
        'c1 {"do": "load", "rate": 1.5}',
        'c1 {"do": "wild", "rate": 0}',
    ]


async def test_commands_to_a_process_that_does_not_exist_yet_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    child = Child("c1", FAKE, SETTINGS)

    child.command({"do": "load", "rate": 1.5})
    starting = asyncio.create_task(child.start())
    await asyncio.sleep(0)
    child.command({"do": "wild", "rate": 0})
    await starting
    child.command({"do": "load", "rate": 2.5})

    await until(lambda: log.exists() and len(log.read_text().splitlines()) == 4)
    assert log.read_text().splitlines()[1:] == [
        'c1 {"do": "load", "rate": 1.5}',
        'c1 {"do": "wild", "rate": 0}',
        'c1 {"do": "load", "rate": 2.5}',
    ]
    await child.close()


async def test_other_lines_are_logged_and_ignored(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAKE_MODE", "c1=garbage")
    lines: list[dict[str, Any]] = []
    with caplog.at_level(logging.INFO):
        child = await start(on_line=lines.append)
        await until(lambda: len(lines) >= 3 and bool(child.last_words))

    assert [line["is"] for line in lines[:3]] == ["ready", "client", "client"]
    assert "c1 wrote what is no JSON object: b'[1, 2]'" in caplog.messages
    assert "c1 wrote a line that is too long" in caplog.messages
    assert child.last_words[-1] == "a word of \N{REPLACEMENT CHARACTER} warning"


async def test_a_process_that_was_killed_says_so(start: Callable[..., Any]) -> None:
    child = await start()

    assert child.send_signal(signal.SIGKILL)

    assert await child.wait() == -9
    assert child.exit_code == -9
    assert not child.is_running
    assert not child.send_signal(signal.SIGKILL)
    child.command({"do": "stop"})  # Nobody's, and no error.


async def test_all_that_was_written_has_been_read_when_wait_returns() -> None:
    lines: list[dict[str, Any]] = []
    code = "import sys; [print('{\"n\":%d}' % n) for n in range(5000)]; sys.exit(3)"
    child = Child("x", (sys.executable, "-I", "-c", code), {}, on_line=lines.append)
    await child.start()

    assert await child.wait() == 3
    assert [line["n"] for line in lines] == list(range(5000))
    await child.close()


async def test_close_ends_who_ignores_sigterm(start: Callable[..., Any]) -> None:
    child = await start(STUBBORN)
    await until(lambda: child.latest is not None)

    child.send_signal(signal.SIGTERM)
    await child.close()

    assert child.exit_code == -9
    assert not is_alive(child.pid)


async def test_close_ends_who_is_stopped(start: Callable[..., Any]) -> None:
    child = await start()
    await until(lambda: child.latest is not None)
    child.send_signal(signal.SIGSTOP)
    await until(lambda: state_of(child.pid) == "T")

    await child.close()

    assert not is_alive(child.pid)
    await child.close()  # Twice is no error.


async def test_a_child_has_a_session_of_its_own(start: Callable[..., Any]) -> None:
    child = await start()

    assert os.getsid(child.pid) == child.pid


async def test_a_child_exits_when_its_supervisor_is_gone(start: Callable[..., Any]) -> None:
    child = await start()
    await until(lambda: child.latest is not None)

    assert child._process.stdin is not None
    child._process.stdin.close()

    assert await child.wait() == 0


async def test_a_start_that_is_cancelled_leaves_nobody() -> None:
    child = Child("c1", STUBBORN, SETTINGS)
    starting = asyncio.create_task(child.start())
    await asyncio.sleep(0)

    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting
    assert child.pid is not None
    assert not is_alive(child.pid)


async def test_a_program_that_does_not_exist() -> None:
    child = Child("c1", ("/nowhere/python",), SETTINGS)

    with pytest.raises(ChildError, match=r"c1 could not be started: .*/nowhere/python"):
        await child.start()
    await child.close()
    assert child.pid is None
    assert not child.send_signal(signal.SIGTERM)
    with pytest.raises(UsageError, match="c1 has not been started"):
        await child.wait()


def test_a_module_is_run_without_the_current_folder() -> None:
    assert python_module("evenly.lab.demo.backend") == (
        sys.executable,
        "-P",
        "-m",
        "evenly.lab.demo.backend",
    )


def test_lines_that_are_too_long_are_dropped() -> None:
    splitter = LineSplitter(4)

    assert splitter.feed(b"1234\n12345\n12\n") == [b"1234", b"12"]
    assert splitter.feed(b"12345") == []
    assert splitter.feed(b"6") == []
    assert splitter.feed(b"7\nab") == []
    assert splitter.feed(b"cd\n") == [b"abcd"]
    assert splitter.dropped == 2


@given(
    lines=st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line)),
    cuts=st.lists(st.integers(0, 100)),
)
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    splitter = LineSplitter(4)

    found = [
        line for begin, end in itertools.pairwise(edges) for line in splitter.feed(data[begin:end])
    ]

    assert found == [line for line in lines if len(line) <= 4]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
