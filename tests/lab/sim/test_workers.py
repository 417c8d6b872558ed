"""Processes that work for us: how they begin, and that they end with whoever waits for them."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from evenly.lab.sim.workers import process_count, workers

_PATIENCE_SECONDS = 60.0
_begun: list[str] = []


def is_interrupt_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def meet(pipe: Path, mode: str) -> tuple[int, bool]:
    """Return this process's id once another one has opened the other end of the pipe."""
    with pipe.open(mode, buffering=0):
        return os.getpid(), is_interrupt_blocked()


def wait_for_ever(pipe: Path) -> None:
    with pipe.open("rb", buffering=0) as end:
        end.read(1)


def begin_with(word: str) -> None:
    _begun.append(word)


def begun() -> list[str]:
    return _begun


def test_every_worker_is_born_deaf_to_ctrl_c_the_late_ones_too(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with workers(2) as pool:
        # The first starts alone; the second only when there is more to do than one can.
        assert pool.submit(is_interrupt_blocked).result(_PATIENCE_SECONDS)
        ends = [pool.submit(meet, pipe, mode) for mode in ("rb", "wb")]
        (one, is_one_deaf), (two, is_two_deaf) = [end.result(_PATIENCE_SECONDS) for end in ends]

    assert len({one, two, os.getpid()}) == 3
    assert is_one_deaf
    assert is_two_deaf
    assert not is_interrupt_blocked()


def test_every_worker_begins_as_asked() -> None:
    with workers(1, begin=partial(begin_with, "hello")) as pool:
        assert pool.submit(begun).result(_PATIENCE_SECONDS) == ["hello"]

    assert begun() == []


def test_what_is_raised_ends_the_workers_whatever_they_do(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ids: list[int] = []

    def interrupted() -> None:
        with workers(2) as pool:
            ids.append(pool.submit(os.getpid).result(_PATIENCE_SECONDS))
            for _ in range(4):
                pool.submit(wait_for_ever, pipe)
            raise KeyboardInterrupt

    with pipe.open("r+b", buffering=0), pytest.raises(KeyboardInterrupt):
        interrupted()

    # It has been waited for, so that its id is nobody's.
    (worker,) = ids
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_as_many_processes_as_asked_for_or_one_per_cpu() -> None:
    assert process_count(3) == 3
    assert process_count(None) >= 1
