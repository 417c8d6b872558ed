"""Load reports for the tests of the wire, drawn up to every bound."""

from __future__ import annotations

from hypothesis import strategies as st

from evenly.core.report import LoadReport

_rates = st.one_of(
    st.floats(0.0, 1e15),
    st.sampled_from(
        [0.0, 5e-324, 1.2345e-300, 1e-5, 0.99996, 9_999.5, 123_456.7, 9.99996e14, 1e15]
    ),
)
_counts = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 2**32 - 1]))

load_reports = st.builds(
    LoadReport,
    boot=st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 2**63 - 1])),
    sequence=_counts,
    lame_duck=st.booleans(),
    cut=st.one_of(st.floats(0.0, 4.0), st.sampled_from([0.0, 1.0, 2.5, 3.99, 4.0])),
    runnable=_rates,
    active=_counts,
    utilization=_rates,
    qps=_rates,
    eps=_rates,
    latency_seconds=_rates,
    compute_units=_rates.filter(bool),
    probe_port=st.one_of(st.none(), st.integers(1, 65535)),
)


def assert_same_are_refused(cut: float, read: float, *, most: int) -> None:
    """Check that a cut-line that was read refuses what it did when it was written.

    A level is a multiple of 1/64.  Above `most` of them, one byte says no more.
    """
    levels = [step / 64 for step in range(256)]
    assert [level < min(read, most / 64) for level in levels] == [
        level < min(cut, most / 64) for level in levels
    ]


TYPICAL = LoadReport(
    boot=1_700_000_000_123_456_789,
    sequence=7,
    cut=1.5,
    runnable=1.25,
    active=37,
    utilization=0.5625,
    qps=1234.0,
    eps=1.5,
    latency_seconds=0.0125,
    compute_units=1.5,
    probe_port=50051,
)
"""No number here is rounded on the wire, neither by 4 digits nor by float32, but for latency."""
