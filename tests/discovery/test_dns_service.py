from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import dns.rcode
import pytest

from evenly.discovery.dns import DnsDiscovery
from tests.discovery.dns_server import DnsServer, dns_server, records
from tests.discovery.test_dns import LONG, SHORT
from tests.discovery.watching import PATIENCE_SECONDS, Watching, watching

NAME = "_grpc._tcp.search.prod"


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        yield server


def looks(server: DnsServer, *, is_short: bool = False) -> AbstractAsyncContextManager[Watching]:
    return watching(
        lambda steps: DnsDiscovery(
            NAME,
            None,
            server=server.address,
            config=SHORT if is_short else LONG,
            sleep=steps.sleep,
        )
    )


def serve_pods(server: DnsServer, pods: dict[str, str], *, ttl: int = 60) -> None:
    """Serve SRV records of these targets, whose addresses have to be asked for."""
    server.serve(NAME, "SRV", *(f"0 100 50051 {pod}.search.prod." for pod in pods), ttl=ttl)
    for pod, host in pods.items():
        server.serve(f"{pod}.search.prod", "AAAA" if ":" in host else "A", host)


async def test_the_pods_of_a_stateful_set_have_their_ordinals_as_indices(server: DnsServer) -> None:
    serve_pods(server, {"search-10": "10.0.0.1", "search-2": "10.0.0.3", "search-0": "10.0.0.2"})
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [[(0, "10.0.0.2:50051"), (2, "10.0.0.3:50051"), (10, "10.0.0.1:50051")]]


async def test_a_pod_that_moves_keeps_its_index(server: DnsServer) -> None:
    serve_pods(server, {"search-0": "10.0.0.1", "search-1": "10.0.0.2"})
    async with looks(server) as steps:
        await steps.step()
        serve_pods(server, {"search-0": "10.0.0.1", "search-1": "10.0.0.9"})
        await steps.step()

    assert steps.indexed[1] == [(0, "10.0.0.1:50051"), (1, "10.0.0.9:50051")]


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param({"search-0": "10.0.0.1", "search": "10.0.0.2"}, id="one without a number"),
        pytest.param({"a-1": "10.0.0.1", "b-1": "10.0.0.2"}, id="a number twice"),
        pytest.param({"10-0-0-1": "10.0.0.1", "10-0-0-2": "10.0.0.2"}, id="named by address"),
        pytest.param({"fd00--1": "10.0.0.1", "fd00--2": "10.0.0.2"}, id="named by IPv6 address"),
        pytest.param({"a-0": "10.0.0.1", "a-100000": "10.0.0.2"}, id="no index is that large"),
        pytest.param({"a-0": "10.0.0.1", "a-9999999999": "10.0.0.2"}, id="nor any number"),
    ],
)
async def test_without_a_number_of_its_own_for_every_target_there_are_no_indices(
    server: DnsServer, pods: dict[str, str]
) -> None:
    serve_pods(server, pods)
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [[(None, "10.0.0.1:50051"), (None, "10.0.0.2:50051")]]


async def test_a_target_without_an_address_takes_part_in_the_numbering(server: DnsServer) -> None:
    serve_pods(server, {"a-0": "10.0.0.1", "b-0": "10.0.0.2"})
    server.forget("b-0.search.prod")
    async with looks(server) as steps:
        await steps.step()

    # Else a-0 would have an index for as long as b-0 is away.
    assert steps.indexed == [[(None, "10.0.0.1:50051")]]


async def test_two_targets_with_one_address_are_one_backend_without_an_index(
    server: DnsServer,
) -> None:
    serve_pods(server, {"a-0": "10.0.0.1", "a-1": "10.0.0.1"})
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [[(None, "10.0.0.1:50051")]]


async def test_a_target_with_two_addresses_is_two_backends_without_an_index(
    server: DnsServer,
) -> None:
    serve_pods(server, {"a-0": "10.0.0.1", "a-1": "10.0.0.2"})
    server.serve("a-1.search.prod", "A", "10.0.0.3", "10.0.0.2")
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [
        [(None, "10.0.0.1:50051"), (None, "10.0.0.2:50051"), (None, "10.0.0.3:50051")]
    ]


async def test_two_ports_of_one_target_are_two_backends_without_an_index(server: DnsServer) -> None:
    server.serve(NAME, "SRV", "0 0 2 a-0.search.prod.", "0 0 1 a-0.search.prod.")
    server.serve("a-0.search.prod", "A", "10.0.0.1")
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [[(None, "10.0.0.1:1"), (None, "10.0.0.1:2")]]


async def test_only_the_lowest_priority_number_is_used(server: DnsServer) -> None:
    server.serve(NAME, "SRV", "10 0 1 a-0.x.", "5 0 2 a-1.x.", "5 9 3 a-2.x.", "6 0 4 a-3.x.")
    for pod in range(4):
        server.serve(f"a-{pod}.x", "A", f"10.0.0.{pod}")
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [[(1, "10.0.0.1:2"), (2, "10.0.0.2:3")]]


async def test_records_that_name_no_port_or_no_target_are_left_out(server: DnsServer) -> None:
    server.serve(NAME, "SRV", "0 0 0 a-0.x.", "0 0 1 .", "9 0 1 a-1.x.")
    server.serve("a-1.x", "A", "10.0.0.1")
    async with looks(server) as steps:
        await steps.step()
        # "A Target of "." means that the service is decidedly not available at this domain."
        server.serve(NAME, "SRV", "0 0 1 .")
        await steps.step()

    assert steps.indexed == [[(1, "10.0.0.1:1")]]


async def test_addresses_that_come_along_are_not_asked_for(server: DnsServer) -> None:
    reply = server.serve(NAME, "SRV", "0 0 1 a-0.x.", "0 0 1 a-1.x.", "0 0 1 a-2.x.", ttl=60)
    reply.additional = [
        records("a-0.x", "AAAA", "2001:db8::1"),
        records("a-0.x", "A", "10.0.0.1", ttl=9),
        records("a-1.x", "AAAA", "2001:db8::2"),
        records("other.x", "A", "10.66.66.66", ttl=1),
    ]
    server.serve("a-2.x", "A", "10.0.0.3")
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [[(0, "10.0.0.1:1"), (1, "[2001:db8::2]:1"), (2, "10.0.0.3:1")]]
    assert {name for name, _ in server.questions} == {NAME, "a-2.x"}
    assert steps.delays == [9.0]  # The shortest of those that are used.


async def test_the_shortest_time_to_live_of_records_and_targets_counts(server: DnsServer) -> None:
    serve_pods(server, {"a-0": "10.0.0.1", "a-1": "10.0.0.2"}, ttl=20)
    async with looks(server) as steps:
        await steps.step()
        server.serve("a-1.search.prod", "A", "10.0.0.2", ttl=8)
        await steps.step()

    assert steps.delays == [20.0, 8.0]


async def test_a_target_that_dns_fails_for_keeps_its_address_and_is_asked_for_soon(
    server: DnsServer, caplog: pytest.LogCaptureFixture
) -> None:
    serve_pods(server, {"a-0": "10.0.0.1", "a-1": "10.0.0.2"})
    async with looks(server) as steps:
        await steps.step()
        server.fail("a-1.search.prod")
        server.serve("a-0.search.prod", "A", "10.0.0.9")
        await steps.step()
        await steps.step()

    assert steps.indexed[1:] == [[(0, "10.0.0.9:50051"), (1, "10.0.0.2:50051")]]
    assert steps.delays == [60.0, 1.0, 1.6]
    (warning,) = caplog.messages
    assert "DNS failed for 'a-1.search.prod.' (A): SERVFAIL" in warning


async def test_a_target_that_dns_no_longer_knows_is_gone(server: DnsServer) -> None:
    serve_pods(server, {"a-0": "10.0.0.1", "a-1": "10.0.0.2"})
    async with looks(server) as steps:
        await steps.step()
        server.forget("a-1.search.prod")
        await steps.step()

    assert steps.indexed[1:] == [[(0, "10.0.0.1:50051")]]


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.NXDOMAIN, dns.rcode.NOERROR])
async def test_the_last_good_list_is_kept_while_there_are_no_records(
    server: DnsServer, rcode: dns.rcode.Rcode
) -> None:
    serve_pods(server, {"a-0": "10.0.0.1"})
    async with looks(server) as steps:
        await steps.step()
        server.fail(NAME, rcode)
        await steps.step()
        await steps.step()

    assert steps.indexed == [[(0, "10.0.0.1:50051")]]
    assert steps.delays == [60.0, 1.0, 1.6]


async def test_the_last_good_list_is_kept_while_no_target_has_an_address(
    server: DnsServer,
) -> None:
    serve_pods(server, {"a-0": "10.0.0.1"})
    async with looks(server) as steps:
        await steps.step()
        server.forget("a-0.search.prod")
        await steps.step()
        server.fail("a-0.search.prod")
        await steps.step()

    assert steps.indexed == [[(0, "10.0.0.1:50051")]]


async def test_sixteen_targets_are_asked_for_at_a_time(server: DnsServer) -> None:
    pods = [f"a-{pod}.x" for pod in range(100)]
    server.serve(NAME, "SRV", *(f"0 0 1 {pod}." for pod in pods))
    for pod in pods:
        server.silence(pod)
    expected = 1 + 16 * 2  # the SRV records; A and AAAA
    async with looks(server), asyncio.timeout(PATIENCE_SECONDS):
        while len(set(server.questions)) < expected:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)  # Time for more, if there were more.

    assert len(set(server.questions)) == expected


async def test_a_thousand_silent_targets_take_no_longer_than_one(
    server: DnsServer, caplog: pytest.LogCaptureFixture
) -> None:
    reply = server.serve(NAME, "SRV", *(f"0 0 1 a-{pod}.x." for pod in range(1000)))
    reply.additional = [records("a-7.x", "A", "10.0.0.7")]
    for pod in range(1000):
        server.silence(f"a-{pod}.x")
    async with looks(server, is_short=True) as steps:
        await steps.step_until(1)

    assert steps.indexed == [[(7, "10.0.0.7:1")]]
    # 16 at a time, two questions each, and time for one round of them; a second one may just begin.
    assert len(server.questions) <= len(steps.delays) * (1 + 2 * 2 * 16)
    assert "no answer" in caplog.messages[-1]
