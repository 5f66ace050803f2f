"""B-thm1 as numbers: how fast mu must fall, with its hypotheses checked on given weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.masks import Mask, MaskFacts, MaskSchedule
from rankfall.mechanism.heads import Heads, bilinear_forms, value_forms
from rankfall.norms import NO_NORM, Norm

# Distances of all pairs of more tokens would take longer than their layers.
MOST_PAIRED = 4096


def score_strength(heads: Heads) -> float:
    """s = max over heads (and models) of ||W_Q W_K^T||_2 * scale, the paper's ||W_Q W_K^T|| / sqrt(d_QK)."""
    largest = bilinear_forms(heads).singular_values()[..., 0]
    scale = heads.rank**-0.5 if heads.scale is None else heads.scale
    if isinstance(scale, torch.Tensor):
        scale = scale.abs().to(largest.device)
    return float((largest * scale).max())


def least_weight(degree: int, strength: float, token_bound: float, diameter: float | None = None) -> float:
    """eps >= 1 / (1 + (deg - 1) exp(2 s R^2)), or with the tokens' diameter D: 1 / (1 + (deg - 1) exp(s R D)).

    `degree` is the largest number of tokens that any token sees, `token_bound` is R >= max |x_i|, `diameter` is
    D >= max |x_i - x_j|. Both hold because scores of one row differ by at most s |x_i| |x_j - x_k|. Query biases are
    not covered.
    """
    spread = 2 * token_bound if diameter is None else min(diameter, 2 * token_bound)
    exponent = strength * token_bound * spread
    if degree == 1:
        return 1.0
    return math.exp(-exponent) / (math.exp(-exponent) + degree - 1) if exponent < 700 else 0.0


@final
@dataclass(frozen=True)
class ContractionBound:
    """(1 - eps^steps)^floor(t / steps) times value_norm^t; `steps` is rho times the schedule's period."""

    least_weight: float
    steps: int
    tokens: int
    value_norm: float = 1.0

    @property
    def log_rate(self) -> float:
        """Natural logarithm of the factor per layer, right even where the factor rounds to 1."""
        return self._log_contraction / max(1, self.steps) + math.log(self.value_norm)

    @property
    def rate(self) -> float:
        """The factor per layer."""
        return math.exp(self.log_rate)

    @property
    def _log_contraction(self) -> float:
        if self.steps == 0 or self.least_weight >= 1:
            return -math.inf
        # eps^steps may underflow; log1p(-x) is -x then, which is what we want to the last digit.
        return math.log1p(-(self.least_weight**self.steps)) if self.least_weight > 0 else 0.0

    def log_gap(self) -> float:
        """log(eps^steps / steps): how far the rate is from 1, for when that is below rounding (no value norm)."""
        if self.least_weight <= 0:
            return -math.inf
        return self.steps * math.log(self.least_weight) - math.log(max(1, self.steps))

    def log_mu(self, layers: Tensor, start: Tensor) -> Tensor:
        """The bound on log mu after so many layers, by the sharper form: (sqrt(N)/2) sqrt(sum_j range_j(X_0)^2).

        `start` are the tokens (n, d) at layer 0.
        """
        ranges = start.amax(dim=-2) - start.amin(dim=-2)
        constant = 0.5 * math.log(self.tokens) - math.log(2) + torch.linalg.vector_norm(ranges).log()
        blocks = torch.div(layers, max(1, self.steps), rounding_mode="floor").double()
        shrink = torch.where(blocks > 0, blocks * self._log_contraction, 0.0)
        return constant + shrink + layers.double() * math.log(self.value_norm)


# Singular values of a value matrix that exceed 1 by rounding only do not make tokens grow.
ROUNDING = 1e-9


@final
@dataclass(frozen=True)
class Hypothesis:
    """One condition of a theorem, whether it holds on the given input, and the number or fact that decided."""

    hypothesis: str
    holds: bool
    evidence: str


@dataclass(frozen=True)
class CollapseTheorem:
    """B-thm1 on the given input. `bound` is None, and `reason` says why, when a hypothesis fails."""

    statement: ClassVar[str] = "B-thm1"
    hypotheses: tuple[Hypothesis, ...]
    facts: MaskFacts
    bound: ContractionBound | None
    start: Tensor

    @property
    def applies(self) -> bool:
        """Whether every hypothesis holds."""
        return all(one.holds for one in self.hypotheses)

    def log_mu(self, layers: Tensor) -> Tensor:
        """The bound on log mu after so many layers."""
        if self.bound is None:
            raise RequestError(
                required=f"the hypotheses of {self.statement}", got=self.reason, remedy="the bound does not apply"
            )
        return self.bound.log_mu(layers, self.start)

    @property
    def reason(self) -> str | None:
        """What is required and does not hold, beside what was found; None when the theorem applies."""
        failed = [f"required: {one.hypothesis} (found: {one.evidence})" for one in self.hypotheses if not one.holds]
        return "; ".join(failed) or None


def collapse_theorem(
    layers: Sequence[Heads],
    masks: Mask | MaskSchedule,
    tokens: Tensor,
    *,
    norm: Norm = NO_NORM,
    residual: float = 0.0,
) -> CollapseTheorem:
    """Check B-thm1 for (n, d) tokens under the distinct `layers` of weights (one, when all layers share it).

    eps comes from the weights: s from the strongest layer, R = max |x_i| and D = max |x_i - x_j| at the start; both
    cannot grow while ||W_V||_2 <= 1, since attention averages.
    """
    schedule = MaskSchedule.of(masks)
    n = tokens.shape[-2]
    facts = schedule.facts(n)
    strength = max(score_strength(heads) for heads in layers)
    value_norm = max(_value_norm(heads) for heads in layers)
    uniform = strength == 0 and all(heads.query_bias is None for heads in layers)
    hypotheses = (
        rooted(facts, schedule),
        Hypothesis("every token attends to itself", True, "masks are built with self-loops"),
        Hypothesis(
            "no norm between layers",
            norm.identity,
            f"norm: {norm.name}" + ("" if norm.identity else "; B-thm2 is for norms after a layer that only scale"),
        ),
        Hypothesis("no residual connection", residual == 0, f"residual weight {residual:g}"),
        _one_value_map(layers),
        Hypothesis(
            "tokens stay bounded: ||W_V||_2 <= 1",
            uniform or value_norm <= 1 + ROUNDING,
            f"largest ||W_V||_2 = {value_norm:.6g}" + (", but scores are zero" if uniform and value_norm > 1 else ""),
        ),
        Hypothesis(
            "scores depend on tokens only through bounded weights",
            all(heads.query_bias is None for heads in layers),
            f"||W_Q W_K^T||_2 / sqrt(d_QK) = {strength:.6g}, query biases "
            + ("absent" if all(heads.query_bias is None for heads in layers) else "present"),
        ),
    )
    if not all(one.holds for one in hypotheses):
        return CollapseTheorem(hypotheses, facts, None, tokens)
    degree = schedule.largest_degree(n)
    reach = float(torch.linalg.vector_norm(tokens, dim=-1).max())
    diameter = _diameter(tokens)
    assert facts.radius is not None
    bound = ContractionBound(
        least_weight(degree, strength, reach, diameter),
        facts.radius * schedule.period,
        n,
        value_norm if uniform else min(1.0, value_norm),
    )
    return CollapseTheorem(hypotheses, facts, bound, tokens)


def rooted(facts: MaskFacts, schedule: MaskSchedule) -> Hypothesis:
    """That some token reaches all others."""
    graph = "the mask" if schedule.period == 1 else f"the union over a period of {schedule.period}"
    if facts.quasi_strongly_connected:
        evidence = f"{graph} has {len(facts.roots)} roots, radius {facts.radius}"
    else:
        evidence = f"{graph} has no token that reaches all others"
    return Hypothesis("the mask has a root (quasi-strongly connected)", facts.quasi_strongly_connected, evidence)


def _one_value_map(layers: Sequence[Heads]) -> Hypothesis:
    for heads in layers:
        forms = value_forms(heads)
        if float((forms - forms[..., :1, :, :]).abs().max()) > 0:
            return Hypothesis("one value map for all heads", False, f"{heads.heads} heads with different value maps")
    return Hypothesis("one value map for all heads", True, f"{layers[0].heads} head(s), one value map")


def _diameter(tokens: Tensor) -> float:
    """max |x_i - x_j|; of many tokens twice the largest distance from their mean, which is no less."""
    if len(tokens) <= MOST_PAIRED:
        return float(torch.cdist(tokens, tokens).max())
    return 2 * float(torch.linalg.vector_norm(tokens - tokens.mean(dim=0), dim=-1).max())


def _value_norm(heads: Heads) -> float:
    """||sum over heads of V_h||_2: with one value map for all heads, that of the layer."""
    return float(torch.linalg.matrix_norm(value_forms(heads).sum(dim=-3), ord=2).max())
