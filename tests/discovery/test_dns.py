from __future__ import annotations

import asyncio
import logging
import random
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import dns.rcode
import pytest

from evenly.discovery.dns import DnsConfig, DnsDiscovery
from evenly.discovery.target import from_target
from evenly.errors import ConfigError
from tests.discovery.dns_server import DnsServer, dns_server, records
from tests.discovery.watching import PATIENCE_SECONDS, Watching, watching

NAME = "search.prod"
# Far more than loopback takes, so that only a test that waits for silence meets it.
LONG = DnsConfig(timeout_seconds=PATIENCE_SECONDS, jitter_ratio=0.0)
SHORT = DnsConfig(timeout_seconds=0.05, jitter_ratio=0.0)


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="evenly.discovery")


def looks(
    server: DnsServer,
    *,
    name: str = NAME,
    config: DnsConfig = LONG,
    system: Callable[[str], Awaitable[Sequence[str]]] | None = None,
) -> AbstractAsyncContextManager[Watching]:
    return watching(
        lambda steps: DnsDiscovery(
            name, 80, server=server.address, config=config, sleep=steps.sleep, system=system
        )
    )


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if record.name == "evenly.discovery"
    ]


async def test_the_addresses_of_a_name_are_its_backends_sorted_and_without_an_index(
    server: DnsServer,
) -> None:
    # As text 10.0.0.10 would come first.
    server.serve(NAME, "A", "10.0.0.10", "10.0.0.9", "9.0.0.1")
    async with looks(server) as steps:
        await steps.step()

    assert steps.indexed == [[(None, "9.0.0.1:80"), (None, "10.0.0.9:80"), (None, "10.0.0.10:80")]]


async def test_ipv6_addresses_are_taken_where_there_are_no_others(server: DnsServer) -> None:
    server.serve(NAME, "AAAA", "2001:db8::2", "2001:db8::1")
    async with looks(server) as steps:
        await steps.step()

    assert steps.addresses == [["[2001:db8::1]:80", "[2001:db8::2]:80"]]


async def test_with_both_families_only_ipv4_addresses_are_taken(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    server.serve(NAME, "AAAA", "2001:db8::1")
    async with looks(server) as steps:
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80"]]


async def test_both_families_are_asked_for_at_the_same_time(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1").after = (NAME, "AAAA")
    async with looks(server) as steps:
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80"]]


async def test_a_server_that_is_silent_about_ipv6_holds_nothing_up(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    server.serve(NAME, "AAAA").is_silent = True
    async with looks(server) as steps:
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80"]]


async def test_a_list_is_yielded_only_when_it_changed(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1", "10.0.0.2")
    async with looks(server) as steps:
        await steps.step()
        server.serve(NAME, "A", "10.0.0.2", "10.0.0.1")
        await steps.step()
        assert len(steps.lists) == 1
        server.serve(NAME, "A", "10.0.0.2", "10.0.0.3")
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80", "10.0.0.2:80"], ["10.0.0.2:80", "10.0.0.3:80"]]


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        pytest.param(42, 42.0, id="as the answer says"),
        pytest.param(0, 1.0, id="no less than the minimum"),
        pytest.param(2**31 - 1, 300.0, id="no more than the maximum"),
    ],
)
async def test_a_name_is_asked_for_again_when_its_time_is_over(
    server: DnsServer, ttl: int, expected: float
) -> None:
    server.serve(NAME, "A", "10.0.0.1", ttl=ttl)
    async with looks(server) as steps:
        await steps.step()
        await steps.step()

    assert steps.delays == [expected, expected]


async def test_the_shortest_time_to_live_counts_aliases_included(server: DnsServer) -> None:
    reply = server.serve(NAME, "A", "10.0.0.1")
    reply.answer = [
        records(NAME, "CNAME", "real.prod.", ttl=7),
        records("real.prod", "A", "10.0.0.1", ttl=60),
    ]
    async with looks(server) as steps:
        await steps.step()

    assert steps.delays == [7.0]
    assert steps.addresses == [["10.0.0.1:80"]]


async def test_delays_have_jitter(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1", ttl=100)
    async with watching(
        lambda steps: DnsDiscovery(
            NAME, 80, server=server.address, sleep=steps.sleep, rng=random.Random(1)
        )
    ) as steps:
        for _ in range(20):
            await steps.step()

    # 100 s ± 10 %
    assert all(90.0 <= delay <= 110.0 for delay in steps.delays)
    assert min(steps.delays) < 100.0 < max(steps.delays)


async def test_while_dns_fails_the_last_good_answer_is_kept_and_asked_for_ever_less_often(
    server: DnsServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.serve(NAME, "A", "10.0.0.1", "10.0.0.2")
    async with looks(server) as steps:
        await steps.step()
        server.fail(NAME)
        for _ in range(10):
            await steps.step()
        assert len(steps.lists) == 1
        server.serve(NAME, "A", "10.0.0.3")
        await steps.step()
        server.fail(NAME)
        await steps.step()

    # 1 × 1.6^n: 1.6^7 = 26.8 and 1.6^8 = 42.9, which is more than 30
    expected = [60.0, *(1.6**n for n in range(8)), 30.0, 30.0, 60.0, 1.0]
    assert steps.delays == pytest.approx(expected)
    assert steps.addresses == [["10.0.0.1:80", "10.0.0.2:80"], ["10.0.0.3:80"]]
    source = f"{server.target}/{NAME}:80"
    failed = f"WARNING {source}: DNS failed for 'search.prod' (A): SERVFAIL; keeping the last list"
    assert messages(caplog) == [f"{failed} (2)", f"INFO {source}: good again (1)", f"{failed} (1)"]


@pytest.mark.parametrize(
    ("hurt", "named"),
    [
        pytest.param(lambda server: server.forget(NAME), "does not know", id="no such name"),
        pytest.param(
            lambda server: server.fail(NAME, dns.rcode.NOERROR), "has no addresses", id="no records"
        ),
        pytest.param(
            lambda server: server.fail(NAME, dns.rcode.REFUSED), "REFUSED", id="a refusal"
        ),
    ],
)
async def test_no_kind_of_failure_takes_the_backends_away(
    server: DnsServer,
    caplog: pytest.LogCaptureFixture,
    hurt: Callable[[DnsServer], None],
    named: str,
) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    async with looks(server) as steps:
        await steps.step()
        hurt(server)
        await steps.step()
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80"]]
    (warning,) = messages(caplog)
    assert named in warning


async def test_silence_does_not_take_the_backends_away(
    server: DnsServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    async with looks(server, config=SHORT) as steps:
        await steps.step_until(1)
        caplog.clear()
        server.silence(NAME)
        await steps.step()
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80"]]
    (warning,) = messages(caplog)
    assert "DNS failed for 'search.prod' (A): no answer within 0.05 s" in warning


async def test_ipv6_addresses_do_not_stand_in_for_ipv4_ones_that_failed(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    server.serve(NAME, "AAAA", "2001:db8::1")
    async with looks(server) as steps:
        await steps.step()
        server.zone[NAME, "A"].rcode = dns.rcode.SERVFAIL
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80"]]


async def test_a_name_that_is_unknown_at_first_is_waited_for(
    server: DnsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with looks(server) as steps:
        await steps.step()
        assert steps.lists == []
        server.serve(NAME, "A", "10.0.0.1")
        await steps.step()

    assert steps.addresses == [["10.0.0.1:80"]]
    assert messages(caplog)[0].endswith(
        "DNS does not know 'search.prod'; no backends are known yet"
    )


async def test_names_that_only_the_system_knows_are_found(server: DnsServer) -> None:
    async def hosts_file(name: str) -> Sequence[str]:
        return {"printer": ["10.0.0.7", "10.0.0.7"]}.get(name, [])

    async with looks(server, name="printer", system=hosts_file) as steps:
        await steps.step()
        assert steps.addresses == [["10.0.0.7:80"]]
        assert steps.delays == [30.0]

        # Once DNS knows the name, DNS alone is believed.
        server.serve("printer", "A", "10.0.0.8")
        await steps.step()
        server.forget("printer")
        await steps.step()

    assert steps.addresses == [["10.0.0.7:80"], ["10.0.0.8:80"]]


@pytest.mark.parametrize("error", [socket.gaierror(), TimeoutError()])
async def test_names_that_nobody_knows_are_a_problem(
    server: DnsServer, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    async def nobody(name: str) -> Sequence[str]:
        raise error

    async with looks(server, system=nobody) as steps:
        await steps.step()

    assert steps.lists == []
    assert "does not know 'search.prod'; nor does the system know it" in messages(caplog)[0]


@pytest.mark.parametrize("target", ["localhost:80", "dns:localhost:80", "dns:///LOCALHOST.:80"])
async def test_localhost_is_never_asked_of_dns(target: str) -> None:
    # The system's own resolver, and whichever DNS servers this machine may or may not reach.
    async with watching(lambda _: from_target(target)) as steps, asyncio.timeout(PATIENCE_SECONDS):
        while not steps.lists:
            await asyncio.sleep(0.001)

    assert steps.addresses in ([["127.0.0.1:80"]], [["[::1]:80"]])


async def test_a_target_names_its_dns_server(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    discovery = from_target(f"{server.target}/{NAME}:80")

    async with watching(lambda _: discovery) as steps, asyncio.timeout(PATIENCE_SECONDS):
        while not steps.lists:
            await asyncio.sleep(0.001)

    assert steps.addresses == [["10.0.0.1:80"]]


async def test_an_answer_too_long_for_a_datagram_comes_by_tcp(server: DnsServer) -> None:
    hosts = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(1000)]
    server.serve(NAME, "A", *hosts)
    server.is_truncating = True
    async with looks(server) as steps:
        await steps.step()

    assert steps.addresses == [[f"{host}:80" for host in hosts]]
    assert (NAME, "A") in server.tcp_questions


async def test_noise_instead_of_an_answer_changes_nothing(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    rng = random.Random(5)
    async with looks(server, config=SHORT) as steps:
        await steps.step_until(1)
        good = server.reply((NAME, "A"))
        good.answer = [records(NAME, "A", "10.66.66.66")]
        good.is_silent = True
        good.noise = [
            b"",
            b"ID",
            b"ID" + b"\xff" * 600,
            b"\0\0\x81\x80\0\1\0\1\0\0\0\0",
            *(b"ID" + rng.randbytes(rng.randrange(200)) for _ in range(50)),
        ]
        await steps.step()
        assert len(steps.lists) == 1

        # And an answer behind the noise is heard.
        good.is_silent = False
        await steps.step_until(2)

    assert steps.addresses == [["10.0.0.1:80"], ["10.66.66.66:80"]]


async def test_a_watch_that_is_cancelled_while_it_asks_leaves_nothing_behind(
    server: DnsServer,
) -> None:
    server.silence(NAME)
    async with looks(server), asyncio.timeout(PATIENCE_SECONDS):
        while len(server.questions) < 2:
            await asyncio.sleep(0.001)
    # `watching` compares the tasks, and pytest fails a test that leaves a socket open.


async def test_two_watches_of_one_discovery_do_not_share_what_they_know(server: DnsServer) -> None:
    server.serve(NAME, "A", "10.0.0.1")
    discovery = DnsDiscovery(NAME, 80, server=server.address)
    first, second = discovery.watch(), discovery.watch()
    try:
        assert await anext(first) == await anext(second)
    finally:
        await first.aclose()
        await second.aclose()


def test_without_dnspython_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("evenly.discovery.dns")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "dns.asyncresolver", None)

    from_target("static:a:1")
    with pytest.raises(ImportError, match=re.escape('pip install "evenly[grpc]"')):
        from_target("search.prod:80")


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_min_seconds": 0.0},
        {"ttl_max_seconds": 0.5},
        {"system_ttl_seconds": float("nan")},
        {"retry_seconds": -1.0},
        {"retry_multiplier": 0.9},
        {"retry_max_seconds": 0.5},
        {"jitter_ratio": 1.5},
        {"timeout_seconds": float("inf")},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_config_is_refused(wrong: dict[str, float]) -> None:
    (field,) = wrong
    with pytest.raises(ConfigError, match=field):
        DnsConfig(**wrong)
