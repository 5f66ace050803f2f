"""The `rankfall` command: collects the verbs, and ends each with a status that says whose fault it was."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import rankfall
from rankfall.catalogue import VERBS
from rankfall.cli.output import notes
from rankfall.errors import RequestError, brief, require

# Typer carries its own copy of Click in newer versions; the base of its public exception is right in all.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# PyTorch says so in words.
NO_MEMORY = re.compile(r"OutOfMemory|can't allocate memory|not enough memory|out of memory", re.IGNORECASE)
MOST_USAGE = 1_000
MOST_LINE = 1_900
"""Characters of a refusal on the terminal."""

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


CRASHED = 70
"""Exit status of a fault of ours, as sysexits.h has it: 1 is the answer of a check."""
PIPE_CLOSED = 141
"""What a shell gives for a program that wrote into a closed pipe."""


def run(arguments: list[str] | None = None) -> None:
    """Entry point.

    Exit status: 0 done, 1 the check asked for does not hold, 2 the request was wrong or this machine cannot meet it,
    70 a fault of rankfall itself.
    """
    try:
        _require_arguments(sys.argv[1:] if arguments is None else arguments)
        status = app(args=arguments, standalone_mode=False, prog_name="rankfall")
        sys.stdout.flush()
    except RequestError as error:
        _refuse(str(error))
    except UsageError as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "rankfall"
        said = brief(error.format_message().rstrip("."), MOST_USAGE)  # type: ignore[attr-defined]
        _refuse(f"{said}; see `{where} --help`")
    except typer.Abort:
        _refuse("stopped by the user", status=130)
    except BrokenPipeError:
        # Whoever read the output has gone; what is still buffered must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
    except Exception as error:
        if reason := refused_by_machine(error):
            _refuse(reason)
        _crashed()
    sys.exit(status if isinstance(status, int) else 0)


def _require_arguments(given: Sequence[str]) -> None:
    """Those from Python may hold what no system would pass on; an empty one is a variable that nobody set.

    Unrefused, an empty path would be the working folder to `Path`, and a report be spread over it.
    """
    for one, before in zip(given, ("", *given), strict=False):
        empty = not one or (one.startswith("--") and one.endswith("=") and one.count("=") == 1)
        option = one.rstrip("=") or before
        require(
            not empty,
            required=f"{option if option.startswith('-') else 'every argument'} to have a value",
            got="an empty one",
            remedy="give one, or leave it out",
        )
        try:
            fits = b"\0" not in os.fsencode(one)
        except UnicodeEncodeError:
            fits = False
        require(fits, required="arguments that a command line can hold", got=ascii(one), remedy="give another")


def refused_by_machine(error: Exception) -> str | None:
    """What the system would not do, in one line; None where the fault is ours."""
    if isinstance(error, OSError):
        what = error.strerror or str(error) or type(error).__name__
        of = f" ({brief(error.filename)})" if error.filename is not None else ""
        return f"required a system that lets it be done; got {what.lower()}{of}; mend that, or choose another place"
    if isinstance(error, MemoryError) or NO_MEMORY.search(f"{type(error).__name__} {error}"):
        return "required more memory than there is; got none; ask for less, or use a machine with more memory"
    return None


def _refuse(message: str, status: int = 2) -> NoReturn:
    one_line = brief(" ".join(message.split()), MOST_LINE)
    notes.print(f"rankfall: {one_line}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(status)


def _crashed() -> NoReturn:
    traceback.print_exc()
    line = "rankfall: this is a fault of rankfall, not of the request; please report the lines above"
    notes.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(CRASHED)
