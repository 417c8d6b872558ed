"""Be the `evenly` command: one typer application, one file per subcommand."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

try:
    import rich  # noqa: F401  The commands draw with it: better to say so now than half-way.
    import typer
except ImportError as error:
    raise ImportError(
        'the evenly command needs typer and rich: pip install "evenly[cli]"', name=error.name
    ) from error

from evenly.cli.demo import demo
from evenly.cli.figures import figures
from evenly.cli.serve import serve
from evenly.cli.simulate import simulate
from evenly.cli.subset import subset
from evenly.cli.top import top

__all__ = ["app", "run"]

app = typer.Typer(
    name="evenly",
    help="Load balancing and overload control for Python services.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with every local variable in it helps nobody who typed a command.
    pretty_exceptions_enable=False,
    # Plain help and errors: the framed ones call every flag a <bool>, and break addresses in two.
    rich_markup_mode=None,
)
app.command("demo")(demo)
app.command("figures")(figures)
app.command("serve")(serve)
app.command("simulate")(simulate)
app.command("subset")(subset)
app.command("top")(top)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evenly {version('evenly')}")
        raise typer.Exit


@app.callback()
def _main(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Load balancing and overload control for Python services."""


def run() -> None:
    """Run the command line; `evenly.cli.entry` is where the command begins."""
    app()
