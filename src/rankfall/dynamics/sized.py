"""Tokens of different sizes in nearly one direction, and attention with a sink on them, exact far below epsilon.

A sink of logit s takes e^s of every softmax's total, and of some rows more than of others: tokens become parallel,
not equal. They are carried as a size times a direction,

    x_i = c_i y_i,     Y = e^K (1 m^T + e^l R) split as ever,     c_i = exp(e^g G_i).

With a_ij the weights and b_ij = a_ij c_j / sum_k a_ik c_k, whose rows sum to one, a layer of one head is

    y_i' = sum_j b_ij y_j W,     c_i' = sum_j a_ij c_j:

the differences of directions are averaged as without a sink, and the sink is seen by the sizes alone. Where every
token sees every token, rows of B agree up to products of differences, and both parts are told apart from the longest
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rankfall.dynamics.mixing import Mixer
from rankfall.dynamics.split import LEAST, Split, joined, normal_form, split, split_norm
from rankfall.dynamics.split_attention import LOST_SHARE, DigitsLostError
from rankfall.dynamics.weights import PreparedHeads, take_heads
from rankfall.norms import UNIT_NORM

# Below this expm1(x) and log1p(x) are x (1 +- x/2) to the last digit.
TINY = 1e-8
# Rows whose scores differ by less are told apart from one of them; others differ by themselves.
MOST_ALIKE = 1.0
# Of a row that leaves less than this to all keys but one, differences drown in the rounding of that one.
LEAST_TAIL = 1e-10


@final
@dataclass(frozen=True)
class Sized:
    """A batch of token matrices as sizes times directions.

    directions        Y, split
    sizes (b, n)      G, the largest in absolute value 1, or all 0
    log_spread (b,)   g; -inf where all tokens have one size
    """

    directions: Split
    sizes: Tensor
    log_spread: Tensor

    @classmethod
    def of(cls, tokens: Tensor, reference: Tensor) -> Sized:
        """Ordinary tokens (b, n, d): directions as they are, sizes one."""
        state = split(tokens, reference)
        sizes = torch.zeros_like(state.residual[..., 0])
        return cls(state, sizes, torch.full_like(state.log_size, -torch.inf))

    def tokens(self) -> Split:
        """The tokens themselves, split: mu is exact as well, with no cancellation between sizes."""
        apart = about_the_longest(self)
        return normal_form(apart.first, apart.difference, apart.log_size, apart.log_ratio, self.directions.reference)

    def take(self, index: Tensor) -> Sized:
        """The samples at these places."""
        return Sized(self.directions.take(index), self.sizes[index], self.log_spread[index])


@final
@dataclass(frozen=True)
class Apart:
    """Everything told apart from the longest token: x_i = e^log_size (first + e^log_ratio difference_i).

    first (b, d), difference (b, n, d) with entries of order one, log_size and log_ratio (b,); place (b,) is where the
    longest stands; log_share (b, n) is log c_i less that of the longest, e^log_excess excess = c_i / c_longest - 1.
    """

    place: Tensor
    first: Tensor
    difference: Tensor
    log_size: Tensor
    log_ratio: Tensor
    log_share: Tensor
    excess: Tensor
    log_excess: Tensor


def about_the_longest(state: Sized) -> Apart:
    """The same tokens, told apart from the one of the largest size."""
    own, sizes = state.directions, state.sizes
    place = sizes.argmax(dim=-1)
    largest = sizes.gather(-1, place[:, None])
    spread = state.log_spread.exp()[:, None]
    shorter = sizes - largest
    log_share = torch.where(shorter < 0, spread * shorter, 0.0)
    log_excess = _log_excess(log_share, shorter, state.log_spread)
    excess = _over(log_share.expm1(), log_share, shorter, state.log_spread, log_excess)
    at = place[:, None, None].expand(-1, 1, own.residual.shape[-1])
    first = own.common + own.log_ratio.exp()[:, None] * own.residual.gather(-2, at)[:, 0]
    turned = own.residual - own.residual.gather(-2, at)
    log_turned = own.log_ratio + turned.abs().amax(dim=(-2, -1)).log()
    log_ratio = torch.maximum(log_excess, log_turned)
    log_ratio = log_ratio.where(log_ratio > -torch.inf, 0.0)
    difference = (excess * (log_excess - log_ratio).exp()[:, None])[..., None] * first[:, None, :] + (
        log_share + (own.log_ratio - log_ratio)[:, None]
    ).exp()[..., None] * turned
    log_size = own.log_size + torch.where(largest[:, 0] != 0, spread[:, 0] * largest[:, 0], 0.0)
    return Apart(place, first, difference, log_size, log_ratio, log_share, excess, log_excess)


def sink_attention(state: Sized, prepared: PreparedHeads, mixer: Mixer, sink: float) -> Sized:
    """One layer of one head without biases: A X W_V with a sink of that logit, norm and residual left to others."""
    apart = about_the_longest(state)
    if not mixer.complete:
        return _rows_apart(state, apart, prepared, mixer, sink)
    strength = _row_strength(apart, prepared)
    sharp = strength >= MOST_ALIKE
    if not bool(sharp.any()):
        return _rows_alike(state, apart, prepared, sink)
    parts, places = [], []
    for chosen in (sharp, ~sharp):
        index = chosen.nonzero()[:, 0]
        if len(index) == 0:
            continue
        some, own = state.take(index), PreparedHeads(take_heads(prepared.heads, index))
        about = about_the_longest(some)
        if chosen is sharp:
            parts.append(_rows_apart(some, about, own, mixer, sink))
        else:
            parts.append(_rows_alike(some, about, own, sink))
        places.append(index)
    return _merged(parts, places)


def _rows_apart(state: Sized, apart: Apart, prepared: PreparedHeads, mixer: Mixer, sink: float) -> Sized:
    """By plain weights: exact as soon as tokens see different sets."""
    own = state.directions
    turned = apart.difference @ prepared.only_score_form
    first = apart.first[:, None, :] @ prepared.only_score_form
    # Scores less that of the longest token with itself, which all have in common: no difference is lost in it.
    scores = (2.0 * apart.log_size + apart.log_ratio).exp()[:, None, None] * (
        turned @ apart.first[..., None]
        + first @ apart.difference.mT
        + apart.log_ratio.exp()[:, None, None] * (turned @ apart.difference.mT)
    )
    shared = (2.0 * apart.log_size).exp() * (first[:, 0] * apart.first).sum(dim=-1)
    allowed = mixer.masks[0].dense(mixer.n, mixer.device)
    scores = scores.masked_fill(~allowed, -torch.inf)
    weights = torch.softmax(scores + apart.log_share[:, None, :], dim=-1)
    value = own.residual @ prepared.value_sum
    mixed = weights @ value
    _require_digits(_lost(mixed - mixed[:, :1], mixed))
    common = (own.common[:, None, :] @ prepared.value_sum)[:, 0]
    directions = normal_form(common, mixed, own.log_size, own.log_ratio, own.reference)
    # log c_i' = log sum_j p_ij c_j - log(1 + e^s / Z_i), p the softmax without a sink and Z_i its total.
    log_degree, log_mean = _log_total(scores, allowed)
    kept, by_sizes, log_unit = _log_means(scores, apart)
    longest = apart.place[:, None]
    own_degree, own_mean = log_degree.gather(-1, longest), log_mean.gather(-1, longest)
    further = (log_degree - own_degree) + (log_mean - own_mean)
    against = own_degree + own_mean + shared[:, None] - sink
    log_left = logsigmoid(against)
    near = further.clamp(-1.0, 1.0)
    by_sink = torch.where(
        further.abs() < 1.0,
        near - torch.log1p(torch.sigmoid(against) * near.expm1()),
        logsigmoid(against + further) - log_left,
    )
    by_sizes = by_sizes - by_sizes.gather(-1, longest)
    log_kept = kept.gather(-1, longest)[:, 0] + log_left[:, 0]
    scale = torch.maximum(log_unit, by_sink.abs().amax(dim=-1).log())
    scale = scale.where(scale > -torch.inf, 0.0)
    sizes = by_sink * (-scale).exp()[:, None] + by_sizes * (log_unit - scale).exp()[:, None]
    return _sized(directions, sizes, scale, apart.log_size - own.log_size + log_kept)


def _log_means(scores: Tensor, apart: Apart) -> tuple[Tensor, Tensor, Tensor]:
    """log sum_j p_ij c_j: as it is (b, n), and once more in units of e^u (b, n), u (b,).

    While sizes are alike it is log1p of the mean excess, which keeps its digits however small.
    """
    log_weights = torch.log_softmax(scores, dim=-1)
    plain = torch.logsumexp(log_weights + apart.log_share[:, None, :], dim=-1)
    mean = (log_weights.exp() @ apart.excess[..., None])[..., 0]
    grown = apart.log_excess.exp()[:, None] * mean
    small = grown.abs() > TINY
    fine = torch.where(small, torch.log1p(grown) / apart.log_excess.exp()[:, None], mean * (1 - grown / 2))
    alike = (apart.log_share.amin(dim=-1) > -0.5)[:, None]
    unit = apart.log_excess.where(alike[:, 0], 0.0)
    return torch.where(alike, torch.log1p(grown), plain), torch.where(alike, fine, plain), unit


def _log_total(scores: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """log sum_j e^score_ij in two parts, log degree and the rest, which keeps its digits where scores are small."""
    degrees = allowed.sum(dim=-1).double().expand(scores.shape[:-1])
    log_degrees = degrees.log()
    seen = torch.where(allowed, scores, 0.0)
    mean = seen.clamp(-1.0, 1.0).expm1().sum(dim=-1) / degrees
    small = seen.abs().amax(dim=(-2, -1)) < 1.0
    return log_degrees, torch.where(small[:, None], torch.log1p(mean), torch.logsumexp(scores, dim=-1) - log_degrees)


def _rows_alike(state: Sized, apart: Apart, prepared: PreparedHeads, sink: float) -> Sized:
    """Under the complete mask: what row i has beyond that of the longest token, without a cancellation.

    Scores of row i less those of the longest are e^(2K + h) d_i M (f + e^h d_j), in e^h d_i what sets tokens apart
    and f the longest. Of them B does not see what is the same along the row; the sizes do, because of the sink.
    """
    own = state.directions
    turned = apart.difference @ prepared.only_score_form
    scale = 2.0 * apart.log_size + apart.log_ratio
    along = (turned * apart.first[:, None, :]).sum(dim=-1)
    across = turned @ apart.difference.mT
    first = (apart.first[:, None, :] @ prepared.only_score_form)[:, 0]
    row = (first * apart.first).sum(dim=-1, keepdim=True)
    row = (2.0 * apart.log_size).exp()[:, None] * (
        row + apart.log_ratio.exp()[:, None] * (apart.difference @ first[..., None])[..., 0]
    )
    shares = torch.softmax(row + apart.log_share, dim=-1)
    total = torch.logsumexp(row, dim=-1, keepdim=True)
    taken = (row - torch.logaddexp(total, torch.full_like(total, sink))).exp()
    # Directions: rows of B.
    at = apart.place[:, None, None].expand(-1, 1, own.residual.shape[-1])
    rest = own.residual - own.residual.gather(-2, at)
    mean = shares[:, None, :] @ rest
    grown, unit = _over_unit(across, scale + apart.log_ratio)
    weighted = grown * shares[:, None, :]
    mixed = (weighted @ (rest - mean)) / (1.0 + unit[:, None, None] * weighted.sum(dim=-1, keepdim=True))
    drowned = (1.0 - shares.amax(dim=-1) < LEAST_TAIL) & (own.log_ratio > -torch.inf)
    _require_digits(drowned | _lost(mixed, (weighted.abs() @ (rest - mean).abs())))
    common = apart.first + own.log_ratio.exp()[:, None] * mean[:, 0]
    directions = normal_form(
        (common[:, None, :] @ prepared.value_sum)[:, 0],
        mixed @ prepared.value_sum,
        own.log_size,
        own.log_ratio + scale + apart.log_ratio,
        own.reference,
    )
    # Sizes: sum_j a_ij c_j, in which a row of larger scores gives less to the sink.
    grown, unit = _over_unit(along[..., None] + apart.log_ratio.exp()[:, None, None] * across, scale)
    excess = apart.log_excess.exp()[:, None] * apart.excess
    left = 1.0 - taken.sum(dim=-1, keepdim=True)
    mean_excess = (taken * excess).sum(dim=-1, keepdim=True)
    kept = 1.0 - left + mean_excess
    more = taken * (left + excess - mean_excess) / kept
    by_row = (grown @ more[..., None])[..., 0] / (1.0 + unit[:, None] * (grown @ taken[..., None])[..., 0])
    grown_row = unit[:, None] * by_row
    sizes = torch.where(
        grown_row.abs() > TINY, torch.log1p(grown_row) / unit[:, None], by_row * (1.0 - grown_row / 2)
    )
    return _sized(directions, sizes, scale, apart.log_size - own.log_size + kept[:, 0].log())


def _row_strength(apart: Apart, prepared: PreparedHeads) -> Tensor:
    """The most by which a score differs between rows, (b,)."""
    turned = apart.difference @ prepared.only_score_form
    longest = apart.first[:, None, :] + apart.log_ratio.exp()[:, None, None] * apart.difference
    scale = (2.0 * apart.log_size + apart.log_ratio).exp()
    return scale * (turned @ longest.mT).abs().amax(dim=(-2, -1))


def _over_unit(value: Tensor, log_unit: Tensor) -> tuple[Tensor, Tensor]:
    """expm1(u value) / u with u = e^log_unit, which may be zero as a number; and u."""
    unit = log_unit.exp()
    grown = unit.reshape(-1, *(1,) * (value.ndim - 1)) * value
    return torch.where(grown.abs() > TINY, grown.expm1() / (grown / value), value * (1.0 + grown / 2)), unit


def _over(grown: Tensor, exponent: Tensor, shorter: Tensor, log_spread: Tensor, log_unit: Tensor) -> Tensor:
    """expm1(e^g G) / e^u, by its first terms where e^g G is too small to be told from zero."""
    linear = shorter * (1.0 + exponent / 2) * (log_spread - log_unit).exp()[:, None]
    found = torch.where(exponent.abs() > TINY, grown * (-log_unit).exp()[:, None], linear)
    return found.where(shorter < 0, 0.0)


def _log_excess(log_share: Tensor, shorter: Tensor, log_spread: Tensor) -> Tensor:
    """log of the largest |c_i / c_longest - 1|; -inf where all sizes agree."""
    most = -log_share.amin(dim=-1)
    linear = log_spread + (-shorter.amin(dim=-1)).log()
    return torch.where(most > TINY, (-(-most).expm1()).log(), linear)


def _require_digits(lost: Tensor) -> None:
    if bool(lost.any()):
        raise DigitsLostError(lost.nonzero()[:, 0])


def _lost(found: Tensor, terms: Tensor) -> Tensor:
    """Whether sums (b, ...) cancelled down to the rounding of their terms."""
    most = [one.abs().amax(dim=tuple(range(1, one.ndim))) for one in (found, terms)]
    return most[0] < LOST_SHARE * most[1]


def _sized(directions: Split, sizes: Tensor, log_unit: Tensor, log_grown: Tensor) -> Sized:
    top = sizes.abs().amax(dim=-1)
    grown = replace(directions, log_size=directions.log_size + log_grown)
    return Sized(grown, sizes / top.clamp_min(LEAST)[:, None], log_unit + top.log())


def _merged(parts: Sequence[Sized], places: Sequence[Tensor]) -> Sized:
    order = torch.cat(list(places)).argsort()
    whole = Sized(
        joined([part.directions for part in parts]),
        *(torch.cat([getattr(part, one.name) for part in parts]) for one in fields(Sized)[1:]),
    )
    return whole.take(order)


def log_unit_relative_mu(directions: Split) -> Tensor:
    """log relative mu of the tokens scaled to length one: their sizes play no part."""
    return split_norm(directions, UNIT_NORM).log_relative_mu()
