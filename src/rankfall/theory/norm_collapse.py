"""B-thm2 as numbers: with LayerNorm and orthogonal value matrices tokens of one hemisphere still collapse.

    mu(X_t) <= (sqrt(N)/2) (1 - (eps dlt)^rho)^floor(t/rho) sqrt(sum_j range_j(Z_0)^2)
eps: least allowed attention weight; dlt: margin of the hemisphere, which no layer lowers; rho: radius of the mask;
Z_0: the tokens in gnomonic coordinates; range_j: largest minus least entry of column j. It needs a root (quasi-strong
connectivity), so a causal mask will do. It is loose: the tail falls with the second eigenvalue of uniform attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention.masks import MaskFacts
from rankfall.errors import require
from rankfall.theory.hemisphere import Hemisphere, gnomonic, hemisphere

ORTHOGONAL_WITHIN = 1e-9


@final
@dataclass(frozen=True)
class Condition:
    """One hypothesis of the theorem, whether it holds, and the number that decided."""

    statement: str
    holds: bool
    evidence: str


@final
@dataclass(frozen=True)
class NormCollapseBound:
    """The bound for given tokens, value matrices, mask and attention floor; or why it does not apply."""

    conditions: tuple[Condition, ...]
    hemisphere: Hemisphere
    floor: float
    radius: int | None
    start: float
    """(sqrt(N)/2) sqrt(sum_j range_j(Z_0)^2); NaN where the bound does not apply."""

    @property
    def applies(self) -> bool:
        """Whether every hypothesis holds."""
        return all(condition.holds for condition in self.conditions)

    @property
    def log_factor(self) -> float:
        """log(1 - (eps dlt)^rho): what `radius` layers are sure to take off log mu, exact for tiny eps too."""
        self._check()
        assert self.radius is not None
        return math.log1p(-((self.floor * self.hemisphere.margin) ** self.radius)) if self.radius else -math.inf

    @property
    def rate(self) -> float:
        """The bound's factor per layer."""
        self._check()
        return math.exp(self.log_factor / self.radius) if self.radius else 0.0

    def log_mu(self, layer: int) -> float:
        """The bound on log mu(X_t) after `layer` layers."""
        self._check()
        if not self.radius or self.start == 0:
            return -math.inf
        return math.log(self.start) + (layer // self.radius) * self.log_factor

    def _check(self) -> None:
        failed = [condition for condition in self.conditions if not condition.holds]
        require(
            not failed,
            required="the hypotheses of B-thm2",
            got="; ".join(f"{c.statement}: {c.evidence}" for c in failed),
            remedy="the bound does not apply",
        )


def norm_collapse_bound(
    tokens: Float[Tensor, "n d"], values: Float[Tensor, "*layers d d"], facts: MaskFacts, floor: float
) -> NormCollapseBound:
    """B-thm2 for these tokens, value matrices (one, or one per layer) and mask; `floor` is eps, the least weight."""
    unit = tokens.double() / torch.linalg.vector_norm(tokens.double(), dim=-1, keepdim=True)
    found = hemisphere(unit)
    square = values.ndim >= 2 and values.shape[-1] == values.shape[-2] == tokens.shape[-1]
    require(
        square,
        required=f"value matrices of shape (..., {tokens.shape[-1]}, {tokens.shape[-1]})",
        got=f"shape {tuple(values.shape)}",
        remedy="an orthogonal value matrix is square and as wide as the tokens",
    )
    defect = float((values.mT.double() @ values.double() - torch.eye(values.shape[-1])).abs().max())
    conditions = (
        Condition("value matrices are orthogonal", defect < ORTHOGONAL_WITHIN, f"largest defect {defect:.2g}"),
        Condition(
            "tokens lie in one open hemisphere",
            found.exists,
            f"margin {found.margin:.6g}" if found.exists else "non-negative weights balance them to zero",
        ),
        Condition(
            "some token reaches all others",
            facts.quasi_strongly_connected,
            f"{len(facts.roots)} roots, radius {facts.radius}",
        ),
        Condition("allowed weights stay above a floor", 0 < floor <= 1, f"eps = {floor:.6g}"),
    )
    start = math.nan
    if found.direction is not None:
        ranges = gnomonic(unit, found.direction)
        start = math.sqrt(len(unit)) / 2 * float((ranges.amax(dim=0) - ranges.amin(dim=0)).square().sum().sqrt())
    return NormCollapseBound(conditions, found, floor, facts.radius, start)
