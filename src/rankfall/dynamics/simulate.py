"""The simulator: many token matrices through many layers in one program, measured on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from rankfall.attention import Heads
from rankfall.attention.checks import check_finite
from rankfall.attention.norms import NoNorm
from rankfall.dynamics.mixing import MaskPlan, Masks
from rankfall.dynamics.ordinary import OrdinaryFloor, OrdinaryRoute
from rankfall.dynamics.recorder import DEFAULT_MEASURES, Recorder
from rankfall.dynamics.rule import PURE_ATTENTION, Rule
from rankfall.dynamics.split import Split, split
from rankfall.dynamics.threads import fitting_threads
from rankfall.dynamics.walk import Walk
from rankfall.dynamics.weights import Weights
from rankfall.errors import RequestError, require, require_count

# Tokens may grow to e^300 before the products in their scores would leave float64.
LARGEST_LOG_SIZE = 300.0
# NaN does not heal, so that looking for it now and then finds it.
LAYERS_BETWEEN_CHECKS = 16


@final
@dataclass(frozen=True)
class Simulation:
    """What happened. `columns` hold (recorded layers, b) tensors; `kept` the tokens (recorded layers, b, n, d)."""

    layers: tuple[int, ...]
    columns: dict[str, Tensor]
    final: Split
    floors: list[OrdinaryFloor] | None
    kept: Tensor | None

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


def simulate(
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
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run (b, n, d) tokens through `layers` layers, exactly far below machine epsilon.

    Each sample may have its own weights (a batch axis in front) and its own mask or schedule. Recorded are layer 0,
    every `thin`-th layer and the last. With `ordinary`, plain float64 runs beside until it goes wrong. Everything
    runs on the device that the tokens are on.
    """
    require_count("the number of layers", layers, least=0)
    require_count("thin", thin)
    _check_start(tokens, weights.at(0), rule)
    plan = MaskPlan(masks, tokens.shape[0], tokens.shape[1], tokens.device)
    batch = tokens.shape[0]
    recorder = Recorder(tuple(measures), 1 + -(-layers // thin), batch, keep_tokens)
    beside = OrdinaryRoute(tokens) if ordinary else None
    state = split(tokens, plan.reference())
    walk = Walk(weights, plan, rule, layers)
    layer = 0
    with fitting_threads(tokens.numel()):
        recorder.record([0], state)
        if beside is not None:
            beside.follow(0, state.log_mu())
        while layer < layers:
            accompanied = beside is not None and beside.active
            states = walk.onward(layer, state, single=accompanied)
            passed = range(layer + 1, layer + 1 + states.batch // batch)
            state, layer = states.take(slice(-batch, None)), passed[-1]
            if len(passed) > 1 or layer % LAYERS_BETWEEN_CHECKS == 0 or layer == layers:
                _check_state(state, layer)
            if beside is not None and accompanied:
                beside.advance(weights.at(layer - 1), plan.at(layer - 1), rule)
                beside.follow(layer, state.log_mu())
            if progress is not None:
                progress(len(passed))
            recorded = [reached for reached in passed if reached % thin == 0 or reached == layers]
            if recorded:
                recorder.record(recorded, _of_layers(states, [reached - passed[0] for reached in recorded], batch))
        columns = recorder.columns()
    return Simulation(
        layers=tuple(recorder.layers),
        columns=columns,
        final=state,
        floors=beside.floors() if beside is not None else None,
        kept=torch.cat(recorder.kept) if keep_tokens else None,
    )


def _of_layers(states: Split, places: list[int], batch: int) -> Split:
    """Some layers' states out of those that stand one behind the other."""
    if len(places) * batch == states.batch:
        return states
    index = torch.tensor(places, device=states.residual.device)[:, None] * batch
    return states.take((index + torch.arange(batch, device=index.device)).flatten())


def _check_start(tokens: Tensor, heads: Heads, rule: Rule) -> None:
    require(
        tokens.ndim == 3,
        required="a batch of token matrices (b, n, d)",
        got=f"shape {tuple(tokens.shape)}",
        remedy="add a batch axis in front",
    )
    check_finite(tokens)
    for name in ("query", "key", "value"):
        check_finite(getattr(heads, name), f"{name} weights")
    require(
        heads.width == tokens.shape[-1] == heads.out_width,
        required=f"weights that map tokens of dimension {tokens.shape[-1]} to the same (a square value map)",
        got=f"weights from dimension {heads.width} to {heads.out_width}",
        remedy="give a square value matrix, or an output map back to the tokens' dimension",
    )
    if not isinstance(rule.norm, NoNorm):
        length = torch.linalg.vector_norm(tokens, dim=-1)
        if bool((length == 0).any()):
            sample, token = (int(place) for place in (length == 0).nonzero()[0])
            raise RequestError(
                required=f"no zero token under the {rule.norm.name} norm",
                got=f"a zero token (sample {sample}, token {token})",
                remedy="start elsewhere or use --norm none",
            )


def _check_state(state: Split, layer: int) -> None:
    largest = float(state.log_size.max() + 0.0 * state.log_ratio.exp().sum() + 0.0 * state.residual[:, 0, 0].sum())
    if math.isnan(largest) or largest > LARGEST_LOG_SIZE:
        size = "beyond float64" if math.isnan(largest) else f"10^{largest / math.log(10):.0f}"
        raise RequestError(
            required="tokens that stay representable",
            got=f"tokens of size {size} by layer {layer}",
            remedy="use a norm, a smaller value matrix, or fewer layers",
        )
