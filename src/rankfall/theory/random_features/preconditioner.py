"""The part of the kernel that makes it badly conditioned is known in closed form: the constant and degree (1,1)."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfall.theory.harmonics import sign_spectrum

WIDEST = 32
"""Up to here d^2 features pay: the d^2 x d^2 factor costs H d^4 once. Wider, H/d^2 is small and so is the
condition.
"""


class LowDegrees:
    """Solves with M = 1 1^T + eta_1^4 (Q Q^T * K K^T) + (1 - eta_1^4) I, of rank 1 + d^2 above a multiple of I.

    (2/pi) asin(x) = sum_l eta_l^2 P_l(x), so degree one on both sides of G is eta_1^4 <q,q'><k,k'>, the Gram matrix
    of the features k q^T; all other degrees together are treated as the identity, which they resemble as long as
    heads are fewer than their dimensions. No H x d^2 matrix is stored: features act as two thin products.
    """

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        heads, dim = queries.shape
        self._queries, self._keys = queries, keys
        self._wide = dim > WIDEST
        energy = float(sign_spectrum(dim, 3).energies[0])
        self._weight = 0.0 if self._wide else energy
        self._rest = 1.0 - self._weight**2
        size = 1 if self._wide else 1 + dim * dim
        gram = torch.zeros(size, size, dtype=torch.float64, device=queries.device)
        for start in range(0, heads, 4096):
            block = self._features(slice(start, start + 4096))
            gram += block.mT @ block
        gram.diagonal().add_(self._rest)
        self._factor = torch.linalg.cholesky(gram)

    def _features(self, rows: slice) -> Tensor:
        queries, keys = self._queries[rows], self._keys[rows]
        ones = queries.new_ones(queries.shape[0], 1)
        if self._wide:
            return ones
        outer = self._weight * (keys[:, :, None] * queries[:, None, :]).flatten(1)
        return torch.cat([ones, outer], dim=1)

    def solve(self, residual: Tensor) -> Tensor:
        """M^{-1} r by Woodbury's identity."""
        together = residual.sum()[None]
        if not self._wide:
            moments = self._weight * (self._keys.mT @ (residual[:, None] * self._queries))
            together = torch.cat([together, moments.flatten()])
        inner = torch.cholesky_solve(together[:, None], self._factor)[:, 0]
        back = inner[0].expand_as(residual)
        if not self._wide:
            dim = self._queries.shape[1]
            back = back + self._weight * ((self._keys @ inner[1:].view(dim, dim)) * self._queries).sum(-1)
        return (residual - back) / self._rest
