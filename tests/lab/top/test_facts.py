from __future__ import annotations

import json

import pytest

from evenly.lab.top.facts import Facts, ServiceFacts, make_facts
from evenly.lab.top.rates import Sight
from tests.lab.top.pages import page, sight


def backend(instance: str, *, utilization: float, lame: float = 0.0, ok: float = 0.0) -> Sight:
    def at(done: float) -> dict[str, float]:
        return {
            'backend_requests_total{outcome="ok",criticality="critical"}': done,
            'backend_requests_total{outcome="error",criticality="critical"}': done,
            'backend_admitted_total{criticality="critical"}': 2 * done,
            'backend_rejected_total{criticality="sheddable",reason="overloaded"}': 3 * done,
            'backend_rejected_total{criticality="sheddable",reason="expired"}': 0.0,
            'backend_cost_seconds_total{customer="shop"}': done / 100,
            'backend_cost_seconds_total{customer="other"}': done / 50,
            'backend_out_of_quota_total{customer="shop"}': done,
            'backend_quota_limit{customer="shop"}': 0.5,
            'backend_quota_demand{customer="shop"}': 0.75,
            "backend_utilization": utilization,
            "backend_lame_duck": lame,
            "backend_active_requests": 7,
            "backend_degrading": 1,
            "backend_cut": 1.4,
        }

    return sight(page(**at(100 + ok)), page(**at(100)), instance=instance)


def client(instance: str, *, first: float, again: float, refused: float = 0.0) -> Sight:
    def at(share: float) -> dict[str, float]:
        return {
            'client_attempts_total{criticality="critical",attempt="1"}': first * share,
            'client_attempts_total{criticality="critical",attempt="2"}': again * share,
            'client_refused_total{criticality="sheddable",reason="throttled"}': refused * share,
            'client_attempt_seconds_count{outcome="ok"}': first * share,
            'client_attempt_seconds_bucket{outcome="ok",le="0.1"}': first * share,
            'client_attempt_seconds_bucket{outcome="ok",le="+Inf"}': first * share,
            'client_backends{state="healthy"}': 5,
            'client_backends{state="lame_duck"}': 2,
            'client_backends{state="refusing"}': 1,
            'client_throttle_probability{criticality="sheddable"}': 0.25,
            "client_throttled_customers": 2,
            "client_line": 0.25,
            "client_active_requests": 3,
        }

    return sight(page(**at(1.0)), page(**at(0.0)), instance=instance)


def only(facts: Facts) -> ServiceFacts:
    (service,) = facts.services
    return service


def test_a_service_is_the_sum_of_its_parts() -> None:
    sights = [
        backend("b1", utilization=0.9, ok=40),
        backend("b2", utilization=0.3, ok=20),
        client("c1", first=100, again=4, refused=10),
        client("c2", first=100, again=2, refused=30),
    ]

    service = only(make_facts(sights, at=7.0))

    # Pages lie 2 s apart.
    assert service.goodput_per_second == (40 + 20) / 2
    assert service.goodput_of == "backends"
    assert service.requests_per_second == (100 + 100) / 2
    assert service.rejected_per_second == {"overloaded": 3 * (40 + 20) / 2}  # No zeros.
    assert service.refused_per_second == {"throttled": (10 + 30) / 2}
    assert service.retry_ratio == (4 + 2) / (100 + 100)
    assert service.spread == pytest.approx(0.9 / 0.6)
    assert service.utilization_mean == pytest.approx(0.6)
    assert service.lame_ducks == 0
    assert service.latency is not None
    assert service.latency.p50_seconds == pytest.approx(0.05)


def test_a_backend() -> None:
    (shown,) = only(make_facts([backend("b1", utilization=0.9, ok=40)], at=0.0)).backends

    assert (shown.instance, shown.state, shown.utilization) == ("b1", "healthy", 0.9)
    assert (shown.active, shown.cut, shown.is_degrading) == (7, 1.4, True)
    assert shown.ok_per_second == 40 / 2
    assert shown.admitted_per_second == 2 * 40 / 2
    assert shown.rejected_per_second == 3 * 40 / 2
    assert shown.cost_per_second == pytest.approx((40 / 100 + 40 / 50) / 2)


def test_a_client() -> None:
    service = only(make_facts([client("c1", first=100, again=4, refused=10)], at=0.0))

    (shown,) = service.clients
    assert shown.requests_per_second == 100 / 2
    assert shown.refused_per_second == 10 / 2
    assert shown.retry_ratio == 0.04
    assert (shown.healthy, shown.lame_ducks, shown.refusing) == (5, 2, 1)
    assert shown.line == 0.25
    assert shown.throttle_probability["sheddable"] == 0.25
    assert shown.throttle_probability["critical"] is None
    assert shown.throttled_customers == 2
    # Nobody else has counted it.
    assert (service.goodput_of, service.goodput_per_second) == ("clients", 100 / 2)


def test_customers_over_all_backends_the_most_expensive_first() -> None:
    sights = [backend("b1", utilization=0.9, ok=40), backend("b2", utilization=0.9, ok=60)]

    other, shop = only(make_facts(sights, at=0.0)).customers

    assert (other.customer, other.limit_per_second) == ("other", None)
    assert other.cost_per_second == pytest.approx((40 + 60) / 50 / 2)
    assert shop.cost_per_second == pytest.approx((40 + 60) / 100 / 2)
    assert (shop.limit_per_second, shop.demand_per_second) == (0.5 + 0.5, 0.75 + 0.75)
    assert shop.rejected_per_second == (40 + 60) / 2


def test_lame_ducks_are_counted_and_do_not_count_for_the_spread() -> None:
    sights = [backend("b1", utilization=0.8), backend("b2", utilization=0.0, lame=1.0)]

    service = only(make_facts(sights, at=0.0))

    assert service.lame_ducks == 1
    assert service.spread == 1.0


def test_a_backend_that_answers_no_more_stays_in_the_table() -> None:
    gone = sight(None, page(backend_utilization=0.5), instance="b1", problem="no answer within 1 s")

    facts = make_facts([gone], at=0.0)

    (shown,) = only(facts).backends
    assert (shown.state, shown.utilization, shown.admitted_per_second) == ("no answer", None, None)
    assert shown.cut is None
    assert [end.problem for end in facts.end_points] == ["no answer within 1 s"]


def test_who_is_listed_no_more_stays_in_the_table_for_a_while() -> None:
    before = page(backend_utilization=0.5, client_active_requests=1)
    gone = Sight(url="u", instance="b1", problem="no longer listed", before=before, is_listed=False)

    service = only(make_facts([gone], at=0.0))

    assert [shown.state for shown in service.backends] == ["no longer listed"]
    assert [(shown.is_answering, shown.is_listed) for shown in service.clients] == [(False, False)]


def test_a_backend_whose_loop_is_blocked_has_counters_only() -> None:
    odd = "observer_odd_total"
    seen = sight(
        page(backend_admitted_total=5, **{odd: 2}), page(backend_admitted_total=3, **{odd: 1})
    )

    facts = make_facts([seen], at=0.0)

    (shown,) = only(facts).backends
    assert (shown.state, shown.admitted_per_second) == ("unknown", 1.0)
    assert [end.odd for end in facts.end_points] == [1.0]


def test_one_process_can_be_client_and_backend() -> None:
    both = sight(page(backend_admitted_total=1, client_active_requests=1), instance="x")

    service = only(make_facts([both], at=0.0))

    assert [shown.instance for shown in service.backends] == ["x"]
    assert [shown.instance for shown in service.clients] == ["x"]


def test_what_no_traffic_says() -> None:
    service = only(make_facts([client("c1", first=0, again=0)], at=0.0))

    assert (service.retry_ratio, service.latency, service.goodput_per_second) == (None, None, 0.0)


def test_only_the_service_that_is_named() -> None:
    sights = [backend("b1", utilization=0.5)]

    assert make_facts(sights, at=0.0, service="mail").services == ()
    assert len(make_facts(sights, at=0.0, service="search").services) == 1


def test_facts_are_json() -> None:
    facts = make_facts([backend("b1", utilization=0.5), client("c", first=1, again=0)], at=0.0)

    assert (
        json.loads(json.dumps(facts.as_dict(), allow_nan=False))["services"][0]["lame_ducks"] == 0
    )
