from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.claim import Trust
from evenly.core.criticality import Criticality
from evenly.http.server.incoming import Incoming

NEAR = ("127.0.0.1", 1234)
FAR = ("203.0.113.7", 1234)
PLUS = (b"evenly-criticality", b"CRITICAL_PLUS")
CLAIMS = (PLUS, (b"evenly-customer", b"shop"), (b"x-envoy-attempt-count", b"3"))
BELIEVED = (Criticality.CRITICAL_PLUS, "shop", 3)
NOT_BELIEVED = (Criticality.CRITICAL, "", 1)


def scope_of(*headers: tuple[bytes, bytes], client: Any = NEAR, **other: Any) -> dict[str, Any]:
    return {"type": "http", "headers": list(headers), "client": client, **other}


@pytest.fixture
def incoming() -> Incoming:
    return Incoming(Trust())


def read(incoming: Incoming, scope: dict[str, Any]) -> tuple[Criticality, str, int]:
    request, attempt, *_ = incoming.read(scope)
    return request.criticality, request.customer, attempt


@pytest.mark.parametrize("headers", [(), ((b"user-agent", b"curl"), (b"accept", b"*/*"))])
def test_a_request_that_claims_nothing_is_the_default(incoming: Incoming, headers: Any) -> None:
    request, attempt, is_evenly, *others = incoming.read(scope_of(*headers, client=FAR))

    assert (request.criticality, request.customer, attempt) == NOT_BELIEVED
    assert others == [None, None, 0.0]  # no deadline, no luck, no line
    assert not is_evenly


def test_a_scope_may_have_next_to_nothing(incoming: Incoming) -> None:
    assert read(incoming, {"type": "http"}) == NOT_BELIEVED
    assert read(incoming, {"type": "http", "headers": [list(PLUS)]}) == NOT_BELIEVED


@pytest.mark.parametrize("times", [1, 2])  # What is remembered is the same.
def test_claims_are_believed_of_trusted_peers_and_capped_of_others(
    incoming: Incoming, times: int
) -> None:
    for _ in range(times):
        assert read(incoming, scope_of(*CLAIMS)) == BELIEVED
        assert read(incoming, scope_of(*CLAIMS, client=FAR)) == NOT_BELIEVED
        assert read(incoming, scope_of(*CLAIMS, client=None)) == NOT_BELIEVED


def test_a_peer_on_a_unix_socket_is_near(incoming: Incoming) -> None:
    assert read(incoming, scope_of(*CLAIMS, client=None, server=("/run/x", None))) == BELIEVED
    assert read(incoming, scope_of(*CLAIMS, client=None, server=("10.0.0.1", 80))) == NOT_BELIEVED
    stern = Incoming(Trust(near=False))
    assert read(stern, scope_of(*CLAIMS, client=None, server=("/run/x", None))) == NOT_BELIEVED


@pytest.mark.parametrize("name", ["unix:", "unix:x", "unix-abstract:x"])
def test_a_forwarded_header_makes_no_unix_socket(incoming: Incoming, name: str) -> None:
    assert read(incoming, scope_of(*CLAIMS, client=(name, 0))) == NOT_BELIEVED
    with_path = scope_of(*CLAIMS, client=(name, 0), server=("/run/x", None))
    assert read(incoming, with_path) == NOT_BELIEVED


@pytest.mark.parametrize(
    ("tls", "believed"),
    [
        ({"client_cert_name": "CN=shop", "client_cert_error": None}, BELIEVED),
        ({"client_cert_name": "CN=shop", "client_cert_error": "expired"}, NOT_BELIEVED),
        ({"client_cert_name": None}, NOT_BELIEVED),
        ({}, NOT_BELIEVED),
    ],
)
def test_a_far_peer_with_a_certificate_is_believed(
    incoming: Incoming, tls: Any, believed: Any
) -> None:
    assert read(incoming, scope_of(*CLAIMS, client=FAR, extensions={"tls": tls})) == believed


def test_criticality_comes_in_baggage_too_from_trusted_peers(incoming: Incoming) -> None:
    baggage = (b"baggage", b"a=b,evenly-criticality=SHEDDABLE")
    near = incoming.read(scope_of(baggage))[0]
    far = incoming.read(scope_of(baggage, client=FAR))[0]

    assert near.criticality is Criticality.SHEDDABLE
    assert far.criticality is Criticality.CRITICAL


def test_our_clients_are_known_by_their_agent(incoming: Incoming) -> None:
    assert incoming.read(scope_of((b"user-agent", b"python-httpx/0.28 evenly/1")))[2]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"5000", 5.0),
        (b"0", 0.0),
        (b"-1", 0.0),
        (b"1.5", 0.0015),
        (b"999999999", 999_999.999),
        (b"2592000000", 2_592_000.0),  # a month
    ],
)
def test_what_remains_until_the_deadline_is_read(
    incoming: Incoming, value: bytes, seconds: float
) -> None:
    request, _, _, seconds_left, *_ = incoming.read(scope_of((b"evenly-deadline-ms", value)))

    assert seconds_left == pytest.approx(seconds)
    assert request.deadline_at is None  # Others share it.


@pytest.mark.parametrize(
    "value", [b"", b"soon", b"nan", b"inf", b"-inf", b"1e400", b"2592000001", b"9" * 5000, b"\xb2"]
)
def test_what_is_no_deadline_is_none(incoming: Incoming, value: bytes) -> None:
    request, _, _, seconds_left, *_ = incoming.read(scope_of((b"evenly-deadline-ms", value), PLUS))

    assert seconds_left is None
    assert request.criticality is Criticality.CRITICAL_PLUS


def test_the_first_of_several_counts(incoming: Incoming) -> None:
    deadlines = ((b"evenly-deadline-ms", b"1000"), (b"evenly-deadline-ms", b"9000"))

    assert incoming.read(scope_of(*deadlines))[3] == 1.0


def test_of_repeated_headers_the_first_counts_and_baggage_goes_on(incoming: Incoming) -> None:
    first = incoming.read(scope_of(PLUS, (b"evenly-criticality", b"SHEDDABLE")))[0]
    baggage = ((b"baggage", b"a=b"), (b"baggage", b"evenly-criticality=SHEDDABLE"))
    second = incoming.read(scope_of(*baggage))[0]
    hidden = incoming.read(scope_of(*[baggage[0]] * 20, baggage[1]))[0]

    assert first.criticality is Criticality.CRITICAL_PLUS
    assert second.criticality is Criticality.SHEDDABLE
    assert hidden.criticality is Criticality.CRITICAL  # Nobody reads that far.
    odd = incoming.read(scope_of((b"baggage", "a=b"), *baggage))[0]  # type: ignore[arg-type]  # no bytes
    assert odd.criticality is Criticality.SHEDDABLE


def test_headers_may_be_anything_to_go_through(incoming: Incoming) -> None:
    scope = scope_of()
    scope["headers"] = iter([[b"evenly-criticality", b"SHEDDABLE"]])

    assert incoming.read(scope)[0].criticality is Criticality.SHEDDABLE
    scope["headers"] = None
    assert incoming.read(scope)[0].criticality is Criticality.CRITICAL


def test_what_is_remembered_is_bounded_and_no_deadline_is_remembered(incoming: Incoming) -> None:
    for number in range(5000):
        incoming.read(scope_of((b"evenly-customer", b"customer %d" % number)))
    assert len(incoming._known) <= 1024

    incoming._known.clear()
    incoming.read(scope_of((b"baggage", b"x" * 1025)))
    assert not incoming._known
    for number in range(100):
        incoming.read(scope_of((b"user-agent", b"x"), (b"evenly-deadline-ms", b"%d" % number)))
    assert len(incoming._known) == 1


def test_of_deadlines_the_usual_ones_are_remembered_and_not_without_end(
    incoming: Incoming,
) -> None:
    for number in range(10_000):
        incoming.read(scope_of((b"evenly-deadline-ms", b"%d" % number)))
    assert 0 < len(incoming._seconds) <= 4096

    incoming._seconds.clear()
    for value in (b"1.5", b"soon", b"-1", b"1" * 10):
        incoming.read(scope_of((b"evenly-deadline-ms", value)))
    assert not incoming._seconds


def test_what_else_is_said_matters_and_not_in_which_order(incoming: Incoming) -> None:
    agent = (b"user-agent", b"evenly/1")
    plain = incoming.read(scope_of(agent))
    first = incoming.read(scope_of(PLUS, agent))
    second = incoming.read(scope_of(agent, PLUS))

    assert [answer[2] for answer in (plain, first, second)] == [True] * 3
    assert [answer[0].criticality for answer in (plain, first, second)] == [
        Criticality.CRITICAL,
        Criticality.CRITICAL_PLUS,
        Criticality.CRITICAL_PLUS,
    ]
    assert len(incoming._known) == 2
    for other in (b"curl", b""):  # The first one counts.
        assert not incoming.read(scope_of((b"user-agent", other), agent))[2]


@pytest.mark.parametrize("value", [bytearray(b"500"), [], {}])
def test_a_deadline_that_is_no_text_is_none(incoming: Incoming, value: Any) -> None:
    assert incoming.read(scope_of((b"evenly-deadline-ms", value)))[3] is None


@pytest.mark.parametrize("agent", ["curl", b"", b"x" * 5000])
def test_an_odd_agent_does_no_harm(incoming: Incoming, agent: Any) -> None:
    for more in ((), (PLUS,)):
        request, _, is_evenly, *_ = incoming.read(scope_of((b"user-agent", agent), *more))
        assert not is_evenly
        assert request.criticality is (Criticality.CRITICAL_PLUS if more else Criticality.CRITICAL)
    assert len(incoming._known) == (0 if len(agent) > 1024 else 2)


@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"evenly-criticality",
                    b"evenly-customer",
                    b"evenly-deadline-ms",
                    b"x-envoy-attempt-count",
                    b"baggage",
                    b"user-agent",
                    b"evenly-level",
                    b"other",
                ]
            ),
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [
                        b"SHEDDABLE",
                        b"CRITICAL_PLUS",
                        b"u=63;l=255",
                        b"evenly-luck=63",
                        b"7",
                        b"-1",
                        b"evenly/",
                        b"nan",
                    ]
                ),
            ),
        ),
        max_size=24,
    ),
    client=st.sampled_from([NEAR, FAR, None, ("", 0), ("nonsense", 1)]),
)
def test_nothing_hostile_raises_and_strangers_gain_nothing(
    headers: list[tuple[bytes, bytes]], client: Any
) -> None:
    incoming = Incoming(Trust())
    request, attempt, is_evenly, *others = incoming.read(scope_of(*headers, client=client))
    again = incoming.read(scope_of(*headers, client=client))

    assert (request.criticality, request.customer) == (again[0].criticality, again[0].customer)
    assert (attempt, is_evenly, *others) == again[1:]
    assert 1 <= attempt <= 10
    if client == FAR:
        assert request.criticality <= Criticality.CRITICAL
        assert request.customer == ""
        assert attempt == 1
        assert others[1:] == [None, 0.0]


# Luck and line.

LEVEL = (b"evenly-level", b"u=37;l=133")
SAID = (37 / 64, 133 / 64)


def level(incoming: Incoming, *said: Any, peer: Any = NEAR) -> tuple[float | None, float]:
    *_, luck, line = incoming.read(scope_of(*said, client=peer))
    return luck, line


def test_luck_and_line_are_believed_of_trusted_peers_only(incoming: Incoming) -> None:
    baggage = (b"baggage", b"a=b,evenly-luck=5")
    for _ in range(2):  # What is remembered is the same.
        assert level(incoming, LEVEL) == SAID
        assert level(incoming, LEVEL, peer=FAR) == (None, 0.0)
        assert level(incoming, baggage) == (5 / 64, 0.0)
        assert level(incoming, baggage, peer=FAR) == (None, 0.0)
        assert level(incoming, baggage, LEVEL) == level(incoming, LEVEL, baggage) == SAID
        assert level(incoming, PLUS, LEVEL) == SAID
        assert level(incoming, PLUS, LEVEL, peer=FAR) == (None, 0.0)


@pytest.mark.parametrize("odd", [b"", b"u=64", b"u=1,u=2", b"x" * 5000])
def test_an_odd_level_is_none_and_does_no_harm(incoming: Incoming, odd: Any) -> None:
    said = ((b"evenly-level", odd), PLUS)

    assert level(incoming, *said) == (None, 0.0)
    assert level(incoming, *said, (b"baggage", b"evenly-luck=5")) == (5 / 64, 0.0)


def test_of_two_levels_none_is_believed(incoming: Incoming) -> None:
    assert level(incoming, LEVEL, LEVEL) == (None, 0.0)
    assert level(incoming, LEVEL, LEVEL, LEVEL) == (None, 0.0)


def test_luck_is_no_part_of_what_is_remembered_of_claims(incoming: Incoming) -> None:
    for number in range(64):
        u = b"%d" % number
        baggage = b"evenly-criticality=SHEDDABLE,evenly-luck=" + u
        said = (b"evenly-level", b"u=" + u), (b"baggage", baggage)
        assert level(incoming, *said) == (number / 64, 0.0)
        request = incoming.read(scope_of(*said))[0]
        assert request.criticality is Criticality.SHEDDABLE
        assert request.luck is None  # Others share it.

    assert len(incoming._known) == 1
