"""Tokens through many layers of attention with a sink: which arithmetic follows them, and what is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rankfall.dynamics.measure_table import DEFAULT_MEASURES, MeasureTable
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.ordinary import OrdinaryFloor, OrdinaryRoute
from rankfall.dynamics.sized import Sized, log_unit_relative_mu, sink_attention
from rankfall.dynamics.split import Split, split, split_norm
from rankfall.dynamics.split_attention import DigitsLostError
from rankfall.dynamics.step import Rule
from rankfall.dynamics.trajectory import Trajectory, run_layers
from rankfall.dynamics.weights import Weights
from rankfall.errors import RequestError, require, require_count, require_number
from rankfall.masks import Mask, MaskSchedule
from rankfall.mechanism.heads import Heads, combine, project
from rankfall.norms import UNIT_NORM, place
from rankfall.progress import Progress, silent

UNIT_COLUMN = "unit_relative_mu"

MOST_SINK = 1e6
"""Each layer takes as much from the log of the tokens' size; beside a larger one their differences are rounded."""


def norm_hides_the_sink(rule: Rule, width: int, heads: int = 1) -> bool:
    """Whether each layer ends by giving every token one length: what the sink takes from it is then put back. Of
    several heads it takes from each another share, which changes their sum's direction."""
    return heads == 1 and rule.placement != "pre" and rule.residual == 0 and rule.norm.length(width) is not None


def followed_exactly(rule: Rule, width: int, heads: int = 1) -> bool:
    """Whether runs with a sink are exact far below machine epsilon under this rule, or float64's as any others."""
    plain = heads == 1 and rule.residual == 0 and rule.norm.identity
    return plain or norm_hides_the_sink(rule, width, heads)


def run_with_sink(
    tokens: Tensor,
    weights: Weights,
    masks: Mask | MaskSchedule,
    layers: int,
    sink: float,
    rule: Rule,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    thin: int = 1,
    keep_tokens: bool = False,
    ordinary: bool = True,
    progress: Progress = silent,
) -> Trajectory:
    """`run_layers` where every softmax has one more term e^sink; all samples attend under one mask.

    With one head it is exact where `followed_exactly` says so; several heads are followed in float64.

    Two more columns are recorded, `unit_relative_mu` of the tokens scaled to length one and its log10, of which the
    floors of plain float64 speak too; not where the norm hides the sink, so that nothing differs from no sink.
    """
    require_number("the sink's logit", sink, most=MOST_SINK)
    require_count("the number of layers", layers, least=0)
    heads = _checked(weights.at(0)).heads
    width = tokens.shape[-1]
    if norm_hides_the_sink(rule, width, heads):
        return run_layers(
            tokens,
            weights,
            masks,
            layers,
            rule,
            measures=measures,
            thin=thin,
            keep_tokens=keep_tokens,
            ordinary=ordinary,
            progress=progress,
        )
    plan = MaskPlan(masks, tokens.shape[0], tokens.shape[1], tokens.device)
    route = (_Exact if followed_exactly(rule, width, heads) else _Plain)(tokens, plan, weights, sink, rule)
    table = MeasureTable(tuple(measures), 1 + -(-layers // thin), tokens.shape[0], keep_tokens)
    unit: list[Tensor] = []
    beside = OrdinaryRoute(UNIT_NORM(tokens)) if ordinary else None
    plain = tokens.double()
    for layer in range(layers + 1):
        if layer > 0:
            route.advance(layer - 1)
            progress("layers", layer / layers)
        unit_mu = split_norm(route.directions, UNIT_NORM).log_mu()
        if beside is not None and beside.active:
            if layer > 0:
                plain = sink_step(plain, weights.at(layer - 1), plan, layer - 1, sink, rule)
            beside.tokens = UNIT_NORM(plain)
            beside.follow(layer, unit_mu)
        if layer % thin == 0 or layer == layers:
            table.record([layer], route.tokens)
            unit.append(log_unit_relative_mu(route.directions).cpu())
    columns = table.columns()
    columns[f"log10_{UNIT_COLUMN}"] = torch.stack(unit) / math.log(10)
    columns[UNIT_COLUMN] = torch.stack(unit).exp()
    return Trajectory(
        layers=tuple(table.layers),
        columns=columns,
        final=route.tokens,
        floors=None if beside is None else [_relative(one, plan.n) for one in beside.floors()],
        kept=torch.cat(table.kept) if keep_tokens else None,
        exact=followed_exactly(rule, width, heads),
    )


def _relative(floor: OrdinaryFloor, n: int) -> OrdinaryFloor:
    """Of tokens of length one mu is sqrt(n) times relative mu."""
    return replace(floor, log10_mu=floor.log10_mu - math.log10(n) / 2)


def sink_step(tokens: Tensor, heads: Heads, plan: MaskPlan, layer: int, sink: float, rule: Rule) -> Tensor:
    """One layer in ordinary arithmetic."""
    allowed = plan.at(layer)[0].mixer.masks[0].dense(plan.n, tokens.device)

    def attend(x: Tensor) -> Tensor:
        return combine(sink_weights(x, heads, allowed, sink) @ project(x, heads.value), heads.output)

    own = rule.at(layer)
    return place(own.norm, attend, tokens, own.placement, own.residual)


def sink_weights(tokens: Tensor, heads: Heads, allowed: Tensor, sink: float) -> Tensor:
    """(..., h, n, n): softmax over the allowed keys and one more, whose value is zero; that one is left out."""
    scale = heads.rank**-0.5 if heads.scale is None else heads.scale
    factor = scale[..., None, None] if isinstance(scale, Tensor) else scale
    scores = factor * (project(tokens, heads.query) @ project(tokens, heads.key).mT)
    scores = scores.masked_fill(~allowed, -torch.inf)
    taken = torch.cat([scores, torch.full_like(scores[..., :1], sink)], dim=-1)
    return torch.softmax(taken, dim=-1)[..., :-1]


class _Exact:
    """Sizes and directions apart."""

    def __init__(self, tokens: Tensor, plan: MaskPlan, weights: Weights, sink: float, rule: Rule) -> None:
        self.plan, self.weights, self.sink = plan, weights, sink
        self.state = Sized.of(tokens, plan.reference())

    @property
    def tokens(self) -> Split:
        return self.state.tokens()

    @property
    def directions(self) -> Split:
        return self.state.directions

    def advance(self, layer: int) -> None:
        (group,) = self.plan.at(layer)
        try:
            self.state = sink_attention(self.state, group.prepared(self.weights.at(layer)), group.mixer, self.sink)
        except DigitsLostError as lost:
            raise RequestError(
                required="tokens whose directions float64 can follow",
                got=f"attention under {self.plan.names(lost.samples.tolist())} so sharp that in layer {layer + 1} all"
                " tokens take one direction to their last digit",
                remedy=f"raise the temperature, or stop after {layer} layers",
            ) from None


class _Plain:
    """Ordinary arithmetic: right until tokens agree to sixteen digits."""

    def __init__(self, tokens: Tensor, plan: MaskPlan, weights: Weights, sink: float, rule: Rule) -> None:
        self.step: Callable[[Tensor, int], Tensor] = lambda x, layer: sink_step(
            x, weights.at(layer), plan, layer, sink, rule
        )
        self.values, self.reference = tokens.double(), plan.reference()

    @property
    def tokens(self) -> Split:
        return split(self.values, self.reference)

    directions = tokens

    def advance(self, layer: int) -> None:
        self.values = self.step(self.values, layer)


def _checked(heads: Heads) -> Heads:
    biased = any(one is not None for one in (heads.query_bias, heads.key_bias, heads.value_bias, heads.output_bias))
    require(
        heads.output is None and not biased,
        required="heads without biases or an output map under a sink",
        got="biases" if biased else "an output map",
        remedy="leave them out, or the sink",
    )
    return heads
