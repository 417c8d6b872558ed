from __future__ import annotations

import pytest

from evenly.discovery.authority import authority_of
from evenly.grpc.common.translation import grpc_target, is_unsent


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:80", "ipv4:127.0.0.1:80"),
        ("[::1]:80", "ipv6:[::1]:80"),
        ("search-0.prod:80", "dns:///search-0.prod:80"),
        ("unix:/run/search", "unix:/run/search"),
        ("unix-abstract:search", "unix-abstract:search"),
    ],
)
def test_backends_are_named_as_grpc_does(address: str, expected: str) -> None:
    assert grpc_target(address) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("dns:///search.prod:50051", "search.prod:50051"),
        ("dns://10.0.0.1/search.prod:50051", "search.prod:50051"),
        ("dns:search.prod:50051", "search.prod:50051"),
        ("search.prod:50051", "search.prod:50051"),
        ("dns:///_grpc._tcp.search.prod", "search.prod"),
        ("static:a:1,b:2", None),
        ("ipv4:127.0.0.1:1", None),
        ("file:/etc/backends", None),
        ("unix:/run/search", None),
    ],
)
def test_a_service_is_known_by_the_name_that_was_looked_up(
    target: str, expected: str | None
) -> None:
    assert authority_of(target) == expected


_REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: {}:"
    " Failed to connect to remote host: Connection refused"
)


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        pytest.param(_REFUSED.format("ipv4:10.0.0.1:50051"), True, id="this backend's port"),
        # A handler passed on what its own client said: the work above it may have been done.
        pytest.param(_REFUSED.format("ipv4:10.9.9.9:5432"), False, id="a dependency's port"),
        pytest.param("Stream removed (GOAWAY received)", True, id="taken back"),
        pytest.param("Stream removed (Socket closed)", False, id="the connection broke"),
        pytest.param(None, False, id="not a word"),
    ],
)
def test_what_was_not_sent_is_told_by_the_address(details: str | None, expected: bool) -> None:
    assert is_unsent(details, "10.0.0.1:50051") is expected
