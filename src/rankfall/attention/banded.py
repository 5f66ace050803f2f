"""Attention that follows the band of a mask: time and memory grow with n times the band's width, not with n^2.

Queries are cut into blocks; each block meets the one stretch of keys that its band can reach, as a small dense
product. A dilated band is first dealt into its residue classes, each of which is an ordinary band.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from rankfall.attention.masks.base import Band, Mask, ceil_div
from rankfall.attention.weights import Kind, scores, weigh

# Smaller blocks waste fewer keys, larger ones multiply faster; below this the matrix product is too thin.
SMALLEST_BLOCK = 32


def block_size(band: Band) -> int:
    """Queries per block: as many as the band is wide, so that at most half of the products are wasted."""
    return max(SMALLEST_BLOCK, band.lower + band.upper)


def block_count(band: Band, n: int) -> int:
    """Blocks per residue class."""
    return ceil_div(ceil_div(n, band.step), block_size(band))


def pays(band: Band | None, n: int) -> bool:
    """Whether the banded route touches fewer pairs than the dense one."""
    return band is not None and block_size(band) + band.lower + band.upper < n // band.step


def banded_attend(
    query: Float[Tensor, "... n r"],
    key: Float[Tensor, "... n r"],
    value: Float[Tensor, "... n v"],
    mask: Mask,
    band: Band,
    scale: float | Tensor,
    kind: Kind = "softmax",
    allowed: Bool[Tensor, "c blocks block reach"] | None = None,
) -> Float[Tensor, "... n v"]:
    """The same as dense attention under `mask`, at the cost of its band.

    `allowed` is `allowed_in_blocks` of the same mask, for those who attend under it again and again.
    """
    n = query.shape[-2]
    block, blocks = block_size(band), block_count(band, n)
    query, key = (_deal(x, band.step, blocks * block) for x in (query, key))
    asked = _stretches(key, band, block)
    asking = query.unflatten(-2, (blocks, block))
    if isinstance(scale, Tensor):
        scale = scale[..., None, None]  # the axes of class and block
    if allowed is None:
        allowed = allowed_in_blocks(mask, band, n, query.device)
    weights = weigh(scores(asking, asked, scale), allowed, kind)
    return banded_mix(weights, value, band)


def banded_mix(
    weights: Float[Tensor, "... c blocks block reach"], value: Float[Tensor, "... n v"], band: Band
) -> Float[Tensor, "... n v"]:
    """Apply weights that are given by blocks, as those of `allowed_in_blocks`."""
    n, block = value.shape[-2], block_size(band)
    told = _stretches(_deal(value, band.step, block_count(band, n) * block), band, block)
    return _gather(weights @ told, n)


def allowed_in_blocks(mask: Mask, band: Band, n: int, device: torch.device) -> Bool[Tensor, "c blocks block reach"]:
    """The mask on the pairs that the blocks hold. Padded queries see everything, so that no row is empty."""
    block, blocks = block_size(band), block_count(band, n)
    reach = block + band.lower + band.upper
    first = torch.arange(blocks, device=device)[:, None, None] * block
    asking = first + torch.arange(block, device=device)[:, None]
    asked = first - band.lower + torch.arange(reach, device=device)
    residue = torch.arange(band.step, device=device)[:, None, None, None]
    i, j = asking * band.step + residue, asked * band.step + residue
    inside = (j >= 0) & (j < n)
    seen = mask.allows(i.clamp(0, n - 1), j.clamp(0, n - 1), n) & inside
    return seen | (i >= n)


def _deal(x: Float[Tensor, "... n f"], step: int, length: int) -> Float[Tensor, "... c t f"]:
    """Token t * step + c goes to place t of class c; classes are padded with zeros to one length."""
    padded = pad(x, (0, 0, 0, length * step - x.shape[-2]))
    return padded.unflatten(-2, (length, step)).transpose(-3, -2)


def _stretches(x: Float[Tensor, "... t f"], band: Band, block: int) -> Float[Tensor, "... blocks reach f"]:
    """For each block of queries the keys within its band's reach, as overlapping views."""
    reach = block + band.lower + band.upper
    return pad(x, (0, 0, band.lower, band.upper)).unfold(-2, reach, block).mT


def _gather(out: Float[Tensor, "... c blocks block v"], n: int) -> Float[Tensor, "... n v"]:
    """Undo the dealing and drop the padding."""
    return out.flatten(-3, -2).transpose(-3, -2).flatten(-3, -2)[..., :n, :]
