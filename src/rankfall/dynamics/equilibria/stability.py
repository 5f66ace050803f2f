"""Is a fixed point stable? Multipliers of the layer's derivative, component by component of the mask.

Ordered by the mask's strongly connected components the Jacobian is block triangular, so its spectrum is that of the
diagonal blocks: one per token for causal masks. How far rounding can move the largest multiplier is estimated, as
Jordan blocks of size m lose all but 1/m of the digits; a radius within that of one is called marginal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Complex, Float
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, eigs
from torch import Tensor

from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.dynamics.equilibria.jacobian import jacobian
from rankfall.errors import require

Verdict = Literal["stable", "marginal", "unstable"]

# Blocks up to this size are solved densely; larger ones give only their largest multipliers, by Arnoldi's method.
DENSE = 1500
# Beyond this size even one dense Jacobian block does not fit.
LARGEST = 12000
PROBES = 4
SAFETY = 4.0
ROUNDING = 1e-12
# Neutral multipliers are counted only where rounding moves them by less than this.
COUNTABLE = 1e-3
# Transient growth is followed for Jacobians up to this size, over at most so many layers.
POWERED = 200
MOST_POWERS = 500


@final
@dataclass(frozen=True)
class Stability:
    """The largest modulus of a multiplier, how far rounding may have moved it, and what follows.

    `neutral` counts the multipliers of modulus one (within the uncertainty); None where rounding
    moves them too much to tell, or where only the largest were found. `growth` is the transient growth, the most by
    which a small disturbance is enlarged on its way (max over t of |J^t|): the basin is about its inverse in size.
    None where it is unstable or too large to compute.
    """

    spectral_radius: float
    uncertainty: float
    verdict: Verdict
    neutral: int | None
    growth: float | None
    dimension: int
    method: str

    @property
    def stable(self) -> bool:
        """Strictly: nearby tokens return, exponentially."""
        return self.verdict == "stable"


def components(layer: NormalisedLayer) -> list[Tensor]:
    """Token indices of the mask's strongly connected components."""
    _, labels = connected_components(csr_array(layer.allowed.numpy().astype(np.int8)), connection="strong")
    return [torch.from_numpy(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def multipliers(
    layer: NormalisedLayer, tokens: Float[Tensor, "n d"]
) -> list[tuple[Complex[np.ndarray, " m"], float, bool]]:
    """For each component: its multipliers, how far rounding may move the largest, and whether these are all."""
    parts = components(layer)
    largest = max(len(part) for part in parts) * layer.freedom
    require(
        largest <= LARGEST,
        required=f"strongly connected tokens times sphere dimension of at most {LARGEST}",
        got=largest,
        remedy="use a causal mask, fewer tokens or a smaller width",
    )
    return [_spectrum(jacobian(layer, tokens, part).numpy()) for part in parts] if layer.freedom else []


def stability(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> Stability:
    """Stability of tokens that the layer leaves alone."""
    found = multipliers(layer, tokens)
    if not found:
        return Stability(0.0, 0.0, "stable", 0, 1.0, 0, "no freedom: a token is one of two points")
    moduli = [np.abs(values) for values, _, _ in found]
    slacks = [slack + ROUNDING for _, slack, _ in found]
    radius = max(float(block.max()) for block in moduli)
    upper = max(float(block.max()) + slack for block, slack in zip(moduli, slacks, strict=True))
    lower = max(float(block.max()) - slack for block, slack in zip(moduli, slacks, strict=True))
    verdict: Verdict = "stable" if upper < 1 else "unstable" if lower > 1 else "marginal"
    countable = all(whole and slack < COUNTABLE for _, slack, whole in found)
    neutral = sum(int((np.abs(b - 1) <= s).sum()) for b, s in zip(moduli, slacks, strict=True)) if countable else None
    method = "one block per token" if len(found) == layer.count else f"{len(found)} blocks"
    uncertainty = max(upper - radius, radius - lower)
    growth = None if verdict == "unstable" else transient_growth(layer, tokens)
    return Stability(radius, uncertainty, verdict, neutral, growth, layer.count * layer.freedom, method)


def transient_growth(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> float | None:
    """max over t of |J^t|, at most `MOST_POWERS` layers; once |J^t| < 1 no later power can exceed those before."""
    if layer.count * layer.freedom > POWERED:
        return None
    whole = jacobian(layer, tokens)
    power, most = whole, 1.0
    for layers in range(1, MOST_POWERS + 1):
        # Growth is smooth in the number of layers: after the first ones every eighth power tells enough.
        if layers <= 16 or layers % 8 == 0:
            norm = float(torch.linalg.matrix_norm(power, 2))
            most = max(most, norm)
            if norm < 1:
                break
        power = power @ whole
    return most


def _spectrum(block: np.ndarray) -> tuple[np.ndarray, float, bool]:
    if len(block) > DENSE:
        return _largest(block), ROUNDING, False
    plain = np.linalg.eigvals(block)
    generator = np.random.default_rng(0)
    size = np.finfo(float).eps * np.linalg.norm(block, 2)
    radius = np.abs(plain).max()
    shifts = [
        abs(np.abs(np.linalg.eigvals(block + size * generator.standard_normal(block.shape))).max() - radius)
        for _ in range(PROBES if len(block) <= 200 else 1)
    ]
    return plain, SAFETY * float(max(shifts)), True


def _largest(block: np.ndarray) -> np.ndarray:
    operator = LinearOperator(block.shape, matvec=lambda v: block @ v, dtype=block.dtype)
    start = np.random.default_rng(0).standard_normal(len(block))
    return np.asarray(eigs(operator, k=6, which="LM", return_eigenvectors=False, v0=start, tol=1e-10))
