"""Flat scalars to whatever logger there is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rankfall.errors import RequestError

Log = Callable[[Mapping[str, float], int], None]
"""Takes scalars by name, and the step."""


def as_log(target: Any = None) -> Log:
    """A function of (scalars, step) that feeds the given logger.

    None: Python's logging, as `rankfall.monitor`. Also a `logging.Logger`, TensorBoard's SummaryWriter
    (`add_scalar`), Lightning's loggers (`log_metrics`), a Weights & Biases run (`log`), a list, or any function of
    (scalars, step).
    """
    if target is None:
        target = logging.getLogger("rankfall.monitor")
    if isinstance(target, logging.Logger):
        return lambda scalars, step: target.info("step %d: %s", step, _line(scalars))
    if isinstance(target, list):
        return lambda scalars, step: target.append({"step": step, **scalars})
    if hasattr(target, "add_scalar"):
        return lambda scalars, step: _each(target.add_scalar, scalars, step)
    if hasattr(target, "log_metrics"):
        return lambda scalars, step: target.log_metrics(dict(scalars), step=step)
    if hasattr(target, "log"):
        return lambda scalars, step: target.log(dict(scalars), step=step)
    if callable(target):
        found: Log = target
        return found
    raise RequestError(
        required="a logger with add_scalar, log_metrics or log, a list, or a function of (scalars, step)",
        got=type(target).__name__,
        remedy="wrap it in a function",
    )


def _each(add: Callable[..., None], scalars: Mapping[str, float], step: int) -> None:
    for name, value in scalars.items():
        add(name, value, step)


def _line(scalars: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in scalars.items())
