"""The k directions of a head's scores that matter most to its attention, in closed form.

A head scores the pair (i, j) by q_i . k_j, with queries and keys as attention gets them: after rotations by position,
norms and gains. A form of rank k in their place scores it by q_i . M k_j. To second order in the change of scores
e_ij = q_i . (M - 1) k_j the divergence of row i is Var_i(e_ij) / 2, the variance over the keys as row i weighs them:

    KL(p_i || p'_i) = 1/2 q_i^T (M - 1) C_i (M - 1)^T q_i + ...,    C_i = sum_j p_ij k_j k_j^T - m_i m_i^T

With C_i replaced by its mean over rows, C, and S the second moment of the queries, the mean over rows is
|S^1/2 (M - 1) C^1/2|^2 / 2, which has its least value over all M of rank k at the truncated singular value
decomposition S^1/2 C^1/2 = U D V^T (Eckart and Young): M = S^-1/2 U_k U_k^T S^1/2, a projection. A number added to a
whole row is not seen by the softmax, and C leaves it out. A learned sink is a key at zero whose mass the rows lack:
the same formula holds, and what is added to a row then counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

# Of the largest eigenvalue of a second moment: below it a direction of the queries is rounding.
NEGLIGIBLE = 1e-13


@final
@dataclass(frozen=True, eq=False)
class ScoreMoments:
    """Sums over the rows of attention that were seen, in float64: `query` and `key` (h, r, r), and how many rows."""

    query: Tensor
    key: Tensor
    rows: int

    @classmethod
    def of(cls, query: Tensor, key: Tensor, weights: Tensor, real: Tensor | None = None) -> ScoreMoments:
        """Of one call: query (b, h, n, r), key (b, g, m, r), weights (b, h, n, m); `real` (b, n) marks the rows."""
        rank, heads = query.shape[-1], query.shape[1]
        none = torch.zeros(heads, rank, rank, dtype=torch.float64, device=query.device)
        found = cls(none, none, 0)
        for text in range(query.shape[0]):
            kept = slice(None) if real is None else real[text].to(query.device)
            q, p = query[text, :, kept].double(), weights[text, :, kept].double()
            k = key[text].double().repeat_interleave(heads // key.shape[1], dim=0)
            means = p @ k
            spread = (k * p.sum(dim=-2)[..., None]).mT @ k - means.mT @ means
            found += cls(q.mT @ q, spread, q.shape[1])
        return found

    def __add__(self, other: ScoreMoments) -> ScoreMoments:
        return ScoreMoments(self.query + other.query, self.key + other.key, self.rows + other.rows)


@final
@dataclass(frozen=True, eq=False)
class Truncation:
    """The best forms of every rank for every head: M of rank k is left[:, :k] right[:, :k]^T.

    left, right (h, r, r)     values (h, r): the singular values, largest first, per row; a form of rank k leaves half
    of the sum of the squares after the first k as the mean divergence of a row, to second order, where scores are not
    scaled.
    """

    left: Tensor
    right: Tensor
    values: Tensor

    @property
    def heads(self) -> int:
        """How many heads."""
        return self.values.shape[0]

    @property
    def rank(self) -> int:
        """The width r of queries and keys."""
        return self.values.shape[-1]

    def forms(self, ranks: Tensor | int) -> Tensor:
        """M of each head (h, r, r), of one rank or of one rank for each head."""
        wanted = torch.as_tensor(ranks, device=self.left.device).expand(self.heads)
        kept = torch.arange(self.rank, device=self.left.device) < wanted[:, None]
        return (self.left * kept[:, None, :]) @ self.right.mT

    def queries(self, query: Tensor, ranks: Tensor | int) -> Tensor:
        """M^T q for queries (b, h, n, r): with these in place of q every score is that of the cut form."""
        return (query.double() @ self.forms(ranks).to(query.device)).to(query.dtype)


def best_truncation(moments: ScoreMoments) -> Truncation:
    """The truncation that the module's docstring derives."""
    root, inverse = _roots(moments.query)
    left, values, _ = torch.linalg.svd(root @ _roots(moments.key)[0])
    return Truncation(inverse @ left, root @ left, values / max(moments.rows, 1))


def _roots(moment: Tensor) -> tuple[Tensor, Tensor]:
    """The root of a second moment and its inverse on the directions that there are."""
    energies, directions = torch.linalg.eigh(moment)
    there = energies > NEGLIGIBLE * energies[:, -1:].clamp_min(torch.finfo(energies.dtype).tiny)
    sizes = torch.where(there, energies, 0.0).sqrt()
    inverse = torch.where(there, sizes, 1.0).reciprocal().where(there, 0.0)
    return (directions * sizes[:, None, :]) @ directions.mT, (directions * inverse[:, None, :]) @ directions.mT


def row_divergences(weights: Tensor, cut: Tensor) -> Tensor:
    """KL(p_i || p'_i) of rows of attention, in nats, over the last axis; what a row lacks of one is on a sink."""
    dtype = torch.promote_types(weights.dtype, torch.float32)
    smallest = torch.finfo(dtype).tiny
    ours, theirs = weights.to(dtype), cut.to(dtype)
    terms = ours * (ours.clamp_min(smallest).log() - theirs.clamp_min(smallest).log())
    lacking = [1 - one.sum(dim=-1, dtype=torch.float64) for one in (ours, theirs)]
    # Rows that are rounded do not sum to one exactly; what they lack is a sink only where it is more.
    rounding = max(1e-5, 4 * torch.finfo(weights.dtype).eps)
    sink = lacking[0].where(lacking[0] > rounding, 0.0)
    beside = torch.special.xlogy(sink, sink.clamp_min(rounding) / lacking[1].clamp_min(smallest))
    return (terms.sum(dim=-1, dtype=torch.float64) + beside).clamp_min(0.0)
