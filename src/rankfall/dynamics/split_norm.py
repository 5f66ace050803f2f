"""Norms of split tokens: an exact identity that never subtracts two nearly equal tokens.

For x_i = a + e^l s_i let n = |a|, v = a / n, al_i = <s_i, v>, p_i = s_i - al_i v and w_i = n + e^l al_i, so that
x_i = w_i v + e^l p_i. With r_i = sqrt(w_i^2 + e^2l |p_i|^2 + epsilon) and rn = sqrt(n^2 + epsilon)

    x_i / r_i = n/rn v + e^l [p_i / r_i + v (epsilon al_i (w_i + n) - n^2 e^l |p_i|^2) / (r_i rn (w_i rn + n r_i))].
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rankfall.attention.norms import LayerNorm, NoNorm, Norm, RMSNorm, UnitNorm
from rankfall.dynamics.split import Split, normal_form
from rankfall.errors import RequestError

# Residuals up to this share of the common part are normalised by the identity; larger ones lose no digits anyway.
NEAR = 0.1


def split_norm(state: Split, norm: Norm) -> Split:
    """The norm of every token, split again."""
    if isinstance(norm, NoNorm):
        return state
    width = state.common.shape[-1]
    factor, epsilon = 1.0, 0.0
    if isinstance(norm, LayerNorm):
        state = _centre_coordinates(state)
    if isinstance(norm, (LayerNorm, RMSNorm)):
        factor, epsilon = math.sqrt(width), norm.epsilon * width
    elif not isinstance(norm, UnitNorm):
        raise RequestError(
            required="a norm among none, unit, layer, rms for tokens carried as split",
            got=norm.name,
            remedy="run the plain step with other norms",
        )
    # In units of e^2K; written so that no epsilon stays none even where e^-2K overflows.
    shrunk = epsilon * (-2 * state.log_size).exp() if epsilon > 0 else torch.zeros_like(state.log_size)
    longest = torch.linalg.vector_norm(state.residual, dim=-1).amax(dim=-1) * state.log_ratio.exp()
    length = torch.linalg.vector_norm(state.common, dim=-1)
    near = (length > 0) & (longest <= NEAR * length)
    if bool(near.all()):
        done = _near(state, shrunk)
    elif bool((~near).all()):
        done = _far(state, shrunk)
    else:
        done = _choose(near, _near(state, shrunk), _far(state, shrunk))
    return replace(done, log_size=done.log_size + math.log(factor))


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
    if bool((length == 0).any()):
        sample, token = (int(place) for place in (length == 0).nonzero()[0])
        raise RequestError(
            required="tokens that a norm can scale",
            got=f"a zero token (sample {sample}, token {token})",
            remedy="start elsewhere, keep a residual, or use --norm none",
        )
    zero = torch.zeros_like(state.log_size)
    return normal_form(torch.zeros_like(state.common), x / length[..., None], zero, zero, state.reference)


def _choose(near: Tensor, one: Split, other: Split) -> Split:
    return Split(
        one.common.where(near[:, None], other.common),
        one.residual.where(near[:, None, None], other.residual),
        one.log_size.where(near, other.log_size),
        one.log_ratio.where(near, other.log_ratio),
        one.reference,
    )


def _centre_coordinates(state: Split) -> Split:
    return normal_form(
        state.common - state.common.mean(dim=-1, keepdim=True),
        state.residual - state.residual.mean(dim=-1, keepdim=True),
        state.log_size,
        state.log_ratio,
        state.reference,
    )
