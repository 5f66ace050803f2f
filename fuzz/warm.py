"""What every child would do again is done once in their parent, before it forks."""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import pkgutil
from functools import cache

NOT_IMPORTED = ("rankfall.__main__", "rankfall.explorer.page", "rankfall.training.kernels")
"""What runs when imported, or needs the compiler of a GPU."""


def warm(*, many: bool = True) -> None:
    """Import what children need; from then on a change of the source changes nothing.

    `many` loads the classes of all configurations too: that takes longer than a few inputs, of which hardly one asks.

    Nothing that starts a thread runs here: threads do not live on in a forked child.
    """
    import duckdb  # noqa: F401
    import matplotlib.pyplot as plots
    import torch
    import transformers
    import typer.main

    import rankfall
    from rankfall.models.architectures.survey import survey_configurations

    for found in pkgutil.walk_packages(rankfall.__path__, "rankfall."):
        if not found.name.startswith(NOT_IMPORTED):
            importlib.import_module(found.name)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for kind in ("png", "svg", "pdf"):
        plots.figure().savefig(io.BytesIO(), format=kind)
    plots.close("all")
    if many:
        survey_configurations()
    # Typer reads all signatures again whenever the command runs: three quarters of the time of a refused request.
    typer.main.get_command = cache(typer.main.get_command)  # type: ignore[assignment]
    # No child goes through what is loaded here in search of garbage; at the end all of it is freed as ever.
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
