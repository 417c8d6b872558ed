"""The load report as one line of text, which every response of a backend carries.

`evenly-load: 1;b=<boot>;n=<sequence>;s=h|l;a=<4 bits>;k=<cut>;r=<runnable>;c=<active>;
u=<utilization>;q=<qps>;e=<eps>;t=<latency>;g=<compute units>;p=<probe port>`.  At most 160 bytes;
keys that a reader does not know are ignored, a version that it does not know is no report.

`k` is the cut-line in 64ths.  The four bits say of each criticality, the highest first, whether all
of it is admitted: that is for readers that know no `k`.  Where there is none, the cut-line is 0, or
its writer knew of none, and the bits say what it refuses.

Both ends do this once per request, so the order above is read by one regular expression, and any
other by a slower path that accepts the same reports.
"""

from __future__ import annotations

import re
from typing import Final

from evenly.core.level import LUCK_STEPS
from evenly.core.report import LoadReport
from evenly.errors import ConfigError
from evenly.wire.level import admits_of_cut, cut_of_admits, cut_steps

__all__ = ["KEY", "MAX_LENGTH", "format_load", "parse_load"]

KEY: Final = "evenly-load"
MAX_LENGTH: Final = 160

_CUT_MOST: Final = 256
_CUTS: Final = {f"{admits:04b}": cut_of_admits(admits) for admits in range(16)}
# Of a cut-line in 64ths; nearly always it is 0.
_CUT_TEXTS: Final = tuple(
    f"{admits_of_cut(steps / LUCK_STEPS):04b}" + (f";k={steps}" if steps else "")
    for steps in range(_CUT_MOST + 1)
)
_LAME_DUCK: Final = {"h": False, "l": True}

# Not int() and float() alone, which take "nan", "1_0", " 1 " and the digits of every script.  What
# else these let through ("1e", "1.2.3") is a ValueError.  Possessive, because a ";" ends them all.
_WHOLE: Final = "[0-9]++"
_NUMBER: Final = "[0-9][0-9.e+-]*+"
_IS_WHOLE: Final = re.compile(_WHOLE).fullmatch
_IS_NUMBER: Final = re.compile(_NUMBER).fullmatch
_CANONICAL: Final = re.compile(
    f"1;b=({_WHOLE});n=({_WHOLE});s=([hl]);a=([01]{{4}})(?:;k=({_WHOLE}))?"
    f";r=({_NUMBER});c=({_WHOLE})"
    f";u=({_NUMBER});q=({_NUMBER})(?:;e=({_NUMBER}))?(?:;t=({_NUMBER}))?(?:;g=({_NUMBER}))?"
    f"(?:;p=({_WHOLE}))?"
).fullmatch


def format_load(report: LoadReport) -> str:
    """Write a report: rates with 4 significant digits, counts in full, at most 152 characters."""
    cut = _CUT_TEXTS[cut_steps(report.cut, _CUT_MOST)]
    text = (
        f"1;b={report.boot};n={report.sequence};s={'l' if report.lame_duck else 'h'}"
        f";a={cut};r={report.runnable:.4g};c={report.active}"
        f";u={report.utilization:.4g};q={report.qps:.4g}"
    )
    if report.eps:
        text += f";e={report.eps:.4g}"
    if report.latency_seconds:
        text += f";t={report.latency_seconds:.4g}"
    if report.compute_units != 1.0:
        text += f";g={report.compute_units:.4g}"
    if report.probe_port is not None:
        text += f";p={report.probe_port}"
    return text


def parse_load(value: object) -> LoadReport | None:
    """Read a report; return `None` for anything that is not one, whatever it is."""
    if type(value) is str:
        text = value
    elif type(value) is bytes and len(value) <= MAX_LENGTH:
        text = value.decode("latin-1")  # Any byte decodes; what is not ASCII fails the patterns.
    else:
        return None
    if len(text) > MAX_LENGTH:
        return None
    try:
        match = _CANONICAL(text)
        if match is None:
            return _parse_any_order(text)
        boot, sequence, state, bits, cut, runnable, active, u, q, e, t, g, port = match.groups()
        return LoadReport(
            boot=int(boot),
            sequence=int(sequence),
            lame_duck=state == "l",
            cut=_CUTS[bits] if cut is None else int(cut) / LUCK_STEPS,
            runnable=float(runnable),
            active=int(active),
            utilization=float(u),
            qps=float(q),
            eps=0.0 if e is None else float(e),
            latency_seconds=0.0 if t is None else float(t),
            compute_units=1.0 if g is None else float(g),
            probe_port=None if port is None else int(port),
        )
    except (ConfigError, ValueError, KeyError):
        return None


def _parse_any_order(text: str) -> LoadReport | None:
    version, *pieces = text.split(";")
    if version != "1":
        return None
    values = dict(piece.split("=", 1) for piece in pieces)  # ValueError where there is no "="
    if len(values) != len(pieces):
        return None  # A key twice: two readers could believe different things.
    # Without these three a report cannot be put in order with others: KeyError.
    boot, sequence, state = values["b"], values["n"], values["s"]
    cut, bits, port = values.get("k"), values.get("a", "1111"), values.get("p")
    cut_of_bits = _CUTS[bits]
    return LoadReport(
        boot=_whole(boot),
        sequence=_whole(sequence),
        lame_duck=_LAME_DUCK[state],
        cut=cut_of_bits if cut is None else _whole(cut) / LUCK_STEPS,
        runnable=_number(values.get("r", "0")),
        active=_whole(values.get("c", "0")),
        utilization=_number(values.get("u", "0")),
        qps=_number(values.get("q", "0")),
        eps=_number(values.get("e", "0")),
        latency_seconds=_number(values.get("t", "0")),
        compute_units=_number(values.get("g", "1")),
        probe_port=None if port is None else _whole(port),
    )


def _whole(text: str) -> int:
    if _IS_WHOLE(text) is None:
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    if _IS_NUMBER(text) is None:
        raise ValueError(text)
    return float(text)
