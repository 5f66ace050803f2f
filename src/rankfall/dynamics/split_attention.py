"""Attention on split tokens.

Scores matter only up to what is the same along a row, so the common part of the keys drops out:

    score_ij = <q_i, k_j> = row constant + e^l c_j + e^2l D_ij,   c_j = <m W_q, r_j W_k>,   D_ij = <r_i W_q, r_j W_k>

(sizes e^K and biases included in the code). Rows of A sum to one, so A X = 1 m^T + e^l A R, with no cancellation for
any mask under which tokens see different sets. Under the complete mask all rows of A agree up to e^2l, and A R up to
that is common: `complete_attention` splits A = a + e^2l delta exactly and carries delta R at the scale e^3l.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from rankfall.attention import Heads, attend
from rankfall.attention.attend import expand_groups, head_scale
from rankfall.attention.layer import combine, project
from rankfall.attention.masks import Mask
from rankfall.dynamics.mixing import Mixer
from rankfall.dynamics.split import Split, merge, normal_form

# exp(x) is 1 to the last digit for scores below this; expm1(x) is x.
NEGLIGIBLE = 1e-17
# Up to here row-specific scores go through expm1; beyond, the rows differ so much that a plain softmax is exact.
ROWS_ALIKE = 3.0

Projected = tuple[Tensor, Tensor, Tensor]
"""The residual through query, key and value maps: (b, h, n, r), (b, h, n, r), (b, h, n, v)."""


def split_attention(state: Split, heads: Heads, mixer: Mixer) -> Split:
    """Sum over heads of A_h X V_h, split: (b, n, d) to (b, n, o)."""
    if heads.value_bias is not None or heads.output_bias is not None:
        state = _at_least_unit_size(state)
    if mixer.complete:
        return complete_attention(state, heads)
    if bool((score_bound(state, heads) < NEGLIGIBLE).all()):
        mapped = combine(expand_groups(project(state.residual, heads.value), heads.heads), heads.output)
        return _rebuilt(state, mapped_common(state, heads), mixer.average(mapped))
    return _rows_apart(state, heads, _projected(state, heads), mixer.pattern)


def _rows_apart(state: Split, heads: Heads, projected: Projected, pattern: Mask | Tensor | None) -> Split:
    """A R by a plain softmax: exact as soon as rows of A differ."""
    query, key, value = projected
    small = (state.log_size + state.log_ratio).exp()[:, None, None, None]
    query = _common_query(state, heads)[..., None, :] + small * query
    mixed = combine(attend(query, small * key, value, pattern, scale=heads.scale), heads.output)
    return _rebuilt(state, mapped_common(state, heads), mixed)


def complete_attention(state: Split, heads: Heads) -> Split:
    """Attention of all to all, by the form that is exact for the size of each sample's residual."""
    projected = _projected(state, heads)
    bound = row_specific_bound(state, heads, projected)
    alike = bound < ROWS_ALIKE
    forms = ((~alike, _direct), (alike & (bound >= NEGLIGIBLE), _nearly_alike), (bound < NEGLIGIBLE, _linear))
    present = [(chosen.nonzero()[:, 0], form) for chosen, form in forms if bool(chosen.any())]
    if len(present) == 1:
        return present[0][1](state, heads, projected)
    parts = []
    for index, form in present:
        query, key, value = (one[index] for one in projected)
        parts.append(form(state.take(index), take_heads(heads, index), (query, key, value)))
    return merge(parts, [index for index, _ in present])


def _direct(state: Split, heads: Heads, projected: Projected) -> Split:
    return _rows_apart(state, heads, projected, None)


def _nearly_alike(state: Split, heads: Heads, projected: Projected) -> Split:
    query, key, value = projected
    weights = _row_common_weights(state, heads, key)
    mean = weights @ value
    shrunk = (2 * (state.log_size + state.log_ratio)).exp()[:, None, None, None]
    specific = query @ key.mT * head_scale(heads.scale, query)
    excess = torch.expm1(shrunk * specific) / shrunk
    of_row = excess @ weights.mT
    delta = weights * (excess - of_row) / (1 + shrunk * of_row)
    return _cubic(state, heads, mean, delta @ (value - mean))


def _linear(state: Split, heads: Heads, projected: Projected) -> Split:
    """expm1(x) = x: delta R = (R W_q) Cov_a(R W_k, R V), at the cost of n r v rather than n^2."""
    query, key, value = projected
    weights = _row_common_weights(state, heads, key)
    mean = weights @ value
    covariance = (key * weights.mT).mT @ (value - mean)
    return _cubic(state, heads, mean, query @ covariance * head_scale(heads.scale, query))


def _cubic(state: Split, heads: Heads, mean: Tensor, row_specific: Tensor) -> Split:
    """Row-common part into the common part, row-specific part at relative scale e^(2K + 3l)."""
    shift = combine(mean, heads.output)[:, 0, :]
    common = mapped_common(state, heads) + state.log_ratio.exp()[:, None] * shift
    log_ratio = 2 * state.log_size + 3 * state.log_ratio
    return normal_form(common, combine(row_specific, heads.output), state.log_size, log_ratio, state.reference)


def _rebuilt(state: Split, common: Tensor, residual: Tensor) -> Split:
    return normal_form(common, residual, state.log_size, state.log_ratio, state.reference)


def mapped_common(state: Split, heads: Heads) -> Tensor:
    """The common part through all value and output maps, biases included, in units of e^K."""
    unit = (-state.log_size).exp()[:, None, None, None]
    value = project(state.common[:, None, :], heads.value)
    if heads.value_bias is not None:
        value = value + unit * heads.value_bias[..., None, :]
    out = combine(expand_groups(value, heads.heads), heads.output)[:, 0, :]
    return out if heads.output_bias is None else out + unit[:, 0, 0] * heads.output_bias


def score_bound(state: Split, heads: Heads) -> Tensor:
    """No score differs from its row's constant by more than this (b,)."""
    reach = (state.log_size + state.log_ratio).exp() * state.common.shape[-1] ** 0.5
    asked = state.log_size.exp() * torch.linalg.vector_norm(state.common, dim=-1) + reach
    strength = _largest_norm(heads.query) * asked
    if heads.query_bias is not None:
        strength = strength + torch.linalg.vector_norm(heads.query_bias, dim=-1).amax(dim=-1)
    return strength * _largest_norm(heads.key) * reach * _largest_scale(heads)


def row_specific_bound(state: Split, heads: Heads, projected: Projected) -> Tensor:
    """No row-specific score e^2(K+l) D_ij exceeds this (b,)."""
    query, key, _ = projected
    lengths = [torch.linalg.vector_norm(one, dim=-1).amax(dim=(-2, -1)) for one in (query, key)]
    return (2 * (state.log_size + state.log_ratio)).exp() * lengths[0] * lengths[1] * _largest_scale(heads)


def take_heads(heads: Heads, index: Tensor) -> Heads:
    """The weights of these samples; weights that all samples share stay shared."""
    own_axes = {"query": 3, "key": 3, "value": 3, "output": 3, "output_bias": 1, "scale": 1}
    picked = {}
    for field in fields(heads):
        given = getattr(heads, field.name)
        batched = isinstance(given, Tensor) and given.ndim > own_axes.get(field.name, 2)
        picked[field.name] = given[index] if batched and given.shape[0] > 1 else given
    return Heads(**picked)


def _projected(state: Split, heads: Heads) -> Projected:
    maps = (heads.query, heads.key, heads.value)
    query, key, value = (expand_groups(project(state.residual, one), heads.heads) for one in maps)
    return query, key, value


def _common_query(state: Split, heads: Heads) -> Tensor:
    query = project((state.log_size.exp()[:, None] * state.common)[:, None, :], heads.query)[..., 0, :]
    return query if heads.query_bias is None else query + heads.query_bias


def _row_common_weights(state: Split, heads: Heads, key: Tensor) -> Tensor:
    """a = softmax(e^l c): (b, h, 1, n)."""
    small = (state.log_size + state.log_ratio).exp()[:, None, None, None]
    score = _common_query(state, heads)[..., None, :] @ (small * key).mT * head_scale(heads.scale, key)
    return torch.softmax(score, dim=-1)


def _at_least_unit_size(state: Split) -> Split:
    """The same tokens with K >= 0, so that biases of order one can be added in units of e^K."""
    grown = state.log_size.clamp_max(0)
    return Split(
        grown.exp()[:, None] * state.common,
        state.residual,
        state.log_size - grown,
        state.log_ratio + grown,
        state.reference,
    )


def _largest_norm(weight: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(weight).amax(dim=-1)


def _largest_scale(heads: Heads) -> float | Tensor:
    if heads.scale is None:
        return float(heads.rank) ** -0.5
    if isinstance(heads.scale, Tensor):
        return heads.scale.abs().amax(dim=-1) if heads.scale.ndim else heads.scale.abs()
    return abs(heads.scale)
