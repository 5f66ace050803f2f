"""`rankfall explore`: the interactive page, on this machine only."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Annotated

import typer

from rankfall.cli.output import notes, paper


def explore(
    port: Annotated[int | None, typer.Option(help="Port on 127.0.0.1; 8321, or another when that is taken.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    link: Annotated[str, typer.Option(help="Open a state that somebody shared: a link, or what follows its ?.")] = "",
    store: Annotated[Path, typer.Option(help="Store of runs for the tab Stored.")] = Path("runs"),
    reports: Annotated[Path, typer.Option(help="Folder under which reports of audits lie.")] = Path("."),
) -> None:
    """Open the page: tokens that collapse as you move sliders, head rank, and what is stored. Needs `rankfall[app]`.

    Example: `rankfall explore --store runs --reports reports`
    """
    from rankfall.explorer.server import require_marimo, serve

    require_marimo()
    from rankfall.explorer.state import query_of

    # Stopped from outside, the page's own process must not be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as running:
        with notes.status("starting the page"):
            served = running.enter_context(serve(port, store, reports))
        address = served.link(query_of(link))
        paper.print(address, markup=False, highlight=False, soft_wrap=True)
        notes.print("The page is open to this machine only, at this address. Ctrl-C stops it.", highlight=False)
        if browser:
            import webbrowser

            webbrowser.open(address)
        served.process.wait()
