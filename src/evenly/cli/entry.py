"""Start the `evenly` command, or say in one line what is missing for it.

The command needs an extra, and whoever installed evenly without it should not have to read a
traceback.  So the application is imported here, where the import may fail, and not at the top.
"""

from __future__ import annotations

import sys

__all__ = ["run"]

_EXTRA = ("typer", "rich")


def run() -> None:
    """Run the command line; without its extra, name that and exit with 1."""
    try:
        from evenly.cli import main  # noqa: PLC0415  It may fail, and that is the point.
    except ImportError as error:
        # Anything else that cannot be imported is our mistake, and deserves its traceback.
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None
    main.run()
