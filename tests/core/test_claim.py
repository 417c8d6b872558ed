from __future__ import annotations

import pytest

from evenly.core.claim import ATTEMPT_MAX, Trust, believe, is_customer
from evenly.core.criticality import Criticality
from evenly.core.request import Request
from evenly.errors import ConfigError

NOW = 1_000.25
MEGABYTE = 1_000_000


def test_no_claims_are_the_default_request_on_its_first_attempt() -> None:
    assert believe(peer_is_trusted=True, now=NOW) == (Request(), 1)


def test_a_trusted_peer_is_believed() -> None:
    claims = believe(
        criticality="CRITICAL_PLUS",
        customer="indexer",
        attempt="2",
        deadline_ms="1500",
        peer_is_trusted=True,
        now=NOW,
    )

    expected = Request(
        criticality=Criticality.CRITICAL_PLUS, customer="indexer", deadline_at=NOW + 1.5
    )
    assert claims == (expected, 2)


def test_another_is_capped_at_critical_and_belongs_to_the_default_customer() -> None:
    request, attempt = believe(
        criticality="CRITICAL_PLUS",
        customer="indexer",
        attempt="2",
        deadline_ms="1500",
        peer_is_trusted=False,
        now=NOW,
    )

    assert request == Request(criticality=Criticality.CRITICAL, deadline_at=NOW + 1.5)
    assert attempt == 1


@pytest.mark.parametrize("first_attempt", [0, 1])
@pytest.mark.parametrize("attempt", [2, "3", b"10", 10**9])
def test_strangers_who_claim_to_retry_are_on_their_first_attempt(
    attempt: object, first_attempt: int
) -> None:
    # Else they could fill a backend's histogram, and talk it into "don't retry" for everyone.
    number = {
        trusted: believe(
            attempt=attempt, peer_is_trusted=trusted, now=NOW, first_attempt=first_attempt
        )[1]
        for trusted in (False, True)
    }

    assert number[False] == 1
    assert number[True] > 1


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("criticality", list(Criticality)[:3])
def test_anyone_may_matter_less(criticality: Criticality, trusted: bool) -> None:
    request, _ = believe(criticality=criticality.name, peer_is_trusted=trusted, now=NOW)

    assert request.criticality is criticality


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("ULTRA", id="no such"),
        pytest.param("sheddable", id="lower case"),
        pytest.param(" SHEDDABLE", id="with a space"),
        pytest.param("0", id="its number as text"),
        pytest.param(0, id="its number"),
        pytest.param("SHEDDABLE" * MEGABYTE, id="nine megabytes"),
        pytest.param(["SHEDDABLE"], id="not hashable"),
        pytest.param("", id="empty"),
    ],
)
def test_an_unknown_criticality_is_the_default(value: object) -> None:
    request, _ = believe(criticality=value, peer_is_trusted=True, now=NOW)
    batch, _ = believe(
        criticality=value,
        peer_is_trusted=True,
        now=NOW,
        default_criticality=Criticality.SHEDDABLE_PLUS,
    )

    assert request.criticality is Criticality.CRITICAL
    assert batch.criticality is Criticality.SHEDDABLE_PLUS


def test_headers_may_be_bytes() -> None:
    request, attempt = believe(
        criticality=b"SHEDDABLE",
        customer=b"indexer",
        attempt=b"3",
        deadline_ms=b"250",
        peer_is_trusted=True,
        now=NOW,
    )

    assert request == Request(
        criticality=Criticality.SHEDDABLE, customer="indexer", deadline_at=NOW + 0.25
    )
    assert attempt == 3


@pytest.mark.parametrize(
    "customer",
    ["", "a", "indexer", "team/search indexer@prod", "x" * 128, "~!"],
    ids=["default", "one", "word", "spaces inside", "longest", "extremes"],
)
def test_a_printable_customer_is_believed(customer: str) -> None:
    assert is_customer(customer)
    assert believe(customer=customer, peer_is_trusted=True, now=NOW)[0].customer == customer


@pytest.mark.parametrize(
    "customer",
    [
        pytest.param("x" * 129, id="too long"),
        pytest.param("x" * MEGABYTE, id="a megabyte"),
        pytest.param("a\nb", id="a line break"),
        pytest.param("a\n", id="a final line break"),
        pytest.param("a\x00", id="NUL"),
        pytest.param("a\x7f", id="DEL"),
        pytest.param(" a", id="space before"),
        pytest.param("a ", id="space after"),
        pytest.param(" ", id="space alone"),
        pytest.param("müller", id="not ASCII"),
        pytest.param(7, id="not text"),
    ],
)
def test_any_other_customer_is_the_default_customer(customer: object) -> None:
    assert not is_customer(customer)
    assert believe(customer=customer, peer_is_trusted=True, now=NOW)[0].customer == ""


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        pytest.param("1", 1, id="the first"),
        pytest.param("3", 3, id="the last of ours"),
        pytest.param(2, 2, id="a number"),
        pytest.param("0", 1, id="zero"),
        pytest.param("-1", 1, id="negative"),
        pytest.param(-1, 1, id="negative number"),
        pytest.param("1000000000", ATTEMPT_MAX, id="10^9"),
        pytest.param("9" * 128, ATTEMPT_MAX, id="the most digits that are read"),
        pytest.param(10**5000, ATTEMPT_MAX, id="a huge number"),
        pytest.param("9" * 5000, 1, id="more digits than int() takes"),
        pytest.param("9" * 10 * MEGABYTE, 1, id="ten megabytes"),
        pytest.param("NaN", 1, id="NaN"),
        pytest.param("1.5", 1, id="a fraction"),
        pytest.param("٣", 1, id="another script's three"),
        pytest.param("²", 1, id="a digit that int() refuses"),
        pytest.param("1_0", 1, id="an underscore"),
        pytest.param("+2", 1, id="a sign"),
        pytest.param("", 1, id="empty"),
        pytest.param(True, 1, id="a truth value"),
    ],
)
def test_an_attempt_is_bounded(attempt: object, expected: int) -> None:
    assert believe(attempt=attempt, peer_is_trusted=True, now=NOW)[1] == expected


@pytest.mark.parametrize(
    ("previous", "expected"), [(None, 1), ("0", 1), ("1", 2), ("10", ATTEMPT_MAX), ("-1", 1)]
)
def test_grpc_counts_previous_attempts(previous: str | None, expected: int) -> None:
    assert believe(attempt=previous, first_attempt=0, peer_is_trusted=True, now=NOW)[1] == expected


@pytest.mark.parametrize(
    ("deadline_ms", "expected"),
    [
        pytest.param("250", NOW + 0.25, id="milliseconds"),
        pytest.param("0.5", NOW + 0.0005, id="a fraction of one"),
        pytest.param(250, NOW + 0.25, id="a number"),
        pytest.param("0", NOW, id="zero has passed"),
        pytest.param("-5000", NOW, id="negative has passed, just now"),
        pytest.param("2592000000", NOW + 2_592_000.0, id="a month"),
        pytest.param("2592000001", None, id="beyond a month"),
        pytest.param("NaN", None, id="NaN"),
        pytest.param("inf", None, id="infinite"),
        pytest.param("-inf", None, id="minus infinite"),
        pytest.param(float("nan"), None, id="a NaN"),
        pytest.param(10**400, None, id="too big for a float"),
        pytest.param("1" * 25, None, id="too long for a number"),
        pytest.param("soon", None, id="a word"),
        pytest.param("", None, id="empty"),
        pytest.param(True, None, id="a truth value"),
    ],
)
def test_a_deadline_is_finite_and_never_before_now(
    deadline_ms: object, expected: float | None
) -> None:
    request, _ = believe(deadline_ms=deadline_ms, peer_is_trusted=True, now=NOW)

    assert request.deadline_at == expected


@pytest.mark.parametrize(
    "peer",
    [
        "ipv4:127.0.0.1:50051",
        "ipv4:10.1.2.3:50051",
        "ipv6:[::1]:50051",
        "ipv6:%5B::1%5D:50051",
        "ipv6:[::ffff:192.168.0.7]:50051",
        "[fd00::1]:80",
        "[fe80::1%eth0]:80",
        "172.31.255.255:80",
        "192.168.1.1",
        "::1",
        "unix:",
        "unix:/run/evenly.sock",
        "unix-abstract:evenly",
    ],
)
def test_near_peers_are_trusted_unless_told_otherwise(peer: str) -> None:
    assert Trust().is_trusted(peer)
    assert not Trust(near=False).is_trusted(peer)


@pytest.mark.parametrize(
    "peer",
    [
        "ipv4:8.8.8.8:50051",
        "ipv6:[2001:4860::8888]:50051",
        "ipv6:[::ffff:8.8.8.8]:50051",
        "172.32.0.1:80",
        "192.0.2.1:80",  # documentation, which `ipaddress` calls private
        "localhost:80",  # a name is not looked up
        "10.0.0.1.evil.example:80",
        "010.0.0.1:80",
        "ipv4:",
        "",
        "[",
        "127.0.0.1" + " " * 300,
        None,
        b"127.0.0.1",
        ("127.0.0.1", 80),
    ],
)
def test_others_are_not_except_by_mtls(peer: object) -> None:
    trust = Trust()

    assert not trust.is_trusted(peer)
    assert trust.is_trusted(peer, has_mtls_identity=True)


def test_listed_networks_are_trusted() -> None:
    trust = Trust(["203.0.113.0/24", "2001:db8::/32"])

    assert trust.is_trusted("ipv4:203.0.113.9:1")
    assert trust.is_trusted("ipv6:[2001:db8::9]:1")
    assert not trust.is_trusted("ipv4:203.0.114.9:1")


def test_a_listed_network_must_be_one() -> None:
    with pytest.raises(ConfigError, match=r"trusted networks: '10\.0\.0\.0/33'"):
        Trust(["10.0.0.0/33"])


def test_one_network_that_is_no_list_is_refused_as_a_whole() -> None:
    message = "trusted_networks must be a tuple of networks, not the string '10.0.0.0/8'"
    with pytest.raises(ConfigError, match=message):
        Trust("10.0.0.0/8")


def test_peers_are_remembered_up_to_a_bound() -> None:
    trust = Trust()

    for port in range(10_001):
        assert trust.is_trusted(f"ipv4:10.0.0.1:{port}")

    assert len(trust._known) == 1  # the 10,001st, after a fresh start: there is no public view
    assert not trust.is_trusted("ipv4:8.8.8.8:1")
    assert not trust.is_trusted("ipv4:8.8.8.8:1")
