"""Serve an ASGI application (`evenly serve module:app`)."""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenly.cli.options import MOST_PROCESSES, whole
from evenly.errors import EvenlyError

if TYPE_CHECKING:
    from evenly.runtime.backend_config import BackendConfig

__all__ = ["serve"]

_EXTRA = ("httptools", "uvicorn", "uvloop")


def serve(
    application: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="The ASGI application, such as main:app.")
    ],
    *,
    host: Annotated[str, typer.Option(help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            parser=whole(0, 65535), metavar="N", help="Listen on this port; 0 takes a free one."
        ),
    ] = 8000,
    uds: Annotated[
        str | None, typer.Option(metavar="PATH", help="Listen on a UNIX socket instead.")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            parser=whole(1, MOST_PROCESSES),
            metavar="N",
            help="Serve with so many processes, which are one backend to clients.",
        ),
    ] = 1,
    warm_up: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Run this before clients are asked to send."),
    ] = None,
    factory: Annotated[
        bool, typer.Option("--factory", help="MODULE:APP is a function that makes it.")
    ] = False,
    app_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", exists=True, file_okay=False, help="Look for modules here first."
        ),
    ] = Path(),
    drain_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="After SIGTERM, serve no longer than this whoever still sends; 30 if omitted.",
        ),
    ] = None,
    quiet_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="After SIGTERM, stop when nobody has sent for so long; 1 if omitted.",
        ),
    ] = None,
    grace_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Give what is under way then so long."),
    ] = 5.0,
    ssl_certfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate.")
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate's key.")
    ] = None,
    forwarded_allow_ips: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Believe X-Forwarded-* of these proxies; 127.0.0.1 if omitted. With '*' anybody "
            "can be anybody, whom the backend trusts as well.",
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Where a proxy has put the application.")
    ] = "",
    loop: Annotated[str, typer.Option(metavar="LOOP", help="auto, asyncio or uvloop.")] = "auto",
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="critical, error, warning, info or debug.")
    ] = "info",
    access_log: Annotated[bool, typer.Option(help="Log each request.")] = True,
) -> None:
    """Serve an ASGI application that says how it is, and leaves without losing a request."""
    # As `python -m` does; a command has the folder of its script there instead.
    sys.path.insert(0, os.fspath(app_dir.resolve()))
    try:
        from evenly.http.serve.serve import run  # noqa: PLC0415 -- an extra, and slow

        run(
            application,
            host=host,
            port=port,
            uds=uds,
            workers=workers,
            warm_up=warm_up,
            factory=factory,
            config=_config(drain_seconds=drain_seconds, quiet_seconds=quiet_seconds),
            grace_seconds=grace_seconds,
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            on_listening=lambda url: typer.echo(f"listening on {url}"),
            forwarded_allow_ips=forwarded_allow_ips,
            root_path=root_path,
            loop=loop,
            log_config=_logging(log_level),
            access_log=access_log,
        )
    except ImportError as error:
        # Anything else that cannot be imported is our mistake, and deserves its traceback.
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    except EvenlyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None


def _config(**given: float | None) -> BackendConfig | None:
    """Return the defaults with what was given, or `None`: a middleware may have its own."""
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not chosen:
        return None
    from evenly.runtime.backend_config import BackendConfig, default_task  # noqa: PLC0415 -- see above

    return BackendConfig(task=dataclasses.replace(default_task(), **chosen))


def _logging(level: str) -> dict[str, Any]:
    """Return how uvicorn logs, and evenly the same way."""
    try:
        from uvicorn.config import LOGGING_CONFIG  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise ImportError(
            "evenly serve needs uvicorn: pip install uvicorn", name=error.name
        ) from error
    levels = ("critical", "error", "warning", "info", "debug")
    if level not in levels:
        raise typer.BadParameter(
            f"must be one of {', '.join(levels)}, not {level!r}", param_hint="'--log-level'"
        )
    config = copy.deepcopy(LOGGING_CONFIG)
    loggers = config["loggers"]
    loggers["evenly"] = {"handlers": ["default"], "propagate": False}
    for name in ("evenly", "uvicorn", "uvicorn.error", "uvicorn.access"):
        loggers[name]["level"] = level.upper()
    return config
