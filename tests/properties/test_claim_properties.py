from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from evenly.core.claim import ATTEMPT_MAX, CUSTOMER_MAX_LENGTH, Trust, believe, is_customer
from evenly.core.criticality import Criticality

NOW = 1_000.25

numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.decimals(), st.complex_numbers())
anything = st.one_of(
    st.none(),
    st.text(),
    st.binary(),
    numbers,
    numbers.map(str),
    st.sampled_from([*Criticality.__members__, "NaN", "-inf", "1e400", "9" * 5000, "\ud800"]),
    st.lists(st.text()),
    st.dictionaries(st.text(), st.text()),
    st.builds(object),
)


@given(
    criticality=anything, customer=anything, attempt=anything, deadline=anything, near=st.booleans()
)
def test_whatever_is_claimed_what_is_believed_is_in_bounds(
    criticality: object, customer: object, attempt: object, deadline: object, near: bool
) -> None:
    request, number = believe(
        criticality=criticality,
        customer=customer,
        attempt=attempt,
        deadline_ms=deadline,
        peer_is_trusted=near,
        now=NOW,
    )

    assert type(request.criticality) is Criticality
    assert len(request.customer) <= CUSTOMER_MAX_LENGTH
    assert is_customer(request.customer)
    assert 1 <= number <= ATTEMPT_MAX
    if request.deadline_at is not None:
        assert math.isfinite(request.deadline_at)
        assert NOW <= request.deadline_at <= NOW + 30 * 86_400
    if not near:
        assert request.criticality <= Criticality.CRITICAL
        assert request.customer == ""
        assert number == 1


@given(peer=anything)
def test_any_peer_is_either_trusted_or_not(peer: object) -> None:
    trust = Trust()

    first = trust.is_trusted(peer)

    assert first in (True, False)
    assert trust.is_trusted(peer) is first


@given(address=st.ip_addresses(), port=st.integers(min_value=0, max_value=65_535))
def test_every_spelling_of_an_address_is_judged_alike(address: object, port: int) -> None:
    trust = Trust()
    host = f"[{address}]" if ":" in str(address) else str(address)
    scheme = "ipv6" if ":" in str(address) else "ipv4"

    verdicts = {
        trust.is_trusted(peer)
        for peer in (str(address), f"{host}:{port}", f"{scheme}:{host}:{port}")
    }

    assert len(verdicts) == 1
