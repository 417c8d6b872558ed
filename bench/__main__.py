"""Run every benchmark: `make bench`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench import facades, grpc_calls, meter, picks
from bench.timing import Row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--only", choices=("core", "grpc"), help="leave the other out")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (median)")
    arguments = parser.parse_args()

    rows = [] if arguments.only == "grpc" else _core(arguments.rounds)
    comparisons = [] if arguments.only == "core" else grpc_calls.measure(arguments.rounds)
    if comparisons:
        grpc_calls.show(comparisons)
    if arguments.json:
        found = [row.as_json() for row in rows] + [row.as_json() for row in comparisons]
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(row.is_missed for row in rows) or any(row.is_missed for row in comparisons))


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
