"""Split tokens on a GPU: a layer along a band and the normal form as a few fused kernels instead of many small ones.

They compute what `mixing`, `split_attention` and `split` compute by PyTorch, in float64. A state of the split is in
normal form when its residual has reference zero and largest entry one. Both follow from three numbers per coordinate
(the sum under the reference, the largest, the smallest), which whoever writes the residual gathers block by block:
subtraction is monotone in floating point, so that the largest |R - moved| needs no further pass over R.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from rankfall.dynamics.launch import launch
from rankfall.masks import Band
from rankfall.mechanism.attend import block_count, block_size
from rankfall.mechanism.heads import Heads

if TYPE_CHECKING:
    from rankfall.dynamics.weights import PreparedHeads

HAS_TRITON = importlib.util.find_spec("triton") is not None
trusted: set[str] = set()
"""Devices on which the kernels are taken, by `self_check`; tests add the processor, where Triton interprets them."""
TILE = 2048
"""Numbers of a tile that streams through."""
MOST_WIDTH = 1024
MOST_REACH, MOST_KEYS, MOST_SCORED_WIDTH, MOST_WHOLE = 128, 4096, 32, 64
"""Of the kernel over blocks, which holds queries, keys and maps at once: keys in reach of a block, their numbers,
width and ranks where it computes scores, tokens of a block that is the whole. As compiled for an H200, more would not
stay in registers."""
FEW_KEYS, FEW_QUERIES = 2048, 32
"""Up to so many numbers and queries four warps hold what else takes eight."""
MOST_PARTS, FOLDED = 256, 64
"""Blocks whose numbers one program gathers, and of how many one is made before where there are more."""


@final
@dataclass(frozen=True)
class Gathered:
    """Of every block of rows and every coordinate: the sum under the reference, the largest, the smallest."""

    parts: Tensor
    """(3, b, blocks, d)."""

    def farthest_from(self, row: Tensor) -> Tensor:
        """The largest |R_ij - row_j| of every sample, (b,), for a row (b, d)."""
        largest, smallest = self.parts[1].amax(dim=1), self.parts[2].amin(dim=1)
        return torch.maximum(largest - row, row - smallest).amax(dim=-1)


def usable(residual: Tensor) -> bool:
    """Whether the kernels take such a residual (b, n, d)."""
    return str(residual.device) in trusted and residual.shape[-1] <= MOST_WIDTH


@final
@dataclass(frozen=True)
class Blocks:
    """How a mask's pairs are cut into blocks of queries, each with the keys in its reach."""

    words: Tensor
    """What each query sees, as two words of 64 bits: (classes, blocks, block, 2)."""
    step: int
    lower: int
    block: int
    count: int
    reach: int
    whole: bool

    @classmethod
    def along(cls, band: Band, allowed: Tensor, n: int) -> Blocks:
        """Along a band; `allowed` is `allowed_in_blocks`."""
        words, block = _words(allowed), block_size(band)
        return cls(words, band.step, band.lower, block, block_count(band, n), allowed.shape[-1], whole=False)

    @classmethod
    def of_all(cls, allowed: Tensor) -> Blocks:
        """The whole (n, n) matrix as one block."""
        n = allowed.shape[-1]
        return cls(_words(allowed[None, None]), 1, 0, n, 1, n, whole=True)


def blocks_usable(residual: Tensor, reach: int) -> bool:
    """Whether the kernel over blocks takes such tokens with so many keys in reach of a block."""
    padded = power(reach)
    return usable(residual) and padded <= MOST_REACH and padded * power(residual.shape[-1]) <= MOST_KEYS


def reach_of(band: Band) -> int:
    """Keys in reach of a block along a band."""
    return block_size(band) + band.lower + band.upper


def one_map_per_token(heads: Heads) -> bool:
    """Whether `block_attend` takes these weights: one head, no output map, ranks that fit."""
    widest = max(heads.width, heads.rank, heads.value_rank)
    return heads.heads == 1 and heads.output is None and widest <= MOST_SCORED_WIDTH


def normal(
    common: Tensor, residual: Tensor, log_size: Tensor, log_ratio: Tensor, reference: Tensor, known: Gathered | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Common part, residual (in its own memory), log size and log ratio in normal form; see `split.normal_form`."""
    from rankfall.dynamics import triton_kernels as own

    residual = residual.contiguous()
    batch, n, d = residual.shape
    width = power(d)
    rows = max(1, min(TILE // width, power(n)))
    blocks = -(-n // rows)
    if known is None:
        known = Gathered(residual.new_empty(3, batch, blocks, d))
        launch(own.gather, (blocks, batch), n, d, blocks, rows, width)(residual, reference.contiguous(), known.parts)
    while known.parts.shape[2] > MOST_PARTS:
        many = known.parts.shape[2]
        folded = known.parts.new_empty(3, batch, -(-many // FOLDED), d)
        launch(own.fold, (folded.shape[2], batch), many, d, FOLDED, width)(known.parts, folded)
        known = Gathered(folded)
    count = known.parts.shape[2]
    made = torch.empty_like(common)
    moved = common.new_empty(batch, d)
    scalars = common.new_empty(3, batch)
    launch(own.finish, (batch,), batch, count, d, max(1, min(TILE // width, power(count))), width)(
        known.parts, common.contiguous(), log_size.contiguous(), log_ratio.contiguous(), made, moved, scalars
    )
    launch(own.scale, (blocks, batch), n, d, rows, width)(residual, moved, scalars[2])
    return made, residual, scalars[0], scalars[1]


def block_average(residual: Tensor, value: Tensor, blocks: Blocks, reference: Tensor) -> tuple[Tensor, Gathered]:
    """Uniform attention of (b, n, d) tokens, then the value map (d, o) or (b, d, o)."""
    out, gathered, _ = _by_blocks(residual, value, None, None, blocks, reference, (0, value.shape[-1]))
    return out, gathered


def block_attend(
    residual: Tensor, prepared: PreparedHeads, common_query: Tensor, small: Tensor, blocks: Blocks, reference: Tensor
) -> tuple[Tensor, Gathered, Tensor]:
    """One head's softmax attention: scores <common query + small q_i, small k_j>, values v_j.

    The last is, where a block is the whole, (3, b): the most that all rows give to one key, the largest difference of
    a row from the first, the size of what may be rounded in it; along a band (b, blocks): the largest value in reach.
    """
    joined = prepared.joined.flatten(0, -3)
    shape = (prepared.heads.rank, prepared.heads.value_rank)
    return _by_blocks(residual, joined, common_query, small, blocks, reference, shape)


def _by_blocks(
    residual: Tensor,
    maps: Tensor,
    common_query: Tensor | None,
    small: Tensor | None,
    blocks: Blocks,
    reference: Tensor,
    shape: tuple[int, int],
) -> tuple[Tensor, Gathered, Tensor]:
    from rankfall.dynamics import triton_kernels as own

    residual = residual.contiguous()
    batch, n, d = residual.shape
    rank, out_width = shape
    out = residual.new_empty(batch, n, out_width)
    parts = residual.new_empty(3, batch, blocks.step * blocks.count, out_width)
    told = residual.new_empty((3, batch) if blocks.whole else (batch, blocks.step * blocks.count))
    maps = maps.contiguous() if maps.ndim == 3 else maps[None].contiguous()
    along = launch(
        own.along, (blocks.count, blocks.step, batch),
        n, d, 0 if maps.shape[0] == 1 else maps.stride(0), blocks.step, blocks.lower, blocks.count, blocks.block,
        blocks.reach, rank, out_width, maps.shape[-1],
        SCORED=common_query is not None, WHOLE=blocks.whole,
        BLOCK=power(blocks.block), REACH=power(blocks.reach),
        WIDTH=power(d), RANK=power(max(rank, 1)), OUT=power(out_width),
        num_warps=4 if power(blocks.reach) * power(d) <= FEW_KEYS and blocks.block <= FEW_QUERIES else 8,
    )  # fmt: skip
    along(
        residual,
        maps,
        told if common_query is None else common_query.contiguous(),
        told if small is None else small,
        blocks.words,
        reference.contiguous(),
        out,
        parts,
        told,
    )
    return out, Gathered(parts), told


def spread(common: Tensor, residual: Tensor, log_size: Tensor, log_ratio: Tensor) -> Tensor:
    """log mu and log relative mu, (2, b); see `Split.log_spread`."""
    from rankfall.dynamics import triton_kernels as own

    batch, n, d = residual.shape
    width = power(d)
    rows = max(1, min(TILE // width, power(n)))
    blocks = -(-n // rows)
    parts = residual.new_empty(batch, blocks, 3, width)
    out = residual.new_empty(2, batch)
    launch(own.deviations, (blocks, batch), n, d, rows, width)(residual.contiguous(), parts)
    launch(own.spread, (batch,), blocks, n, d, max(1, min(TILE // width, power(blocks))), width)(
        parts, common.contiguous(), log_size.contiguous(), log_ratio.contiguous(), out
    )
    return out


def _words(allowed: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(allowed, (0, MOST_REACH - allowed.shape[-1]))
    bits = torch.ones(64, dtype=torch.int64, device=allowed.device) << torch.arange(64, device=allowed.device)
    return (padded.unflatten(-1, (2, 64)) * bits).sum(dim=-1)


def power(number: int) -> int:
    """The least power of two that is no smaller, at least 16: what a tile product takes."""
    return max(16, 1 << (number - 1).bit_length())
