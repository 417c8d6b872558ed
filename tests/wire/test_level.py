from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.criticality import Criticality
from evenly.core.request import Request
from evenly.wire.level import NO_LEVEL, TWICE, Levels, without_luck
from evenly.wire.metadata import to_grpc, to_http

SHEDDABLE = Criticality.SHEDDABLE


# What a client sends.


@pytest.mark.parametrize(
    ("luck", "line", "said"),
    [
        pytest.param(37 / 64, 0.0, "u=37", id="luck alone"),
        pytest.param(0.0, 0.0, "u=0", id="no luck at all is luck too"),
        pytest.param(63 / 64, 133 / 64, "u=63;l=133", id="both"),
        pytest.param(None, 1.0, "l=64", id="the line alone"),
        pytest.param(0.5, 133.9 / 64, "u=32;l=133", id="a line is rounded down"),
        pytest.param(0.5, 4.0, "u=32;l=255", id="the highest line is one byte"),
        pytest.param(0.5, 0.01, "u=32", id="hardly a line"),
    ],
)
def test_luck_and_line_are_one_entry(luck: float | None, line: float, said: str) -> None:
    request = Request(luck=luck)

    assert to_grpc(request, 1, line) == (("evenly-level", said),)
    assert to_http(request, 1, 0.0, line) == (("evenly-level", said),)
    assert Levels().of(said) == (luck, min(255, int(line * 64)) / 64)


def test_a_request_without_luck_and_line_carries_nothing() -> None:
    assert to_grpc(Request(), 1) == to_grpc(Request(), 1, 0.01) == ()
    assert to_http(Request(), 1, 0.0, 0.0) == ()


def test_baggage_says_the_luck_where_it_says_the_criticality() -> None:
    assert to_grpc(Request(criticality=SHEDDABLE, luck=37 / 64), 1) == (
        ("evenly-criticality", "SHEDDABLE"),
        ("evenly-level", "u=37"),
        ("baggage", "evenly-criticality=SHEDDABLE,evenly-luck=37"),
    )
    # The line is between two neighbours.
    assert to_http(Request(criticality=SHEDDABLE), 1, 0.0, 1.0) == (
        ("evenly-criticality", "SHEDDABLE"),
        ("evenly-level", "l=64"),
        ("baggage", "evenly-criticality=SHEDDABLE"),
    )


def test_luck_leaves_what_is_remembered_of_requests_alone() -> None:
    plain = to_grpc(Request(customer="a"), 2)
    for number in range(5_000):
        to_grpc(Request(customer="a", luck=number % 64 / 64), 2, number / 2_000)

    assert to_grpc(Request(customer="a"), 2) is plain


# What a backend reads.


@given(u=st.integers(0, 63), line=st.integers(1, 255))
def test_what_was_sent_is_what_is_read(u: int, line: int) -> None:
    [(_, said)] = to_grpc(Request(luck=u / 64), 1, line / 64)
    levels = Levels()

    for value in (said, said.encode(), said):
        assert levels.of(value) == (u / 64, line / 64)


@pytest.mark.parametrize(
    ("said", "level"),
    [
        pytest.param("u=64;l=3", (None, 3 / 64), id="luck is less than one"),
        pytest.param("u=3;l=256", (3 / 64, 0.0), id="no such line"),
        pytest.param("u=07", (7 / 64, 0.0), id="two digits"),
    ],
)
def test_what_is_out_of_range_is_absent(said: str, level: tuple[float | None, float]) -> None:
    assert Levels().of(said) == Levels().of(said.encode()) == level


@pytest.mark.parametrize(
    "said",
    [
        "", ";", "u=", "u=;l=", "u=1;", ";l=1", "l=1;u=1", "u=1;u=2", "u=1,u=2", "u=1;l=2;l=3",
        "u=-1", "u=+1", "u=1.5", " u=1", "u=1 ", "u=1\n", "u=1_0", "u=१", "u=100", "u=1;l=1000",
        "U=1", "37", "u=1;l=2" + " " * 100, "x" * 100_000, TWICE,
    ],
)  # fmt: skip
def test_what_is_malformed_is_absent(said: str) -> None:
    assert Levels().of(said) == Levels().of(said.encode()) == NO_LEVEL


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("said", [None, 37, 0.5, Text("u=1"), bytearray(b"u=1"), ["u=1"], {}])
def test_what_is_no_text_is_absent(said: object) -> None:
    assert Levels().of(said) == NO_LEVEL


def test_what_is_remembered_is_bounded() -> None:
    levels = Levels()
    for number in range(20_000):
        levels.of(f"u={number % 64};l={number % 256}")
        levels.of(f"nonsense {number}")
        levels.of("x" * 1_000_000 + str(number))

    assert 0 < len(levels) <= 4096
    assert all(len(str(key)) <= 10 for key in levels)


# Baggage.


@pytest.mark.parametrize(
    ("baggage", "rest", "luck"),
    [
        ("evenly-luck=37", "", 37 / 64),
        ("evenly-criticality=SHEDDABLE,evenly-luck=0", "evenly-criticality=SHEDDABLE", 0.0),
        ("a=1 ,\t evenly-luck = 3 ;p=1;q, b=2", "a=1 , b=2", 3 / 64),
        ("evenly-luck=64,evenly-luck=5,evenly-luck=6,b=2", ",b=2", 5 / 64),
    ],
)
def test_luck_is_taken_out_of_baggage(baggage: str, rest: str, luck: float) -> None:
    assert without_luck(baggage) == (rest, luck)
    assert without_luck(baggage.encode()) == (rest.encode(), luck)


@pytest.mark.parametrize(
    "baggage",
    [
        "", "a=1;evenly-luck=3", "not-evenly-luck=3", "evenly-luck=", "evenly-luck=x",
        "evenly-luck=64", "evenly-luck=-1", "evenly-luck=003", "evenly-luck=3\n",
        "evenly-luck=3," + "x" * 8192,
    ],
)  # fmt: skip
def test_baggage_about_other_things_stays_as_it_is(baggage: str) -> None:
    assert without_luck(baggage) == (baggage, None)
    assert without_luck(baggage.encode()) == (baggage.encode(), None)


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.text("u=;l0123 "),
        st.text(",;= \tevenly-luck=37"),
        st.none(),
        st.integers(),
        st.lists(st.integers()),
        st.builds(object),
    )
)
def test_nothing_that_a_stranger_writes_raises(value: Any) -> None:
    luck, line = Levels().of(value)
    in_baggage = without_luck(value)[1]

    assert luck is None or 0.0 <= luck < 1.0
    assert 0.0 <= line < 4.0
    assert in_baggage is None or 0.0 <= in_baggage < 1.0
