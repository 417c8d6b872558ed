from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.claim import Trust
from evenly.core.criticality import Criticality
from evenly.grpc.common.incoming import Incoming

NEAR = "ipv4:127.0.0.1:1234"
FAR = "ipv4:203.0.113.7:1234"
PLUS = ("evenly-criticality", "CRITICAL_PLUS")
Metadata = tuple[tuple[str, str | bytes], ...]


class Context:
    """What gRPC's own context says; it counts who asks."""

    def __init__(
        self,
        *metadata: tuple[str, str | bytes],
        peer: str = NEAR,
        seconds: float | None = None,
        identities: tuple[bytes, ...] | None = None,
    ) -> None:
        self._metadata = metadata
        self._peer = peer
        self._seconds = seconds
        self._identities = identities
        self.asked = 0

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        self.asked += 1
        return self._peer

    def peer_identities(self) -> tuple[bytes, ...] | None:
        self.asked += 10
        return self._identities

    def time_remaining(self) -> float | None:
        return self._seconds


@pytest.fixture
def incoming() -> Incoming:
    return Incoming(Trust())


def test_a_request_that_claims_nothing_is_the_default_and_its_peer_is_not_asked_for(
    incoming: Incoming,
) -> None:
    context = Context(("user-agent", "grpc-python"), ("traceparent", "00-1-2-03"), peer=FAR)
    request, attempt, is_evenly, luck, line = incoming.read(context)

    assert (request.criticality, request.customer, request.deadline_at) == (
        Criticality.CRITICAL,
        "",
        None,
    )
    assert (attempt, is_evenly, luck, line, context.asked) == (1, False, None, 0.0, 0)


@pytest.mark.parametrize("times", [1, 2])  # What is remembered is the same.
def test_claims_are_believed_of_trusted_peers_and_capped_of_others(
    incoming: Incoming, times: int
) -> None:
    said = (PLUS, ("evenly-customer", "shop"), ("grpc-previous-rpc-attempts", "2"))
    for _ in range(times):
        near, near_attempt, *_ = incoming.read(Context(*said))
        far, far_attempt, *_ = incoming.read(Context(*said, peer=FAR))

        assert (near.criticality, near.customer, near_attempt) == (
            Criticality.CRITICAL_PLUS,
            "shop",
            3,
        )
        assert (far.criticality, far.customer, far_attempt) == (Criticality.CRITICAL, "", 1)


def test_a_far_peer_with_a_certificate_is_believed(incoming: Incoming) -> None:
    context = Context(PLUS, peer=FAR, identities=(b"CN=shop",))

    assert incoming.read(context)[0].criticality is Criticality.CRITICAL_PLUS


def test_a_near_peer_is_not_asked_for_its_certificate(incoming: Incoming) -> None:
    context = Context(PLUS)
    incoming.read(context)

    assert context.asked == 1


def test_our_clients_are_known_by_their_agent(incoming: Incoming) -> None:
    assert incoming.read(Context(("user-agent", "evenly/0.1 grpc-python")))[2]


def test_what_remains_of_the_deadline_is_an_instant_of_the_monotonic_clock(
    incoming: Incoming,
) -> None:
    before = time.monotonic()
    deadline_at = incoming.read(Context(seconds=5.0))[0].deadline_at
    after = time.monotonic()

    assert deadline_at is not None
    assert before + 5.0 <= deadline_at <= after + 5.0


def test_what_is_remembered_is_bounded(incoming: Incoming) -> None:
    for number in range(5000):
        incoming.read(Context(("evenly-customer", f"customer {number}")))
    assert len(incoming._known) <= 1024

    incoming._known.clear()
    incoming.read(Context(("baggage", "x" * 1025)))
    assert not incoming._known


@given(
    metadata=st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "evenly-criticality",
                    "evenly-customer",
                    "grpc-previous-rpc-attempts",
                    "baggage",
                    "user-agent",
                    "evenly-level",
                    "other",
                ]
            ),
            st.one_of(
                st.text(max_size=40),
                st.binary(max_size=40),
                st.sampled_from(
                    [
                        "SHEDDABLE",
                        "CRITICAL_PLUS",
                        "u=63;l=255",
                        "evenly-luck=63",
                        "7",
                        "-1",
                        "evenly/",
                    ]
                ),
            ),
        ),
        max_size=8,
    ),
    peer=st.sampled_from([NEAR, FAR, "", "unix:", "nonsense"]),
)
def test_nothing_hostile_raises_and_strangers_gain_nothing(
    metadata: list[tuple[str, str | bytes]], peer: str
) -> None:
    incoming = Incoming(Trust())
    first = incoming.read(Context(*metadata, peer=peer))
    again = incoming.read(Context(*metadata, peer=peer))

    assert first == again
    assert 1 <= first[1] <= 10
    if peer == FAR:
        assert first[0].criticality <= Criticality.CRITICAL
        assert first[0].customer == ""
        assert first[3:] == (None, 0.0)


# Luck and line.

LEVEL = ("evenly-level", "u=37;l=133")
SAID = (37 / 64, 133 / 64)


def level(incoming: Incoming, *said: Any, peer: Any = NEAR) -> tuple[float | None, float]:
    *_, luck, line = incoming.read(Context(*said, peer=peer))
    return luck, line


def test_luck_and_line_are_believed_of_trusted_peers_only(incoming: Incoming) -> None:
    baggage = ("baggage", "a=b,evenly-luck=5")
    for _ in range(2):  # What is remembered is the same.
        assert level(incoming, LEVEL) == SAID
        assert level(incoming, LEVEL, peer=FAR) == (None, 0.0)
        assert level(incoming, baggage) == (5 / 64, 0.0)
        assert level(incoming, baggage, peer=FAR) == (None, 0.0)
        assert level(incoming, baggage, LEVEL) == level(incoming, LEVEL, baggage) == SAID
        assert level(incoming, PLUS, LEVEL) == SAID
        assert level(incoming, PLUS, LEVEL, peer=FAR) == (None, 0.0)


@pytest.mark.parametrize("odd", ["", "u=64", "u=1,u=2", "x" * 5000])
def test_an_odd_level_is_none_and_does_no_harm(incoming: Incoming, odd: Any) -> None:
    said = (("evenly-level", odd), PLUS)

    assert level(incoming, *said) == (None, 0.0)
    assert level(incoming, *said, ("baggage", "evenly-luck=5")) == (5 / 64, 0.0)


def test_of_two_levels_none_is_believed(incoming: Incoming) -> None:
    assert level(incoming, LEVEL, LEVEL) == (None, 0.0)
    assert level(incoming, LEVEL, LEVEL, LEVEL) == (None, 0.0)


def test_luck_is_no_part_of_what_is_remembered_of_claims(incoming: Incoming) -> None:
    for number in range(64):
        u = str(number)
        baggage = "evenly-criticality=SHEDDABLE,evenly-luck=" + u
        said = ("evenly-level", "u=" + u), ("baggage", baggage)
        assert level(incoming, *said) == (number / 64, 0.0)
        request = incoming.read(Context(*said))[0]
        assert request.criticality is Criticality.SHEDDABLE
        assert request.luck is None  # Others share it.

    assert len(incoming._known) == 1
