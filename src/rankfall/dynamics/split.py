"""Tokens as a common part plus a residual with its own logarithmic scale: exact far below machine epsilon.

X = e^K (1 m^T + e^l R). Subtracting a mean from tokens that agree to sixteen digits leaves rounding noise; here the
difference is carried on its own, so that log mu(X) = K + l + log ||R||_F is right at 10^-300 and beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention.checks import check_finite, check_tokens


@final
@dataclass(frozen=True)
class Split:
    """A batch of token matrices, split. Always in normal form:

    common (b, d)       m, the mean token, with max |m| <= 1
    residual (b, n, d)  R, rows with mean zero, max |R| = 1 (all zero where the tokens agree exactly)
    log_size (b,)       K, so that max(max |m|, e^l) = 1
    log_ratio (b,)      l <= 0; -inf where the residual is zero
    """

    common: Tensor
    residual: Tensor
    log_size: Tensor
    log_ratio: Tensor

    @property
    def batch(self) -> int:
        """How many token matrices."""
        return self.residual.shape[0]

    @property
    def count(self) -> int:
        """Tokens, n."""
        return self.residual.shape[-2]

    def tokens(self) -> Float[Tensor, "b n d"]:
        """The tokens as ordinary float64 numbers."""
        return self.log_size.exp()[:, None, None] * self.scaled_tokens()

    def scaled_tokens(self) -> Float[Tensor, "b n d"]:
        """The tokens divided by e^K: nothing over- or underflows."""
        return self.common[:, None, :] + self.log_ratio.exp()[:, None, None] * self.residual

    def log_mu(self) -> Float[Tensor, b]:
        """log ||X - 1 1^T X / N||_F; -inf where all tokens are exactly equal."""
        return self.log_size + self.log_ratio + _log_norm(self.residual)

    def log_relative_mu(self) -> Float[Tensor, b]:
        """log(mu(X) / ||X||_F), where ||X||^2 = e^2K (n |m|^2 + e^2l ||R||^2) because R is centred; -inf for zero."""
        spread = self.log_ratio + _log_norm(self.residual)
        total = self.common.square().sum(dim=-1) * self.count + (2 * spread).exp()
        return torch.where(total > 0, spread - 0.5 * total.clamp_min(torch.finfo(total.dtype).tiny).log(), -torch.inf)

    def take(self, index: Tensor) -> Split:
        """The samples at these places."""
        return Split(self.common[index], self.residual[index], self.log_size[index], self.log_ratio[index])


def split(tokens: Float[Tensor, "b n d"]) -> Split:
    """Ordinary tokens, split; they are taken as exact float64 numbers."""
    check_tokens(tokens)
    check_finite(tokens)
    wide = tokens.double()
    largest = wide.abs().amax(dim=(-2, -1))
    largest = largest.where(largest > 0, 1.0)
    zero = wide.new_zeros(wide.shape[0])
    return normal_form(
        wide.new_zeros(wide.shape[0], wide.shape[-1]), wide / largest[:, None, None], largest.log(), zero
    )


def normal_form(common: Tensor, residual: Tensor, log_size: Tensor, log_ratio: Tensor) -> Split:
    """The same tokens with the residual's mean moved into the common part and both parts scaled."""
    mean = residual.mean(dim=-2)
    centred = residual - mean[:, None, :]
    top = centred.abs().amax(dim=(-2, -1))
    common = common + log_ratio.exp()[:, None] * mean
    log_ratio = torch.where(top > 0, log_ratio + top.log(), -torch.inf)
    centred = centred / top.where(top > 0, 1.0)[:, None, None]
    size = torch.maximum(common.abs().amax(dim=-1), log_ratio.exp())
    size = size.where(size > 0, 1.0)
    return Split(common / size[:, None], centred, log_size + size.log(), log_ratio - size.log())


def add(one: Split, other: Split, weight: float = 1.0) -> Split:
    """weight * one + other, without losing the smaller residual's digits unless the sum itself cancels."""
    log_size = torch.maximum(one.log_size, other.log_size)
    common = (
        weight * (one.log_size - log_size).exp()[:, None] * one.common
        + (other.log_size - log_size).exp()[:, None] * other.common
    )
    first, second = one.log_size + one.log_ratio, other.log_size + other.log_ratio
    scale = torch.maximum(first, second)
    scale = scale.where(scale > -torch.inf, log_size)
    residual = (
        weight * (first - scale).exp()[:, None, None] * one.residual
        + (second - scale).exp()[:, None, None] * other.residual
    )
    return normal_form(common, residual, log_size, scale - log_size)


def merge(parts: list[Split], places: list[Tensor]) -> Split:
    """Put samples that were taken apart back into their places."""
    order = torch.cat(places).argsort()
    return Split(
        torch.cat([part.common for part in parts])[order],
        torch.cat([part.residual for part in parts])[order],
        torch.cat([part.log_size for part in parts])[order],
        torch.cat([part.log_ratio for part in parts])[order],
    )


def _log_norm(residual: Tensor) -> Tensor:
    return torch.linalg.vector_norm(residual, dim=(-2, -1)).log()
