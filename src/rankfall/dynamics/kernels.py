"""Split tokens on a GPU: a layer along a band and the normal form as a few fused kernels instead of many small ones.

They compute what `mixing`, `split_attention` and `split` compute by PyTorch, in float64. A state of the split is in
normal form when its residual has reference zero and largest entry one. Both follow from three numbers per coordinate
(the sum under the reference, the largest, the smallest), which whoever writes the residual gathers block by block:
subtraction is monotone in floating point, so that the largest |R - moved| needs no further pass over R.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from rankfall.masks import Band
from rankfall.mechanism.attend import block_count, block_size
from rankfall.mechanism.heads import Heads

if TYPE_CHECKING:
    from rankfall.dynamics.weights import PreparedHeads

HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICES = ("cuda",)
"""Where the kernels are taken; tests add the processor, on which Triton interprets them."""
TILE = 2048
"""Numbers of a tile that streams through."""
MOST_WIDTH = 1024
MOST_REACH, MOST_KEYS, MOST_SCORED_WIDTH = 128, 4096, 32
"""Of the kernel along a band, which holds queries, keys and maps at once: keys in reach of a block, their numbers,
and width and ranks where it computes scores. As compiled for an H200, more would not stay in registers."""
FEW_KEYS = 2048
"""Up to so many numbers four warps hold what else takes eight."""


@final
@dataclass(frozen=True)
class Gathered:
    """Of every block of rows and every coordinate: the sum under the reference, the largest, the smallest."""

    parts: Tensor
    """(3, b, blocks, d)."""


def usable(residual: Tensor) -> bool:
    """Whether the kernels take such a residual (b, n, d)."""
    return residual.device.type in DEVICES and HAS_TRITON and residual.shape[-1] <= MOST_WIDTH


def band_usable(residual: Tensor, band: Band | None) -> bool:
    """Whether the kernels along a band take it."""
    if band is None or not usable(residual):
        return False
    reach = _power(block_size(band) + band.lower + band.upper)
    return reach <= MOST_REACH and reach * _power(residual.shape[-1]) <= MOST_KEYS


def one_map_per_token(heads: Heads) -> bool:
    """Whether `band_attend` takes these weights: one head, no output map, ranks that fit."""
    widest = max(heads.width, heads.rank, heads.value_rank)
    return heads.heads == 1 and heads.output is None and widest <= MOST_SCORED_WIDTH


def normal(
    common: Tensor, residual: Tensor, log_size: Tensor, log_ratio: Tensor, reference: Tensor, known: Gathered | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Common part, residual (in its own memory), log size and log ratio in normal form; see `split.normal_form`."""
    from rankfall.dynamics import triton_kernels as own

    residual = residual.contiguous()
    batch, n, d = residual.shape
    width = _power(d)
    rows = max(1, min(TILE // width, _power(n)))
    blocks = -(-n // rows)
    if known is None:
        known = Gathered(residual.new_empty(3, batch, blocks, d))
        own.gather[(blocks, batch)](residual, reference.contiguous(), known.parts, n, d, blocks, rows, width)
    count = known.parts.shape[2]
    made = torch.empty_like(common)
    moved = common.new_empty(batch, d)
    scalars = common.new_empty(3, batch)
    own.finish[(batch,)](
        known.parts, common.contiguous(), log_size.contiguous(), log_ratio.contiguous(), made, moved, scalars,
        batch, count, d, max(1, min(TILE // width, _power(count))), width,
    )  # fmt: skip
    own.scale[(blocks, batch)](residual, moved, scalars[2], n, d, rows, width)
    return made, residual, scalars[0], scalars[1]


def band_average(
    residual: Tensor, value: Tensor, words: Tensor, band: Band, reference: Tensor
) -> tuple[Tensor, Gathered]:
    """Uniform attention along the band of (b, n, d) tokens, then the value map (d, o) or (b, d, o)."""
    return _along(residual, None, value, None, None, words, band, reference, (0, value.shape[-1]))


def band_attend(
    residual: Tensor, prepared: PreparedHeads, common_query: Tensor, small: Tensor, words: Tensor, band: Band,
    reference: Tensor,
) -> tuple[Tensor, Gathered]:  # fmt: skip
    """One head's softmax attention along the band: scores <common query + small q_i, small k_j>, values v_j."""
    joined = prepared.joined.flatten(0, -3)
    shape = (prepared.heads.rank, prepared.heads.value_rank)
    return _along(residual, joined, None, common_query, small, words, band, reference, shape)


def _along(
    residual: Tensor, joined: Tensor | None, value: Tensor | None, common_query: Tensor | None, small: Tensor | None,
    words: Tensor, band: Band, reference: Tensor, shape: tuple[int, int],
) -> tuple[Tensor, Gathered]:  # fmt: skip
    from rankfall.dynamics import triton_kernels as own

    residual = residual.contiguous()
    batch, n, d = residual.shape
    rank, out_width = shape
    block, blocks = block_size(band), block_count(band, n)
    reach = block + band.lower + band.upper
    out = residual.new_empty(batch, n, out_width)
    parts = residual.new_empty(3, batch, band.step * blocks, out_width)
    maps = joined if joined is not None else value
    assert maps is not None
    maps = maps.contiguous() if maps.ndim == 3 else maps[None].contiguous()
    shared = 0 if maps.shape[0] == 1 else maps.stride(0)
    none = residual
    settings: dict[str, Any] = {
        "step": band.step, "lower": band.lower, "blocks": blocks, "block": block, "reach": reach,
        "rank": rank, "out_width": out_width, "columns": maps.shape[-1],
        "SCORED": joined is not None, "BLOCK": _power(block), "REACH": _power(reach),
        "WIDTH": _power(d), "RANK": _power(max(rank, 1)), "OUT": _power(out_width),
        "num_warps": 4 if _power(reach) * _power(d) <= FEW_KEYS else 8,
    }  # fmt: skip
    own.along[(blocks, band.step, batch)](
        residual, maps, none if common_query is None else common_query.contiguous(),
        none if small is None else small.contiguous(), words, reference.contiguous(), out, parts, n, d, shared,
        **settings,
    )  # fmt: skip
    return out, Gathered(parts)


def words_of(allowed: Tensor) -> Tensor:
    """What each query of a block sees as two words of 64 bits: (c, blocks, block, reach) to (c, blocks, block, 2)."""
    padded = torch.nn.functional.pad(allowed, (0, MOST_REACH - allowed.shape[-1]))
    bits = torch.ones(64, dtype=torch.int64, device=allowed.device) << torch.arange(64, device=allowed.device)
    return (padded.unflatten(-1, (2, 64)) * bits).sum(dim=-1)


def _power(number: int) -> int:
    """The least power of two that is no smaller, at least 16: what a tile product takes."""
    return max(16, 1 << (number - 1).bit_length())
