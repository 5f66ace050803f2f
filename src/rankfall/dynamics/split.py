"""Tokens as a common part plus a residual with its own logarithmic scale: exact far below machine epsilon.

X = e^K (1 m^T + e^l R). Subtracting a mean from tokens that agree to sixteen digits leaves rounding noise; here the
difference is carried on its own, so that log mu(X) = K + l + log ||R||_F is right at 10^-300 and beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.dynamics.decisions import decide
from rankfall.dynamics.kernels import Gathered, normal, spread, usable
from rankfall.errors import RequestError
from rankfall.mechanism.checks import check_finite, check_tokens
from rankfall.norms import Norm

# The least positive float64: dividing by it instead of by zero leaves zeros zero and nothing else changed.
LEAST = 5e-324
# A sum smaller than this share of one of its two terms is the rounding of both.
CANCELLED = 64 * torch.finfo(torch.float64).eps


@final
@dataclass(frozen=True)
class Split:
    """A batch of token matrices, split. Always in normal form:

    common (b, d)       m, the reference token, with max |m| <= 1
    residual (b, n, d)  R, what each token has beyond the reference, max |R| = 1 (all zero where tokens agree exactly)
    log_size (b,)       K, so that max(max |m|, e^l) = 1
    log_ratio (b,)      l <= 0; -inf where the residual is zero
    reference (b, n)    weights of the tokens in the reference token m, so that reference R = 0

    The mean token is a good reference when all tokens see each other in the long run. When only some tokens are
    roots, one of them must be the reference: chains of one-way masks amplify the rounding of a subtracted mean
    exponentially, while differences from the root never mix with larger ones behind them.
    """

    common: Tensor
    residual: Tensor
    log_size: Tensor
    log_ratio: Tensor
    reference: Tensor

    @property
    def batch(self) -> int:
        """How many token matrices."""
        return self.residual.shape[0]

    @property
    def count(self) -> int:
        """Tokens, n."""
        return self.residual.shape[-2]

    def tokens(self) -> Float[Tensor, "b n d"]:
        """The tokens as ordinary float64 numbers."""
        return self.log_size.exp()[:, None, None] * self.scaled_tokens()

    def scaled_tokens(self) -> Float[Tensor, "b n d"]:
        """The tokens divided by e^K: nothing over- or underflows."""
        return self.common[:, None, :] + self.log_ratio.exp()[:, None, None] * self.residual

    def centred(self) -> Float[Tensor, "b n d"]:
        """The residual about the mean token."""
        return self.residual - self.residual.mean(dim=-2, keepdim=True)

    def log_mu(self) -> Float[Tensor, b]:
        """log ||X - 1 1^T X / N||_F; -inf where all tokens are exactly equal."""
        return self.log_spread()[0]

    def log_relative_mu(self) -> Float[Tensor, b]:
        """log(mu(X) / ||X||_F); -inf where the tokens are equal or zero."""
        return self.log_spread()[1]

    def log_spread(self) -> tuple[Float[Tensor, b], Float[Tensor, b]]:
        """Both of the above."""
        one, other = self.spreads()
        return one, other

    def spreads(self) -> Float[Tensor, "2 b"]:
        """Both of the above in one tensor."""
        if usable(self.residual):
            return spread(self.common, self.residual, self.log_size, self.log_ratio)
        mean = self.residual.mean(dim=-2, keepdim=True)
        apart = self.log_ratio + torch.linalg.vector_norm(self.residual - mean, dim=(-2, -1)).log()
        centre = self.common + self.log_ratio.exp()[:, None] * mean[:, 0]
        total = centre.square().sum(dim=-1) * float(self.count) + (2.0 * apart).exp()
        length = 0.5 * total.clamp_min(torch.finfo(total.dtype).tiny).log()
        relative = torch.where(total > 0, apart - length, -torch.inf).clamp_max(0.0)
        return torch.stack([self.log_size + apart, relative])

    def take(self, index: Tensor | slice) -> Split:
        """The samples at these places."""
        return Split(*(getattr(self, field.name)[index] for field in fields(self)))


def split(
    tokens: Float[Tensor, "b n d"], reference: Float[Tensor, "b n"] | None = None, checked: bool = False
) -> Split:
    """Ordinary tokens, split; they are taken as exact float64 numbers. The default reference is the mean token."""
    check_tokens(tokens)
    if not checked:
        check_finite(tokens)
    wide = tokens.double()
    if reference is None:
        reference = torch.full_like(wide[..., 0], 1 / wide.shape[-2])
    if usable(wide):  # few launches matter more than numbers near the ends of float64, which no layer takes
        common, zero = torch.zeros_like(wide[:, 0]), wide.new_zeros(len(wide))
        return normal_form(common, wide.clone(), zero, zero, reference)
    largest = wide.abs().amax(dim=(-2, -1))
    largest = largest.where(largest > 0, 1.0)
    common = torch.zeros_like(wide[:, 0, :])
    zero = torch.zeros_like(largest)
    return normal_form(common, wide / largest[:, None, None], largest.log(), zero, reference)


def normal_form(
    common: Tensor,
    residual: Tensor,
    log_size: Tensor,
    log_ratio: Tensor,
    reference: Tensor,
    known: Gathered | None = None,
) -> Split:
    """The same tokens with the residual's reference moved into the common part and both parts scaled.

    Takes over the residual's memory: at this size a fresh copy costs more than the arithmetic. `known` is what a
    kernel gathered while it wrote the residual.
    """
    if usable(residual):
        return Split(*normal(common, residual, log_size, log_ratio, reference, known), reference)
    moved = reference[:, None, :] @ residual
    residual = residual.sub_(moved)
    added = log_ratio.exp()[:, None] * moved[:, 0]
    common = common + added
    largest = common.abs().amax(dim=-1)
    # What is left of a sum that cancelled is rounding, and would outlive a residual that shrinks faster.
    kept = largest > CANCELLED * added.abs().amax(dim=-1)
    common, largest = common.mul_(kept[:, None]), largest.mul_(kept)
    top = residual.abs().amax(dim=(-2, -1))
    log_ratio = log_ratio + top.log()
    log_growth = torch.maximum(largest.log(), log_ratio)
    log_growth = log_growth.where(log_growth > -torch.inf, 0.0)
    size = log_growth.exp().clamp_min_(LEAST)
    return Split(
        common / size[:, None],
        residual.div_(top.clamp_min_(LEAST)[:, None, None]),
        log_size + log_growth,
        log_ratio - log_growth,
        reference,
    )


def add(one: Split, other: Split, weight: float = 1.0) -> Split:
    """weight * one + other, without losing the smaller residual's digits unless the sum itself cancels."""
    log_size = torch.maximum(one.log_size, other.log_size)
    common = (
        weight * (one.log_size - log_size).exp()[:, None] * one.common
        + (other.log_size - log_size).exp()[:, None] * other.common
    )
    first, second = one.log_size + one.log_ratio, other.log_size + other.log_ratio
    scale = torch.maximum(first, second)
    scale = scale.where(scale > -torch.inf, log_size)
    residual = (
        weight * (first - scale).exp()[:, None, None] * one.residual
        + (second - scale).exp()[:, None, None] * other.residual
    )
    return normal_form(common, residual, log_size, scale - log_size, one.reference)


def joined(parts: Sequence[Split]) -> Split:
    """The samples of all parts, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    return Split(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Split)))


def merge(parts: Sequence[Split], places: Sequence[Tensor]) -> Split:
    """Put samples that were taken apart back into their places."""
    return joined(parts).take(torch.cat(list(places)).argsort())


# Residuals up to this share of the common part are normalised by the identity; larger ones lose no digits anyway.
NEAR = 0.1


def split_norm(state: Split, norm: Norm) -> Split:
    """The norm of every token, split again: exactly for scalings and norms with secants, else in plain float64."""
    if norm.identity:
        return state
    scaling = norm.scaling(state.common.shape[-1])
    if scaling is None:
        return _by_secants(state, norm)
    if norm.centres:
        state = _centre_coordinates(state)
    epsilon = scaling.epsilon
    # In units of e^2K; written so that no epsilon stays none even where e^-2K overflows.
    shrunk = epsilon * (-2 * state.log_size).exp() if epsilon > 0 else torch.zeros_like(state.log_size)
    longest = torch.linalg.vector_norm(state.residual, dim=-1).amax(dim=-1) * state.log_ratio.exp()
    length = torch.linalg.vector_norm(state.common, dim=-1)
    near = (length > 0) & (longest <= NEAR * length)
    if decide(near.all()):
        done = _near(state, shrunk)
    elif decide((~near).all()):
        done = _far(state, shrunk)
    else:
        done = _choose(near, _near(state, shrunk), _far(state, shrunk))
    return replace(done, log_size=done.log_size + math.log(scaling.length))


def _by_secants(state: Split, norm: Norm) -> Split:
    """norm(m + step) = m * secant from 0 to m + step * secant from m: both factors without cancellation."""
    common = state.log_size.exp()[:, None] * state.common
    steps = (state.log_size + state.log_ratio).exp()[:, None, None] * state.residual
    first = norm.secants(torch.zeros_like(common), common)
    further = norm.secants(common[:, None, :].expand_as(steps), steps)
    if first is None or further is None:
        return split(norm(state.tokens()), state.reference)
    return normal_form(
        first * state.common, further * state.residual, state.log_size, state.log_ratio, state.reference
    )


def _near(state: Split, epsilon: Tensor) -> Split:
    a, s = state.common, state.residual
    small = state.log_ratio.exp()[:, None]
    n = torch.linalg.vector_norm(a, dim=-1, keepdim=True)
    v = (a / n.where(n > 0, 1.0))[:, None, :]  # zero only in samples that the other route serves
    along = (s * v).sum(dim=-1)
    across = s - along[..., None] * v
    again = (across * v).sum(dim=-1)  # the second projection removes what the first one's rounding left
    across, along = across - again[..., None] * v, along + again
    w = n + small * along
    squared = across.square().sum(dim=-1)
    r = (w.square() + small.square() * squared + epsilon[:, None]).sqrt()
    rn = (n.square() + epsilon[:, None]).sqrt()
    drift = epsilon[:, None] * along * (w + n) - n.square() * small * squared
    turned = across / r[..., None] + v * (drift / (r * rn * (w * rn + n * r)))[..., None]
    return normal_form(
        v[:, 0, :] * (n / rn), turned, torch.zeros_like(state.log_size), state.log_ratio, state.reference
    )


def _far(state: Split, epsilon: Tensor) -> Split:
    x = state.scaled_tokens()
    length = (x.square().sum(dim=-1) + epsilon[:, None]).sqrt()
    if decide((length == 0).any()):
        sample, token = (int(place) for place in (length == 0).nonzero()[0])
        raise RequestError(
            required="tokens that a norm can scale",
            got=f"a zero token (sample {sample}, token {token})",
            remedy="start elsewhere, keep a residual, or use --norm none",
        )
    zero = torch.zeros_like(state.log_size)
    return normal_form(torch.zeros_like(state.common), x / length[..., None], zero, zero, state.reference)


def _choose(near: Tensor, one: Split, other: Split) -> Split:
    pairs = ((getattr(one, field.name), getattr(other, field.name)) for field in fields(Split))
    return Split(*(a.where(near.reshape(-1, *(1,) * (a.ndim - 1)), b) for a, b in pairs))


def _centre_coordinates(state: Split) -> Split:
    return normal_form(
        state.common - state.common.mean(dim=-1, keepdim=True),
        state.residual - state.residual.mean(dim=-1, keepdim=True),
        state.log_size,
        state.log_ratio,
        state.reference,
    )
