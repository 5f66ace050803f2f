"""The `rankfall` command: collects the verbs and turns every wrong request into one line and exit status 2."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import rankfall
from rankfall.catalogue import VERBS
from rankfall.cli.output import notes
from rankfall.errors import RequestError

# Typer carries its own copy of Click in newer versions; the base of its public exception is right in all.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="rankfall",
    help="See where a transformer loses rank, predict it, and choose an architecture that keeps it.",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rankfall {rankfall.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Without a verb, show what there is."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for verb in VERBS.names:
    app.command(verb)(VERBS[verb])


def run(arguments: list[str] | None = None) -> None:
    """Entry point. Exit status: 0 done, 1 the check asked for does not hold, 2 the request was wrong."""
    try:
        status = app(args=arguments, standalone_mode=False, prog_name="rankfall")
    except RequestError as error:
        _refuse(str(error))
    except UsageError as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "rankfall"
        _refuse(f"{error.format_message().rstrip('.')}; see `{where} --help`")  # type: ignore[attr-defined]
    except typer.Abort:
        _refuse("stopped by the user", status=130)
    sys.exit(status if isinstance(status, int) else 0)


def _refuse(message: str, status: int = 2) -> None:
    one_line = " ".join(message.split())
    notes.print(f"rankfall: {one_line}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)
