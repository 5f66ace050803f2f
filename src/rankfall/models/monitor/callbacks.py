"""The monitor inside transformers' Trainer and Lightning."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rankfall.errors import RequestError
from rankfall.models.monitor.monitor import RankMonitor

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class _Monitored:
    """A monitor that is open while training runs, and the scalars that it gave since the last log."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._options = dict(options)
        self._monitor: RankMonitor | None = None
        self._pending: dict[str, float] = {}

    def _open(self, model: Any, step: Callable[[], int]) -> None:
        options = dict(self._options)
        also = options.pop("log", ())
        logs = (self._receive, *(also if isinstance(also, tuple) else (also,)))
        self._monitor = RankMonitor(model, logs, step=step, **options)
        self._monitor.__enter__()

    def _close(self) -> None:
        if self._monitor is not None:
            self._monitor.__exit__(None, None, None)
            self._monitor = None

    def _receive(self, scalars: Mapping[str, float], step: int) -> None:
        self._pending.update(scalars)

    def _tell(self, *logs: tuple[str, Callable[[dict[str, float]], Any]]) -> None:
        """Hand over what is new; a log that fails costs a warning, not the training."""
        if self._pending and self._monitor is not None:
            scalars, self._pending = self._pending, {}
            for name, log in logs:
                with self._monitor.harmless("logging", name):
                    log(dict(scalars))


def trainer_callback(**options: Any) -> Any:
    """A TrainerCallback that runs a `RankMonitor` with these options; its steps are the Trainer's global steps.

    `callback.attach(trainer)` adds it and logs through `trainer.log`, which reaches every reporter; models that the
    Trainer compiles need this. Given in `Trainer(callbacks=[...])` instead, the scalars go into the log history and
    into the next log of the Trainer. `log` names further places.
    """
    from transformers import TrainerCallback

    class TrainerRankCallback(_Monitored, TrainerCallback):  # type: ignore[misc,unused-ignore]
        _trainer: Any = None

        def attach(self, trainer: Any) -> None:
            """Add this callback to the trainer and log through it."""
            self._trainer = trainer
            trainer.add_callback(self)

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            # As the Trainer runs it: compiled, if it was asked to.
            wrapped = model if self._trainer is None else self._trainer.model_wrapped
            self._open(wrapped, lambda: int(state.global_step))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self._trainer is not None:
                self._tell(("the trainer", self._trainer.log))
            elif self._pending:
                control.should_log = True

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if self._pending and logs is not None:
                scalars, self._pending = self._pending, {}
                logs.update(scalars)
                state.log_history.append({**scalars, "step": state.global_step})

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._close()

    return TrainerRankCallback(options)


def lightning_callback(**options: Any) -> Any:
    """A Lightning Callback that runs a `RankMonitor` with these options and logs to all of the trainer's loggers.

    Steps are the trainer's global steps. The module that is watched is the LightningModule itself, or the one that
    `model` names, for example `model="network"`. `log` names further places.
    """
    base: Any = _lightning_base()
    inner = options.pop("model", "")

    class LightningRankCallback(_Monitored, base):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._open(pl_module.get_submodule(inner), lambda: int(trainer.global_step))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
            named = [
                (type(one).__name__, partial(one.log_metrics, step=trainer.global_step)) for one in trainer.loggers
            ]
            self._tell(*named)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._close()

    return LightningRankCallback(options)


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
