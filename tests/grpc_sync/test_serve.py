"""Run a server in a process of its own, and end it with real signals."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import threading
import time
from collections import Counter

import grpc
import pytest

import evenly
import evenly.grpc.sync
from evenly.core.client_task import ClientTaskConfig
from evenly.core.overload.retry import RetryConfig
from evenly.errors import ConfigError, UsageError
from evenly.grpc import ClientConfig
from evenly.runtime.lifecycle import SAME_SIGNAL_SECONDS
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    Anything,
    Behavior,
    channel_to,
    generic_handler,
    method,
    wait_until,
)
from tests.grpc_sync.process import Process
from tests.grpc_sync.told import Told

LATER_SECONDS = SAME_SIGNAL_SECONDS + 0.1  # No echo of a signal that has been heard.
CUT_OFF = "second signal: stopping at once, 1 request is cut off"
NO_RETRIES = dataclasses.replace(
    ClientConfig(), task=ClientTaskConfig(retry=RetryConfig(attempts=1))
)


def started(stack: contextlib.ExitStack) -> Process:
    return stack.enter_context(Process(quiet_seconds=0.3)).ready()


def test_rolling_restarts_by_sigterm_lose_no_request_with_retries_off() -> None:
    discovery = Told()
    failures: Counter[str] = Counter()
    served: Counter[str] = Counter()
    is_over = threading.Event()

    def call(channel: evenly.grpc.sync.Channel) -> None:
        echo = channel.unary_unary(method("Echo"))
        while not is_over.wait(0.002):
            try:
                _, done = echo.with_call(b"a", timeout=LONG_SECONDS)
                served[done.backend] += 1
            except grpc.RpcError as error:
                failures[str(error)] += 1

    with contextlib.ExitStack() as stack:
        running = [started(stack) for _ in range(2)]
        discovery.tell(*(process.address for process in running))
        with evenly.grpc.sync.channel(discovery, config=NO_RETRIES) as channel:
            callers = [threading.Thread(target=call, args=(channel,)) for _ in range(4)]
            for caller in callers:
                caller.start()
            everybody = list(running)
            for _ in range(4):
                running.append(started(stack))
                everybody.append(running[-1])
                discovery.tell(*(process.address for process in running))
                wait_until(lambda: served[running[-1].address] > 0, "requests to the newcomer")
                leaving = running.pop(0)
                leaving.signal()
                status, said, err = leaving.wait()
                assert (status, said) == (0, "done"), err
                discovery.tell(*(process.address for process in running))
            is_over.set()
            for caller in callers:
                caller.join(LONG_SECONDS)
            assert channel.snapshot().active == 0
        for process in running:
            process.signal()
            assert process.wait()[0] == 0

    assert failures == Counter()
    assert set(served) == {process.address for process in everybody}


def test_a_request_under_way_is_finished_before_the_process_exits() -> None:
    with Process(quiet_seconds=0.3).ready() as process, channel_to(process.address) as channel:
        nap = channel.unary_unary(method("Nap")).future(b"1.0")
        assert channel.unary_unary(method("Echo"))(b"") == b""  # So the nap has arrived.
        process.signal(signal.SIGINT)
        assert nap.result(LONG_SECONDS) == b"1.0"
        assert process.wait()[:2] == (0, "done")


def test_the_second_signal_stops_at_once() -> None:
    with Process(quiet_seconds=0.3).ready() as process, channel_to(process.address) as channel:
        nap = channel.unary_unary(method("Nap")).future(b"15.0")
        assert channel.unary_unary(method("Echo"))(b"") == b""  # So the nap has arrived.
        process.signal()
        wait_until(
            lambda: channel.snapshot().backends[0].state.value == "lame duck", "the lame duck"
        )
        time.sleep(LATER_SECONDS)
        process.signal()
        error: Anything = nap.exception(LONG_SECONDS)
        assert error.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert CUT_OFF in process.errors()


def test_a_signal_that_comes_twice_cuts_no_request_off() -> None:
    with Process(quiet_seconds=0.3).ready() as process, channel_to(process.address) as channel:
        nap = channel.unary_unary(method("Nap")).future(b"1.5")
        assert channel.unary_unary(method("Echo"))(b"") == b""  # So the nap has arrived.
        process.signal()
        time.sleep(0.2)  # Else the system makes one of them; the client hears of it too late.
        process.signal()
        assert nap.result(LONG_SECONDS) == b"1.5"
        assert process.wait()[:2] == (0, "done")


def test_a_signal_shortens_the_grace() -> None:
    with (
        Process(quiet_seconds=0.1, drain_seconds=0.1, grace_seconds=3600.0).ready() as process,
        channel_to(process.address) as channel,
    ):
        nap = channel.unary_unary(method("Nap")).future(b"15.0")
        assert channel.unary_unary(method("Echo"))(b"") == b""  # So the nap has arrived.
        process.signal()
        # After the drain the port is closed, and the request has its grace.
        wait_until(lambda: not is_listening(process.address), "the end of the drain")
        assert nap.is_active()
        time.sleep(LATER_SECONDS)
        process.signal()
        error: Anything = nap.exception(LONG_SECONDS)
        assert error.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert CUT_OFF in process.errors()


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


def test_while_it_warms_up_it_is_a_lame_duck_and_a_signal_ends_it() -> None:
    with Process(quiet_seconds=0.3, warm_up_seconds=1000.0) as process:
        assert process.said() == "warming up"
        with channel_to(process.address) as channel:
            # It serves who sends nevertheless, and says so.
            assert channel.unary_unary(method("Echo"))(b"a") == b"a"
            assert channel.snapshot().backends[0].state.value == "lame duck"
        process.signal()
        assert process.wait()[:2] == (0, "done")


def test_a_warm_up_that_raises_stops_the_server_and_goes_out() -> None:
    with Process(quiet_seconds=0.3, warm_up_seconds=-1.0) as process:
        status, _, err = process.wait()

    assert status == 1
    assert "ZeroDivisionError" in err


def test_outside_of_the_main_thread_somebody_else_stops_the_server(behavior: Behavior) -> None:
    server = evenly.grpc.sync.server(max_workers=2, handlers=(generic_handler(behavior),))
    port = server.add_insecure_port("127.0.0.1:0")
    before = signal.getsignal(signal.SIGTERM)
    serving = threading.Thread(target=evenly.grpc.sync.serve, args=(server,))
    serving.start()
    with channel_to(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary(method("Echo"))(b"a") == b"a"
    server.stop(1.0)
    serving.join(LONG_SECONDS)

    assert not serving.is_alive()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_signal_handlers_of_before_are_given_back(behavior: Behavior) -> None:
    server = evenly.grpc.sync.server(max_workers=2)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    def stop() -> None:
        server.stop(None)

    threading.Timer(0.1, stop).start()
    evenly.grpc.sync.serve(server)

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_serve_takes_only_servers_of_its_own_and_a_sensible_grace() -> None:
    other: Anything = object()
    with pytest.raises(UsageError, match=r"evenly\.grpc\.sync\.server"):
        evenly.grpc.sync.serve(other)
    with pytest.raises(ConfigError, match="grace_seconds"):
        evenly.grpc.sync.serve(evenly.grpc.sync.server(), grace_seconds=float("nan"))
