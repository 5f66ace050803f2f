"""The functions that paper A asks attention to compute, and the laws of the points that it draws them on.

Everything here is a pure function of tensors; the training tasks and the constructions share it.
Points are (..., n, d), queries (..., m, d); batch axes of the two agree or broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rankfall.errors import require, require_count

Points = Float[Tensor, "... n d"]
Queries = Float[Tensor, "... m d"]


def nearest_index(points: Points, queries: Queries) -> Int[Tensor, "... m"]:
    """Which point has the largest inner product with each query: on the sphere, the nearest (A-target)."""
    return (queries @ points.mT).argmax(dim=-1)


def nearest_neighbour(points: Points, queries: Queries) -> Queries:
    """f(X; y) = x_i with i = argmax_i <x_i, y>, for any number n of points and m of queries (A-target).

    For points on the unit sphere this is the nearest point. Paper: f(X; y), N for our n. The first of equals wins.
    """
    return select(points, nearest_index(points, queries))


def farthest_neighbour(points: Points, queries: Queries | None = None) -> Queries:
    """x_i with i = argmin_i <x_i, y>; without queries the points are the queries (A-target, experiments).

    This is the form that A-fig1 to A-fig4 train on: every point outputs the point farthest from it. It equals the
    nearest neighbour of -y, so every statement about one holds for the other.
    """
    return nearest_neighbour(points, -(points if queries is None else queries))


def select(points: Points, index: Int[Tensor, "... m"]) -> Queries:
    """The points at these positions."""
    rows = index.unsqueeze(-1)
    same_axes = points.reshape((1,) * (rows.ndim - points.ndim) + points.shape)
    return torch.take_along_dim(same_axes, rows.reshape((1,) * (points.ndim - rows.ndim) + rows.shape), dim=-2)


def oscillating_breakpoints(d: int, dtype: torch.dtype = torch.float64) -> Float[Tensor, " breaks"]:
    """The 2 d^2 equally spaced breakpoints b_j = sqrt2 (-1 + 2j/(2d^2+1)) of the biased target (A-thm4).

    They cut the range (-sqrt2, sqrt2) of <x_1 - x_2, y>, x_1 and x_2 orthonormal, into 2 d^2 + 1 equal pieces.
    """
    require_count("d", d, least=2)
    m = 2 * d * d
    j = torch.arange(1, m + 1, dtype=dtype)
    return math.sqrt(2) * (-1 + 2 * j / (m + 1))


def biased_target(
    points: Float[Tensor, "... 2 d"], queries: Queries, breakpoints: Float[Tensor, " breaks"] | None = None
) -> Queries:
    """The oscillating biased nearest neighbour of A-thm4: x_1 where #{j: b_j < <x_1 - x_2, y>} is even, else x_2.

    Order matters: swapping the two points changes the answer. `breakpoints` rise; None takes 2 d^2 equal steps.
    """
    require(
        points.shape[-2] == 2,
        required="two points for the biased target",
        got=f"{points.shape[-2]}",
        remedy="the statement is for N = 2 only",
    )
    if breakpoints is None:
        breakpoints = oscillating_breakpoints(points.shape[-1])
    gap = queries @ (points[..., 0, :] - points[..., 1, :]).unsqueeze(-1)
    pieces = torch.searchsorted(breakpoints.to(gap), gap.squeeze(-1).contiguous())
    return select(points, pieces % 2)


def uniform_sphere(
    shape: Sequence[int],
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "... d"]:
    """Independent points, uniform on the unit sphere of the last axis."""
    return torch.nn.functional.normalize(
        torch.randn(*shape, generator=generator, dtype=dtype), dim=-1, eps=torch.finfo(dtype).tiny
    )


def orthonormal_points(
    shape: Sequence[int],
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Float[Tensor, "... n d"]:
    """n <= d orthonormal points in a uniformly random frame, the form that the theory uses; shape is (..., n, d)."""
    *_, n, d = shape
    require(
        1 <= n <= d,
        required="orthonormal points to number at least one and at most the dimension",
        got=f"n={n}, d={d}",
        remedy="lower n or take independent points",
    )
    q, triangle = torch.linalg.qr(torch.randn(*shape, generator=generator, dtype=dtype).mT)
    # Without the signs of the diagonal the frame would follow LAPACK's convention and not be uniform.
    frame: Tensor = (q * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT.contiguous()
    return frame
