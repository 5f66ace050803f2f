"""B-thm2 as numbers: with LayerNorm and orthogonal value matrices tokens of one hemisphere still collapse.

In gnomonic coordinates (see `hemisphere`) the norm disappears and the weights are at least eps * dlt, so B-thm1's
bound holds with eps replaced by eps * dlt, and mu(X_t) <= mu(Z_t):
    mu(X_t) <= (sqrt(N)/2) (1 - (eps dlt)^rho)^floor(t/rho) sqrt(sum_j range_j(Z_0)^2)
eps: least allowed attention weight (tokens have length one, so eps >= 1/(1 + (deg - 1) e^(2s))); dlt: margin of the
hemisphere, which no layer lowers; rho: radius of the mask; Z_0: the tokens in gnomonic coordinates. Only a root is
needed (quasi-strong connectivity): a causal mask will do. The norm takes off any factor, so value matrices need to be
orthogonal only up to one. It is loose: the tail falls with the second eigenvalue of uniform attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention import Heads, value_forms
from rankfall.attention.masks import Mask, MaskFacts, MaskSchedule
from rankfall.errors import require
from rankfall.theory.attention_floor import least_weight, score_strength
from rankfall.theory.collapse import Hypothesis
from rankfall.theory.collapse_bound import ContractionBound
from rankfall.theory.hemisphere import Hemisphere, gnomonic, hemisphere

ORTHOGONAL_WITHIN = 1e-9
START_WITHIN = 1e-6


@final
@dataclass(frozen=True)
class NormCollapseTheorem:
    """B-thm2 on the given input. When a hypothesis fails, `bound` and `start` (Z_0) are None; `reason` says why."""

    statement: ClassVar[str] = "B-thm2"
    hypotheses: tuple[Hypothesis, ...]
    hemisphere: Hemisphere
    facts: MaskFacts
    bound: ContractionBound | None
    start: Float[Tensor, "n d"] | None
    length: float = 1.0

    @property
    def applies(self) -> bool:
        """Whether every hypothesis holds."""
        return all(one.holds for one in self.hypotheses)

    @property
    def reason(self) -> str | None:
        """The hypotheses that fail, in words; None when the theorem applies."""
        return "; ".join(f"{one.hypothesis}: {one.evidence}" for one in self.hypotheses if not one.holds) or None

    def log_mu(self, layers: Tensor) -> Tensor:
        """The bound on log mu(X_t) after so many layers."""
        require(
            self.bound is not None and self.start is not None,
            required="the hypotheses of B-thm2",
            got=self.reason,
            remedy="the bound does not apply",
        )
        assert self.bound is not None
        assert self.start is not None
        return self.bound.log_mu(layers, self.start) + math.log(self.length)


def norm_collapse_theorem(
    layers: Sequence[Heads],
    masks: Mask | MaskSchedule,
    tokens: Float[Tensor, "n d"],
    *,
    norm: str = "unit",
    residual: float = 0.0,
    floor: float | None = None,
) -> NormCollapseTheorem:
    """Check B-thm2 for (n, d) tokens under the distinct `layers` of weights (one, when all layers share it).

    `floor` is eps where a sharper one is known (measured, say); otherwise it comes from the weights.
    """
    schedule = masks if isinstance(masks, MaskSchedule) else MaskSchedule((masks,))
    count, width = tokens.shape[-2:]
    # RMS norm is unit norm times sqrt(d): scores grow with the square of the length, mu with the length itself.
    length = float(width) ** 0.5 if norm == "rms" else 1.0
    lengths = torch.linalg.vector_norm(tokens.double(), dim=-1)
    facts = schedule.facts(count)
    found = hemisphere(tokens)
    biased = any(heads.query_bias is not None for heads in layers)
    degree = max(int(schedule.at(layer).dense(count).sum(dim=-1).max()) for layer in range(schedule.period))
    if floor is None:
        floor = 0.0 if biased else least_weight(degree, max(score_strength(heads) for heads in layers), length)
    hypotheses = (
        Hypothesis(
            "the mask has a root (quasi-strongly connected)",
            facts.quasi_strongly_connected,
            f"{len(facts.roots)} roots, radius {facts.radius}",
        ),
        Hypothesis("every layer scales tokens to one length", norm in ("unit", "rms"), f"norm: {norm}"),
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
        return NormCollapseTheorem(hypotheses, found, facts, None, None)
    assert found.direction is not None
    assert facts.radius is not None
    bound = ContractionBound(floor * found.margin, facts.radius * schedule.period, count)
    unit = tokens.double() / torch.linalg.vector_norm(tokens.double(), dim=-1, keepdim=True)
    return NormCollapseTheorem(hypotheses, found, facts, bound, gnomonic(unit, found.direction), length)


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
