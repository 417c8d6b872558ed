from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import pytest

from evenly.core.balancing.backend import Backend
from evenly.discovery.static import StaticDiscovery
from evenly.discovery.target import from_target
from evenly.errors import ConfigError
from tests.discovery.watching import PATIENCE_SECONDS, watching


async def first_list(target: str) -> list[tuple[int | None, str]]:
    async with watching(lambda _: from_target(target)) as steps, asyncio.timeout(PATIENCE_SECONDS):
        while not steps.lists:
            await asyncio.sleep(0)
    (only,) = steps.indexed
    return only


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param("static:a:1,b:2", [(0, "a:1"), (1, "b:2")], id="index is the position"),
        pytest.param("static:a:1,,c:3", [(0, "a:1"), (2, "c:3")], id="an empty entry is a hole"),
        pytest.param("static:,b:2", [(1, "b:2")], id="a hole at the front"),
        pytest.param("static:a:1, b:2", [(0, "a:1"), (1, "b:2")], id="spaces do not matter"),
        pytest.param("static:[0:0::1]:5", [(0, "[::1]:5")], id="one spelling for an address"),
        pytest.param("static:[fe80::1%eth0]:5", [(0, "[fe80::1%eth0]:5")], id="a zone"),
        pytest.param("static:unix:/a,b:2", [(0, "unix:/a"), (1, "b:2")], id="sockets in a list"),
        pytest.param("static:a_b.x-1.:65535", [(0, "a_b.x-1.:65535")], id="the largest port"),
        pytest.param(
            "ipv4:1.2.3.4:50051,5.6.7.8:50051",
            [(0, "1.2.3.4:50051"), (1, "5.6.7.8:50051")],
            id="gRPC's ipv4",
        ),
        pytest.param("ipv6:[::1]:50051", [(0, "[::1]:50051")], id="gRPC's ipv6"),
        pytest.param("unix:/run/a,b", [(0, "unix:/run/a,b")], id="a socket"),
        pytest.param("unix:///run/a", [(0, "unix:/run/a")], id="a socket as a URL"),
        pytest.param("127.0.0.1:50051", [(None, "127.0.0.1:50051")], id="a bare address"),
        pytest.param("[::1]:50051", [(None, "[::1]:50051")], id="a bare IPv6 address"),
        pytest.param("dns:///10.0.0.1:80", [(None, "10.0.0.1:80")], id="nothing to look up"),
        pytest.param("dns://1.1.1.1/[::2]:80", [(None, "[::2]:80")], id="nobody to ask"),
    ],
)
async def test_targets_that_list_their_backends(
    target: str, expected: list[tuple[int | None, str]]
) -> None:
    assert await first_list(target) == expected


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("", "''"),
        ("search.prod", "'search.prod'"),
        ("search.prod:", "'search.prod:'"),
        ("search.prod:0", "'search.prod:0'"),
        ("search.prod:65536", "'search.prod:65536'"),
        ("search.prod:080", "'search.prod:080'"),
        ("search.prod:٣", r"'search.prod:\u0663'"),
        (":50051", "':50051'"),
        ("::1:50051", "'::1:50051'"),
        ("[1.2.3.4]:5", "'[1.2.3.4]:5'"),
        ("[fe80::1%a b]:5", "'[fe80::1%a b]:5'"),
        ("10.0.0.256:5", "'10.0.0.256:5'"),
        ("-a:5", "'-a:5'"),
        ("a..b:5", "'a..b:5'"),
        ("ü:5", r"'\xfc:5'"),
        ("a" * 64 + ":5", "aaaa"),
        ("a." * 126 + "ab:5", "a.a.a"),  # 126 × 2 + 2 = 254 characters, one too many
        ("a:1,b:2", "static:, ipv4:, ipv6: or unix:, not 'a:1,b:2'"),
        ("xds:///search", "not 'xds:///search'"),
        ("https://search:443", "not 'https://search:443'"),
        ("statik:127.0.0.1:18081", "ipv6: or unix:, not 'statik:127.0.0.1:18081'"),
        ("statik:[::1]:18081", "ipv6: or unix:, not 'statik:[::1]:18081'"),
        ("statik:search", "ipv6: or unix:, not 'statik:search'"),
        ("Static:a:1", "ipv6: or unix:, not 'Static:a:1'"),
        ("search:65536", "a port in [1, 65535], not 'search:65536'"),
        ("search:80 ", "a port in [1, 65535], not 'search:80 '"),
        ("search.prod:http", "a port in [1, 65535], not 'search.prod:http'"),
        ("fe80::1", "an IPv6 address in brackets and a port in [1, 65535], not 'fe80::1'"),
        ("fe80::1:50051", "in brackets and a port in [1, 65535], not 'fe80::1:50051'"),
        ("static:", "at least one host:port, not ''"),
        ("static:,,", "at least one host:port, not ',,'"),
        ("static:50051", "not '50051'"),
        ("static:a:1,b", "not 'b'"),
        ("static:[::1]:1,[0::1]:1", "'[::1]:1' at positions 0 and 1"),
        ("ipv4:a:1", "IPv4 address:port (names: use static: or dns:), not 'a:1'"),
        ("ipv4:[::1]:1", "not '[::1]:1'"),
        ("ipv6:1.2.3.4:1", "[IPv6 address]:port (names: use static: or dns:), not '1.2.3.4:1'"),
        ("ipv6:::1:1", "not '::1:1'"),
        ("unix:run/a", "not 'run/a'"),
        ("unix://host/a", "not '//host/a'"),
        ("unix:/a\n", r"not '/a\n'"),
        ("unix:/" + "ü" * 54, "at most 107 bytes"),  # 1 + 54 × 2 = 109 bytes
        ("file:a", "not 'a'"),
        ("file://host/a", "not '//host/a'"),
        ("file:/a\0", r"not '/a\x00'"),
        ("dns:search.prod", "not 'search.prod'"),
        ("dns://search.prod:1", "not 'search.prod:1'"),
        ("dns://server/a:1", "DNS server in dns://server/name must be host:port"),
        ("dns://server:53/a:1", "must be an IP address, or one with a port, not 'server:53'"),
        ("dns:///_grpc._tcp.a:1", "SRV records, which have ports of their own"),
    ],
)
def test_a_wrong_target_is_refused_with_its_value(target: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        from_target(target)


@pytest.mark.parametrize("target", [5, None, b"static:a:1", ["a:1"], StaticDiscovery], ids=repr)
def test_a_target_that_is_no_string_and_no_discovery_is_refused(target: Any) -> None:
    message = f"target must be a string or a Discovery, not {target!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_target(target)


def test_a_discovery_is_a_target() -> None:
    discovery = StaticDiscovery([Backend("a:1")])

    assert from_target(discovery) is discovery


def test_more_backends_than_there_are_indices_are_refused() -> None:
    from_target("static:" + "," * 99_999 + "a:1")
    with pytest.raises(ConfigError, match=r"index must be a whole number in \[0, 99999\]"):
        from_target("static:" + "," * 100_000 + "a:1")


async def test_a_static_list_is_said_once_and_then_waited_on_for_ever() -> None:
    async with watching(lambda _: StaticDiscovery([Backend("a:1")])) as steps:
        for _ in range(100):
            await asyncio.sleep(0)

    assert steps.addresses == [["a:1"]]


async def test_a_watch_can_be_closed_between_two_lists() -> None:
    async with contextlib.aclosing(StaticDiscovery([Backend("a:1")]).watch()) as lists:
        assert await anext(lists) == (Backend("a:1"),)
