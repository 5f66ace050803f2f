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
from jaxtyping import Float
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


@final
@dataclass(frozen=True)
class Stability:
    """The largest modulus of a multiplier, how far rounding may have moved it, and what follows.

    `neutral` counts the multipliers of modulus one (within the uncertainty); None where only the largest were found.
    """

    spectral_radius: float
    uncertainty: float
    verdict: Verdict
    neutral: int | None
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


def stability(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> Stability:
    """Stability of tokens that the layer leaves alone."""
    parts = components(layer)
    largest = max(len(part) for part in parts) * layer.freedom
    require(
        largest <= LARGEST,
        required=f"strongly connected tokens times sphere dimension of at most {LARGEST}",
        got=largest,
        remedy="use a causal mask, fewer tokens or a smaller width",
    )
    dimension = layer.count * layer.freedom
    if dimension == 0:
        return Stability(0.0, 0.0, "stable", 0, 0, "no freedom: a token is one of two points")
    radius = uncertainty = 0.0
    moduli: list[np.ndarray] | None = []
    for part in parts:
        block = jacobian(layer, tokens, part).numpy()
        found, slack = _moduli(block)
        if found.max() > radius:
            radius, uncertainty = float(found.max()), slack
        uncertainty = max(uncertainty, slack) if found.max() > radius - slack else uncertainty
        moduli = moduli + [found] if moduli is not None and len(found) == len(block) else None
    near = ROUNDING + uncertainty
    verdict: Verdict = "stable" if radius < 1 - near else "unstable" if radius > 1 + near else "marginal"
    neutral = None if moduli is None else int((np.abs(np.concatenate(moduli) - 1) <= near).sum())
    method = "one block per token" if len(parts) == layer.count else f"{len(parts)} blocks"
    return Stability(radius, uncertainty, verdict, neutral, dimension, method)


def _moduli(block: np.ndarray) -> tuple[np.ndarray, float]:
    if len(block) > DENSE:
        return np.abs(_largest(block)), ROUNDING
    plain = np.abs(np.linalg.eigvals(block))
    generator = np.random.default_rng(0)
    size = np.finfo(float).eps * np.linalg.norm(block, 2)
    shifts = [
        abs(np.abs(np.linalg.eigvals(block + size * generator.standard_normal(block.shape))).max() - plain.max())
        for _ in range(PROBES if len(block) <= 200 else 1)
    ]
    return plain, SAFETY * float(max(shifts))


def _largest(block: np.ndarray) -> np.ndarray:
    operator = LinearOperator(block.shape, matvec=lambda v: block @ v, dtype=block.dtype)
    start = np.random.default_rng(0).standard_normal(len(block))
    return np.asarray(eigs(operator, k=6, which="LM", return_eigenvectors=False, v0=start, tol=1e-10))
