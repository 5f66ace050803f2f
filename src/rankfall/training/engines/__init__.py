"""Where stacks are trained: in this process, or on a Ray cluster. One file per engine."""

from __future__ import annotations

import importlib

from rankfall.errors import require
from rankfall.training.engines.base import Engine
from rankfall.training.options import Options

# One line per engine: the module of that name in this folder holds ENGINE, its class.
ALL_ENGINES: tuple[str, ...] = ("local", "ray")


def make_engine(name: str, options: Options) -> Engine:
    """The engine of that name."""
    require(
        name in ALL_ENGINES,
        required=f"an engine among {', '.join(ALL_ENGINES)}",
        got=name,
        remedy="local trains on this machine",
    )
    module = importlib.import_module(f"rankfall.training.engines.{name}")
    engine: Engine = module.ENGINE(options)
    return engine


__all__ = ["ALL_ENGINES", "Engine", "make_engine"]
