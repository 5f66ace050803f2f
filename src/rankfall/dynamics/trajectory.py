"""Tokens through many layers, exactly far below machine epsilon: what a run gives, and what it refuses."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from rankfall.dynamics.measure_table import DEFAULT_MEASURES, MeasureTable
from rankfall.dynamics.mixing import MaskPlan, Masks
from rankfall.dynamics.ordinary import OrdinaryFloor, OrdinaryRoute
from rankfall.dynamics.self_check import trust
from rankfall.dynamics.split import Split, split
from rankfall.dynamics.step import PURE_ATTENTION, Rule
from rankfall.dynamics.stepper import Stepper
from rankfall.dynamics.weights import Weights
from rankfall.errors import RequestError, require, require_count
from rankfall.mechanism.checks import check_finite
from rankfall.mechanism.heads import Heads
from rankfall.progress import Progress, silent

# Token numbers per thread below which a second thread does not pay.
NUMBERS_PER_THREAD = 65_536


@contextlib.contextmanager
def fitting_threads(numbers: int) -> Iterator[None]:
    """Use as many of the allowed threads as the number of entries pays for; the setting is restored afterwards.

    Handing a few thousand numbers to several threads costs more than computing with them.
    """
    allowed = torch.get_num_threads()
    torch.set_num_threads(max(1, min(allowed, numbers // NUMBERS_PER_THREAD)))
    try:
        yield
    finally:
        torch.set_num_threads(allowed)


# Tokens may grow to e^300 before the products in their scores would leave float64.
LARGEST_LOG_SIZE = 300.0
# NaN never goes away again, so that an occasional check finds it.
LAYERS_BETWEEN_CHECKS = 16


@final
@dataclass(frozen=True)
class Trajectory:
    """What happened. `columns` hold (recorded layers, b) tensors; `kept` the tokens (recorded layers, b, n, d).

    Not `exact` under a norm that has no exact arithmetic: tokens then agree to rounding once they agree to sixteen
    digits.
    """

    layers: tuple[int, ...]
    columns: dict[str, Tensor]
    final: Split
    floors: list[OrdinaryFloor] | None
    kept: Tensor | None
    exact: bool

    @property
    def log_mu(self) -> Tensor:
        """Natural logarithm of mu, (recorded layers, b)."""
        return self.columns["log10_mu"] * math.log(10)

    def records(self, sample: int = 0) -> list[dict[str, Any]]:
        """One sample's table, one record per recorded layer; layer 0 is the start."""
        values = {name: column[:, sample].tolist() for name, column in self.columns.items()}
        return [
            {"layer": layer, **{name: column[row] for name, column in values.items()}}
            for row, layer in enumerate(self.layers)
        ]


def run_layers(
    tokens: Tensor,
    weights: Weights,
    masks: Masks,
    layers: int,
    rule: Rule = PURE_ATTENTION,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    thin: int = 1,
    keep_tokens: bool = False,
    ordinary: bool = True,
    progress: Progress = silent,
) -> Trajectory:
    """Run (b, n, d) tokens through `layers` layers, exactly far below machine epsilon.

    Each sample may have its own weights (a batch axis in front) and its own mask or schedule. Recorded are layer 0,
    every `thin`-th layer and the last. With `ordinary`, plain float64 runs beside until it goes wrong. Everything
    runs on the device that the tokens are on.
    """
    require_count("the number of layers", layers, least=0)
    require_count("thin", thin)
    _check_start(tokens, weights.at(0), rule)
    trust(str(tokens.device))
    plan = MaskPlan(masks, tokens.shape[0], tokens.shape[1], tokens.device)
    batch = tokens.shape[0]
    table = MeasureTable(tuple(measures), 1 + -(-layers // thin), batch, keep_tokens)
    beside = OrdinaryRoute(tokens) if ordinary else None
    state = split(tokens, plan.reference(), checked=True)
    stepper = Stepper(weights, plan, rule, layers, thin, table.only_spread)
    layer = 0
    if layers == 0:
        _check_state(state, 0, tokens, weights.at(0))
    with fitting_threads(tokens.numel()):
        table.record([0], state)
        if beside is not None:
            beside.follow(0, state.log_mu())
        while layer < layers:
            beside_active = beside is not None and beside.active
            passed = stepper.advance(layer, state, told=beside_active)
            before, state, layer = layer, passed.state, passed.reached
            several = layer > before + 1
            if not passed.sound and (several or layer % LAYERS_BETWEEN_CHECKS == 0 or layer == layers):
                _check_state(state, layer, tokens, weights.at(layer - 1))
            if beside is not None and beside_active:
                log_mu = state.log_mu()[None] if passed.log_mu is None else passed.log_mu.to(tokens.device)
                for place, known in zip(range(before, layer), log_mu, strict=True):
                    beside.advance(weights.at(place), plan.at(place), rule.at(place))
                    beside.follow(place + 1, known)
            if passed.spreads is not None:
                table.record_spreads(passed.layers, passed.spreads)
            elif passed.states is not None:
                table.record(passed.layers, passed.states)
            progress("layers" if layer < layers else "measures of the last layers", layer / layers)
        columns = table.columns()
    stepper.close()
    return Trajectory(
        layers=tuple(table.layers),
        columns=columns,
        final=state,
        floors=beside.floors() if beside is not None else None,
        kept=torch.cat(table.kept) if keep_tokens else None,
        exact=rule.norm.exact(tokens.shape[-1]),
    )


def _check_start(tokens: Tensor, heads: Heads, rule: Rule) -> None:
    require(
        tokens.ndim == 3,
        required="a batch of token matrices (b, n, d)",
        got=f"shape {tuple(tokens.shape)}",
        remedy="add a batch axis in front",
    )
    if not tokens.is_cuda:
        _require_finite(tokens, heads)  # on a GPU a look costs more than a layer, and the state will tell
    require(
        heads.width == tokens.shape[-1] == heads.out_width,
        required=f"weights that map tokens of width {tokens.shape[-1]} to the same (a square value map)",
        got=f"weights from width {heads.width} to {heads.out_width}",
        remedy="give a square value matrix, or an output map back to the tokens' width",
    )
    if rule.norm.scaling(tokens.shape[-1]) is not None:
        length = torch.linalg.vector_norm(tokens, dim=-1)
        if bool((length == 0).any()):
            sample, token = (int(place) for place in (length == 0).nonzero()[0])
            require(
                not rule.norm.centres or tokens.shape[-1] > 1,
                required=f"a width of at least 2 under the {rule.norm.name} norm, which makes one coordinate zero",
                got=1,
                remedy="raise the width, or take a norm that does not centre, such as rms",
            )
            raise RequestError(
                required=f"no zero token under the {rule.norm.name} norm",
                got=f"a zero token (sample {sample}, token {token})",
                remedy="start elsewhere or use --norm none",
            )


def _require_finite(tokens: Tensor, heads: Heads) -> None:
    check_finite(tokens)
    for name in ("query", "key", "value"):
        check_finite(getattr(heads, name), f"{name} weights")


def _check_state(state: Split, layer: int, tokens: Tensor, heads: Heads) -> None:
    largest = float(state.log_size.max() + 0.0 * state.log_ratio.exp().sum() + 0.0 * state.residual[:, 0, 0].sum())
    if math.isnan(largest) or largest > LARGEST_LOG_SIZE:
        _require_finite(tokens, heads)
        size = "beyond float64" if math.isnan(largest) else f"10^{largest / math.log(10):.0f}"
        raise RequestError(
            required="tokens that stay representable",
            got=f"tokens of size {size} by layer {layer}",
            remedy="use a norm, a smaller value matrix, or fewer layers",
        )
