"""The least entropy that logits of bounded norm can have (after Zhai et al. 2023), for one row and for a head.

Softmax does not see what all logits of a row have in common. Among rows of T logits whose distance from their mean is
at most nu in Euclidean norm, the entropy is smallest where one logit stands D = nu sqrt(T / (T - 1)) above T - 1
equal ones:

    H >= log(1 + (T - 1) e^-D) + D (T - 1) e^-D / (1 + (T - 1) e^-D).

No row of a matrix is longer than its spectral norm, so that nu may be the spectral norm of a head's logits, and that
is at most the product of ||W_Q W_K^T||_2 / sqrt(r), the longest query token and ||X||_2. Proof, in our words, in
docs/theory/token-rank.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.errors import require


@final
@dataclass(frozen=True)
class HeadEntropy:
    """A head's mean entropy over rows in nats, and three numbers that it cannot be below or above.

    floor     mean over rows of the least entropy that the spectral norm of the logits allows
    by_rows   the same with each row's own norm, which is sharper
    ceiling   mean over rows of log(number of keys)
    """

    entropy: float
    floor: float
    by_rows: float
    ceiling: float
    spectral_norm: float


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


def entropy_floors(
    logits: Float[Tensor, "*h n m"], allowed: Bool[Tensor, "*h n m"] | None = None
) -> Float[Tensor, "*h"]:
    """Of every head the mean over its rows of the least entropy that the spectral norm of its logits allows, in nats.

    Rows that see fewer than two keys have no choice and are left out; 0 where no row is left. To lie beside the mean
    entropy of the same rows.
    """
    centred, keys = _centred(logits, allowed)
    choosing = keys > 1
    norm = torch.linalg.matrix_norm(centred, ord=2)[..., None]
    floors = entropy_floor(keys.clamp_min(1.0), norm).where(choosing, 0.0)
    return floors.sum(dim=-1) / choosing.sum(dim=-1).clamp_min(1)


def row_entropy_floors(
    logits: Float[Tensor, "*h n m"], allowed: Bool[Tensor, "*h n m"] | None = None
) -> Float[Tensor, "*h n"]:
    """Of every row the least entropy in nats that its own norm allows; never below that by the spectral norm."""
    centred, keys = _centred(logits, allowed)
    return entropy_floor(keys.clamp_min(1.0), torch.linalg.vector_norm(centred, dim=-1))


def head_entropy(logits: Float[Tensor, "n m"], allowed: Bool[Tensor, "n m"] | None = None) -> HeadEntropy:
    """Measured entropy of one head's rows beside the floors; rows that see fewer than two keys are left out."""
    seen = torch.ones_like(logits, dtype=torch.bool) if allowed is None else allowed
    choosing = seen.sum(dim=-1) > 1
    wide, seen = logits.double()[choosing], seen[choosing]
    require(
        len(wide) > 0, required="a row that sees two keys or more", got="none", remedy="give a head that has a choice"
    )
    centred, keys = _centred(wide, seen)
    log_weights = torch.log_softmax(wide.masked_fill(~seen, -torch.inf), dim=-1)
    entropies = -torch.where(seen, log_weights.exp() * log_weights, 0.0).sum(dim=-1)
    spectral = torch.linalg.matrix_norm(centred, ord=2)
    return HeadEntropy(
        entropy=float(entropies.mean()),
        floor=float(entropy_floors(wide, seen)),
        by_rows=float(row_entropy_floors(wide, seen).mean()),
        ceiling=float(keys.log().mean()),
        spectral_norm=float(spectral),
    )


def _centred(logits: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits less the mean of their row, zero where the mask forbids; and the keys of every row."""
    wide = logits.double()
    seen = torch.ones_like(wide, dtype=torch.bool) if allowed is None else allowed
    keys = seen.sum(dim=-1).double()
    mean = torch.where(seen, wide, 0.0).sum(dim=-1) / keys.clamp_min(1.0)
    return torch.where(seen, wide - mean[..., None], 0.0), keys


def logit_norm(score_strength: float, longest_token: float, token_norm: float) -> float:
    """No row of logits is longer: ||W_Q W_K^T||_2 / sqrt(r) times the longest token times ||X||_2 of the tokens.

    The paper takes ||X||_2 for the longest token too, which is never smaller.
    """
    return score_strength * longest_token * token_norm
