"""Attention on split tokens.

Scores matter only up to what is the same along a row, so the common part of the keys drops out:

    score_ij = <q_i, k_j> = row constant + e^l c_j + e^2l D_ij,   c_j = <m W_q, r_j W_k>,   D_ij = <r_i W_q, r_j W_k>

(sizes e^K and biases included in the code). Rows of A sum to one, so A X = 1 m^T + e^l A R, with no cancellation for
any mask under which tokens see different sets. Under the complete mask all rows of A agree up to e^2l, and A R up to
that is common: `complete_attention` splits A = a + e^2l delta exactly and carries delta R at the scale e^3l.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankfall.attention import attend
from rankfall.attention.layer import combine, project
from rankfall.attention.masks import Mask
from rankfall.dynamics.mixing import Mixer
from rankfall.dynamics.prepared import Prepared, take_heads
from rankfall.dynamics.split import Split, merge, normal_form
from rankfall.linalg.product import product

# exp(x) is 1 to the last digit for scores below this; expm1(x) is x.
NEGLIGIBLE = 1e-17
# Up to here row-specific scores go through expm1; beyond, the rows differ so much that a plain softmax is exact.
ROWS_ALIKE = 3.0

Projected = tuple[Tensor, Tensor, Tensor]
"""The residual through query, key and value maps: (b, h, n, r), (b, h, n, r), (b, h, n, v)."""


def split_attention(state: Split, prepared: Prepared, mixer: Mixer) -> Split:
    """Sum over heads of A_h X V_h, split: (b, n, d) to (b, n, o)."""
    if prepared.biased:
        state = _at_least_unit_size(state)
    flat = scores_negligible(state, prepared)
    if mixer.complete:
        return _flat_complete(state, prepared) if flat else complete_attention(state, prepared)
    if flat:
        return _rebuilt(state, mapped_common(state, prepared), mixer.average(state.residual @ prepared.value_sum))
    return _rows_apart(state, prepared, prepared.project(state.residual), mixer.pattern)


def scores_negligible(state: Split, prepared: Prepared) -> bool:
    """Whether no score of any sample differs from its row's constant by anything that float64 could see."""
    by_tokens = float((2 * state.log_size + state.log_ratio).max()) + math.log(2) + prepared.log_strength
    if prepared.heads.query_bias is None:
        return by_tokens < math.log(NEGLIGIBLE)
    by_bias = float((state.log_size + state.log_ratio).max()) + prepared.log_bias_strength
    return max(by_tokens, by_bias) < math.log(NEGLIGIBLE / 2)


def _rows_apart(state: Split, prepared: Prepared, projected: Projected, pattern: Mask | Tensor | None) -> Split:
    """A R by a plain softmax: exact as soon as rows of A differ."""
    query, key, value = projected
    small = (state.log_size + state.log_ratio).exp()[:, None, None, None]
    query = _common_query(state, prepared)[..., None, :] + small * query
    mixed = attend(query, small * key, value, pattern, scale=prepared.heads.scale)
    return _rebuilt(state, mapped_common(state, prepared), combine(mixed, prepared.heads.output))


def complete_attention(state: Split, prepared: Prepared) -> Split:
    """Attention of all to all, by the form that is exact for the size of each sample's residual."""
    projected = prepared.project(state.residual)
    bound = row_specific_bound(state, prepared, projected)
    alike = bound < ROWS_ALIKE
    forms = ((~alike, _direct), (alike & (bound >= NEGLIGIBLE), _nearly_alike), (bound < NEGLIGIBLE, _linear))
    present = [(chosen.nonzero()[:, 0], form) for chosen, form in forms if bool(chosen.any())]
    if len(present) == 1:
        return present[0][1](state, prepared, projected)
    parts = []
    for index, form in present:
        query, key, value = (one[index] for one in projected)
        parts.append(form(state.take(index), Prepared(take_heads(prepared.heads, index)), (query, key, value)))
    return merge(parts, [index for index, _ in present])


def _direct(state: Split, prepared: Prepared, projected: Projected) -> Split:
    return _rows_apart(state, prepared, projected, None)


def _nearly_alike(state: Split, prepared: Prepared, projected: Projected) -> Split:
    query, key, value = projected
    weights = _row_common_weights(state, prepared, key)
    mean = weights @ value
    shrunk = (2 * (state.log_size + state.log_ratio)).exp()[:, None, None, None]
    specific = query @ key.mT * prepared.scale
    excess = torch.expm1(shrunk * specific) / shrunk
    of_row = excess @ weights.mT
    delta = weights * (excess - of_row) / (1 + shrunk * of_row)
    return _cubic(state, prepared, mean, delta @ (value - mean))


def _linear(state: Split, prepared: Prepared, projected: Projected) -> Split:
    """expm1(x) = x: delta R = (R W_q) Cov_a(R W_k, R V), at the cost of n r v rather than n^2."""
    query, key, value = projected
    weights = _row_common_weights(state, prepared, key)
    mean = weights @ value
    covariance = (key * weights.mT).mT @ (value - mean)
    return _cubic(state, prepared, mean, query @ covariance * prepared.scale)


def _flat_complete(state: Split, prepared: Prepared) -> Split:
    """`_linear` with uniform row-common weights, whose share of the common part is lost in rounding.

    The residual is centred here (the mean is the reference of every strongly connected mask), so that the covariance
    is R^T R / n and delta R = R (sum_h W_q W_k^T (R^T R / n) V_h): all heads in one product of d x d matrices.
    """
    residual = state.residual
    second_moment = product(residual.mT, residual)
    if prepared.heads.heads == 1:
        mixing = product(product(prepared.score_forms[..., 0, :, :], second_moment), prepared.value_sum)
    else:
        mixing = (prepared.score_forms @ second_moment[:, None] @ prepared.value_maps).sum(dim=-3)
    log_ratio = 2 * state.log_size + 3 * state.log_ratio - math.log(state.count)
    common = mapped_common(state, prepared)
    return normal_form(common, product(residual, mixing), state.log_size, log_ratio, state.reference)


def _cubic(state: Split, prepared: Prepared, mean: Tensor, row_specific: Tensor) -> Split:
    """Row-common part into the common part, row-specific part at relative scale e^(2K + 3l)."""
    shift = combine(mean, prepared.heads.output)[:, 0, :]
    common = mapped_common(state, prepared) + state.log_ratio.exp()[:, None] * shift
    log_ratio = 2 * state.log_size + 3 * state.log_ratio
    mixed = combine(row_specific, prepared.heads.output)
    return normal_form(common, mixed, state.log_size, log_ratio, state.reference)


def _rebuilt(state: Split, common: Tensor, residual: Tensor) -> Split:
    return normal_form(common, residual, state.log_size, state.log_ratio, state.reference)


def mapped_common(state: Split, prepared: Prepared) -> Tensor:
    """The common part through all value and output maps, biases included, in units of e^K."""
    out = product(state.common[:, None, :], prepared.value_sum)[:, 0]
    if not prepared.biased:
        return out
    heads, unit = prepared.heads, (-state.log_size).exp()[:, None]
    if heads.value_bias is not None:
        value_bias = heads.value_bias.repeat_interleave(heads.heads // heads.groups, dim=-2)[..., None, :]
        out = out + unit * combine(value_bias, heads.output)[..., 0, :]
    return out if heads.output_bias is None else out + unit * heads.output_bias


def row_specific_bound(state: Split, prepared: Prepared, projected: Projected) -> Tensor:
    """No row-specific score e^2(K+l) D_ij exceeds this (b,)."""
    lengths = [torch.linalg.vector_norm(one, dim=-1).amax(dim=-1) for one in projected[:2]]
    scale = prepared.scale.abs()[..., 0, 0] if isinstance(prepared.scale, Tensor) else abs(prepared.scale)
    return (2 * (state.log_size + state.log_ratio)).exp() * (lengths[0] * lengths[1] * scale).amax(dim=-1)


def _common_query(state: Split, prepared: Prepared) -> Tensor:
    heads = prepared.heads
    query = project((state.log_size.exp()[:, None] * state.common)[:, None, :], heads.query)[..., 0, :]
    return query if heads.query_bias is None else query + heads.query_bias


def _row_common_weights(state: Split, prepared: Prepared, key: Tensor) -> Tensor:
    """a = softmax(e^l c): (b, h, 1, n)."""
    small = (state.log_size + state.log_ratio).exp()[:, None, None, None]
    score = _common_query(state, prepared)[..., None, :] @ (small * key).mT * prepared.scale
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
