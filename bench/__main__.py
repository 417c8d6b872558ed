"""Run every benchmark: `make bench`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Protocol

from bench import facades, grpc_calls, http_clients, http_middleware, meter, picks
from bench.timing import Row


class Measured(Protocol):
    """Be one row of a table."""

    @property
    def is_missed(self) -> bool: ...

    def as_json(self) -> dict[str, object]: ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--only", choices=("core", "grpc", "http"), help="leave the others out")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (median)")
    arguments = parser.parse_args()

    is_wanted = {name: arguments.only in (None, name) for name in ("core", "grpc", "http")}
    rows: list[Measured] = []
    if is_wanted["core"]:
        rows += _core(arguments.rounds)
    if is_wanted["grpc"]:
        calls = grpc_calls.measure(arguments.rounds)
        grpc_calls.show(calls)
        rows += calls
    if is_wanted["http"]:
        served = http_middleware.measure(arguments.rounds)
        http_middleware.show(served)
        clients = http_clients.measure(arguments.rounds)
        http_clients.show(clients)
        rows += [*served, *clients]
    if arguments.json:
        arguments.json.write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n")
    return int(any(row.is_missed for row in rows))


def _core(rounds: int) -> list[Row]:
    rows: list[Row] = [
        row
        for measure in (picks.measure, facades.measure, meter.measure)
        for row in measure(rounds)
    ]
    width = max(len(row.what) for row in rows)
    print(f"{'what (and how many backends)':{width}}  {'ns':>8}  {'empty calls':>11}  {'bound':>6}")
    for row in rows:
        bound = "" if row.bound is None else f"{row.bound:.0f}"
        mark = "  MISSED" if row.is_missed else ""
        print(f"{row.what:{width}}  {row.nanoseconds:8.0f}  {row.ratio:11.1f}  {bound:>6}{mark}")
    return rows


sys.exit(main())
