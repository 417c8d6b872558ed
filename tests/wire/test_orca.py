from __future__ import annotations

import base64
import importlib
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.report import LoadReport
from evenly.wire import orca
from tests.wire.reports import TYPICAL, load_reports

# The generated module has no types.
OrcaLoadReport: Any = importlib.import_module(
    "xds.data.orca.v3.orca_load_report_pb2"
).OrcaLoadReport
fractions = st.floats(0.0, 1.0)


@given(report=load_reports, memory=fractions)
def test_the_generated_module_reads_the_same_numbers(report: LoadReport, memory: float) -> None:
    message = OrcaLoadReport.FromString(orca.serialize(report, memory_utilization=memory))

    assert message.cpu_utilization == report.utilization
    assert message.mem_utilization == memory
    assert message.rps_fractional == report.qps
    assert message.eps == report.eps


@given(report=load_reports, memory=fractions)
def test_the_generated_module_writes_the_same_bytes(report: LoadReport, memory: float) -> None:
    message = OrcaLoadReport(
        cpu_utilization=report.utilization,
        mem_utilization=memory,
        rps_fractional=report.qps,
        eps=report.eps,
    )

    expected = message.SerializeToString(deterministic=True)
    assert orca.serialize(report, memory_utilization=memory) == expected


@pytest.mark.parametrize("memory", [0.0, 0.25])
@pytest.mark.parametrize("eps", [0.0, 1.5])
@pytest.mark.parametrize("qps", [0.0, 2.5])
@pytest.mark.parametrize("utilization", [0.0, 0.5])
def test_base64_needs_no_padding_whatever_is_left_out(
    utilization: float, qps: float, eps: float, memory: float
) -> None:
    report = LoadReport(utilization=utilization, qps=qps, eps=eps)
    data = orca.serialize(report, memory_utilization=memory)

    assert len(data) % 3 == 0
    assert b"=" not in base64.b64encode(data)
    present = [number for number in (utilization, qps, eps, memory) if number]
    assert len(data) == 9 * len(present)


def test_a_double_is_its_tag_and_eight_bytes_little_endian() -> None:
    # Field 1, wire type 1: 1 << 3 | 1 = 0x09.
    assert orca.serialize(LoadReport(utilization=0.5)) == b"\x09" + struct.pack("<d", 0.5)


def test_the_text_form() -> None:
    assert (
        orca.text(TYPICAL, memory_utilization=0.25)
        == "TEXT cpu_utilization=0.5625,mem_utilization=0.25,rps_fractional=1234,eps=1.5"
    )


def test_a_text_without_numbers_would_lose_its_prefix_so_utilization_is_always_there() -> None:
    assert orca.text(LoadReport()) == "TEXT cpu_utilization=0"


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        pytest.param(math.nan, 0.0, id="not a number"),
        pytest.param(-0.5, 0.0, id="negative"),
        pytest.param(1.25, 1.0, id="over its limit"),
        pytest.param(math.inf, 1.0, id="infinite"),
    ],
)
def test_memory_is_a_fraction_or_unknown(memory: float, expected: float) -> None:
    report = LoadReport(utilization=0.5)
    message = OrcaLoadReport.FromString(orca.serialize(report, memory_utilization=memory))

    assert message.mem_utilization == expected
    suffix = f",mem_utilization={expected:g}" if expected else ""
    assert orca.text(report, memory_utilization=memory) == f"TEXT cpu_utilization=0.5{suffix}"


@given(report=load_reports, memory=st.floats())
def test_readers_of_the_text_find_nothing_to_refuse(report: LoadReport, memory: float) -> None:
    line = orca.text(report, memory_utilization=memory)

    assert line.startswith("TEXT ")
    pairs = [pair.split("=") for pair in line.removeprefix("TEXT ").split(",")]
    numbers = {key: float(value) for key, value in pairs}
    assert len(numbers) == len(pairs)  # no duplicates
    assert numbers.keys() <= {"cpu_utilization", "mem_utilization", "rps_fractional", "eps"}
    assert all(0.0 <= number < math.inf for number in numbers.values())
    # 6 digits: wrong by at most half a unit of the last, 5e-6 of a number 1.00000.
    expected = {"cpu_utilization": report.utilization, "rps_fractional": report.qps}
    for key, number in expected.items():
        assert numbers.get(key, 0.0) == pytest.approx(number, rel=5.01e-6, abs=5e-324)


MESSAGE = OrcaLoadReport(
    cpu_utilization=0.5,
    rps_fractional=100.0,
    eps=1.0,
    mem_utilization=0.2,
    rps=7,
    named_metrics={"a": 1.0},
    request_cost={"b": 2.0},
).SerializeToString()
READ = LoadReport(utilization=0.5, qps=100.0, eps=1.0)
APPLICATION = OrcaLoadReport(
    application_utilization=0.7, cpu_utilization=0.5, rps_fractional=1.0
).SerializeToString()


def numbers(report: LoadReport | None) -> tuple[float, float, float] | None:
    return None if report is None else (report.utilization, report.qps, report.eps)


@given(report=load_reports)
def test_what_we_write_we_read(report: LoadReport) -> None:
    said = orca.parse_message(orca.serialize(report))

    is_weight = report.utilization > 0.0 and report.qps > 0.0
    assert numbers(said) == (numbers(report) if is_weight else None)


@pytest.mark.parametrize(
    "header",
    [
        b"BIN " + base64.b64encode(MESSAGE),
        b"BIN " + base64.b64encode(MESSAGE).rstrip(b"="),
        b"TEXT cpu_utilization=0.5,rps_fractional=100,eps=1,named_metrics.a=1",
        b"TEXT cpu_utilization = 0.5 , rps_fractional=1e2, eps=1.0",
        b'JSON {"cpu_utilization": 0.5, "rps_fractional": 100, "eps": 1, "a": {"eps": 2}}',
        b'JSON {"cpuUtilization": "0.5", "rpsFractional": 100.0, "eps": 1}',
    ],
)
def test_every_form_of_the_header_is_read(header: bytes) -> None:
    assert numbers(orca.parse_header(header)) == numbers(READ)


def test_the_applications_own_utilization_outranks_the_cpus() -> None:
    assert numbers(orca.parse_message(APPLICATION)) == (0.7, 1.0, 0.0)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "TEXT cpu_utilization=0.5,rps_fractional=1",
        b"",
        b"cpu_utilization=0.5,rps_fractional=1",
        b"TEXT rps_fractional=1",
        b"TEXT cpu_utilization=0.5",
        b"TEXT cpu_utilization=0.5,cpu_utilization=0.5,rps_fractional=1",
        b"TEXT cpu_utilization=nan,rps_fractional=1",
        b"TEXT cpu_utilization=-1,rps_fractional=1",
        b"TEXT cpu_utilization=1_0,rps_fractional=1",
        b'JSON {"cpu_utilization": NaN, "rps_fractional": 1}',
        b'JSON {"cpu_utilization": 1e999, "rps_fractional": 1}',
        b'JSON {"cpu_utilization": true, "rps_fractional": 1}',
        b'JSON {"cpu_utilization": 0.5, "cpuUtilization": 0.5, "rps_fractional": 1}',
        b'JSON {"a": ' + b"[" * 4_000,
        b'JSON {"eps": ' + b"9" * 4_000 + b"}",
        b"TEXT cpu_utilization=0.5,rps_fractional=1," + b"x" * orca.MAX_LENGTH,
        b"BIN !",
    ],
)
def test_what_tells_no_weight_is_no_report(header: object) -> None:
    assert orca.parse_header(header) is None


@given(
    form=st.sampled_from([b"BIN ", b"TEXT ", b"JSON ", b"JSON {", b""]),
    start=st.binary(max_size=40),
    cut=st.integers(0, len(MESSAGE)),
    rest=st.binary(max_size=40),
)
def test_hostile_bytes_raise_nothing(form: bytes, start: bytes, cut: int, rest: bytes) -> None:
    data = start + MESSAGE[cut:] + rest
    for said in (
        orca.parse_message(data),
        orca.parse_header(form + data),
        orca.parse_header(form + base64.b64encode(data)),
    ):
        assert said is None or all(math.isfinite(number) for number in numbers(said) or ())


@pytest.mark.parametrize("field", ["cpu_utilization", "rps_fractional", "eps"])
@pytest.mark.parametrize("number", [-0.5, -math.inf, math.nan, math.inf, 1.1e15, 1e308])
def test_a_message_with_a_number_that_cannot_be_is_no_report(field: str, number: float) -> None:
    message = OrcaLoadReport.FromString(MESSAGE)
    setattr(message, field, number)

    assert orca.parse_message(message.SerializeToString()) is None


def test_grpcs_metadata_has_the_header_as_text() -> None:
    line = "TEXT cpu_utilization=0.5,rps_fractional=100,eps=1"

    assert numbers(orca.parse_metadata(line)) == numbers(READ)
    for other in (None, line.encode(), 0.5, "TEXT cpu_utilization=-1,rps_fractional=1", "\u2028"):
        assert orca.parse_metadata(other) is None
