"""Be `python -m evenly`, the same as the `evenly` command."""

from __future__ import annotations

from evenly.cli.entry import run

if __name__ == "__main__":
    run()
