"""Half of the fleet is of a version that knows four bits, and half knows the cut-line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenly.core.criticality import Criticality
from evenly.core.report import LoadReport
from evenly.wire import datagram, load_header
from tests.wire import old
from tests.wire.reports import load_reports

NONCE = 7


def admitted(bits: int) -> list[bool]:
    return [bool(bits >> criticality & 1) for criticality in Criticality]


def wholly_admitted(cut: float) -> list[bool]:
    """Whether nothing of a criticality is below the line, one by one."""
    return [not any(c + step / 64 < cut for step in range(64)) for c in Criticality]


@given(report=load_reports)
def test_an_old_client_reads_what_a_new_backend_says(report: LoadReport) -> None:
    header = old.parse_load(load_header.format_load(report))
    assert header is not None
    assert (int(header["b"]), int(header["n"])) == (report.boot, report.sequence)
    assert admitted(int(header["a"], 2)) == wholly_admitted(report.cut)
    assert int(header["c"]) == report.active

    probe = old.unpack(datagram.answer(NONCE, report, None))
    assert (probe["nonce"], probe["boot"], probe["sequence"]) == (
        NONCE,
        report.boot,
        report.sequence,
    )
    assert admitted(probe["admits"]) == wholly_admitted(report.cut)
    assert probe["active"] == report.active


@given(admits=old.admits)
def test_a_new_client_reads_what_an_old_backend_says(admits: int) -> None:
    header = load_header.parse_load(old.format_load(admits))
    answered = datagram.parse_answer(old.pack(NONCE, admits), None)

    assert answered is not None
    assert header == answered[2]
    assert (header.boot, header.sequence, header.active) == (5, 6, 7)
    assert wholly_admitted(header.cut) == admitted(admits)
    # Half of the criticality that it has begun to refuse, so that both sides of it are tried.
    assert header.cut in {0.0, 1.0, 2.0, 3.0, 4.0}


@given(admits=st.integers(0, 15))
def test_bits_without_an_order_are_a_line_too(admits: int) -> None:
    header = load_header.parse_load(old.format_load(admits))

    assert header is not None
    lowest = next((c for c in Criticality if admits >> c & 1), 4)
    assert wholly_admitted(header.cut) == [c >= lowest for c in Criticality]
