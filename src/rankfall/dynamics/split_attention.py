"""Attention on split tokens.

Scores matter only up to what is the same along a row, so the common part of the keys drops out:

    score_ij = <q_i, k_j> = row constant + e^l c_j + e^2l D_ij,   c_j = <m W_q, r_j W_k>,   D_ij = <r_i W_q, r_j W_k>

(sizes e^K and biases included in the code). Rows of A sum to one, so A X = 1 m^T + e^l A R, with no cancellation for
any mask under which tokens see different sets. Under the complete mask all rows of A agree up to e^2l, and A R up to
that is common: `complete_attention` splits A = a + e^2l delta exactly and carries delta R at the scale e^3l.

Sharp attention can make all rows agree at once, when every token attends to the same key t. Then A R = 1 R_t^T +
tails, and the tails, weights of e^-700 and less on R_j - R_t, are all that is left: they get a logarithmic scale of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.dynamics.decisions import decide, require_looking
from rankfall.dynamics.kernels import Gathered, block_attend, block_average, one_map_per_token
from rankfall.dynamics.mixing import Mixer, SampleGroup
from rankfall.dynamics.split import Split, add, merge, normal_form, split_norm
from rankfall.dynamics.step import PURE_ATTENTION, Rule
from rankfall.dynamics.weights import PreparedHeads, take_heads
from rankfall.mechanism.heads import Heads, combine

# Up to here row-specific scores go through expm1 without overflow (they are up to four times as large when rows and
# keys are told apart from one of them); beyond, rows differ unless all attend to one key.
ROWS_ALIKE = 150.0
# Where every row gives one key more than this, what the rows have in common would hide their differences.
SHARED_KEY = 0.5
# A sum smaller than this share of its terms has fewer than four digits left.
LOST_SHARE = 1e-12
EPSILON = torch.finfo(torch.float64).eps
# expm1 needs e^2(K+l) as a number.
LEAST_SQUARE = 1e-290
# exp(x) is 1 to the last digit for scores below this; what is smaller than this share is lost in a sum.
NEGLIGIBLE = 1e-17
NEGLIGIBLE_LOG = math.log(NEGLIGIBLE)


class DigitsLostError(ArithmeticError):
    """A layer whose result float64 cannot tell, in these samples of the batch."""

    def __init__(self, samples: Tensor) -> None:
        super().__init__(samples)
        self.samples = samples


@contextmanager
def _numbered(index: Tensor) -> Iterator[None]:
    """Samples that are `index` of a larger batch have its numbers in what is raised."""
    try:
        yield
    except DigitsLostError as lost:
        raise DigitsLostError(index[lost.samples]) from None


def split_attention(state: Split, prepared: PreparedHeads, mixer: Mixer) -> Split:
    """Sum over heads of A_h X V_h, split: (b, n, d) to (b, n, o)."""
    if prepared.biased:
        state = _at_least_unit_size(state)
    flat = decide(scores_negligible(state.log_size, state.log_ratio, [prepared]).all())
    if mixer.complete:
        return _flat_complete(state, prepared) if flat else complete_attention(state, prepared, mixer)
    if mixer.by_kernel(state.residual):
        if flat:
            found = block_average(state.residual, prepared.value_sum, mixer.blocks, state.reference)
            return _rebuilt(state, prepared, *found)
        if one_map_per_token(prepared.heads):
            return _rows_apart_by_kernel(state, prepared, mixer)
    if flat:
        return _rebuilt(state, prepared, mixer.average(state.residual @ prepared.value_sum))
    return _rows_apart(state, prepared, prepared.project(state.residual), mixer)


def _rows_apart(state: Split, prepared: PreparedHeads, projected: Tensor, mixer: Mixer) -> Split:
    """A R by a plain softmax: exact as soon as rows of A differ; about the shared key where they attend to one."""
    query, key, value = prepared.parts(projected)
    small = _each(state.log_size + state.log_ratio)
    query, key = torch.addcmul(_common_query(state, prepared), small, query), small * key
    weights = mixer.weights(query, key)
    if weights is None:  # along a narrow band no key is seen by all
        mixed = mixer.attend(query, key, value)
        apart = (mixed - mixed[..., :1, :]).abs().amax(dim=(-3, -2, -1))
        _require_share(apart, _rounded_along_a_band(state, value.abs().amax(dim=(-3, -2, -1))))
        return _rebuilt(state, prepared, _combined(mixed, prepared))
    if decide((weights.amin(dim=-2).amax(dim=-1) > SHARED_KEY).any()):
        return _about_the_shared_key(state, prepared, mixer.log_weights(query, key), value)
    mixed = weights @ value
    # The residual of a token that is itself the reference is zero, and no rounding is in it.
    rounded = (weights @ (state.reference < 1).double()[:, None, :, None]).amax(dim=(-3, -2, -1))
    _require_digits(mixed - mixed[..., :1, :], rounded * value.abs().amax(dim=(-3, -2, -1)))
    return _rebuilt(state, prepared, _combined(mixed, prepared))


def _rows_apart_by_kernel(state: Split, prepared: PreparedHeads, mixer: Mixer) -> Split:
    """`_rows_apart` by one kernel, which tells what the choice between its forms needs."""
    small, query = (state.log_size + state.log_ratio).exp(), _common_query(state, prepared)
    residual, known, told = block_attend(state.residual, prepared, query, small, mixer.blocks, state.reference)
    if mixer.blocks.whole:
        most_shared, apart, rounded = told
        if decide((most_shared > SHARED_KEY).any()):
            return _rows_apart(state, prepared, prepared.project(state.residual), mixer)
        _require_share(apart, rounded)
    else:
        _require_share(known.farthest_from(residual[:, 0]), _rounded_along_a_band(state, told.amax(dim=-1)))
    return _rebuilt(state, prepared, residual, known)


def _rounded_along_a_band(state: Split, largest: Tensor) -> Tensor:
    """Size of the values (b,) that may be rounded, of which `largest` is the largest.

    Only about a mean are residuals rounded beside larger ones; about a root each has digits of its own.
    """
    return (state.reference < 1).all(dim=-1) * largest


def _about_the_shared_key(state: Split, prepared: PreparedHeads, log_weights: Tensor, value: Tensor) -> Split:
    """A R = 1 R_t^T + sum over j of a_ij (R_j - R_t), the weights scaled by the largest of all tails."""
    shared = log_weights.amin(dim=-2).argmax(dim=-1)[..., None]
    log_tails = log_weights.scatter(-1, shared[..., None, :].expand(*log_weights.shape[:-1], 1), -torch.inf)
    log_scale = _finite(log_tails.amax(dim=(-3, -2, -1)))
    own = _rows_at(value, shared)
    weights = (log_tails - log_scale[:, None, None, None]).exp()
    tails = weights @ (value - own)
    _require_digits(tails, weights.sum(dim=-1).amax(dim=(-2, -1)) * value.abs().amax(dim=(-3, -2, -1)))
    common = mapped_common(state, prepared) + state.log_ratio.exp()[:, None] * _combined(own, prepared)[:, 0]
    residual = _combined(tails, prepared)
    return normal_form(common, residual, state.log_size, state.log_ratio + log_scale, state.reference)


def complete_attention(state: Split, prepared: PreparedHeads, mixer: Mixer) -> Split:
    """Attention of all to all, by the form that is exact for the size of each sample's residual."""
    projected = prepared.project(state.residual)
    shrunk = (2.0 * (state.log_size + state.log_ratio)).exp()
    bound = shrunk * row_specific_strength(prepared, projected)
    least, most = bound.aminmax()
    if decide(most < NEGLIGIBLE):
        return _linear(state, prepared, projected)
    if decide((most < ROWS_ALIKE) & (shrunk.amin() > LEAST_SQUARE)):
        return _nearly_alike(state, prepared, projected)
    if decide(least >= ROWS_ALIKE):
        return _rows_apart(state, prepared, projected, mixer)
    return _each_by_its_form(state, prepared, projected, mixer, bound)


def _each_by_its_form(state: Split, prepared: PreparedHeads, projected: Tensor, mixer: Mixer, bound: Tensor) -> Split:
    """A batch whose samples stand at different sizes, parted and put together again."""
    require_looking("samples by different forms")
    apart, negligible = bound >= ROWS_ALIKE, bound < NEGLIGIBLE
    parts, places = [], []
    for chosen in (apart, negligible, ~(apart | negligible)):
        index = chosen.nonzero()[:, 0]
        if len(index) == 0:
            continue
        some, own, seen = state.take(index), PreparedHeads(take_heads(prepared.heads, index)), projected[index]
        if chosen is apart:
            form: Callable[[Split, PreparedHeads, Tensor], Split] = partial(_rows_apart, mixer=mixer)
        else:
            form = _linear if chosen is negligible else _nearly_alike
        with _numbered(index):
            parts.append(form(some, own, seen))
        places.append(index)
    return merge(parts, places)


def _nearly_alike(state: Split, prepared: PreparedHeads, projected: Tensor) -> Split:
    """Row i less the first: sum_j a_j expm1(x_ij) (v_j - mean) / sum_j a_j e^x_ij.

    x_ij = e^2(K+l) <q_i - q_0, k_j - k_t> is what sets its scores apart, t the key with most weight in the first row.
    The denominator is at least a_t, the largest weight.
    """
    query, tails, log_tail, mean, key, value = _about_the_first_row(state, prepared, projected)
    shrunk = _each(2.0 * (state.log_size + state.log_ratio))
    excess = ((shrunk * query) @ key.mT).expm1_()
    tails = tails.mT
    total = (excess @ tails).mul_(log_tail.exp()[:, None, None, None]).add_(1.0)
    numerator = excess @ (tails * value)
    # Rounding is in the values and, for keys that agree, in scores that should be smaller still.
    strength = shrunk * row_specific_strength(prepared, projected)[:, None, None, None]
    apart = value.abs().amax(dim=-1, keepdim=True) + EPSILON
    rounded = excess.abs() @ tails + strength * ((excess + 1.0) @ (tails * apart))
    _require_digits(numerator, rounded.amax(dim=(-3, -2, -1)) * projected.abs().amax(dim=(-3, -2, -1)))
    return _cubic(state, prepared, mean, numerator.div_(total.mul_(shrunk)), log_tail)


def _linear(state: Split, prepared: PreparedHeads, projected: Tensor) -> Split:
    """expm1(x) = x: delta R = (R W_q) Cov_a(R W_k, R V), at the cost of n r v rather than n^2."""
    query, tails, log_tail, mean, key, value = _about_the_first_row(state, prepared, projected)
    return _cubic(state, prepared, mean, query @ ((key * tails.mT).mT @ value), log_tail)


def _flat_complete(state: Split, prepared: PreparedHeads) -> Split:
    """`_linear` with uniform row-common weights, whose share of the common part is lost in rounding."""
    log_ratio = 2.0 * state.log_size + 3.0 * state.log_ratio - math.log(state.count)
    residual = state.residual @ cubic_mixing(state.residual, prepared)
    return normal_form(mapped_common(state, prepared), residual, state.log_size, log_ratio, state.reference)


def _about_the_first_row(
    state: Split, prepared: PreparedHeads, projected: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The first row's attention a, with most weight on key t, and everything told apart from it.

    Queries less the first; weights on all keys but t, (b, h, 1, n), divided by e^L; L (b,); the mean value under a;
    keys less that of t; values less their mean.
    """
    query, key, value = prepared.parts(projected)
    small = _each(state.log_size + state.log_ratio)
    first = torch.addcmul(_common_query(state, prepared), small, query[..., :1, :])
    scores = (small * first) @ key.mT
    log_weights = torch.log_softmax(scores, dim=-1)
    top = log_weights.argmax(dim=-1)
    log_tails = log_weights.scatter(-1, top[..., None], -torch.inf)
    log_tail = _finite(log_tails.amax(dim=(-3, -2, -1)))
    tails = (log_tails - log_tail[:, None, None, None]).exp()
    own, flat_mean = _rows_at(value, top), _mean_under_flat_scores(scores, value, state.reference)
    value = value - own
    offset = log_tail.exp()[:, None, None, None] * (tails @ value)
    mean = flat_mean.where(scores.abs().amax(dim=-1, keepdim=True) < 1.0, own + offset)
    return query - query[..., :1, :], tails, log_tail, mean, key - _rows_at(key, top), value - offset


def _mean_under_flat_scores(scores: Tensor, value: Tensor, reference: Tensor) -> Tensor:
    """Mean of the values under the softmax of small scores, exact also where it is far smaller than they are.

    v' + sum_j expm1(s_j) (v_j - v') / sum_j e^s_j, v' their plain mean, which is exactly zero where the mean token is
    the reference: tokens balanced about zero stay so.
    """
    plain = (1 / reference.shape[-1] - reference)[:, None, None, :] @ value
    return plain + (scores.expm1() @ (value - plain)) / scores.exp().sum(dim=-1, keepdim=True)


def _require_digits(found: Tensor, terms: Tensor) -> None:
    """Refuse sums (b, ...) that cancelled down to the rounding of their terms, of which (b,) are the largest.

    Tokens that agree to sixteen digits while others differ, and then all join at once: their differences, which
    would decide, are of a scale that one residual cannot carry beside the others.
    """
    _require_share(found.abs().amax(dim=(-3, -2, -1)), terms)


def _require_share(found: Tensor, terms: Tensor) -> None:
    """The same of sums whose largest is known, (b,)."""
    lost = found < LOST_SHARE * terms
    if decide(lost.any()):
        raise DigitsLostError(lost.nonzero()[:, 0])


def _rows_at(rows: Tensor, place: Tensor) -> Tensor:
    """The row at that place in every head: (b, h, n, f) and (b, h, 1) to (b, h, 1, f)."""
    return rows.gather(-2, place[..., None].expand(*place.shape, rows.shape[-1]))


def _finite(logarithm: Tensor) -> Tensor:
    """Zero instead of -inf, where there is nothing to scale by."""
    return logarithm.where(logarithm > -torch.inf, 0.0)


def _cubic(state: Split, prepared: PreparedHeads, mean: Tensor, row_specific: Tensor, log_tail: Tensor) -> Split:
    """Row-common part into the common part, row-specific part at relative scale e^(2K + 3l + L)."""
    common = mapped_common(state, prepared) + state.log_ratio.exp()[:, None] * _combined(mean, prepared)[:, 0]
    log_ratio = 2.0 * state.log_size + 3.0 * state.log_ratio + log_tail
    return normal_form(common, _combined(row_specific, prepared), state.log_size, log_ratio, state.reference)


def _rebuilt(state: Split, prepared: PreparedHeads, residual: Tensor, known: Gathered | None = None) -> Split:
    common = mapped_common(state, prepared)
    return normal_form(common, residual, state.log_size, state.log_ratio, state.reference, known)


def _combined(mixed: Tensor, prepared: PreparedHeads) -> Tensor:
    """Sum over heads of each head's output map: (b, h, n, v) to (b, n, o)."""
    output = prepared.heads.output
    return mixed[:, 0] if output is None and mixed.shape[1] == 1 else combine(mixed, output)


def mapped_common(state: Split, prepared: PreparedHeads) -> Tensor:
    """The common part through all value and output maps, biases included, in units of e^K."""
    out = (state.common[:, None, :] @ prepared.value_sum)[:, 0]
    if not prepared.biased:
        return out
    heads, unit = prepared.heads, (-state.log_size).exp()[:, None]
    if heads.value_bias is not None:
        value_bias = heads.value_bias.repeat_interleave(heads.heads // heads.groups, dim=-2)[..., None, :]
        out = out + unit * combine(value_bias, heads.output)[..., 0, :]
    return out if heads.output_bias is None else out + unit * heads.output_bias


def row_specific_strength(prepared: PreparedHeads, projected: Tensor) -> Tensor:
    """No D_ij exceeds this (b,)."""
    query, key, _ = prepared.parts(projected)
    lengths = [torch.linalg.vector_norm(one, dim=-1).amax(dim=-1) for one in (query, key)]
    return (lengths[0] * lengths[1]).amax(dim=-1)


def _common_query(state: Split, prepared: PreparedHeads) -> Tensor:
    """The common part's query in every head: (b, h, 1, r)."""
    query = (state.log_size.exp()[:, None] * state.common)[:, None, None, :] @ prepared.query
    return query if prepared.query_bias is None else query + prepared.query_bias[..., None, :]


def _each(logarithm: Tensor) -> Tensor:
    """One factor per sample, shaped to multiply (b, h, n, r)."""
    return logarithm.exp()[:, None, None, None]


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


def scores_negligible(log_size: Tensor, log_ratio: Tensor, prepared: Sequence[PreparedHeads]) -> Bool[Tensor, ...]:
    """Whether under none of these weights a score differs from its row's constant by what float64 could see."""
    return log_score_gap(log_size, log_ratio, prepared) < NEGLIGIBLE_LOG


def log_score_gap(log_size: Tensor, log_ratio: Tensor, prepared: Sequence[PreparedHeads]) -> Float[Tensor, ...]:
    """No score under these weights differs from its row's constant by more than e to this."""
    by_tokens = 2.0 * log_size + log_ratio + (math.log(2) + max(one.log_strength for one in prepared))
    by_bias = max(one.log_bias_strength for one in prepared)
    if by_bias == -math.inf:
        return by_tokens
    return torch.maximum(by_tokens, log_size + log_ratio + by_bias) + math.log(2)


def cubic_mixing(residual: Tensor, prepared: PreparedHeads) -> Tensor:
    """The (..., d, d) matrix M of a layer of all-to-all attention: delta R = R M / n.

    The residual is centred here (the mean is the reference of every strongly connected mask), so that the covariance
    is R^T R / n and delta R = R (sum_h W_q W_k^T (R^T R / n) V_h): all heads in one product of d x d matrices.
    """
    second_moment = residual.mT @ residual
    if prepared.heads.heads == 1:
        return prepared.only_score_form @ second_moment @ prepared.value_sum
    return (prepared.score_forms @ second_moment[..., None, :, :] @ prepared.value_maps).sum(dim=-3)


def split_step(state: Split, heads: Heads, groups: list[SampleGroup], rule: Rule = PURE_ATTENTION) -> Split:
    """X' = norm(residual X + A X W_V); residual X + A norm(X) W_V where the norm stands in front; residual X +
    norm(A norm(X) W_V) where it stands on both sides."""
    normed = state if rule.placement == "post" else split_norm(state, rule.norm)
    mixed = _attend(normed, heads, groups)
    if rule.placement == "peri":
        mixed = split_norm(mixed, rule.norm)
    if rule.residual != 0:
        mixed = add(state, mixed, rule.residual)
    return split_norm(mixed, rule.norm) if rule.placement == "post" else mixed


def _attend(state: Split, heads: Heads, groups: list[SampleGroup]) -> Split:
    if len(groups) == 1:
        return split_attention(state, groups[0].prepared(heads), groups[0].mixer)
    parts, places = [], []
    for group in groups:
        assert group.index is not None
        with _numbered(group.index):
            parts.append(split_attention(state.take(group.index), group.prepared(heads), group.mixer))
        places.append(group.index)
    return merge(parts, places)
