"""Sharper than B-thm1 and still proved: contraction coefficients of the attention products that actually occurred."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK_BELOW = 1e-6
"""Where a block of attention matrices ends: it has contracted well below one, but not to rounding."""


def dobrushin(product: Float[Tensor, "n n"]) -> float:
    """tau(P) = 1/2 max_ik sum_j |P_ij - P_kj|: range(P x) <= tau(P) range(x), and tau(PQ) <= tau(P) tau(Q)."""
    return float(torch.cdist(product, product, p=1).max()) / 2


def spectral_coefficient(product: Float[Tensor, "n n"]) -> float:
    """||(I - 1 1^T / N) P||_2 on vectors of mean zero: mu(P X) <= it * mu(X), the best factor there is for mu."""
    centred = product - product.mean(dim=-2, keepdim=True)
    centred = centred - centred.mean(dim=-1, keepdim=True)
    return float(torch.linalg.matrix_norm(centred, ord=2))


@final
@dataclass(frozen=True)
class Certificate:
    """Factors per layer that the measured attention matrices prove, over so many layers.

    dobrushin: range_j(X_T) <= dobrushin^T range_j(X_0). spectral: mu(X_T) <= spectral^T mu(X_0). Both for orthogonal
    value matrices; otherwise times the product of ||W_V||_2.
    """

    layers: int
    dobrushin: float
    spectral: float
    least_weight: float


def certify(matrices: Iterable[Float[Tensor, "n n"]]) -> Certificate | None:
    """Multiply attention matrices into blocks, each until it has contracted below BLOCK_BELOW.

    Both coefficients are submultiplicative, so the product of the blocks' coefficients bounds the whole.
    """
    layers, least = 0, 1.0
    logs = [0.0, 0.0]
    product: Tensor | None = None

    def close(block: Tensor) -> None:
        logs[0] += _log(dobrushin(block))
        logs[1] += _log(spectral_coefficient(block))

    for attention in matrices:
        layers += 1
        least = min(least, float(attention[attention > 0].min()))
        product = attention if product is None else attention @ product
        if dobrushin(product) < BLOCK_BELOW:
            close(product)
            product = None
    if product is not None:
        close(product)
    return Certificate(layers, math.exp(logs[0] / layers), math.exp(logs[1] / layers), least) if layers else None


def _log(coefficient: float) -> float:
    return math.log(coefficient) if coefficient > 0 else -math.inf
