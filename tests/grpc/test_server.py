from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly.grpc
from evenly.grpc.common.names import split_address
from evenly.grpc.server.server import server
from tests.grpc.served import (
    SOON,
    failure,
    press,
    served,
    trailers,
    unary,
)

uu = grpc.unary_unary_rpc_method_handler
us = grpc.unary_stream_rpc_method_handler
su = grpc.stream_unary_rpc_method_handler
ss = grpc.stream_stream_rpc_method_handler
Code = grpc.StatusCode


async def echo(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return request


async def test_it_is_a_grpc_server_with_all_of_its_methods() -> None:
    made = server()
    assert isinstance(made, grpc.aio.Server)
    names = [name for name in dir(grpc.aio.Server) if not name.startswith("_")]
    assert [
        name for name in names if getattr(type(made), name) is getattr(grpc.aio.Server, name)
    ] == []
    await made.stop(None)


async def test_handlers_may_be_given_at_once_or_registered_by_name() -> None:
    given = grpc.method_handlers_generic_handler("test.Given", {"Do": uu(echo)})
    made = server(handlers=(given,))
    made.add_registered_method_handlers("test.Registered", {"Do": uu(echo)})
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name in ("test.Given", "test.Registered"):
            call = channel.unary_unary(f"/{name}/Do")(b"x")
            assert await call == b"x"
            assert "evenly-load" in await trailers(call)
        assert await channel.unary_unary("/test.Given/Nothing")(b"").code() is Code.UNIMPLEMENTED
    await made.stop(None)


async def test_what_is_registered_by_name_is_found_first() -> None:
    async def other(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return b"registered"

    generic = grpc.method_handlers_generic_handler("test.Both", {"Do": uu(echo), "Say": uu(echo)})
    made = server(handlers=(generic,))
    made.add_registered_method_handlers("test.Both", {"Do": uu(other)})
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(2):
            assert await channel.unary_unary("/test.Both/Do")(b"x") == b"registered"
            assert await channel.unary_unary("/test.Both/Say")(b"x") == b"x"
    await made.stop(None)


async def test_grpc_waits_for_requests_once_and_not_for_each_method() -> None:
    made = server()
    made.add_registered_method_handlers("test.Many", {f"Do{i}": uu(echo) for i in range(20)})
    made.add_insecure_port("127.0.0.1:0")
    before = asyncio.all_tasks()
    await made.start()
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks() - before) <= 2
    await made.stop(None)


async def test_a_generic_handler_that_makes_handlers_per_call_does_not_grow_anything() -> None:
    class PerCall(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                return bytes(details.method, "ascii")

            return uu(answer)

    made = server(handlers=(PerCall(),))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for number in range(1100):
            assert await channel.unary_unary(f"/a/{number}")(b"") == f"/a/{number}".encode()
    assert len(made.guard.wrapper._wrapped) <= 1024
    await made.stop(None)


async def test_interceptors_see_requests_that_are_parsed() -> None:
    seen: list[Any] = []

    class Watching(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            handler = await continuation(details)

            async def watched(request: Any, context: Any) -> Any:
                seen.append(request)
                return await handler.unary_unary(request, context)

            return uu(watched, handler.request_deserializer, handler.response_serializer)

    async def double(request: int, context: Any) -> int:
        return 2 * request

    handler = uu(double, request_deserializer=int, response_serializer=lambda n: str(n).encode())
    async with served({"Do": handler}, interceptors=(Watching(),)) as backend:
        call = unary(backend.channel, "Do")(b"21")
        assert await call == b"42"
        assert "evenly-load" in await trailers(call)
        await press(backend.runtime, 9.0)
        assert (await failure(unary(backend.channel, "Do")(b"1"))).code() is Code.UNAVAILABLE
    assert seen == [21]


async def test_users_options_beat_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    real = grpc.aio.server

    def note(**arguments: Any) -> Any:
        made.append(arguments)
        return real(**arguments)

    monkeypatch.setattr(grpc.aio, "server", note)
    theirs = (("grpc.keepalive_permit_without_calls", 0), ("mine", 1))

    await server(options=theirs).stop(None)

    assert made[0]["options"] == (
        *theirs,
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    )


async def test_a_started_server_is_healthy_and_a_stopped_one_a_lame_duck() -> None:
    async with served({"Do": uu(echo)}) as backend:
        states = [backend.runtime.is_lame_duck]
        stopping = asyncio.ensure_future(backend.server.stop(5.0))
        assert await backend.server.wait_for_termination(SOON) is False
        await stopping
        states.append(backend.runtime.is_lame_duck)
        assert states == [False, True]
        assert not backend.runtime.is_started


async def test_what_handlers_do_with_their_context_works_as_in_grpc() -> None:
    done: list[Any] = []

    async def poke(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        assert isinstance(context, grpc.aio.ServicerContext)
        assert context.peer().startswith("ipv4:127.0.0.1:")
        assert context.peer_identities() is None
        assert context.peer_identity_key() is None
        assert "transport_security_type" in context.auth_context() or not context.auth_context()
        assert 0.0 < context.time_remaining() <= 61.0  # gRPC rounds it up
        assert ("mine", "1") in tuple(context.invocation_metadata())
        assert not context.cancelled()
        assert not context.done()
        context.add_done_callback(done.append)
        context.set_details("fine")
        assert context.details() == "fine"
        context.set_trailing_metadata((("a", "b"),))
        assert context.trailing_metadata() == (("a", "b"),)
        context.set_compression(grpc.Compression.Gzip)
        context.disable_next_message_compression()
        await context.send_initial_metadata((("early", "1"),))
        done.append(context)
        return b"poked"

    async with served({"Do": uu(poke)}) as backend:
        call = unary(backend.channel, "Do")(b"", timeout=60.0, metadata=(("mine", "1"),))
        assert await call == b"poked"
        assert ("early", "1") in tuple(await call.initial_metadata())
        assert (await trailers(call))["a"] == "b"
        await backend.outcome()
        async with asyncio.timeout(SOON):
            while len(done) < 2:
                await asyncio.sleep(0.002)
    assert done[0] is done[1]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::]:80", ("[::]", 80)),
        ("localhost:0", ("localhost", 0)),
        ("ipv4:127.0.0.1:80", ("127.0.0.1", 80)),
        ("ipv6:[::1]:80", ("[::1]", 80)),
        ("dns:///localhost:80", ("localhost", 80)),
        (":80", ("", 80)),
        ("unix:/tmp/socket", None),
        ("unix:///tmp/a:80", None),
        ("unix-abstract:name", None),
        ("vsock:2:80", None),
        ("localhost", None),
        ("localhost:http", None),
        ("localhost:99999", None),
        ("::1:80", None),
    ],
)
def test_addresses_are_understood_as_grpc_has_them(
    address: str, expected: tuple[str, int] | None
) -> None:
    assert split_address(address) == expected


async def test_probes_are_answered_where_it_listens() -> None:
    made = server()
    port = made.add_insecure_port("127.0.0.1:0")
    assert made.runtime._udp_port is not None
    announced = made.runtime.report().probe_port
    assert (announced or port) == made.runtime._udp_port
    await made.stop(None)


async def test_a_health_service_of_ones_own_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": uu(echo)})
    with caplog.at_level(logging.WARNING, logger="evenly.grpc"):
        made = server(handlers=(mine,))
        made.add_registered_method_handlers("grpc.health.v1.Health", {"Check": uu(echo)})
        quiet = server(handlers=(mine,), health=False)
    assert len(caplog.records) == 1
    assert "health=False" in caplog.text
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await press_everything(made)
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"mine") == b"mine"
    for each in (made, quiet):
        await each.stop(None)


async def press_everything(made: Any) -> None:
    """Have the backend refuse everything: health checks are answered all the same."""
    for _ in range(3):
        made.runtime.task.record_signal("memory", 100.0)
        await asyncio.sleep(0.3)


async def test_a_report_is_told_once_per_connection_and_its_client_repeats_it() -> None:
    made = server(handlers=(grpc.method_handlers_generic_handler("test.Once", {"Do": uu(echo)}),))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    async with evenly.grpc.channel(f"static:127.0.0.1:{port}") as channel:
        do = channel.unary_unary("/test.Once/Do")
        for _ in range(200):  # Until two are answered within the 10 ms of a report.
            await do(b"")
            (view,) = channel.service.runtime.task._membership.views
            told_at = view.told_at
            call = do(b"")
            await call
            if "evenly-load" not in await trailers(call):
                break
        else:
            raise AssertionError("every response carries a report")

        assert view.told_at == told_at
        assert view.reported_at > told_at
    await made.stop(None)
