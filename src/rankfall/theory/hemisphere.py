"""Do all tokens lie in one open hemisphere? The condition of B-thm2, decided with a witness either way.

max over unit e of min_i <x_i, e> is the distance of the origin from the tokens' convex hull, where that is positive:
the least-distance programme min |e| with <x_i, e> >= 1, solved exactly (finitely many steps) as non-negative least
squares. If there is no such e, the same solution is a certificate: non-negative weights that balance the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from scipy.stats import binom
from torch import Tensor

from rankfall.errors import require, require_count

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
