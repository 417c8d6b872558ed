"""Show a running service in the terminal (`evenly top`)."""

from __future__ import annotations

from typing import Annotated

import typer

from evenly.cli.options import number
from evenly.errors import ConfigError

__all__ = ["top"]


def top(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL",
            help="Metrics pages (host:port is enough), or lists of targets as Prometheus's "
            "HTTP service discovery serves them.",
        ),
    ],
    *,
    interval: Annotated[
        float,
        typer.Option(
            parser=number(0.2, 3600.0),
            metavar="SECONDS",
            help="Look so often; rates are over this time.",
        ),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, print one table and exit.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per interval and line.")
    ] = False,
    service: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show this service only.")
    ] = None,
) -> None:
    """Show a running service: load, refusals and latency, its backends and clients."""
    try:
        from evenly.lab.top.run import Wanted, watch  # noqa: PLC0415 -- an extra, and slow
        from evenly.lab.top.targets import TARGETS_MAX, parse_target  # noqa: PLC0415 -- with it
    except ImportError as error:
        # Anything else that cannot be imported is our mistake, and deserves its traceback.
        if (error.name or "").partition(".")[0] not in {"httptools", "prometheus_client"}:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    if len(urls) > TARGETS_MAX:
        text = f"there must be at most {TARGETS_MAX} addresses, not {len(urls)}"
        raise typer.BadParameter(text, param_hint="'URL'")
    try:
        targets = [parse_target(url) for url in urls]
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="'URL'") from None
    wanted = Wanted(
        targets=targets,
        interval_seconds=interval,
        is_once=once,
        is_json=as_json,
        service=service,
    )
    raise typer.Exit(watch(wanted))
