"""The least weight that attention can give to an allowed token, from the weights alone."""

from __future__ import annotations

import math

import torch

from rankfall.attention import Heads, bilinear_forms


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
