"""A callback for transformers' Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rankfall.audit.monitor.monitor import RankMonitor


def trainer_callback(**options: Any) -> Any:
    """A TrainerCallback that runs a `RankMonitor` with these options; its steps are the Trainer's global steps.

    `callback.attach(trainer)` adds it and logs through `trainer.log`, which reaches every reporter. Given in
    `Trainer(callbacks=[...])` instead, the scalars go into the log history and into the next log of the Trainer.
    """
    return _callback_class()(options)


@cache
def _callback_class() -> Any:
    from transformers import TrainerCallback

    class RankCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
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
            if self._trainer is not None:
                scalars, self._pending = self._pending, {}
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

    return RankCallback
