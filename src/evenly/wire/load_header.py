"""The load report as one line of text, which every response of a backend carries.

`evenly-load: 1;b=<boot>;n=<sequence>;s=h|l;a=<4 bits>;r=<runnable>;c=<active>;
u=<utilization>;q=<qps>;e=<eps>;t=<latency>;g=<compute units>;p=<probe port>`, where the highest
criticality is the first of the four bits.  At most 160 bytes; keys that a reader does not know are
ignored, a version that it does not know is no report.

Both ends do this once per request, so the order above is read by one regular expression, and any
other by a slower path that accepts the same reports.
"""

from __future__ import annotations

import re
from typing import Final

from evenly.core.report import LoadReport
from evenly.errors import ConfigError

__all__ = ["KEY", "MAX_LENGTH", "format_load", "parse_load"]

KEY: Final = "evenly-load"
MAX_LENGTH: Final = 160

_BITS: Final = tuple(f"{admits:04b}" for admits in range(16))
_ADMITS: Final = {bits: admits for admits, bits in enumerate(_BITS)}
_LAME_DUCK: Final = {"h": False, "l": True}

# Not int() and float() alone, which take "nan", "1_0", " 1 " and the digits of every script.  What
# else these let through ("1e", "1.2.3") is a ValueError.  Possessive, because a ";" ends them all.
_WHOLE: Final = "[0-9]++"
_NUMBER: Final = "[0-9][0-9.e+-]*+"
_IS_WHOLE: Final = re.compile(_WHOLE).fullmatch
_IS_NUMBER: Final = re.compile(_NUMBER).fullmatch
_CANONICAL: Final = re.compile(
    f"1;b=({_WHOLE});n=({_WHOLE});s=([hl]);a=([01]{{4}});r=({_NUMBER});c=({_WHOLE})"
    f";u=({_NUMBER});q=({_NUMBER})(?:;e=({_NUMBER}))?(?:;t=({_NUMBER}))?(?:;g=({_NUMBER}))?"
    f"(?:;p=({_WHOLE}))?"
).fullmatch


def format_load(report: LoadReport) -> str:
    """Write a report: rates with 4 significant digits, counts in full, at most 146 characters."""
    text = (
        f"1;b={report.boot};n={report.sequence};s={'l' if report.lame_duck else 'h'}"
        f";a={_BITS[report.admits]};r={report.runnable:.4g};c={report.active}"
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
        boot, sequence, state, bits, runnable, active, u, q, e, t, g, port = match.groups()
        return LoadReport(
            boot=int(boot),
            sequence=int(sequence),
            lame_duck=state == "l",
            admits=_ADMITS[bits],
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
    port = values.get("p")
    return LoadReport(
        boot=_whole(boot),
        sequence=_whole(sequence),
        lame_duck=_LAME_DUCK[state],
        admits=_ADMITS[values.get("a", "1111")],
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
