"""The measures of token rank, on a tensor or an array: one number per (n, d) matrix of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Tokens = Tensor | np.ndarray[Any, Any] | list[list[float]]
    Measured = float | Tensor | np.ndarray[Any, Any]


def measure(x: Tokens, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The named measures (default: all) of (..., n, d) tokens.

    Each is a float for one matrix; for a batch, what the tokens are: a float64 tensor or array of the batch's shape.
    """
    import torch

    from rankfall.measures.catalogue import measure as measure_tensor

    tokens = torch.as_tensor(x)
    if not tokens.is_floating_point():
        tokens = tokens.double()
    found = measure_tensor(tokens, names)
    if tokens.ndim == 2:
        return {name: float(value) for name, value in found.items()}
    return dict(found) if isinstance(x, torch.Tensor) else {name: value.numpy() for name, value in found.items()}


def effective_rank(x: Tokens) -> Measured:
    """Exponential of the entropy of the normalised squared singular values: how many directions carry the energy."""
    return measure(x, ["effective_rank"])["effective_rank"]


def mu(x: Tokens) -> Measured:
    """Frobenius distance of the tokens from their mean: zero when all are equal."""
    return measure(x, ["mu"])["mu"]


def relative_mu(x: Tokens) -> Measured:
    """`mu` over the Frobenius norm of the tokens: 0 when all are equal, 1 when their mean is zero."""
    return measure(x, ["relative_mu"])["relative_mu"]


def rank(x: Tokens) -> Measured:
    """Numerical rank: singular values above max(n, d) epsilon of the tokens' dtype, relative to the largest."""
    return measure(x, ["rank"])["rank"]


def stable_rank(x: Tokens) -> Measured:
    """Sum of the squared singular values over the largest of them."""
    return measure(x, ["stable_rank"])["stable_rank"]


def participation_ratio(x: Tokens) -> Measured:
    """Squared sum of the squared singular values over the sum of their squares."""
    return measure(x, ["participation_ratio"])["participation_ratio"]


def mean_abs_cosine(x: Tokens) -> Measured:
    """Mean absolute cosine between two different tokens."""
    return measure(x, ["mean_abs_cosine"])["mean_abs_cosine"]


def min_singular_value(x: Tokens) -> Measured:
    """Least singular value of the tokens."""
    return measure(x, ["min_singular_value"])["min_singular_value"]


def max_singular_value(x: Tokens) -> Measured:
    """Largest singular value of the tokens."""
    return measure(x, ["max_singular_value"])["max_singular_value"]


def rank_one_residual(x: Tokens) -> Measured:
    """Frobenius distance of the tokens from the nearest matrix of rank one."""
    return measure(x, ["rank_one_residual"])["rank_one_residual"]


def largest_token_share(x: Tokens) -> Measured:
    """Squared length of the longest token over the sum of all squared lengths."""
    return measure(x, ["largest_token_share"])["largest_token_share"]
