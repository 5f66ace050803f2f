"""`rankfall explore`: the interactive page, on this machine only."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from rankfall.cli.output import JsonFlag, emit, notes, paper


def explore(
    port: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1 (default 8321, or another when that is taken).")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    link: Annotated[str, typer.Option(help="State to open: a shared link, or what follows its question mark.")] = "",
    store: Annotated[Path, typer.Option(help="Store of runs for the tab Stored.")] = Path("runs"),
    reports: Annotated[Path, typer.Option(help="Folder with reports of audits.")] = Path("."),
    check: Annotated[bool, typer.Option("--check", help="Stop as soon as the page answers.")] = False,
    json: JsonFlag = False,
) -> None:
    """Open the page: tokens that collapse as you move sliders, head rank, and what is stored. Needs `rankfall[app]`.

    With --json, the object with the page's address is printed once the page answers; the page is served until it is
    stopped.

    Example: `rankfall explore --store runs --reports reports`

    Quick: `rankfall explore --no-browser --check`
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
        emit(
            {"url": address, "port": served.port},
            as_json=json,
            show=lambda: paper.print(address, markup=False, highlight=False, soft_wrap=True),
        )
        # Whoever reads this through a pipe waits for the address.
        sys.stdout.flush()
        if check:
            return
        notes.print("The page is open to this machine only, at this address. Ctrl-C stops it.", highlight=False)
        if browser:
            import webbrowser

            webbrowser.open(address)
        served.process.wait()
