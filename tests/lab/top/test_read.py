from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.lab.top.read import LINES_MAX, PageError, is_counter, read_page

LAME = b'evenly_backend_lame_duck{service="search"} 1\n'


def test_values_by_service_name_and_labels() -> None:
    page = read_page(
        b"# HELP evenly_backend_rejected_total Requests rejected.\n"
        b"# TYPE evenly_backend_rejected_total counter\n"
        b'evenly_backend_rejected_total{criticality="critical",reason="expired",service="a"} 3.0\n'
        b'evenly_backend_rejected_total{service="b",reason="expired"} 4 1700000000000\n'
        b'python_info{version="3"} 1.0\n'
        b'evenly_backend_rejected_created{service="c"} 1.7e9\n'
    )

    assert page.services == {"a", "b"}
    (first,) = page.series("a", "evenly_backend_rejected_total").items()
    assert first == (frozenset({("criticality", "critical"), ("reason", "expired")}), 3.0)
    (second,) = page.series("b", "evenly_backend_rejected_total").items()
    assert second == (frozenset({("reason", "expired")}), 4.0)
    assert page.has("a", "evenly_backend_")
    assert not page.has("a", "evenly_client_")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300", "9" * 400])
def test_what_no_sum_survives_is_ignored(value: str) -> None:
    page = read_page(LAME + f'evenly_backend_utilization{{service="search"}} {value}\n'.encode())

    assert page.series("search", "evenly_backend_utilization") == {}
    assert page.series("search", "evenly_backend_lame_duck") == {frozenset(): 1.0}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "no metrics of evenly", id="empty"),
        pytest.param(b"python_info 1\n", "no metrics of evenly", id="of others"),
        pytest.param(b"evenly_x 1\n", "no metrics of evenly", id="no service"),
        pytest.param(b"# a comment\n", "no metrics of evenly", id="comments"),
        pytest.param(b"<html>\n", "not in Prometheus's text format", id="HTML"),
        pytest.param(b'{"a": 1}', "not in Prometheus's text format", id="JSON"),
        pytest.param(b"evenly_x{", "not in Prometheus's text format", id="cut off"),
        pytest.param(LAME + b"evenly_x{a=b} 1", "not in Prometheus's text format", id="half"),
        pytest.param(LAME + b'evenly_x{a="1"} _', "not in Prometheus's text format", id="value"),
        pytest.param(b"\xff\xfe\x00", "not text", id="bytes"),
        pytest.param(LAME * (LINES_MAX + 1), "more than 20,000 series of evenly", id="many"),
        pytest.param(
            b'evenly_x{a="' + b'\\"' * 300 + b'"} 1', "longer than 600 characters", id="long"
        ),
        pytest.param(
            b"evenly_x{" + b",".join(b'a%d="="' % n for n in range(9)) + b"} 1",
            "more than 8 labels",
            id="labels",
        ),
        pytest.param(
            b'evenly_x{service="s"} 1 ' + b"9" * 400, "not in Prometheus's text format", id="time"
        ),
    ],
)
def test_what_is_no_page_is_said_plainly(body: bytes, message: str) -> None:
    with pytest.raises(PageError, match=message):
        read_page(body)


def test_the_most_labels() -> None:
    labels = ",".join(f'a{n}="\\"=,\\\\"' for n in range(7))

    assert read_page(f'evenly_x{{service="s",{labels}}} 1'.encode()).services == {"s"}


@given(st.binary(max_size=200), st.text(max_size=50))
def test_whatever_comes_is_a_page_or_said_to_be_none(garbage: bytes, label: str) -> None:
    for body in (garbage, b"evenly_" + garbage, f'evenly_x{{service="{label}"}} 1'.encode()):
        try:
            page = read_page(body)
        except PageError:
            continue
        assert page.services


def test_counters_are_known_by_their_names() -> None:
    assert is_counter("evenly_client_attempts_total")
    assert is_counter("evenly_client_attempt_seconds_bucket")
    assert not is_counter("evenly_backend_utilization")
