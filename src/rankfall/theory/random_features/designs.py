"""How random rank-1 heads are drawn. The direction of the keys relative to the queries decides everything."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rankfall.errors import require, require_count
from rankfall.theory.harmonics import require_dim

TILT = 0.6


def _unit(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    points = torch.randn(shape, generator=generator, dtype=torch.float64)
    return points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)


def _independent(queries: Tensor, generator: torch.Generator) -> Tensor:
    return _unit((queries.shape[0], queries.shape[1]), generator)


def _aligned(queries: Tensor, generator: torch.Generator) -> Tensor:
    return queries.clone()


def _signed(queries: Tensor, generator: torch.Generator) -> Tensor:
    flips = torch.randint(0, 2, (queries.shape[0], 1), generator=generator)
    return queries * (2.0 * flips - 1.0)


def _tilted(queries: Tensor, generator: torch.Generator) -> Tensor:
    noise = _unit((queries.shape[0], queries.shape[1]), generator)
    aside = noise - (noise * queries).sum(-1, keepdim=True) * queries
    aside = aside / torch.linalg.vector_norm(aside, dim=-1, keepdim=True)
    return _signed(TILT * queries + math.sqrt(1 - TILT**2) * aside, generator)


ALL_DESIGNS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "independent": _independent,  # k uniform, independent of q
    "aligned": _aligned,  # k = q
    "signed": _signed,  # k = q or -q with equal chance
    "tilted": _tilted,  # <q,k> = 0.6 or -0.6: our guess at what the published curve was drawn with
}


def draw_heads(design: str, dim: int, heads: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit queries and keys (h, d) in float64. The first heads of a larger draw are NOT those of a smaller one."""
    require_dim(dim)
    require_count("the number of heads H", heads)
    require(
        design in ALL_DESIGNS,
        required=f"a design among {', '.join(ALL_DESIGNS)}",
        got=design,
        remedy="independent is the paper's setting",
    )
    generator = torch.Generator().manual_seed(seed)
    queries = _unit((heads, dim), generator)
    return queries, ALL_DESIGNS[design](queries, generator)
