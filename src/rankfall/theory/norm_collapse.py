"""B-thm2 as numbers: with LayerNorm and orthogonal value matrices tokens of one open hemisphere still collapse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from scipy.stats import binom
from torch import Tensor

from rankfall.errors import require, require_count
from rankfall.masks import Mask, MaskSchedule
from rankfall.mechanism.heads import Heads, value_forms
from rankfall.norms import UNIT_NORM, Norm
from rankfall.theory.collapse import (
    CollapseTheorem,
    ContractionBound,
    Hypothesis,
    least_weight,
    rooted,
    score_strength,
)

# A hull this near to the origin is taken to hold it: the solver leaves about 1e-15, and rounding as much again.
TOUCHING = 1e-12


@final
@dataclass(frozen=True)
class Hemisphere:
    """The answer. `margin` is dlt = max_e min_i <x_i, e> (0 if there is no open hemisphere), `direction` that e.

    `weights` are the dual witness, summing to one: |sum_i weights_i x_i| equals the margin at the optimum. So a
    direction proves the margin from below and the weights prove it from above; `gap` is the difference.
    """

    margin: float
    direction: Float[Tensor, d] | None
    weights: Float[Tensor, n]
    gap: float

    @property
    def exists(self) -> bool:
        """Whether an open hemisphere holds all tokens."""
        return self.direction is not None


def hemisphere(tokens: Float[Tensor, "n d"]) -> Hemisphere:
    """The open hemisphere that holds all tokens with the widest margin, or the proof that there is none.

    Tokens are scaled to length one first: the condition is about directions.
    """
    require(
        tokens.ndim == 2 and tokens.shape[0] > 0 and tokens.shape[1] > 0,
        required="tokens of shape (n, d)",
        got=f"shape {tuple(tokens.shape)}",
        remedy="give one token matrix at a time",
    )
    lengths = torch.linalg.vector_norm(tokens.double(), dim=-1, keepdim=True)
    require(
        bool((lengths > 0).all()) and bool(torch.isfinite(lengths).all()),
        required="tokens that are finite and differ from zero",
        got=f"a token of length {float(lengths.min()):.3g}",
        remedy="drop it: it has no direction",
    )
    unit = (tokens.double() / lengths).cpu().numpy()
    count, width = unit.shape
    # Lawson and Hanson: min |E u - f| over u >= 0 with E = [X^T; 1^T], f = (0, ..., 0, 1); the residual answers.
    system = np.vstack([unit.T, np.ones(count)])
    target = np.zeros(width + 1)
    target[-1] = 1.0
    raw, _ = nnls(system, target, maxiter=30 * max(count, width))
    weights = raw / raw.sum()
    above = float(np.linalg.norm(weights @ unit))
    if above <= TOUCHING:
        return Hemisphere(0.0, None, torch.from_numpy(weights), above)
    # At the optimum the tokens that carry weight are level: solving for that is exact where the margin is tiny.
    level, *_ = np.linalg.lstsq(unit[weights > 0], np.ones(int((weights > 0).sum())), rcond=None)
    direction = level / np.linalg.norm(level)
    below = float((unit @ direction).min())
    if below <= TOUCHING:
        return Hemisphere(0.0, None, torch.from_numpy(weights), above)
    return Hemisphere(below, torch.from_numpy(direction), torch.from_numpy(weights), above - below)


def wendel_probability(count: int, width: int) -> float:
    """P(N independent uniform directions in R^d share an open hemisphere) = 2^-(N-1) sum_{k<d} C(N-1, k) (Wendel)."""
    require_count("the number of tokens", count)
    require_count("the width", width)
    return float(binom.cdf(width - 1, count - 1, 0.5))


def gnomonic(tokens: Float[Tensor, "n d"], direction: Float[Tensor, d]) -> Float[Tensor, "n d"]:
    """z_i = x_i / <x_i, e>: in these coordinates scaling a token to length one has no effect at all.

    One layer X' = rownorm(A X W) with orthogonal W becomes z'_i = sum_j b_ij z_j W with e' = e W and
    b_ij = a_ij <x_j, e> / sum_k a_ik <x_k, e>, a row-stochastic matrix with entries of at least eps * dlt.
    """
    heights = tokens @ direction
    require(
        bool((heights > 0).all()),
        required="tokens in the open hemisphere around the direction",
        got=f"a token at height {float(heights.min()):.3g}",
        remedy="take the direction that `hemisphere` returns",
    )
    return tokens / heights[:, None]


ORTHOGONAL_WITHIN = 1e-9
START_WITHIN = 1e-6


@final
@dataclass(frozen=True)
class NormCollapseTheorem(CollapseTheorem):
    """B-thm2 on the given input, for tokens of the given length; `start` is Z_0 where the bound applies."""

    statement: ClassVar[str] = "B-thm2"
    hemisphere: Hemisphere
    length: float = 1.0

    def log_mu(self, layers: Tensor) -> Tensor:
        """The bound on log mu(X_t) after so many layers."""
        return super().log_mu(layers) + math.log(self.length)


def norm_collapse_theorem(
    layers: Sequence[Heads],
    masks: Mask | MaskSchedule,
    tokens: Float[Tensor, "n d"],
    *,
    norm: Norm = UNIT_NORM,
    residual: float = 0.0,
    floor: float | None = None,
) -> NormCollapseTheorem:
    """Check B-thm2 for (n, d) tokens under the distinct `layers` of weights (one, when all layers share it).

    `floor` is eps where a sharper one is known (measured, say); otherwise it comes from the weights.
    """
    schedule = MaskSchedule.of(masks)
    count, width = tokens.shape[-2:]
    # Scores grow with the square of the length that the norm leaves, mu with the length itself.
    left = None if norm.centres else norm.length(width)
    length = 1.0 if left is None else left
    lengths = torch.linalg.vector_norm(tokens.double(), dim=-1)
    facts = schedule.facts(count)
    found = hemisphere(tokens)
    biased = any(heads.query_bias is not None for heads in layers)
    degree = schedule.largest_degree(count)
    if floor is None:
        floor = 0.0 if biased else least_weight(degree, max(score_strength(heads) for heads in layers), length)
    hypotheses = (
        rooted(facts, schedule),
        Hypothesis("every layer scales tokens to one length", left is not None, f"norm: {norm.name}"),
        Hypothesis(
            "tokens start at that length",
            bool(((lengths / length - 1).abs() < START_WITHIN).all()),
            f"lengths from {float(lengths.min()):.6g} to {float(lengths.max()):.6g}, a layer leaves {length:.6g}",
        ),
        Hypothesis("no residual connection", residual == 0, f"residual weight {residual:g}"),
        _orthogonal(layers),
        Hypothesis(
            "tokens lie in one open hemisphere",
            found.exists,
            f"margin {found.margin:.6g}" if found.exists else "non-negative weights balance them to zero",
        ),
        Hypothesis("allowed weights stay above a floor", 0 < floor <= 1, f"eps = {floor:.6g}"),
    )
    if not all(one.holds for one in hypotheses):
        return NormCollapseTheorem(hypotheses, facts, None, tokens, found)
    assert found.direction is not None
    assert facts.radius is not None
    bound = ContractionBound(floor * found.margin, facts.radius * schedule.period, count)
    unit = tokens.double() / torch.linalg.vector_norm(tokens.double(), dim=-1, keepdim=True)
    return NormCollapseTheorem(hypotheses, facts, bound, gnomonic(unit, found.direction), found, length)


def _orthogonal(layers: Sequence[Heads]) -> Hypothesis:
    """One value map for all heads of a layer, orthogonal up to a factor."""
    statement = "value matrices are orthogonal, up to a factor, and one for all heads"
    worst = 0.0
    for heads in layers:
        forms = value_forms(heads).double()
        if forms.shape[-1] != forms.shape[-2]:
            return Hypothesis(statement, False, f"a value matrix of shape {tuple(forms.shape[-2:])}")
        spread = float((forms - forms[..., :1, :, :]).abs().max())
        gram = forms.mT @ forms
        size = torch.diagonal(gram, dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
        eye = torch.eye(forms.shape[-1], dtype=gram.dtype, device=gram.device)
        worst = max(worst, spread, float((gram / size.clamp_min(1e-300) - eye).abs().max()))
    return Hypothesis(statement, worst < ORTHOGONAL_WITHIN, f"largest defect {worst:.2g}")
