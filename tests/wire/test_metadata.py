from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.claim import ATTEMPT_MAX, is_customer
from evenly.core.criticality import Criticality
from evenly.core.request import Request
from evenly.errors import ConfigError
from evenly.wire.metadata import (
    DEGRADED,
    Claims,
    believed,
    claims_of_grpc,
    claims_of_http,
    to_grpc,
    to_http,
)

NOW = 1_000.25
SHEDDABLE = Request(criticality=Criticality.SHEDDABLE)


def http_claims(*entries: tuple[str, str]) -> Claims:
    return claims_of_http([(key.encode(), value.encode()) for key, value in entries])


def baggage_of(*values: str) -> Claims:
    return claims_of_grpc([("baggage", value) for value in values])


# What a client sends.


def test_a_default_request_carries_nothing() -> None:
    assert to_grpc(Request(), 1) == ()
    assert to_http(Request(), 1, NOW) == ()


def test_criticality_travels_under_our_key_and_in_baggage() -> None:
    expected = (
        ("evenly-criticality", "SHEDDABLE"),
        ("baggage", "evenly-criticality=SHEDDABLE"),
    )

    assert to_grpc(SHEDDABLE, 1) == expected
    assert to_http(SHEDDABLE, 1, NOW) == expected


def test_a_customer_travels_without_its_criticality() -> None:
    request = Request(customer="indexer")

    assert to_grpc(request, 1) == (("evenly-customer", "indexer"),)
    assert to_http(request, 1, NOW) == (("evenly-customer", "indexer"),)


def test_grpc_counts_previous_attempts_and_envoy_all_of_them() -> None:
    # The third attempt: two before it.
    assert to_grpc(Request(), 3) == (("grpc-previous-rpc-attempts", "2"),)
    assert to_http(Request(), 3, NOW) == (("x-envoy-attempt-count", "3"),)


def test_requests_of_one_kind_share_their_metadata() -> None:
    first = to_grpc(Request(criticality=Criticality.CRITICAL_PLUS, customer="a"), 2)

    assert to_grpc(Request(criticality=Criticality.CRITICAL_PLUS, customer="a"), 2) is first
    assert to_grpc(Request(criticality=Criticality.CRITICAL_PLUS, customer="b"), 2) != first
    assert to_grpc(Request(criticality=Criticality.SHEDDABLE, customer="a"), 2) != first
    assert to_grpc(Request(criticality=Criticality.CRITICAL_PLUS, customer="a"), 3) != first


def test_many_customers_do_not_fill_memory() -> None:
    first = to_grpc(Request(customer="customer 0"), 1)
    for number in range(1, 2_000):
        to_grpc(Request(customer=f"customer {number}"), 1)

    again = to_grpc(Request(customer="customer 0"), 1)
    assert again == first
    assert again is not first  # It was forgotten meanwhile.


@pytest.mark.parametrize("customer", ["ü", "a\r\nx-admin: 1", " a", "a" * 129])
def test_a_customer_that_would_break_the_header_is_refused(customer: str) -> None:
    with pytest.raises(ConfigError, match="no header can carry the customer"):
        to_grpc(Request(customer=customer), 1)
    with pytest.raises(ConfigError, match="no header can carry the customer"):
        to_http(Request(customer=customer), 1, NOW)


@pytest.mark.parametrize(
    ("remaining_seconds", "milliseconds"),
    [
        pytest.param(1.5, "1500", id="what remains"),
        pytest.param(0.0019, "1", id="rounded down"),
        pytest.param(0.0, "0", id="just passed"),
        pytest.param(-5.0, "0", id="long passed"),
    ],
)
def test_http_says_what_remains_of_the_deadline(
    remaining_seconds: float, milliseconds: str
) -> None:
    # 1,024 is exact in binary: deadline − now has no rounding that could tip 1500 to 1499.
    request = Request(deadline_at=1_024.0 + remaining_seconds)

    assert to_http(request, 1, 1_024.0) == (("evenly-deadline-ms", milliseconds),)
    assert to_grpc(request, 1) == ()


@pytest.mark.parametrize("deadline_at", [math.inf, math.nan, 1e300])
def test_a_deadline_that_never_comes_is_not_sent(deadline_at: float) -> None:
    assert to_http(Request(deadline_at=deadline_at), 1, NOW) == ()


# What a backend reads.


@given(
    criticality=st.sampled_from(Criticality),
    customer=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=128),
    attempt=st.integers(1, ATTEMPT_MAX),
)
def test_what_was_sent_is_what_a_trusting_backend_reads(
    criticality: Criticality, customer: str, attempt: int
) -> None:
    request = Request(criticality=criticality, customer=customer, deadline_at=1_026.0)
    grpc = claims_of_grpc(to_grpc(request, attempt))
    http = http_claims(*to_http(request, attempt, 1_024.0))

    # Two seconds remain of the deadline, and the backend's clock says 5.
    expected = Request(criticality=criticality, customer=customer, deadline_at=7.0)
    read = believed(grpc, peer_is_trusted=True, now=5.0, deadline_ms=2_000.0)
    assert read == (expected, attempt)
    assert believed(http, peer_is_trusted=True, now=5.0, first_attempt=1) == (expected, attempt)


def test_no_metadata_are_no_claims() -> None:
    assert claims_of_grpc([]) == claims_of_http([]) == Claims()
    assert believed(Claims(), peer_is_trusted=True, now=NOW) == (Request(), 1)


def test_who_claims_no_criticality_gets_the_default_of_the_backend() -> None:
    request, _ = believed(
        Claims(), peer_is_trusted=True, now=NOW, default_criticality=Criticality.SHEDDABLE_PLUS
    )

    assert request.criticality is Criticality.SHEDDABLE_PLUS


def test_the_transports_own_deadline_beats_the_one_in_a_header() -> None:
    claims = http_claims(("evenly-deadline-ms", "9000"))

    request, _ = believed(claims, peer_is_trusted=True, now=NOW, deadline_ms=500.0)
    assert request.deadline_at == NOW + 0.5


def test_grpc_has_its_own_deadline_and_attempt_and_http_has_others() -> None:
    entries = (
        ("evenly-deadline-ms", "9000"),
        ("x-envoy-attempt-count", "3"),
        ("grpc-previous-rpc-attempts", "1"),
    )
    grpc, http = claims_of_grpc(entries), http_claims(*entries)

    assert (grpc.deadline_ms, grpc.attempt) == (None, "1")
    assert (http.deadline_ms, http.attempt) == (b"9000", b"3")


@pytest.mark.parametrize(
    "key",
    ["evenly-criticality", "evenly-customer", "grpc-previous-rpc-attempts"],
)
def test_of_a_key_that_comes_twice_the_first_counts(key: str) -> None:
    claims = claims_of_grpc([(key, "first"), (key, "second")])

    assert {claims.criticality, claims.customer, claims.attempt} == {"first", None}


@pytest.mark.parametrize(
    ("agent", "is_evenly"),
    [
        pytest.param("evenly/0.1 grpc-python-asyncio/1.85.1", True, id="ours"),
        pytest.param("search/3 evenly/0.1 grpc-python/1.85.1", True, id="ours, with a name"),
        pytest.param("grpc-go/1.66", False, id="another's"),
        pytest.param("x" * 100_000 + "evenly/", False, id="far behind"),
    ],
)
def test_a_client_of_ours_says_so(agent: str, is_evenly: bool) -> None:
    assert claims_of_grpc([("user-agent", agent)]).is_evenly is is_evenly
    assert http_claims(("user-agent", agent)).is_evenly is is_evenly


# Baggage.


@pytest.mark.parametrize(
    "baggage",
    [
        "evenly-criticality=SHEDDABLE",
        "a=1,evenly-criticality=SHEDDABLE,b=2",
        "a=1 ,\t evenly-criticality = SHEDDABLE ;p=1;q, b=2",
        "evenly-criticality=nonsense,evenly-criticality=SHEDDABLE,evenly-criticality=CRITICAL",
    ],
)
def test_baggage_of_a_trusted_peer_is_believed(baggage: str) -> None:
    for claims in (baggage_of(baggage), http_claims(("baggage", baggage))):
        assert claims.criticality == "SHEDDABLE"
        assert claims.from_baggage
        assert believed(claims, peer_is_trusted=True, now=NOW)[0] == SHEDDABLE


def test_baggage_of_another_is_not_looked_at_although_less_is_believed_of_anyone() -> None:
    in_baggage = baggage_of("evenly-criticality=SHEDDABLE")
    by_key = claims_of_grpc([("evenly-criticality", "SHEDDABLE")])

    assert believed(in_baggage, peer_is_trusted=False, now=NOW)[0] == Request()
    assert believed(by_key, peer_is_trusted=False, now=NOW)[0] == SHEDDABLE


@pytest.mark.parametrize("order", [1, -1])
def test_our_own_key_beats_baggage(order: int) -> None:
    entries = [("evenly-criticality", "SHEDDABLE"), ("baggage", "evenly-criticality=CRITICAL_PLUS")]
    claims = claims_of_grpc(entries[::order])

    assert claims.criticality == "SHEDDABLE"
    assert not claims.from_baggage


def test_of_several_baggage_headers_the_first_with_a_valid_criticality_counts() -> None:
    claims = baggage_of("a=1", "evenly-criticality=", "evenly-criticality=SHEDDABLE_PLUS", "b=2")

    assert claims.criticality == "SHEDDABLE_PLUS"


@pytest.mark.parametrize(
    "baggage",
    [
        "",
        "a=1;evenly-criticality=SHEDDABLE",
        "not-evenly-criticality=SHEDDABLE",
        "evenly-criticality=sheddable",
        "evenly-criticality=SHEDDABLE_",
        "evenly-criticality=SHEDDABLE%20",
        "evenly-criticality SHEDDABLE",
        "evenly-criticality=SHEDDABLE\n",
    ],
)
def test_baggage_about_other_things_says_nothing(baggage: str) -> None:
    claims = baggage_of(baggage)

    assert claims.criticality is None
    assert not claims.from_baggage


MEMBER = "evenly-criticality=CRITICAL_PLUS"


def test_eight_kibibytes_of_baggage_are_looked_at() -> None:
    filler = 8192 - len("," + MEMBER)

    assert baggage_of("x" * filler + "," + MEMBER).criticality == "CRITICAL_PLUS"
    assert baggage_of("x" * filler, "," + MEMBER).criticality == "CRITICAL_PLUS"
    assert baggage_of("x" * (filler + 1), "," + MEMBER).criticality is None


def test_a_member_that_is_cut_in_two_is_none() -> None:
    # Cut behind "CRITICAL", it would be another criticality.
    filler = 8192 - len("," + MEMBER.removesuffix("_PLUS"))

    assert baggage_of("x" * filler + "," + MEMBER, MEMBER).criticality is None
    assert baggage_of("x" * filler, "," + MEMBER, MEMBER).criticality is None


def test_a_huge_baggage_header_hides_what_comes_after_it() -> None:
    assert baggage_of("x" * 100_000, MEMBER).criticality is None


def test_a_degraded_answer_says_so() -> None:
    assert DEGRADED == ("evenly-degraded", "1")


# Strangers.

_names = [
    "evenly-criticality",
    "evenly-customer",
    "evenly-deadline-ms",
    "grpc-previous-rpc-attempts",
    "x-envoy-attempt-count",
    "baggage",
    "user-agent",
]
_texts = st.one_of(
    st.text(),
    st.sampled_from([*Criticality.__members__, "9" * 5000, "-1", "nan", "\ud800", "x" * 20_000]),
    st.text(",;= \tevenly-criticality=SHEDDABLE_PLUS"),
)
_anything = st.one_of(
    _texts, st.binary(), _texts.map(lambda text: text.encode("utf-8", "replace")),
    st.none(), st.integers(), st.floats(), st.lists(st.integers()), st.builds(object),
)  # fmt: skip
_keys = st.one_of(st.sampled_from(_names), st.sampled_from(_names).map(str.encode), _anything)


@given(
    entries=st.lists(st.tuples(_keys, _anything)),
    trusted=st.booleans(),
    deadline_ms=st.one_of(st.none(), st.floats()),
)
def test_whatever_strangers_send_nothing_raises_and_what_is_believed_is_in_bounds(
    entries: list[tuple[object, object]], trusted: bool, deadline_ms: float | None
) -> None:
    for claims, first_attempt in (
        (claims_of_grpc(entries), 0),  # type: ignore[arg-type]
        (claims_of_http(entries), 1),  # type: ignore[arg-type]
    ):
        request, attempt = believed(
            claims,
            peer_is_trusted=trusted,
            now=NOW,
            deadline_ms=deadline_ms,
            first_attempt=first_attempt,
        )
        assert is_customer(request.customer)
        assert 1 <= attempt <= ATTEMPT_MAX
        assert request.deadline_at is None or NOW <= request.deadline_at < math.inf
        if not trusted:
            assert request.criticality <= Criticality.CRITICAL
            assert (request.customer, attempt) == ("", 1)
            to_grpc(request, attempt)
