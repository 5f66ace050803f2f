"""`RankMonitor`: a context manager that watches token rank while a model trains."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.audit.monitor.alarms import Alarms, RankWarning
from rankfall.audit.monitor.blocks import chosen_blocks
from rankfall.audit.monitor.logger import as_log
from rankfall.audit.monitor.padding import real_tokens
from rankfall.audit.monitor.sample import measured, sampled, token_output
from rankfall.errors import require, require_count


class RankMonitor:
    """Every `every` steps, measures `tokens` tokens of one sequence at chosen blocks and logs flat scalars.

    Blocks give tokens (b, n, d), batch first. Padding is left out where the model is told of it by a mask.

        with RankMonitor(model, log=writer):
            for batch in batches: ...

    A step is one forward pass of `model` in training mode, unless `step` says otherwise. Scalars are named
    `prefix/block/measure`: `relative_mu`, `effective_rank` and `mean_abs_cosine` of the tokens scaled to length one,
    `norm_ratio` (longest over median length) and `longest_token` (its place). Each alarm is a `RankWarning`, once per
    block and kind. Nothing random is drawn and nothing is kept of the graph: the run is the run it would have been.
    """

    def __init__(
        self,
        model: nn.Module,
        log: Any = None,
        *,
        every: int = 100,
        blocks: int | Sequence[str | int] = 3,
        tokens: int = 128,
        alarms: Alarms | None = None,
        prefix: str = "rankfall",
        step: Callable[[], int] | None = None,
    ) -> None:
        require_count("every", every)
        require_count("tokens", tokens, least=2)
        self.blocks = chosen_blocks(model, blocks)
        self.latest: dict[str, float] = {}
        self._model = model
        self._log = as_log(log)
        self._every = every
        self._tokens = tokens
        self._alarms = alarms or Alarms()
        self._prefix = prefix
        self._step_of = step
        self._steps = 0
        self._due = False
        self._last: int | None = None
        self._real: Tensor | None = None
        self._samples: dict[str, tuple[Tensor, Tensor]] = {}
        self._warned: set[tuple[str, str]] = set()
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> RankMonitor:
        model = self._model
        self._hooks.callback(model.register_forward_pre_hook(self._start, with_kwargs=True).remove)
        for name, block in self.blocks.items():
            hook = self._sampler(name)
            self._hooks.callback(block.register_forward_hook(hook).remove)
        self._hooks.callback(model.register_forward_hook(self._finish, always_call=True).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        self._samples.clear()

    def _start(self, model: nn.Module, given: Any, named: Any) -> None:
        if not model.training:
            self._due = False
            return
        step = self._steps if self._step_of is None else self._step_of()
        self._steps += 1
        # With accumulated gradients one step has several passes: the first of them is enough.
        self._due = step % self._every == 0 and step != self._last
        if self._due:
            self._last = step
            self._real = real_tokens(model, given, named)

    def _sampler(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            # Not due again until the next pass: a block run anew by checkpointing in the backward pass is not seen.
            if not self._due or name in self._samples:
                return
            found = token_output(output)
            require(
                found is not None and found.shape[1] > 1,
                required=f"{name} to return (b, n, d) tokens, at least two",
                got=type(output).__name__ if found is None else tuple(found.shape),
                remedy="name other modules to watch",
            )
            assert found is not None
            self._samples[name] = sampled(found, self._tokens, self._real)

        return hook

    def _finish(self, *_: Any) -> None:
        if not self._due:
            return
        self._due = False
        samples, self._samples, self._real = self._samples, {}, None
        if not samples or self._last is None:
            return
        with torch.no_grad():
            records = self._records(samples)
        self.latest = {
            f"{self._prefix}/{name}/{measure}": value
            for name, record in records.items()
            for measure, value in record.items()
        }
        self._log(self.latest, self._last)
        for name, record in records.items():
            self._warn(name, self._alarms.heard(record), self._last)

    def _records(self, samples: dict[str, tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
        shapes = {tokens.shape for tokens, _ in samples.values()}
        if len(shapes) == 1:
            stacked = torch.stack([tokens for tokens, _ in samples.values()])
            places = next(iter(samples.values()))[1]
            return dict(zip(samples, measured(stacked, places), strict=True))
        return {name: measured(tokens[None], places)[0] for name, (tokens, places) in samples.items()}

    def _warn(self, name: str, heard: dict[str, str], step: int) -> None:
        for kind, words in heard.items():
            if (name, kind) not in self._warned:
                self._warned.add((name, kind))
                warnings.warn(f"{kind} at {name}, step {step}: {words}", RankWarning, stacklevel=3)
