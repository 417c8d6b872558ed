from __future__ import annotations

from evenly.core.criticality import Criticality
from evenly.wire.known_claims import KnownClaims
from evenly.wire.metadata import Claims, claims_of_http

Said = tuple[tuple[bytes, bytes], ...]


def test_what_is_known_is_not_read_again() -> None:
    read: list[Said] = []

    def claims_of(said: Said) -> Claims:
        read.append(said)
        return claims_of_http(said)

    known = KnownClaims[Said](claims_of, first_attempt=1)
    said = ((b"evenly-criticality", b"CRITICAL_PLUS"), (b"x-envoy-attempt-count", b"2"))
    first, again = known[said], known[(said[0], said[1])]

    assert first is again
    assert read == [said]
    assert first.if_trusted[0].criticality is Criticality.CRITICAL_PLUS
    assert first.if_trusted[1] == 2
    assert first.if_not is not None
    assert first.if_not[0].criticality is Criticality.CRITICAL
    assert first.if_not[1] == 1


def test_where_nothing_is_claimed_who_says_it_does_not_matter() -> None:
    known = KnownClaims[Said](claims_of_http, first_attempt=1)

    assert known[()].if_not is None
    assert known[((b"evenly-criticality", b"SHEDDABLE"),)].if_not is None  # Less is believed.


def test_a_deadline_is_no_part_of_what_is_remembered() -> None:
    known = KnownClaims[Said](claims_of_http, first_attempt=1)

    assert known[((b"evenly-deadline-ms", b"5"),)].if_trusted[0].deadline_at is None
