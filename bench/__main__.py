"""Run every benchmark: `make bench`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench import facades, meter, picks
from bench.timing import Row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (median)")
    arguments = parser.parse_args()

    rows: list[Row] = [
        row
        for measure in (picks.measure, facades.measure, meter.measure)
        for row in measure(arguments.rounds)
    ]
    width = max(len(row.what) for row in rows)
    print(f"{'what (and how many backends)':{width}}  {'ns':>8}  {'empty calls':>11}  {'bound':>6}")
    for row in rows:
        bound = "" if row.bound is None else f"{row.bound:.0f}"
        mark = "  MISSED" if row.is_missed else ""
        print(f"{row.what:{width}}  {row.nanoseconds:8.0f}  {row.ratio:11.1f}  {bound:>6}{mark}")
    if arguments.json:
        arguments.json.write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n")
    return int(any(row.is_missed for row in rows))


sys.exit(main())
