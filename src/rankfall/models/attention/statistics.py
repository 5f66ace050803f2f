"""Statistics of attention: pure functions of the weights and logits of some rows, one number for each head.

Rows are queries, columns keys. Only rows that see two keys or more are counted: a row of one key has no choice.
Weights that do not sum to one leave the rest to a learned sink; entropy and distance are those of the weights over
their sum, which are the softmax of the logits of tokens alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rankfall.linalg.spectra import gram_eigenvalues, smaller_gram
from rankfall.measures.measures import entropy_of, entropy_rank
from rankfall.theory.entropy_floor import row_entropy_floors

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
# A second singular value below this share of the first is rounding of weights in float32.
LARGEST_GAP = 2.0**23
# So many roundings of their dtype the weights of a row may lack without a sink.
ROUNDINGS = 16
# Quantiles of logits are those of so many rows, evenly spaced among the given ones; the largest logit is that of all.
QUANTILE_ROWS = 64

ROW_STATISTICS = ("entropy", "relative_entropy", "first_token_mass", "sink_mass", "self_mass", "distance")
LOGIT_STATISTICS = ("entropy_floor", "logit_max", *(f"logit_q{round(100 * share):02d}" for share in QUANTILES))
MATRIX_STATISTICS = ("spectral_gap", "effective_rank")


@final
@dataclass(frozen=True, eq=False)
class AttentionRows:
    """Some rows of the attention of one text, padding left out.

    `weights` are those that the model used; `allowed` says what the mask lets each row see; `logits` went into the
    softmax, mask and biases added, None where that was not seen. `places` are the positions of the rows among the
    keys, None where the keys are other tokens; `sums` are the rows' sums over all keys.
    """

    weights: Float[Tensor, "h r m"]
    allowed: Bool[Tensor, "h r m"]
    sums: Float[Tensor, "h r"]
    logits: Float[Tensor, "h r m"] | None = None
    places: Int[Tensor, " r"] | None = None

    def of_heads(self, heads: slice) -> AttentionRows:
        """The same rows of some of the heads."""
        logits = None if self.logits is None else self.logits[heads]
        return AttentionRows(self.weights[heads], self.allowed[heads], self.sums[heads], logits, self.places)

    @property
    def counted(self) -> Bool[Tensor, "h r"]:
        """Rows that see two keys or more."""
        return self.allowed.sum(dim=-1) > 1


def row_statistics(rows: AttentionRows) -> dict[str, Float[Tensor, "h r"]]:
    """Of every row; NaN where a row is not counted. What asks for a row's own place among the keys needs one."""
    weights, sums = rows.weights.double(), rows.sums.double()
    total = weights.sum(dim=-1)
    shares = weights / total.where(total > 0, 1.0)[..., None]
    entropy = entropy_of(shares)
    deficit = 1 - sums
    found = {
        "entropy": entropy,
        "relative_entropy": entropy / rows.allowed.sum(dim=-1).clamp_min(2).double().log(),
        "first_token_mass": weights[..., 0],
        "sink_mass": deficit.where(deficit > ROUNDINGS * torch.finfo(rows.weights.dtype).eps, 0.0),
    }
    if rows.places is not None:
        places = rows.places
        keys = torch.arange(weights.shape[-1], device=weights.device)
        apart = (places[:, None] - keys).abs().double()
        found["self_mass"] = weights.gather(-1, places[:, None].expand(len(weights), -1, 1))[..., 0]
        found["distance"] = (shares * apart).sum(dim=-1)
    counted = rows.counted
    return {name: values.where(counted, torch.nan) for name, values in found.items()}


def logit_statistics(rows: AttentionRows) -> dict[str, Float[Tensor, " h"]]:
    """The largest logit of each head and quantiles over the pairs that the mask allows, of counted rows; and the
    least entropy that logits as long as these can have, mean over the rows, to lie beside the entropy."""
    if rows.logits is None:
        return {}
    pairs = rows.allowed & rows.counted[..., None]
    largest = rows.logits.where(pairs, -torch.inf).amax(dim=(-2, -1))
    floors = row_entropy_floors(rows.logits, rows.allowed).where(rows.counted, torch.nan).nanmean(dim=-1)
    spread = torch.linspace(0, pairs.shape[1] - 1, min(QUANTILE_ROWS, pairs.shape[1])).round().long()
    pairs, logits = pairs[:, spread], rows.logits[:, spread].float()
    ordered = logits.where(pairs, torch.inf).flatten(1).sort(dim=-1).values
    known = pairs.flatten(1).sum(dim=-1)
    quantiles = [_at_share(ordered, known, share) for share in QUANTILES]
    found = {"entropy_floor": floors, "logit_max": largest.double()}
    return {**found, **dict(zip(LOGIT_STATISTICS[2:], quantiles, strict=True))}


def _at_share(ordered: Float[Tensor, "h k"], known: Int[Tensor, " h"], share: float) -> Float[Tensor, " h"]:
    """The quantile of the first `known` of ascending values, linear between neighbours; infinite where none is."""
    place = share * (known - 1).clamp_min(0).double()
    low = place.floor().long()
    high = torch.minimum(low + 1, (known - 1).clamp_min(0))
    below, above = (ordered.gather(-1, at[:, None])[:, 0].double() for at in (low, high))
    return below + (place - low) * (above - below)


def matrix_gram(rows: AttentionRows) -> Float[Tensor, "h s s"]:
    """The Gram matrix of the matrix of these rows, by its smaller side."""
    return smaller_gram(rows.weights.double())


def matrix_statistics(gram: Float[Tensor, "h s s"], threads: int | None = None) -> dict[str, Float[Tensor, " h"]]:
    """s1 / s2 and the effective rank of a matrix of weights, from its Gram matrix, on so many threads."""
    values = gram_eigenvalues(gram, threads).flip(-1).clamp_min(0.0).sqrt()
    second = values[:, 1] if values.shape[-1] > 1 else torch.zeros_like(values[:, 0])
    gap = values[:, 0] / torch.maximum(second, values[:, 0] / LARGEST_GAP).where(values[:, 0] > 0, 1.0)
    return {"spectral_gap": gap, "effective_rank": entropy_rank(values)}


def received(rows: AttentionRows) -> Float[Tensor, "h m"]:
    """The mean weight that counted rows give each key."""
    counted = rows.counted[..., None]
    number = counted.sum(dim=-2).clamp_min(1)
    return rows.weights.double().where(counted, 0.0).sum(dim=-2) / number


def head_means(values: Mapping[str, Float[Tensor, "h r"]]) -> dict[str, Float[Tensor, " h"]]:
    """Means over the counted rows."""
    return {name: some.nanmean(dim=-1) for name, some in values.items()}


def output_shares(parts: Float[Tensor, "h r d"]) -> Float[Tensor, " h"]:
    """Each head's share of what a layer's heads write: squared length over that of all heads, mean over rows."""
    energies = parts.double().square().sum(dim=-1)
    total = energies.sum(dim=0)
    return (energies / total.where(total > 0, 1.0)).mean(dim=-1)
