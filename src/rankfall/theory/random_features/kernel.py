"""Random rank-1 heads, and the kernel of their votes in tiles: what many heads have in common, matrix-free.

The direction of the keys relative to the queries decides everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rankfall.catalogue import DESIGNS
from rankfall.errors import MOST_HEADS, require_count
from rankfall.system import available_memory
from rankfall.theory.hardmax import require_unit
from rankfall.theory.harmonics import require_dim
from rankfall.theory.targets import uniform_sphere

KeyDesign = Callable[[Tensor, torch.Generator], Tensor]
"""The keys (h, d) that go with unit queries (h, d)."""

TILT = 0.6
TILE = 1024
GIB = 2**30


def draw_heads(design: str, dim: int, heads: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit queries and keys (h, d) in float64. The first heads of a larger draw are NOT those of a smaller one."""
    require_dim(dim)
    require_count("the number of heads H", heads, most=MOST_HEADS)
    keys = DESIGNS[design]
    generator = torch.Generator().manual_seed(seed)
    queries = uniform_sphere((heads, dim), generator)
    return queries, keys(queries, generator)


def independent_keys(queries: Tensor, generator: torch.Generator) -> Tensor:
    """k uniform, independent of q: the paper's setting."""
    return uniform_sphere(queries.shape, generator)


def aligned_keys(queries: Tensor, generator: torch.Generator) -> Tensor:
    """k = q."""
    return queries.clone()


def signed_keys(queries: Tensor, generator: torch.Generator) -> Tensor:
    """k = q or -q with equal chance."""
    flips = torch.randint(0, 2, (queries.shape[0], 1), generator=generator)
    return queries * (2.0 * flips - 1.0)


def tilted_keys(queries: Tensor, generator: torch.Generator) -> Tensor:
    """<q,k> = 0.6 or -0.6: our guess at what the published curve was drawn with."""
    noise = uniform_sphere(queries.shape, generator)
    aside = noise - (noise * queries).sum(-1, keepdim=True) * queries
    aside = aside / torch.linalg.vector_norm(aside, dim=-1, keepdim=True)
    return signed_keys(TILT * queries + math.sqrt(1 - TILT**2) * aside, generator)


def default_cache_bytes(device: torch.device) -> int:
    """At most 9.5 GiB (2^16 heads need 8.1), and no more than 60 % of the memory that is free now."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = available_memory()
    return int(min(9.5 * GIB, 0.6 * free))


class VoteKernel:
    """G = (4/pi^2) asin(Q Q^T) * asin(K K^T) elementwise, so that C = (1 1^T + G)/2; unit diagonal.

    `times(x)` multiplies by the leading block of G that fits x, so one kernel serves every smaller set of heads.
    Stored tiles are float32 with float64 sums across tiles; `times(x, exact=True)` makes every tile in float64.
    """

    def __init__(self, queries: Tensor, keys: Tensor, cache_bytes: int | None = None) -> None:
        require_unit(queries, "queries")
        require_unit(keys, "keys")
        self.queries = queries.double()
        self.keys = keys.double()
        self._narrow = (self.queries.float(), self.keys.float())
        self._room = default_cache_bytes(queries.device) if cache_bytes is None else cache_bytes
        self._tiles: dict[tuple[int, int], Tensor] = {}

    def __len__(self) -> int:
        return int(self.queries.shape[0])

    def times(self, x: Tensor, *, exact: bool = False) -> Tensor:
        """G x for x of shape (n,), n <= H: float64 in and out, every off-diagonal tile used for both its halves."""
        n = x.shape[0]
        result = torch.zeros_like(x)
        narrow = x if exact else x.float()
        for start in range(0, n, TILE):
            rows = slice(start, min(start + TILE, n))
            for other in range(0, start + 1, TILE):
                columns = slice(other, min(other + TILE, n))
                tile = self._tile(rows, columns, exact)
                result[rows] += (tile @ narrow[columns]).double()
                if other != start:
                    result[columns] += (tile.mT @ narrow[rows]).double()
        return result

    def dense(self, n: int) -> Tensor:
        """The leading n x n block in float64."""
        return self._make(slice(0, n), slice(0, n), exact=True)

    def _tile(self, rows: slice, columns: slice, exact: bool) -> Tensor:
        whole = rows.stop - rows.start == TILE
        if exact or not whole:
            return self._make(rows, columns, exact)
        place = (rows.start, columns.start)
        if place not in self._tiles:
            tile = self._make(rows, columns, exact=False)
            size = tile.numel() * tile.element_size()
            if size <= self._room:
                self._room -= size
                self._tiles[place] = tile
            return tile
        return self._tiles[place]

    def _make(self, rows: slice, columns: slice, exact: bool) -> Tensor:
        queries, keys = (self.queries, self.keys) if exact else self._narrow
        tile = (queries[rows] @ queries[columns].mT).clamp_(-1, 1).asin_()
        tile *= (keys[rows] @ keys[columns].mT).clamp_(-1, 1).asin_()
        tile *= 4 / math.pi**2
        if rows.start == columns.start:
            # asin loses half its digits next to one; a head agrees with itself exactly.
            tile.diagonal().fill_(1.0)
        return tile
