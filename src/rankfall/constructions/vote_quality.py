"""How good the vote of rank-1 heads becomes among N points (A-conj8): fast simulation in law, and exact limits.

A head with q = k uniform looks at <q, x_1>, ..., <q, x_N> and <q, y> only, which are jointly normal for Gaussian q:
the simulation draws those N + 1 numbers and not q. Its law is that of the explicit network of `PluralityVote`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.base import Law, draw_points
from rankfall.errors import require, require_count
from rankfall.theory.targets import nearest_index, select, uniform_sphere

ENTRIES_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class VoteErrors:
    """The share of samples in which the winner is not the nearest point; `heads` is None for infinitely many."""

    heads: int | None
    wrong: float
    standard_error: float
    mse: float


def vote_curve(
    law: Law, dim: int, points: int, heads: Sequence[int], samples: int, seed: int
) -> tuple[VoteErrors, ...]:
    """Error of the plurality vote after each of these numbers of heads, which rise; the same votes are counted on."""
    require_count("samples", samples, least=2)
    require(
        len(heads) > 0 and list(heads) == sorted(set(heads)) and heads[0] > 0,
        required="rising numbers of heads",
        got=list(heads),
        remedy="sort them and leave out repetitions",
    )
    generator = torch.Generator().manual_seed(seed)
    x = draw_points(law, (samples, points, dim), generator)
    y = uniform_sphere((samples, 1, dim), generator)
    nearest = nearest_index(x, y)
    counts = torch.zeros(samples, points)
    curve, done = [], 0
    for total in heads:
        counts += count_votes(x, y, total - done, generator)
        done = total
        curve.append(_errors(total, x, nearest, counts))
    return tuple(curve)


def _errors(heads: int | None, x: Tensor, nearest: Tensor, votes: Tensor) -> VoteErrors:
    winner = votes.argmax(dim=-1, keepdim=True)
    wrong = float((winner != nearest).double().mean())
    mse = float((select(x, winner) - select(x, nearest)).square().sum(dim=(-1, -2)).mean())
    return VoteErrors(heads, wrong, math.sqrt(wrong * (1 - wrong) / len(x)), mse)


def count_votes(
    x: Float[Tensor, "b n d"], y: Float[Tensor, "b 1 d"], heads: int, generator: torch.Generator
) -> Float[Tensor, "b n"]:
    """Votes for each point of this many fresh random heads, each choosing argmax_i <q, x_i> sgn<q, y>."""
    n = x.shape[-2]
    factor = torch.linalg.qr(torch.cat([x, y], dim=-2).mT).R.float()
    counts = torch.zeros(x.shape[0], n)
    at_once = max(1, ENTRIES_AT_ONCE // (n + 1))
    for samples in range(x.shape[0]):
        left = heads
        while left > 0:
            drawn = min(left, at_once)
            seen = torch.randn(drawn, factor.shape[-2], generator=generator) @ factor[samples]
            choice = (seen[:, :n] * seen[:, n:].sign()).argmax(dim=-1)
            counts[samples] += torch.bincount(choice, minlength=n)
            left -= drawn
    return counts


def three_point_shares(x: Float[Tensor, "b 3 d"], y: Float[Tensor, "b 1 d"]) -> Float[Tensor, "b 3"]:
    """Exactly which share of all heads votes for each of three points, the limit of infinitely many heads.

    A head votes for i where <x_i - x_j, q>, <x_i - x_k, q> and <y, q> have one sign: two opposite trihedral cones. A
    cone with unit normals n_1, n_2, n_3 is the share (sum of its dihedral angles - pi)/(4 pi) of all directions, the
    dihedral angle of two faces being pi - acos<n_a, n_b>.
    """
    shares = []
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        normals = torch.stack([x[:, i] - x[:, j], x[:, i] - x[:, k], y[:, 0]], dim=-2)
        normals = torch.nn.functional.normalize(normals, dim=-1)
        cosines = (normals @ normals.mT).clamp(-1, 1)
        acute = cosines[:, (0, 0, 1), (1, 2, 2)].acos().sum(dim=-1)
        shares.append(2 * (2 * math.pi - acute) / (4 * math.pi))
    return torch.stack(shares, dim=-1)


def plurality_floor(dim: int, samples: int, seed: int, law: Law = "independent") -> VoteErrors:
    """The error that infinitely many heads leave among THREE points: no simulation of votes, exact shares.

    Zero for orthonormal points. For independent ones it is not: two points close together split their votes. No such
    formula is known for more points, whose cones have more faces.
    """
    generator = torch.Generator().manual_seed(seed)
    x = draw_points(law, (samples, 3, dim), generator)
    y = uniform_sphere((samples, 1, dim), generator)
    return _errors(None, x, nearest_index(x, y), three_point_shares(x, y))
