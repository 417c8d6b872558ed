from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.report import LoadReport
from evenly.wire.load_header import MAX_LENGTH, format_load, parse_load
from tests.wire.reports import TYPICAL, assert_same_are_refused, load_reports

TYPICAL_LINE = (
    "1;b=1700000000123456789;n=7;s=h;a=1100;k=96;r=1.25;c=37;u=0.5625;q=1234"
    ";e=1.5;t=0.0125;g=1.5;p=50051"
)
SHORTEST = "1;b=0;n=0;s=h;a=1111;r=0;c=0;u=0;q=0"


def test_a_report_is_one_line() -> None:
    assert format_load(TYPICAL) == TYPICAL_LINE
    assert parse_load(TYPICAL_LINE) == TYPICAL


def test_what_is_as_usual_is_left_out() -> None:
    assert format_load(LoadReport()) == SHORTEST
    assert parse_load(SHORTEST) == LoadReport()


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        pytest.param(0.0, "a=1111", id="admits everything, and says no line"),
        pytest.param(0.001, "a=1110;k=1", id="rounded up: luck of 0 is refused either way"),
        pytest.param(1.0, "a=1110;k=64", id="refuses SHEDDABLE and nothing else"),
        pytest.param(2.5, "a=1000;k=160", id="refuses half of CRITICAL, and admits CRITICAL_PLUS"),
        pytest.param(4.0, "a=0000;k=256", id="refuses everything"),
    ],
)
def test_the_cut_line_is_said_and_what_is_admitted_for_old_readers(cut: float, said: str) -> None:
    # The highest criticality is the first bit.
    assert f";{said};r=" in format_load(LoadReport(cut=cut))


@pytest.mark.parametrize(
    ("bits", "cut"),
    [
        ("1111", 0.0),
        ("1110", 1.0),
        ("1100", 2.0),
        ("1000", 3.0),
        ("0000", 4.0),
        pytest.param("1010", 1.0, id="no such order: by the lowest that is admitted"),
        pytest.param("0001", 0.0, id="no such order, and all of the lowest"),
    ],
)
def test_an_old_backend_says_four_bits_and_no_line(bits: str, cut: float) -> None:
    line = SHORTEST.replace("1111", bits)
    version, *pieces = line.split(";")

    for text in (line, ";".join([version, *reversed(pieces)])):
        assert parse_load(text) == LoadReport(cut=cut)
        assert parse_load(text + ";k=130") == LoadReport(cut=130 / 64)  # The line counts.


def test_a_lame_duck_is_s_l() -> None:
    assert ";s=l;" in format_load(LoadReport(lame_duck=True))
    assert parse_load(SHORTEST.replace("s=h", "s=l")) == LoadReport(lame_duck=True)


def test_headers_come_as_bytes_too() -> None:
    assert parse_load(TYPICAL_LINE.encode()) == TYPICAL


@given(report=load_reports)
def test_any_report_fits_and_comes_back_with_four_digits(report: LoadReport) -> None:
    line = format_load(report)
    back = parse_load(line)

    assert len(line.encode()) <= 152 < MAX_LENGTH
    assert back is not None
    exact = ("boot", "sequence", "lame_duck", "active", "probe_port")
    assert [getattr(back, name) for name in exact] == [getattr(report, name) for name in exact]
    assert_same_are_refused(report.cut, back.cut, most=255)
    for name in ("runnable", "utilization", "qps", "eps", "latency_seconds", "compute_units"):
        # 4 digits: wrong by at most half a unit of the last, 0.0005 of a number 1.000.  Below
        # 2.2e-308 floats have fewer digits themselves.
        assert getattr(back, name) == pytest.approx(getattr(report, name), rel=5.01e-4, abs=5e-324)


@given(report=load_reports, seed=st.integers(0, 2**32))
def test_the_order_of_keys_and_new_keys_change_nothing(report: LoadReport, seed: int) -> None:
    line = format_load(report)
    version, *pieces = line.split(";")
    random.Random(seed).shuffle(pieces)
    other = ";".join([version, *pieces])

    assert parse_load(other) == parse_load(line)
    assert parse_load(other + ";zz=é=1") == parse_load(line)


def test_what_is_missing_is_as_usual() -> None:
    assert parse_load("1;s=l;n=3;b=2") == LoadReport(boot=2, sequence=3, lame_duck=True)


@pytest.mark.parametrize("key", ["b", "n", "s"])
def test_a_report_that_cannot_be_put_in_order_is_none(key: str) -> None:
    pieces = [piece for piece in SHORTEST.split(";") if not piece.startswith(f"{key}=")]

    assert parse_load(";".join(pieces)) is None


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("", id="empty"),
        pytest.param("1", id="nothing but a version"),
        pytest.param("2" + SHORTEST[1:], id="another version"),
        pytest.param("01" + SHORTEST[1:], id="nearly the version"),
        pytest.param(SHORTEST + ";", id="an empty piece"),
        pytest.param(SHORTEST + ";z", id="a key without a value"),
        pytest.param(SHORTEST + "\n", id="a line break at the end"),
        pytest.param(" " + SHORTEST, id="a space before"),
        pytest.param(SHORTEST + ";u=0", id="a key twice"),
        pytest.param(SHORTEST + ";z=1;z=1", id="an unknown key twice"),
        pytest.param(SHORTEST + ";p=0", id="port 0"),
        pytest.param(SHORTEST + ";p=65536", id="a port too high"),
        pytest.param(SHORTEST + ";g=0", id="no compute units"),
        pytest.param(SHORTEST + ";e=1e999", id="infinite"),
        pytest.param(SHORTEST + ";e=nan", id="not a number"),
        pytest.param(SHORTEST + ";e=1e", id="half a number"),
        pytest.param(SHORTEST + ";e=1.2.3", id="a number and a half"),
        pytest.param(SHORTEST + ";z=" + "9" * 130, id="too long"),
        pytest.param(SHORTEST.replace("u=0", "u=-1"), id="negative"),
        pytest.param(SHORTEST.replace("u=0", "u=-0"), id="minus zero"),
        pytest.param(SHORTEST.replace("u=0", "u=inf"), id="infinity by name"),
        pytest.param(SHORTEST.replace("u=0", "u=1e16"), id="a rate too high"),
        pytest.param(SHORTEST.replace("c=0", "c=1.5"), id="half a request"),
        pytest.param(SHORTEST.replace("c=0", "c=4294967296"), id="a count too high"),
        pytest.param(SHORTEST.replace("b=0", "b=9223372036854775808"), id="a boot too late"),
        pytest.param(SHORTEST.replace("n=0", "n=1_0"), id="Python's digits"),
        pytest.param(SHORTEST.replace("n=0", "n=१"), id="another script's digits"),
        pytest.param(SHORTEST.replace("s=h", "s=x"), id="no such state"),
        pytest.param(SHORTEST.replace("1111", "111"), id="three bits"),
        pytest.param(SHORTEST.replace("1111", "2111"), id="not a bit"),
        pytest.param(SHORTEST.replace("1111", "2111;k=64"), id="not a bit, though there is a line"),
        pytest.param(SHORTEST.replace("1111", "1111;k=257"), id="a line above everything"),
        pytest.param(SHORTEST.replace("1111", "1111;k=1.5"), id="half a 64th"),
        pytest.param(SHORTEST.replace("1111", "1111;k=-1"), id="a line below everything"),
        pytest.param(SHORTEST.replace("1111", "1111;k="), id="no line"),
    ],
)
def test_anything_wrong_is_no_report_in_any_order(line: str) -> None:
    version, *pieces = line.split(";")

    assert parse_load(line) is None
    assert parse_load(";".join([version, *reversed(pieces)])) is None
    assert parse_load(line.encode()) is None


def test_length_is_what_is_wrong_with_a_long_line() -> None:
    # The test above would pass if long unknown values were refused for another reason.
    filler = MAX_LENGTH - len(SHORTEST + ";z=")

    assert parse_load(SHORTEST + ";z=" + "9" * filler) == LoadReport()
    assert parse_load(SHORTEST + ";z=" + "9" * (filler + 1)) is None
    assert parse_load((SHORTEST + ";z=" + "9" * (filler + 1)).encode()) is None


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [None, 1, 1.0, [SHORTEST], Text(SHORTEST), bytearray(b"1")])
def test_what_is_neither_str_nor_bytes_is_no_report(value: object) -> None:
    assert parse_load(value) is None


@given(
    value=st.one_of(
        st.text(),
        st.binary(),
        st.text("1;=bnsakrcuqetgph0.+-", max_size=200),
        st.lists(st.from_regex(r"[a-z]=[0-9a-z.+-]{0,9}", fullmatch=True)).map(
            lambda pieces: ";".join(["1", "b=1", "n=1", "s=h", *pieces])
        ),
        st.builds(
            lambda at, character: TYPICAL_LINE[:at] + character + TYPICAL_LINE[at + 1 :],
            st.integers(0, len(TYPICAL_LINE)),
            st.characters(),
        ),
    )
)
def test_nothing_that_a_stranger_writes_raises(value: str | bytes) -> None:
    report = parse_load(value)

    assert report is None or isinstance(report, LoadReport)
