"""The measures: each with its definition, its range and what leaves it unchanged.

Every measure is a function of a `Profile`, and carries a `reference`: the same number of one matrix as one would
first write it down in NumPy, by the SVD. Tests compare the two and check all else that is declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.measures.base import Array, Invariance, Measure
from rankfall.measures.profile import Profile

SHAPE_ONLY: frozenset[Invariance] = frozenset({"permutation", "rotation", "scale"})
SIZE_TOO: frozenset[Invariance] = frozenset({"permutation", "rotation"})

# Squared singular values below this share of the largest are taken for it where their logarithm is asked for.
SMALLEST_SHARE = 1e-12


def rank_range(n: int, d: int) -> tuple[float, float]:
    """Ranks of any kind: 0 for the zero matrix, else from 1 to min(n, d)."""
    return 0.0, float(min(n, d))


def share_range(n: int, d: int) -> tuple[float, float]:
    """Shares lie between 0 and 1."""
    return 0.0, 1.0


def size_range(n: int, d: int) -> tuple[float, float]:
    """Lengths are not negative."""
    return 0.0, float("inf")


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A ratio whose denominator is zero only when the tokens are, and which is zero then."""
    return numerator / denominator.where(denominator > 0, 1.0)


MU = Measure(
    name="mu",
    definition="Frobenius norm of the tokens after their mean token is taken off: 0 when all are equal",
    function=lambda profile: profile.spread,
    reference=lambda x: float(np.linalg.norm(x - x.mean(axis=0))),
    range=size_range,
    invariances=frozenset({"permutation", "rotation", "translation"}),
    degree=1,
    simulated=False,
)

RELATIVE_MU = Measure(
    name="relative_mu",
    definition="mu over the Frobenius norm: 0 when all tokens are equal, 1 when their mean is zero",
    function=lambda profile: ratio(profile.spread, profile.energy.sqrt()),
    reference=lambda x: _over(np.linalg.norm(x - x.mean(axis=0)), np.linalg.norm(x)),
    range=share_range,
    invariances=SHAPE_ONLY,
    simulated=False,
)


COARSEST = 1e-3


def rank_tolerance(count: int, width: int, epsilon: float) -> float:
    """max(n, d) * epsilon, but no more than a thousandth, or epsilon where that is more.

    In half precision max(n, d) * epsilon passes one, and nothing would be left. Rounding of independent entries adds
    less than epsilon times the largest singular value, whatever the size.
    """
    return min(max(count, width) * epsilon, max(epsilon, COARSEST))


def numerical_rank(profile: Profile) -> Tensor:
    """How many singular values exceed `rank_tolerance` times the largest."""
    tolerance = rank_tolerance(profile.count, profile.width, profile.epsilon)
    values = profile.singular_values
    return (values > tolerance * values[..., :1]).sum(dim=-1).double()


def _plain_rank(x: np.ndarray) -> int:
    tolerance = rank_tolerance(x.shape[0], x.shape[1], float(np.finfo(x.dtype).eps))
    return int(np.linalg.matrix_rank(x.astype(np.float64), rtol=tolerance))


RANK = Measure(
    name="rank",
    definition="singular values above max(n, d) * epsilon of the tokens' dtype, or above a thousandth or epsilon "
    "where that is less, relative to the largest",
    function=numerical_rank,
    reference=_plain_rank,
    range=rank_range,
    invariances=SHAPE_ONLY,
)


def entropy_rank(weights: Float[Tensor, "... s"]) -> Float[Tensor, ...]:
    """exp H(p), p being the weights over their sum; 0 where all are zero. Of s equal weights it is s."""
    total = weights.sum(dim=-1, keepdim=True)
    shares = weights / total.where(total > 0, 1.0)
    return entropy_of(shares).exp() * (total[..., 0] > 0)


def entropy_of(shares: Float[Tensor, "... s"]) -> Float[Tensor, ...]:
    """-sum p log p, never minus zero. PyTorch's own -p log p is compiled on a GPU when it is first used."""
    return 0.0 - torch.xlogy(shares, shares).sum(dim=-1)


EFFECTIVE_RANK = Measure(
    name="effective_rank",
    definition="exponential of the entropy of the singular values over their sum (Roy and Vetterli 2007; RankMe)",
    function=lambda profile: entropy_rank(profile.singular_values),
    reference=lambda x: _plain_entropy_rank(np.linalg.svd(x, compute_uv=False)),
    range=rank_range,
    invariances=SHAPE_ONLY,
)


@overload
def rankme(vectors: Tensor | Sequence[Tensor]) -> Tensor: ...
@overload
def rankme(vectors: Array | Sequence[Array]) -> Any: ...
def rankme(vectors: Any) -> Any:
    """RankMe of a dataset (Garrido et al. 2023): the effective rank of all its vectors (N, d) together.

    Give one matrix, or a list of them, one for each text, which are stacked.
    """
    if isinstance(vectors, (list, tuple)) and all(np.ndim(one) == 2 for one in vectors):
        vectors = torch.cat(list(vectors)) if isinstance(vectors[0], Tensor) else np.concatenate(vectors)
    return EFFECTIVE_RANK(vectors)


ENERGY_RANK = Measure(
    name="energy_rank",
    definition="exponential of the entropy of the squared singular values over their sum: directions weighted by "
    "the energy they carry",
    function=lambda profile: entropy_rank(profile.eigenvalues),
    reference=lambda x: _plain_entropy_rank(np.linalg.svd(x, compute_uv=False) ** 2),
    range=rank_range,
    invariances=SHAPE_ONLY,
)

FIRST_DIRECTION_SHARE = Measure(
    name="first_direction_share",
    definition="squared largest singular value over the sum of all squares: share of the energy in one direction",
    function=lambda profile: profile.shares[..., -1],
    reference=lambda x: _over(np.linalg.norm(x, 2) ** 2, np.linalg.norm(x) ** 2),
    range=share_range,
    invariances=SHAPE_ONLY,
)


def spectral_slope(values: Float[Tensor, "... s"]) -> Float[Tensor, ...]:
    """Negative slope of the line through (log k, log s_k^2), k = 1 ... max(2, s // 2), by least squares.

    The later half is left out: there so few tokens bend the spectrum down, whatever they are drawn from. A square
    below SMALLEST_SHARE of the first counts as that share: the slope of collapsed tokens is steep, not infinite.
    """
    points = min(values.shape[-1], max(2, values.shape[-1] // 2))
    if points < 2:
        return torch.zeros_like(values[..., 0])
    first = values[..., :1]
    shares = (values[..., :points] / first.where(first > 0, 1.0)).square().clamp_min(SMALLEST_SHARE)
    place = torch.arange(1, points + 1, dtype=values.dtype, device=values.device).log()
    place = place - place.mean()
    return -(shares.log() * place).sum(dim=-1) / place.square().sum() * (first[..., 0] > 0)


def _plain_slope(x: Array) -> float:
    squares = np.linalg.svd(x, compute_uv=False) ** 2
    points = min(len(squares), max(2, len(squares) // 2))
    if points < 2 or not squares[0]:
        return 0.0
    logs = np.log(np.maximum(squares[:points] / squares[0], SMALLEST_SHARE))
    return float(-np.polyfit(np.log(np.arange(1, points + 1)), logs, 1)[0])


def slope_range(n: int, d: int) -> tuple[float, float]:
    """From 0 for equal singular values to that of a spectrum that falls at once, where the line gains most by it."""
    points = min(n, d, max(2, min(n, d) // 2))
    if points < 2:
        return 0.0, 0.0
    place = np.log(np.arange(1, points + 1))
    late = place > place.mean()
    return 0.0, float(-np.polyfit(place, late * np.log(SMALLEST_SHARE), 1)[0])


ALPHA = Measure(
    name="alpha",
    definition="negative slope of log squared singular value against log index, over the first half of them: 0 when "
    "all directions are equally strong; of the centred view it is alpha-ReQ (Agrawal et al. 2022)",
    function=lambda profile: spectral_slope(profile.singular_values),
    reference=_plain_slope,
    range=slope_range,
    invariances=SHAPE_ONLY,
    simulated=False,
)

STABLE_RANK = Measure(
    name="stable_rank",
    definition="squared Frobenius norm over the squared largest singular value",
    function=lambda profile: ratio(profile.eigenvalues.sum(dim=-1), profile.eigenvalues[..., -1]),
    reference=lambda x: _over(np.linalg.norm(x) ** 2, np.linalg.norm(x, 2) ** 2),
    range=rank_range,
    invariances=SHAPE_ONLY,
)

PARTICIPATION_RATIO = Measure(
    name="participation_ratio",
    definition="squared sum of the squared singular values over the sum of their squares",
    function=lambda profile: ratio((profile.energy > 0).double(), profile.shares.square().sum(dim=-1)),
    reference=lambda x: _over(1.0, (_shares(x) ** 2).sum()),
    range=rank_range,
    invariances=SHAPE_ONLY,
    simulated=False,
)


def mean_absolute_cosine(profile: Profile) -> Tensor:
    """Mean of |<x_i, x_j>| / (|x_i| |x_j|) over i != j; 1 for a single token, 0 with a zero token."""
    pairs = profile.count * (profile.count - 1)
    total = profile.absolute_cosine_sum
    return (total / pairs).clamp_max(1.0) if pairs else torch.ones_like(total)


def _plain_cosine(x: Array) -> float:
    cosines = [abs(_over(a @ b, np.linalg.norm(a) * np.linalg.norm(b))) for i, a in enumerate(x) for b in x[:i]]
    return float(np.mean(cosines)) if cosines else 1.0


MEAN_ABS_COSINE = Measure(
    name="mean_abs_cosine",
    definition="mean absolute cosine over pairs of distinct tokens",
    function=mean_absolute_cosine,
    reference=_plain_cosine,
    range=share_range,
    invariances=SHAPE_ONLY,
)

MIN_SINGULAR_VALUE = Measure(
    name="min_singular_value",
    definition="smallest of the min(n, d) singular values",
    function=lambda profile: profile.singular_values[..., -1],
    reference=lambda x: float(np.linalg.svd(x, compute_uv=False)[-1]),
    range=size_range,
    invariances=SIZE_TOO,
    degree=1,
)

MAX_SINGULAR_VALUE = Measure(
    name="max_singular_value",
    definition="largest singular value",
    function=lambda profile: profile.eigenvalues[..., -1].sqrt(),
    reference=lambda x: float(np.linalg.norm(x, 2)),
    range=size_range,
    invariances=SIZE_TOO,
    degree=1,
    simulated=False,
)

RANK_ONE_RESIDUAL = Measure(
    name="rank_one_residual",
    definition="Frobenius distance to the nearest matrix of rank one",
    function=lambda profile: torch.linalg.vector_norm(profile.singular_values[..., 1:], dim=-1),
    reference=lambda x: float(np.linalg.norm(np.linalg.svd(x, compute_uv=False)[1:])),
    range=size_range,
    invariances=SIZE_TOO,
    degree=1,
    simulated=False,
)

LARGEST_TOKEN_SHARE = Measure(
    name="largest_token_share",
    definition="squared length of the longest token over the sum of all squared lengths",
    function=lambda profile: ratio(profile.token_energies.amax(dim=-1), profile.energy),
    reference=lambda x: _over(max(row @ row for row in x), (x**2).sum()),
    range=share_range,
    invariances=SHAPE_ONLY,
    simulated=False,
)


def _shares(x: Array) -> Array:
    squares: Array = np.linalg.svd(x, compute_uv=False) ** 2
    return squares / (squares.sum() or 1.0)


def _plain_entropy_rank(weights: Array) -> float:
    shares = weights / (weights.sum() or 1.0)
    return float(np.exp(-sum(p * np.log(p) for p in shares if p > 0))) if weights.any() else 0.0


def _over(numerator: Any, denominator: Any) -> float:
    """The quotient, and zero where nothing is divided by."""
    return float(numerator / denominator) if denominator else 0.0
