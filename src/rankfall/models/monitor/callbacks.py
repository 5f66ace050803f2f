"""The monitor inside transformers' Trainer and Lightning."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from rankfall.errors import RequestError
from rankfall.models.monitor.monitor import RankMonitor


def trainer_callback(**options: Any) -> Any:
    """A TrainerCallback that runs a `RankMonitor` with these options; its steps are the Trainer's global steps.

    `callback.attach(trainer)` adds it and logs through `trainer.log`, which reaches every reporter. Given in
    `Trainer(callbacks=[...])` instead, the scalars go into the log history and into the next log of the Trainer.
    """
    return _trainer_class()(options)


@cache
def _trainer_class() -> Any:
    from transformers import TrainerCallback

    class TrainerRankCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def __init__(self, options: Mapping[str, Any]) -> None:
            self._options = dict(options)
            self._monitor: RankMonitor | None = None
            self._pending: dict[str, float] = {}
            self._trainer: Any = None

        def attach(self, trainer: Any) -> None:
            """Add this callback to the trainer and log through it."""
            self._trainer = trainer
            trainer.add_callback(self)

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self._monitor = RankMonitor(model, self._receive, step=lambda: int(state.global_step), **self._options)
            self._monitor.__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not self._pending:
                return
            if self._trainer is not None and self._monitor is not None:
                scalars, self._pending = self._pending, {}
                with self._monitor.harmless("logging", "the trainer"):
                    self._trainer.log(dict(scalars))
            else:
                control.should_log = True

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if self._pending and logs is not None:
                scalars, self._pending = self._pending, {}
                logs.update(scalars)
                state.log_history.append({**scalars, "step": state.global_step})

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self._monitor is not None:
                self._monitor.__exit__(None, None, None)
                self._monitor = None

        def _receive(self, scalars: Mapping[str, float], step: int) -> None:
            self._pending.update(scalars)

    return TrainerRankCallback


PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(**options: Any) -> Any:
    """A Lightning Callback that runs a `RankMonitor` with these options and logs to all of the trainer's loggers.

    Steps are the trainer's global steps. The module that is watched is the LightningModule itself, or the one that
    `model` names, for example `model="network"`.
    """
    return _lightning_class()(options)


def _lightning_class() -> Any:
    base = _lightning_base()

    class LightningRankCallback(base):  # type: ignore[valid-type]
        def __init__(self, options: Mapping[str, Any]) -> None:
            super().__init__()
            self._options = dict(options)
            self._inner = self._options.pop("model", "")
            self._monitor: RankMonitor | None = None
            self._pending: dict[str, float] = {}

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            watched = pl_module.get_submodule(self._inner)
            self._monitor = RankMonitor(
                watched, self._receive, step=lambda: int(trainer.global_step), **self._options
            )
            self._monitor.__enter__()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
            if self._pending and self._monitor is not None:
                scalars, self._pending = self._pending, {}
                for logger in trainer.loggers:
                    with self._monitor.harmless("logging", type(logger).__name__):
                        logger.log_metrics(scalars, step=trainer.global_step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._close()

        def _close(self) -> None:
            if self._monitor is not None:
                self._monitor.__exit__(None, None, None)
                self._monitor = None

        def _receive(self, scalars: Mapping[str, float], step: int) -> None:
            self._pending.update(scalars)

    return LightningRankCallback


def _lightning_base() -> type:
    for package in PACKAGES:
        try:
            found: type = importlib.import_module(package).Callback
        except ModuleNotFoundError:
            continue
        return found
    raise RequestError(
        required=f"one of {', '.join(PACKAGES)}",
        got="neither installed",
        remedy="install lightning, or use RankMonitor as a context manager inside your training step",
    )
