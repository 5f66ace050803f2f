"""Watch token rank while a model trains: what is measured, when it warns, where it is logged.

A monitor never ends a training run: what goes wrong while measuring or logging is one warning and a gap in the log.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require, require_count
from rankfall.measures.measures import measure
from rankfall.models.blocks import choose_blocks
from rankfall.models.recorder import recorded
from rankfall.models.thresholds import THRESHOLDS
from rankfall.norms import UnitNorm


class RankWarning(UserWarning):
    """Tokens are collapsing, or a few of them dwarf the rest."""


@final
@dataclass(frozen=True)
class Alarms:
    """Thresholds. Collapse is judged on tokens of length one, so that a sink cannot hide or feign it."""

    relative_mu: float = THRESHOLDS.collapsed_relative_mu
    energy_rank: float = THRESHOLDS.collapsed_energy_rank
    norm_ratio: float = THRESHOLDS.sink_norm_ratio

    def raised(self, values: Mapping[str, float]) -> dict[str, str]:
        """What to warn about, by kind, in words with the number and the threshold."""
        found: dict[str, str] = {}
        if values.get("nonfinite"):
            return {"nonfinite": "tokens are not finite"}
        if values["relative_mu"] < self.relative_mu:
            found["collapse"] = f"relative mu {values['relative_mu']:.3g} is below {self.relative_mu:g}"
        elif values["energy_rank"] < self.energy_rank:
            found["collapse"] = f"energy rank {values['energy_rank']:.3g} is below {self.energy_rank:g}"
        if values["norm_ratio"] > self.norm_ratio:
            found["sink"] = (
                f"the longest token is {values['norm_ratio']:.3g} times the median"
                f" (threshold {self.norm_ratio:g}), token {int(values['longest_token'])} of the sequence"
            )
        return found


# Names of (b, n) masks, and whether they mark real tokens or padding.
MARKS_REAL = {"attention_mask": True, "src_key_padding_mask": False, "key_padding_mask": False}


def real_tokens(model: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """(b, n) booleans; None where the model got no such mask, and every token counts."""
    for name, value in {**_bound(model, given), **named}.items():
        if name in MARKS_REAL and isinstance(value, Tensor) and value.ndim == 2:
            if MARKS_REAL[name]:
                return value != 0
            # A mask of padding is true there, or minus infinity.
            return value == 0
    return None


def _bound(model: nn.Module, given: Sequence[Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(model.forward).bind_partial(*given).arguments
    except (TypeError, ValueError):
        return {}


MEASURES = ("relative_mu", "effective_rank", "energy_rank", "mean_abs_cosine")


def sampled(tokens: Tensor | None, most: int, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """At most `most` tokens of one sequence, evenly spaced and with the first, where sinks sit (m, d); their places.

    The sequence is the first of the batch; where `real` (b, n) marks padding, the longest, without its padding. No
    random numbers are drawn: a monitored run stays the same run.
    """
    if tokens is None or tokens.ndim != 3 or tokens.numel() == 0:
        got = "something else" if tokens is None else tuple(tokens.shape)
        raise RequestError(required="a block that gives (b, n, d) tokens", got=got, remedy="watch other modules")
    row, where = 0, torch.arange(tokens.shape[1])
    if real is not None and real.shape == tokens.shape[:2]:
        row = int(real.sum(dim=-1).argmax())
        where = real[row].nonzero()[:, 0].cpu()
    spread = torch.linspace(0, len(where) - 1, min(most, len(where))).round().long()
    kept = where[spread]
    require(len(kept) > 1, required="two or more tokens", got=len(kept), remedy="nothing is measured here")
    return tokens.detach()[row].index_select(0, kept.to(tokens.device)), kept


def measured(samples: Tensor, places: Tensor) -> list[dict[str, float]]:
    """One record per block of (k, m, d) samples; one decomposition and one transfer for all of them."""
    samples = samples.float()
    lengths = torch.linalg.vector_norm(samples, dim=-1)
    finite = lengths.isfinite().all(dim=-1)
    safe = samples.where(finite[:, None, None], 1.0)
    values = measure(UnitNorm()(safe), MEASURES)
    longest, where = lengths.max(dim=-1)
    median = lengths.median(dim=-1).values
    ratio = longest / median.where(median > 0, 1.0)
    table = torch.stack([*(values[name].float() for name in MEASURES), ratio, where.float(), finite.float()])
    records = []
    for column in table.T.tolist():
        record = dict(zip((*MEASURES, "norm_ratio", "longest_token"), column, strict=False))
        record["longest_token"] = float(places[int(record["longest_token"])])
        records.append(record if column[-1] else {"nonfinite": 1.0})
    return records


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


class RankMonitor:
    """Every `every` steps, measures `tokens` tokens of one sequence at chosen blocks and logs flat scalars.

    Blocks give tokens (b, n, d), batch first. Padding is left out where the model is told of it by a mask.

        with RankMonitor(model, log=writer):
            for batch in batches: ...

    A step is one forward pass of `model` in training mode, unless `step` says otherwise. Scalars are named
    `prefix/block/measure`: `relative_mu`, `effective_rank`, `energy_rank` and `mean_abs_cosine` of the tokens scaled
    to length one, `norm_ratio` (longest over median length) and `longest_token` (its place). Each alarm is a
    `RankWarning`, once per block and kind. Nothing random is drawn and nothing is kept of the graph:
    the run is the run it would have been. What cannot be measured (a batch of one token, a block that gives something
    else) is left out, with one warning.
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
        self.blocks = choose_blocks(model, blocks)
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
        self._hooks.enter_context(recorded(model, blocks=list(self.blocks.values()), on_leave=self._sample))
        self._hooks.callback(model.register_forward_hook(self._finish, always_call=True).remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        self._samples.clear()

    @contextlib.contextmanager
    def harmless(self, work: str, where: str) -> Iterator[None]:
        """Inside, any failure becomes a warning, one for each kind of work; training goes on."""
        try:
            yield
        except Exception as error:
            if ("gap", work) not in self._warned:
                self._warned.add(("gap", work))
                words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                warnings.warn(f"gap at {where}, step {self._last}: {work} failed, {words}", RankWarning, stacklevel=3)

    def _start(self, model: nn.Module, given: Any, named: Any) -> None:
        self._due = False
        self._samples, self._real = {}, None
        if not model.training:
            return
        with self.harmless("counting steps", "the model"):
            step = self._steps if self._step_of is None else self._step_of()
            self._steps += 1
            # With accumulated gradients one step has several passes: the first of them is enough.
            if step % self._every == 0 and step != self._last:
                self._last = step
                self._real = real_tokens(model, given, named)
                self._due = True

    def _sample(self, block: nn.Module, tokens: Tensor | None) -> None:
        name = next(name for name, one in self.blocks.items() if one is block)
        # Not due again until the next pass: a block run anew by checkpointing in the backward pass is not seen.
        if self._due and name not in self._samples:
            with self.harmless("sampling", name):
                self._samples[name] = sampled(tokens, self._tokens, self._real)

    def _finish(self, *_: Any) -> None:
        if not self._due:
            return
        self._due = False
        samples, self._samples, self._real = self._samples, {}, None
        if not samples or self._last is None:
            return
        records: dict[str, dict[str, float]] = {}
        with self.harmless("measuring", ", ".join(samples)), torch.no_grad():
            records = self._records(samples)
        self.latest = {
            f"{self._prefix}/{name}/{measure}": value
            for name, record in records.items()
            for measure, value in record.items()
        }
        if records:
            with self.harmless("logging", "the logger"):
                self._log(self.latest, self._last)
        for name, record in records.items():
            self._warn(name, self._alarms.raised(record))

    def _records(self, samples: dict[str, tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
        shapes = {tokens.shape for tokens, _ in samples.values()}
        if len(shapes) == 1:
            stacked = torch.stack([tokens for tokens, _ in samples.values()])
            places = next(iter(samples.values()))[1]
            return dict(zip(samples, measured(stacked, places), strict=True))
        return {name: measured(tokens[None], places)[0] for name, (tokens, places) in samples.items()}

    def _warn(self, name: str, raised: dict[str, str]) -> None:
        for kind, words in raised.items():
            if (name, kind) not in self._warned:
                self._warned.add((name, kind))
                warnings.warn(f"{kind} at {name}, step {self._last}: {words}", RankWarning, stacklevel=3)
