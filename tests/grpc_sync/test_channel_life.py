"""What channels share, and that they leave nothing behind: after `close`, at exit, in a fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import grpc
import pytest

import evenly.grpc.sync
from evenly.core.backend_task import BackendTaskConfig
from evenly.core.report import LoadReport
from evenly.grpc import BackendConfig
from evenly.wire import orca
from tests.grpc_sync.backends import (
    LONG_SECONDS,
    WITHOUT_UDP,
    Behavior,
    active,
    channel_to,
    descriptors,
    evenly_server,
    method,
    plain_backend,
    threads,
    wait_for_threads,
    wait_until,
)


def test_no_thread_and_no_descriptor_is_left_after_close(behavior: Behavior) -> None:
    def use() -> None:
        with (
            evenly_server(behavior) as (_, one),
            evenly_server(behavior) as (_, two),
            channel_to(one, two) as channel,
        ):
            for _ in range(20):
                channel.unary_unary(method("Echo"))(b"")
            channel.unary_unary(method("Echo")).future(b"").result(LONG_SECONDS)
            list(channel.stream_stream(method("Chat"))(iter([b"a"])))
            channel.unary_stream(method("CountAndHold"))(b"1")

    use()  # What gRPC opens once for the process.
    gc.collect()
    before_threads = threads()
    before_descriptors = descriptors()

    use()

    wait_for_threads(before_threads)
    # gRPC may close its sockets a moment later.
    wait_until(lambda: descriptors() <= before_descriptors, "the descriptors")


def test_a_second_close_does_nothing_and_an_unused_channel_closes(behavior: Behavior) -> None:
    before = threads()
    channel = evenly.grpc.sync.channel("static:127.0.0.1:1")
    assert threads() <= before  # It starts with its first call; those of before may end.
    channel.close()
    channel.close()

    with pytest.raises(ValueError, match="closed channel"):
        channel.unary_unary(method("Echo"))(b"")


def test_channels_to_one_target_share_their_connections_until_the_last_is_closed(
    behavior: Behavior,
) -> None:
    with plain_backend(behavior) as address:
        target = f"static:{address}"
        one = evenly.grpc.sync.channel(target, config=WITHOUT_UDP)
        two = evenly.grpc.sync.channel(target, config=WITHOUT_UDP)
        with evenly.grpc.sync.channel(
            target, config=WITHOUT_UDP, options=(("grpc.max_receive_message_length", 99),)
        ) as other:
            assert one.start() is two.start()
            assert one.start() is not other.start()
        held = one.unary_unary(method("Hold")).future(b"")
        assert behavior.held.acquire(timeout=LONG_SECONDS)
        assert active(two) == 1
        two.close()
        assert held.is_active()
        assert one.unary_unary(method("Echo"))(b"a") == b"a"
        one.close()
        assert held.cancelled()


def test_a_channel_that_nobody_has_any_more_is_closed(behavior: Behavior) -> None:
    before = threads()
    with plain_backend(behavior) as address:
        channel = evenly.grpc.sync.channel(f"static:{address}", config=WITHOUT_UDP)
        echo = channel.unary_unary(method("Echo"))
        del channel
        gc.collect()
        assert echo(b"a") == b"a"  # A stub keeps its channel.
        del echo
        gc.collect()
        wait_until(lambda: "evenly" not in threads(), "the channel to be closed")
    wait_for_threads(before)


PROGRAM = """
import atexit, os, sys, threading
atexit.register(lambda: channel.close())  # After evenly's own, which is registered later.
import evenly.grpc.sync

channel = evenly.grpc.sync.channel("static:" + sys.argv[1])
echo = channel.unary_unary("/test.Service/Echo")
assert echo(b"a") == b"a"
future = echo.future(b"b")
assert future.result() == b"b"
hold = channel.unary_unary("/test.Service/Hold").future(b"")
stream = channel.unary_stream("/test.Service/CountAndHold")(b"1")
assert next(stream) == b"0"
"""


def run(program: str, address: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program), address],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=LONG_SECONDS,
        check=False,
    )


def test_a_process_exits_without_close_whatever_is_under_way(behavior: Behavior) -> None:
    with plain_backend(behavior) as address:
        done = run(PROGRAM + "threading.Thread(target=echo, args=(b'',)).start()", address)

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_exits_although_a_daemon_thread_waits_for_a_response(behavior: Behavior) -> None:
    program = """
    wait = channel.unary_unary("/test.Service/Hold")
    threading.Thread(target=wait, args=(b"",), daemon=True).start()
    """
    with plain_backend(behavior) as address:
        done = run(PROGRAM + textwrap.dedent(program), address)

    assert done.returncode == 0, done.stderr


def test_a_forked_child_exits_and_its_parent_goes_on(behavior: Behavior) -> None:
    program = """
    child = os.fork()
    if child == 0:
        assert hold.cancelled() and hold.code().name == "CANCELLED"  # It is the parent's.
        assert echo(b"c") == b"c"  # Over a connection of the child's own.
        channel.close()
        with evenly.grpc.sync.channel("static:" + sys.argv[1]) as new:
            assert new.unary_unary("/test.Service/Echo")(b"e") == b"e"
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert echo(b"d") == b"d"
    channel.close()
    """
    with plain_backend(behavior) as address:
        # Without it, gRPC itself crashes in a child whose parent watches a channel.
        support = {"GRPC_ENABLE_FORK_SUPPORT": "1"}
        done = run(PROGRAM + textwrap.dedent(program), address, **support)

    assert done.returncode == 0, done.stderr


def test_a_fork_while_load_is_heard_out_of_band(behavior: Behavior) -> None:
    program = """
    import time

    def readers():
        return sum(thread.name == "evenly-orca" for thread in threading.enumerate())

    while channel.snapshot().backends[0].utilization is None:
        time.sleep(0.01)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            assert not readers()
            assert echo(b"c") == b"c"
            channel.close()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert readers() == 1
    assert echo(b"d") == b"d"
    channel.close()
    while readers():
        time.sleep(0.01)
    """

    def say(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active():
            yield orca.serialize(LoadReport(utilization=0.5, qps=100.0))
            behavior.release.wait(0.1)

    name = "xds.service.orca.v3.OpenRcaService"
    methods = {"StreamCoreMetrics": grpc.unary_stream_rpc_method_handler(say)}
    with plain_backend(behavior, grpc.method_handlers_generic_handler(name, methods)) as address:
        support = {"GRPC_ENABLE_FORK_SUPPORT": "1"}
        done = run(PROGRAM + textwrap.dedent(program), address, **support)

    assert done.returncode == 0, done.stderr


def test_a_channel_made_before_a_fork_and_used_only_after_works(behavior: Behavior) -> None:
    program = """
    import os, sys
    import evenly.grpc.sync

    channel = evenly.grpc.sync.channel("static:" + sys.argv[1])
    echo = channel.unary_unary("/test.Service/Echo")
    children = [os.fork() for _ in range(2)]
    assert echo(b"a") == b"a"
    channel.close()
    if 0 not in children:
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    """
    with plain_backend(behavior) as address:
        done = run(program, address)

    assert done.returncode == 0, done.stderr


def test_fifty_threads_call_at_once_and_every_attempt_is_counted_once(behavior: Behavior) -> None:
    calls_of_each = 60
    failures: list[BaseException] = []

    def call(channel: evenly.grpc.sync.Channel, number: int) -> None:
        echo = channel.unary_unary(method("Echo"), str.encode, bytes.decode)
        chat = channel.stream_stream(method("Chat"))
        try:
            for turn in range(calls_of_each):
                text = f"{number}/{turn}"
                if turn % 10 == 0:
                    assert echo.future(text).result(LONG_SECONDS) == text
                elif turn % 10 == 1:
                    assert list(chat(iter([b"a", b"b"]))) == [b"A", b"B"]
                else:
                    assert echo(text) == text
        except BaseException as error:
            failures.append(error)
            raise

    # Fifty at once may well be too much for one interpreter: nothing is to be refused here.
    patient = BackendConfig(task=BackendTaskConfig(limits_queue=False))
    with (
        evenly_server(behavior, config=patient) as (one, address),
        evenly_server(behavior, config=patient) as (two, other_address),
        channel_to(address, other_address) as channel,
    ):
        callers = [threading.Thread(target=call, args=(channel, number)) for number in range(50)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(4 * LONG_SECONDS)
        assert failures == []
        assert active(channel) == 0
        assert channel.start().under_way == {}
        for server in (one, two):
            wait_until(lambda: server.runtime.snapshot().task.active == 0)  # noqa: B023 -- called now
        assert all(connection.active == 0 for connection in channel.start().connections.values())

    # Every tenth call is a chat, which the echo does not see.
    assert len(behavior.seen) == 50 * calls_of_each * 9 // 10
