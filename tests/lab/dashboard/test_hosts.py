from __future__ import annotations

import pytest

from evenly.lab.dashboard.hosts import Hosts, hosts_of

LOCAL = hosts_of("127.0.0.1", "127.0.0.1", 8080)
SIX = hosts_of("::1", "::1", 8080)
NAMED = hosts_of("Box.lan", "192.0.2.7", 8080)
EVERYWHERE = hosts_of("0.0.0.0", "0.0.0.0", 8080)  # noqa: S104 -- nothing is bound
PLAIN = hosts_of("127.0.0.1", "127.0.0.1", 80)


@pytest.mark.parametrize(
    ("hosts", "host"),
    [
        (LOCAL, "127.0.0.1:8080"),
        (LOCAL, "localhost:8080"),
        (LOCAL, "LocalHost:8080"),
        (SIX, "[::1]:8080"),
        (SIX, "localhost:8080"),
        (NAMED, "box.lan:8080"),
        (NAMED, "192.0.2.7:8080"),
        (EVERYWHERE, "192.0.2.8:8080"),
        (EVERYWHERE, "[2001:db8::1]:8080"),
        (EVERYWHERE, "localhost:8080"),
        (PLAIN, "127.0.0.1"),
        (PLAIN, "localhost:80"),
    ],
)
def test_these_are_ours(hosts: Hosts, host: str) -> None:
    assert hosts.include(host)


@pytest.mark.parametrize(
    ("hosts", "host"),
    [
        pytest.param(LOCAL, "evil.example:8080", id="a rebound name"),
        pytest.param(LOCAL, "127.0.0.1.evil.example:8080", id="a name that begins like ours"),
        pytest.param(LOCAL, "evil.localhost:8080", id="a name that ends like ours"),
        pytest.param(LOCAL, "127.0.0.1:8081", id="another port"),
        pytest.param(LOCAL, "127.0.0.1", id="no port"),
        pytest.param(LOCAL, "localhost.:8080", id="a final dot"),
        pytest.param(LOCAL, "0.0.0.0:8080", id="all addresses as a name"),
        pytest.param(LOCAL, "127.0.0.2:8080", id="another loopback address"),
        pytest.param(LOCAL, "127.0.0.1:8080:8080", id="two ports"),
        pytest.param(LOCAL, "evil@127.0.0.1:8080", id="a user"),
        pytest.param(LOCAL, "127.0.0.1:8080/", id="a path"),
        pytest.param(LOCAL, "", id="nothing"),
        pytest.param(LOCAL, "127.0.0.1:", id="an empty port"),
        pytest.param(LOCAL, "127.0.0.1:8080\n", id="a line end"),
        pytest.param(SIX, "::1:8080", id="six without brackets"),
        pytest.param(NAMED, "localhost:8080", id="localhost where nobody listens on it"),
        pytest.param(EVERYWHERE, "evil.example:8080", id="a rebound name, everywhere"),
        pytest.param(EVERYWHERE, "192.0.2.8:8081", id="another port, everywhere"),
        pytest.param(EVERYWHERE, "1921680001.evil:8080", id="almost an address"),
        pytest.param(PLAIN, "127.0.0.1:8080", id="another port than http's"),
    ],
)
def test_these_are_not(hosts: Hosts, host: str) -> None:
    assert not hosts.include(host)
