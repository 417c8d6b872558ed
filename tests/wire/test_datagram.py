from __future__ import annotations

import hmac
import math
import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenly.core.report import LoadReport
from evenly.errors import UsageError
from evenly.wire.datagram import SIZE, Kind, answer, parse_answer, parse_question, question
from tests.wire.reports import TYPICAL, assert_same_are_refused, load_reports

NONCE = 0x0123456789ABCDEF
KEY = b"a key of the fleet"
OTHER_KEY = b"a key of another fleet"
nonces = st.integers(0, 2**64 - 1)
keys = st.one_of(st.none(), st.binary(min_size=1, max_size=64))


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@given(nonce=nonces, key=keys, report=load_reports)
def test_all_datagrams_have_one_size_so_that_an_answer_is_never_larger(
    nonce: int, key: bytes | None, report: LoadReport
) -> None:
    assert len(question(nonce, key)) == len(answer(nonce, report, key)) == SIZE == 80


def test_every_field_is_where_the_page_says() -> None:
    report = LoadReport(
        boot=2**62,
        sequence=7,
        lame_duck=True,
        cut=2.5,
        runnable=1.5,
        active=37,
        utilization=0.25,
        qps=1024.0,
        eps=2.5,
        latency_seconds=0.125,
        compute_units=1.25,
        probe_port=50051,
    )
    data = answer(NONCE, report, None, kind=Kind.NOTICE)

    assert data[0:4] == b"EVNL"
    assert data[4:8] == bytes([1, 3, 0, 0])  # version, kind, flags
    assert int.from_bytes(data[8:16]) == NONCE
    assert int.from_bytes(data[16:24]) == 2**62
    assert int.from_bytes(data[24:28]) == 7
    assert data[28:30] == bytes([1, 0b1000])  # state, admits
    assert int.from_bytes(data[30:32]) == 50051
    assert struct.unpack("!6f", data[32:56]) == (1.5, 0.25, 1024.0, 2.5, 0.125, 1.25)
    assert int.from_bytes(data[56:60]) == 37
    assert data[60] == 161  # the cut-line in 64ths, and one
    assert data[61:80] == bytes(19)  # to spare, and no tag


def test_a_question_is_zeros_but_for_its_nonce() -> None:
    data = question(NONCE, None)

    assert data == b"EVNL" + bytes([1, 1, 0, 0]) + NONCE.to_bytes(8) + bytes(64)
    assert parse_question(data, None) == NONCE


@given(nonce=nonces, key=keys)
def test_a_question_comes_back(nonce: int, key: bytes | None) -> None:
    data = question(nonce, key)

    assert parse_question(data, key) == nonce
    assert parse_answer(data, key) is None


@given(
    nonce=nonces, key=keys, report=load_reports, kind=st.sampled_from([Kind.ANSWER, Kind.NOTICE])
)
def test_a_report_comes_back_with_the_precision_of_float32(
    nonce: int, key: bytes | None, report: LoadReport, kind: Kind
) -> None:
    data = answer(nonce, report, key, kind=kind)
    parsed = parse_answer(data, key)

    assert parse_question(data, key) is None
    assert parsed is not None
    assert parsed[:2] == (kind, nonce)
    back = parsed[2]
    exact = ("boot", "sequence", "lame_duck", "active", "probe_port")
    assert [getattr(back, name) for name in exact] == [getattr(report, name) for name in exact]
    assert_same_are_refused(report.cut, back.cut, most=254)
    for name in ("runnable", "utilization", "qps", "eps", "latency_seconds", "compute_units"):
        # 24 bits: wrong by at most 2**-24.  Below 2**-126 float32 has fewer, and ends at zero.
        assert getattr(back, name) == pytest.approx(
            getattr(report, name), rel=2.0**-24, abs=2.0**-126
        )


def test_a_question_cannot_carry_a_report() -> None:
    with pytest.raises(UsageError, match="question"):
        answer(NONCE, TYPICAL, None, kind=Kind.QUESTION)


def test_the_tag_is_half_an_hmac_sha256_over_everything_before_it() -> None:
    for data in (question(NONCE, KEY), answer(NONCE, TYPICAL, KEY)):
        assert data[64:] == hmac.digest(KEY, data[:64], "sha256")[:16]


@pytest.mark.parametrize("sent_with", [None, OTHER_KEY])
def test_with_a_key_a_datagram_without_its_tag_is_dropped(sent_with: bytes | None) -> None:
    assert parse_question(question(NONCE, sent_with), KEY) is None
    assert parse_answer(answer(NONCE, TYPICAL, sent_with), KEY) is None


def test_without_a_key_tags_are_not_looked_at() -> None:
    assert parse_question(question(NONCE, KEY), None) == NONCE
    assert parse_answer(answer(NONCE, TYPICAL, KEY), None) is not None


def test_with_a_key_no_bit_can_be_changed() -> None:
    asked, answered = question(NONCE, KEY), answer(NONCE, TYPICAL, KEY)

    for at in range(SIZE):
        for flip in (1 << bit for bit in range(8)):
            assert parse_question(changed(asked, at, bytes([asked[at] ^ flip])), KEY) is None
            assert parse_answer(changed(answered, at, bytes([answered[at] ^ flip])), KEY) is None


@pytest.mark.parametrize(
    ("at", "new"),
    [
        pytest.param(0, b"EVNX", id="another magic"),
        pytest.param(4, b"\x00", id="version 0"),
        pytest.param(4, b"\x02", id="a later version"),
        pytest.param(5, b"\x00", id="kind 0"),
        pytest.param(5, b"\x01", id="a question"),
        pytest.param(5, b"\x04", id="an unknown kind"),
        pytest.param(16, b"\x80", id="a boot beyond 63 bits"),
        pytest.param(28, b"\x02", id="an unknown state"),
        pytest.param(29, b"\x10", id="a fifth criticality"),
        *(
            pytest.param(at, struct.pack("!f", value), id=f"{value} at {at}")
            for at in range(32, 56, 4)
            for value in (math.nan, math.inf, -math.inf, -1.0, 1.1e15)
        ),
        pytest.param(52, struct.pack("!f", 0.0), id="no compute units"),
    ],
)
def test_an_answer_that_no_backend_gives_is_dropped(at: int, new: bytes) -> None:
    good = answer(NONCE, TYPICAL, None)

    assert parse_answer(good, None) is not None
    assert parse_answer(changed(good, at, new), None) is None


@pytest.mark.parametrize(
    ("admits", "byte", "cut"),
    [
        pytest.param(0b1100, 0, 2.0, id="an old backend: the bits count"),
        pytest.param(0b1111, 0, 0.0, id="an old backend that admits everything"),
        pytest.param(0b1111, 1, 0.0, id="a line at 0"),
        pytest.param(0b1111, 255, 4.0, id="the highest"),
    ],
)
def test_the_line_is_one_byte_and_0_is_none(admits: int, byte: int, cut: float) -> None:
    data = changed(changed(answer(NONCE, TYPICAL, None), 29, bytes([admits])), 60, bytes([byte]))

    assert parse_answer(data, None) == (Kind.ANSWER, NONCE, replace(read(TYPICAL), cut=cut))


def read(report: LoadReport) -> LoadReport:
    parsed = parse_answer(answer(NONCE, report, None), None)
    assert parsed is not None
    return parsed[2]


@pytest.mark.parametrize(("at", "new"), [(6, b"\xff\xff"), (61, b"\xff" * 3)])
def test_flags_and_spare_bytes_are_for_later_and_ignored(at: int, new: bytes) -> None:
    answered = answer(NONCE, TYPICAL, None)

    assert parse_question(changed(question(NONCE, None), at, new), None) == NONCE
    assert parse_answer(changed(answered, at, new), None) == parse_answer(answered, None)


@pytest.mark.parametrize("size", [0, 1, 16, SIZE - 1, SIZE + 1, 1_500, 65_507])
def test_another_size_is_dropped(size: int) -> None:
    for data in (question(NONCE, None), answer(NONCE, TYPICAL, None)):
        resized = (data + bytes(size))[:size]

        assert parse_question(resized, None) is None
        assert parse_answer(resized, None) is None


@pytest.mark.parametrize("seed", [5, 6])
def test_nothing_that_a_stranger_sends_raises(seed: int) -> None:
    # 100,000 datagrams: random ones, random ones that begin well, and good ones with a few bytes
    # changed.  They are read without a key, since with one all of them fail at the tag.
    rng = random.Random(seed)
    good = [question(NONCE, None), answer(NONCE, TYPICAL, None), answer(NONCE, LoadReport(), None)]
    starts = [b"", good[0][:6], good[1][:6]]
    questions = answers = 0
    for number in range(100_000):
        if number % 3 == 0:
            start = rng.choice(starts)
            size = SIZE if number % 2 else rng.randrange(2 * SIZE)
            data = start + rng.randbytes(max(0, size - len(start)))
        else:
            mutated = bytearray(rng.choice(good))
            for _ in range(1 + number % 4):
                mutated[int(rng.random() * SIZE)] = number & 0xFF
            data = bytes(mutated)
        nonce = parse_question(data, None)
        parsed = parse_answer(data, None)
        if nonce is not None:
            questions += 1
            assert 0 <= nonce < 2**64
        if parsed is not None:
            answers += 1
            replace(parsed[2])  # It raises where a number is out of its bounds.
        assert nonce is None or parsed is None
    # Of 67,000 mutated ones two thirds were answers, and most bytes may have any value.
    assert questions > 10_000
    assert answers > 10_000
