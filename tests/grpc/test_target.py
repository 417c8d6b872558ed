from __future__ import annotations

import pytest

from evenly.grpc.target import authority_of, grpc_target, is_unsent


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param("10.0.0.1:50051", "ipv4:10.0.0.1:50051", id="an IPv4 address"),
        pytest.param("[::1]:50051", "ipv6:[::1]:50051", id="an IPv6 address"),
        pytest.param("search-3.prod:50051", "dns:///search-3.prod:50051", id="a name"),
        pytest.param("unix:/run/search", "unix:/run/search", id="a socket"),
    ],
)
def test_a_backend_is_named_as_grpc_does(address: str, expected: str) -> None:
    assert grpc_target(address) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param("dns:///search.prod:50051", "search.prod:50051", id="a name"),
        pytest.param("dns://10.0.0.2/search.prod:50051", "search.prod:50051", id="with a server"),
        pytest.param("search.prod:50051", "search.prod:50051", id="without a scheme"),
        pytest.param("dns:///_grpc._tcp.search.prod", "search.prod", id="SRV"),
        pytest.param("static:10.0.0.1:1,10.0.0.2:1", None, id="a list has no name"),
        pytest.param("file:/etc/backends", None, id="nor has a file"),
    ],
)
def test_certificates_are_checked_for_the_name_of_the_service(
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
