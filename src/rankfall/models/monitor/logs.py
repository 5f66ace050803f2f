"""Where a monitor's scalars go: experiment trackers through their own functions, files, Python's logging."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError, require
from rankfall.models.monitor.alarms import KINDS
from rankfall.models.monitor.attention import ATTENTION_MEASURES
from rankfall.models.monitor.sample import MEASURES

Log = Callable[[Mapping[str, float], int], None]
"""Takes scalars by name, and the step."""

OF_TOKENS = (*MEASURES, "norm_ratio", "longest_token", "nonfinite", *KINDS)
COLUMNS = ("step", "block", *OF_TOKENS, *ATTENTION_MEASURES, "ranks")
"""What a CSV file has for each step and each block, attention module or head."""

REQUIRED = (
    "a logger with add_scalar, log_metrics or log, a list, a function of (scalars, step), 'tensorboard[:FOLDER]',"
    " 'wandb', 'mlflow', or a file that ends in .csv or .jsonl"
)


def as_logs(target: Any = None, prefix: str = "rankfall") -> list[tuple[str, Log]]:
    """A function of (scalars, step) for the target, or for each of a tuple of them, by name."""
    if isinstance(target, tuple):
        return [(_name(one), as_log(one, prefix)) for one in target]
    return [("the logger", as_log(target, prefix))]


def as_log(target: Any = None, prefix: str = "rankfall") -> Log:
    """A function of (scalars, step) that feeds the given logger.

    None: Python's logging, as `rankfall.monitor`. A word: `tensorboard` or `tensorboard:FOLDER`, `wandb` (its current
    run), `mlflow` (its current run), or a file that ends in .csv or .jsonl, which is added to. Also a
    `logging.Logger`, TensorBoard's SummaryWriter (`add_scalar`), Lightning's loggers and mlflow (`log_metrics`), a
    Weights & Biases run (`log`), a list, or any function of (scalars, step).
    """
    if target is None:
        target = logging.getLogger("rankfall.monitor")
    if isinstance(target, str | os.PathLike):
        return _of_word(os.fspath(target), prefix)
    if isinstance(target, logging.Logger):
        return lambda scalars, step: target.info("step %d: %s", step, _line(scalars))
    if isinstance(target, list):
        return lambda scalars, step: target.append({"step": step, **scalars})
    if hasattr(target, "add_scalar"):
        return lambda scalars, step: _each(target.add_scalar, scalars, step)
    if hasattr(target, "log_metrics"):
        return lambda scalars, step: target.log_metrics(dict(scalars), step=step)
    if hasattr(target, "define_metric") and hasattr(target, "log"):
        return _wandb(target, prefix)
    if hasattr(target, "log"):
        return lambda scalars, step: target.log(dict(scalars), step=step)
    if callable(target):
        found: Log = target
        return found
    raise RequestError(required=REQUIRED, got=type(target).__name__, remedy="wrap it in a function")


def _of_word(word: str, prefix: str) -> Log:
    tracker, _, rest = word.partition(":")
    if tracker == "tensorboard":
        _installed("tensorboard")
        return _later(lambda: _tensorboard(rest))
    if word in ("wandb", "mlflow"):
        _installed(word)
        return _later(lambda: as_log(importlib.import_module(word), prefix))
    path = Path(word)
    known = {".csv": _csv_rows, ".jsonl": _json_lines}
    if path.suffix not in known:
        raise RequestError(required=REQUIRED, got=word, remedy="name a file or a tracker")
    require(not path.is_dir(), required="a file to add to", got=f"the folder {path}", remedy="name a file inside it")
    return partial(known[path.suffix], path, prefix)


def _installed(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise RequestError(
            required=f"the package {package}",
            got="not installed",
            remedy="install it, or log to a .csv or .jsonl file",
        )


def _later(make: Callable[[], Log]) -> Log:
    """The log that `make` gives, made when it is first used: processes that log nothing open nothing."""
    made: list[Log] = []

    def log(scalars: Mapping[str, float], step: int) -> None:
        if not made:
            made.append(make())
        made[0](scalars, step)

    return log


def _tensorboard(folder: str) -> Log:
    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(folder or None)

    def log(scalars: Mapping[str, float], step: int) -> None:
        _each(writer.add_scalar, scalars, step)
        writer.flush()

    return log


def _wandb(run: Any, prefix: str) -> Log:
    """With an axis of its own: a run drops what comes with a step that it has passed, and counts by itself."""
    axis = f"{prefix}/step"

    def define() -> Log:
        run.define_metric(axis)
        run.define_metric(f"{prefix}/*", step_metric=axis)
        return lambda scalars, step: run.log({**scalars, axis: step})

    return _later(define)


def _json_lines(path: Path, prefix: str, scalars: Mapping[str, float], step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"step": step, **scalars}) + "\n")


def _csv_rows(path: Path, prefix: str, scalars: Mapping[str, float], step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="") as file:
        file.seek(0)
        header = next(csv.reader(file), None)
        require(
            header in (None, list(COLUMNS)),
            required="a file of a monitor, or none",
            got=f"{path} with other columns",
            remedy="name another file",
        )
        rows: dict[str, dict[str, Any]] = {}
        for name, value in scalars.items():
            block, _, measure = name.removeprefix(f"{prefix}/").rpartition("/")
            rows.setdefault(block, {"step": step, "block": block})[measure] = value
        writer = csv.DictWriter(file, COLUMNS)
        if header is None:
            writer.writeheader()
        writer.writerows(rows.values())


def _name(target: Any) -> str:
    return target if isinstance(target, str) else type(target).__name__


def _each(add: Callable[..., None], scalars: Mapping[str, float], step: int) -> None:
    for name, value in scalars.items():
        add(name, value, step)


def _line(scalars: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in scalars.items())
