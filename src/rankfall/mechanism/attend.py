"""Attention on queries, keys and values: scores, softmax or hardmax, dense or along the band of a mask."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from rankfall.errors import require, require_one_of
from rankfall.masks import Band, Mask, check_allowed
from rankfall.masks.base import ceil_div
from rankfall.shapes import Allowed, Scores

Kind = Literal["softmax", "hardmax"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def scores(query: Float[Tensor, "... n r"], key: Float[Tensor, "... m r"], scale: float | Tensor) -> Scores:
    """scale * <q_i, k_j>. A tensor of scales has one entry per head, or any shape that broadcasts."""
    score = query @ key.mT
    return score if isinstance(scale, float) and scale == 1.0 else score * scale


def softmax_weights(score: Scores, allowed: Allowed | None = None) -> Scores:
    """Row-stochastic weights: exp(score) over the allowed keys, normalised."""
    if allowed is not None:
        score = score.masked_fill(~allowed, -torch.inf)
    return torch.softmax(score, dim=-1)


def hardmax_weights(score: Scores, allowed: Allowed | None = None) -> Scores:
    """All weight on the keys of the largest score; ties split it evenly."""
    if allowed is not None:
        score = score.masked_fill(~allowed, -torch.inf)
    best = (score == score.amax(dim=-1, keepdim=True)).to(score.dtype)
    return best / best.sum(dim=-1, keepdim=True)


def weigh(score: Scores, allowed: Allowed | None, kind: Kind) -> Scores:
    """Softmax or hardmax, by name."""
    require_one_of("a kind", kind, KINDS)
    return softmax_weights(score, allowed) if kind == "softmax" else hardmax_weights(score, allowed)


# Smaller blocks waste fewer keys, larger ones multiply faster; below this the matrix product is too thin.
SMALLEST_BLOCK = 32


def block_size(band: Band) -> int:
    """Queries per block: as many as the band is wide, so that at most half of the products are wasted."""
    return max(SMALLEST_BLOCK, band.lower + band.upper)


def block_count(band: Band, n: int) -> int:
    """Blocks per residue class."""
    return ceil_div(ceil_div(n, band.step), block_size(band))


def keys_of_a_block(band: Band) -> int:
    """Keys that are held for every query: those of its whole block."""
    return block_size(band) + band.lower + band.upper


def pays(band: Band | None, n: int) -> bool:
    """Whether the banded route touches fewer pairs than the dense one."""
    return band is not None and keys_of_a_block(band) < n // band.step


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
    keys = _stretches(key, band, block)
    queries = query.unflatten(-2, (blocks, block))
    if isinstance(scale, Tensor):
        scale = scale[..., None, None]  # the axes of class and block
    if allowed is None:
        allowed = allowed_in_blocks(mask, band, n, query.device)
    weights = weigh(scores(queries, keys, scale), allowed, kind)
    return banded_mix(weights, value, band)


def banded_mix(
    weights: Float[Tensor, "... c blocks block reach"], value: Float[Tensor, "... n v"], band: Band
) -> Float[Tensor, "... n v"]:
    """Apply weights that are given by blocks, as those of `allowed_in_blocks`."""
    n, block = value.shape[-2], block_size(band)
    values = _stretches(_deal(value, band.step, block_count(band, n) * block), band, block)
    return _gather(weights @ values, n)


def allowed_in_blocks(mask: Mask, band: Band, n: int, device: torch.device) -> Bool[Tensor, "c blocks block reach"]:
    """The mask on the pairs that the blocks hold. Padded queries see everything, so that no row is empty."""
    block, blocks = block_size(band), block_count(band, n)
    reach = block + band.lower + band.upper
    first = torch.arange(blocks, device=device)[:, None, None] * block
    queries = first + torch.arange(block, device=device)[:, None]
    keys = first - band.lower + torch.arange(reach, device=device)
    residue = torch.arange(band.step, device=device)[:, None, None, None]
    i, j = queries * band.step + residue, keys * band.step + residue
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


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    scale: float | Tensor | None = None,
    score_bias: Tensor | None = None,
    kind: Kind = "softmax",
) -> Tensor:
    """Weights of (..., h, n, r) queries on (..., g, m, r) keys applied to (..., g, m, v) values: (..., h, n, v).

    `g` divides `h`: consecutive query heads share a key/value head. `mask` is a pattern, a boolean tensor that
    broadcasts to (..., h, n, m), or None for all pairs. `scale` is one number, one per head (h,), or None for
    1/sqrt(r). `score_bias` is added to the scaled scores. A banded pattern costs n times its band.
    """
    check_projected(query, key, value)
    n, m, heads = query.shape[-2], key.shape[-2], query.shape[-3]
    factor = head_scale(scale, query)
    if isinstance(mask, Mask):
        check_square(n, m)
        mask.check(n)
        band = mask.band(n)
        if band is not None and pays(band, n) and score_bias is None:
            key, value = expand_groups(key, heads), expand_groups(value, heads)
            return banded_attend(query, key, value, mask, band, factor, kind)
    weights = attention_weights(query, key, mask, scale=scale, score_bias=score_bias, kind=kind)
    return weights @ expand_groups(value, heads)


def attention_weights(
    query: Tensor,
    key: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    scale: float | Tensor | None = None,
    score_bias: Tensor | None = None,
    kind: Kind = "softmax",
) -> Tensor:
    """The full (..., h, n, m) weights, each row non-negative with sum one."""
    n, m = query.shape[-2], key.shape[-2]
    score = scores(query, expand_groups(key, query.shape[-3]), head_scale(scale, query))
    if score_bias is not None:
        score = score + score_bias
    if isinstance(mask, Mask):
        check_square(n, m)
        mask = mask.dense(n, device=query.device)
    elif mask is not None and n == m:
        check_allowed(mask)
    return weigh(score, mask, kind)


def expand_groups(grouped: Float[Tensor, "... g m f"], heads: int) -> Float[Tensor, "... h m f"]:
    """Repeat each key/value head for the query heads that share it."""
    repeats = heads // grouped.shape[-3]
    return grouped if repeats == 1 else grouped.repeat_interleave(repeats, dim=-3)


def head_scale(scale: float | Tensor | None, query: Tensor) -> float | Tensor:
    """One factor for all heads, or one per head shaped to multiply (..., h, n, m) scores."""
    if scale is None:
        return float(query.shape[-1]) ** -0.5
    if not isinstance(scale, Tensor):
        return scale
    require(
        scale.ndim == 0 or scale.shape[-1] in (1, query.shape[-3]),
        required=f"one scale, or one for each of the {query.shape[-3]} heads",
        got=f"shape {tuple(scale.shape)}",
        remedy="give a number or a tensor of shape (h,)",
    )
    return scale if scale.ndim == 0 else scale[..., None, None]


def check_projected(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse shapes that do not belong together."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    require(
        min(query.ndim, key.ndim, value.ndim) >= 3 and query.shape[-1] == key.shape[-1],
        required="queries and keys of one rank r: (..., h, n, r) and (..., g, m, r)",
        got=shapes,
        remedy="give both the same last axis",
    )
    require(
        key.shape[-3:-1] == value.shape[-3:-1],
        required="as many values as keys: (..., g, m, r) and (..., g, m, v)",
        got=shapes,
        remedy="project both from the same tokens",
    )
    require(
        key.shape[-3] > 0 and query.shape[-3] % key.shape[-3] == 0 and query.shape[-3] > 0,
        required="a whole number of query heads for each key/value head, and at least one of each",
        got=shapes,
        remedy="choose h as a multiple of g",
    )


def check_square(n: int, m: int) -> None:
    """A pattern speaks of one set of tokens."""
    require(
        n == m,
        required="as many queries as keys under a mask pattern",
        got=f"{n} queries and {m} keys",
        remedy="give a boolean (n, m) tensor instead",
    )
