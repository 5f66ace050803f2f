"""The least entropy that logits of bounded norm can have (after Zhai et al. 2023), for one row and for all of a head.

Softmax does not see what all logits of a row have in common. Among rows of T logits whose distance from their mean is
at most nu in Euclidean norm, the entropy is smallest where one logit stands D = nu sqrt(T / (T - 1)) above T - 1
equal ones:

    H >= log(1 + (T - 1) e^-D) + D (T - 1) e^-D / (1 + (T - 1) e^-D).

No row of a matrix is longer than its spectral norm, so that nu may be the spectral norm of a head's logits, and that
is at most the product of ||W_Q W_K^T||_2 / sqrt(r), the longest query token and ||X||_2. Proof, in our words, in
docs/theory/token-rank.md.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.errors import require


def entropy_floor(keys: Float[Tensor, ...], norm: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """The bound for rows of so many keys (at least one) whose centred logits have at most this norm; in nats.

    0 for one key. Both arguments broadcast.
    """
    keys, norm = torch.broadcast_tensors(keys.double(), norm.double())
    require(
        bool((keys >= 1).all()) and bool((norm >= 0).all()),
        required="at least one key in every row, and norms that are not negative",
        got=f"{float(keys.min()):g} keys, norm {float(norm.min()):g}",
        remedy="leave out rows that see nothing",
    )
    others = keys - 1
    gap = norm * (keys / others.clamp_min(1.0)).sqrt()
    small = others * (-gap).exp()
    # e^-gap may be zero where the gap is infinite: their product is then zero too.
    return torch.log1p(small) + torch.where(small > 0, gap * small / (1 + small), 0.0)


def row_entropy_floors(
    logits: Float[Tensor, "*h n m"], allowed: Bool[Tensor, "*h n m"] | None = None
) -> Float[Tensor, "*h n"]:
    """Of every row the least entropy in nats that its own norm allows; never below that by the spectral norm."""
    centred, keys = _centred(logits, allowed)
    return entropy_floor(keys.clamp_min(1.0), torch.linalg.vector_norm(centred, dim=-1))


def _centred(logits: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits less the mean of their row, zero where the mask forbids; and the keys of every row."""
    wide = logits.double()
    seen = torch.ones_like(wide, dtype=torch.bool) if allowed is None else allowed
    keys = seen.sum(dim=-1).double()
    mean = torch.where(seen, wide, 0.0).sum(dim=-1) / keys.clamp_min(1.0)
    return torch.where(seen, wide - mean[..., None], 0.0), keys
