"""Attention on projected queries, keys and values: the one function that every other one calls."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from rankfall.attention.banded import banded_attend, pays
from rankfall.attention.masks.base import Mask
from rankfall.attention.masks.explicit import check_allowed
from rankfall.attention.weights import Kind, scores, weigh
from rankfall.errors import require


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
