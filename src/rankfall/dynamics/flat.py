"""Layers in which no score can be seen any more: attention is plain averaging, whatever the weights ask for.

Such layers are run in stretches. Within one, the residual is only mapped and averaged; its scale, the common part's
and the question whether scores stayed invisible are worked out at its end, for all its layers at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from rankfall.dynamics.mixing import Mixer
from rankfall.dynamics.prepared import Prepared
from rankfall.dynamics.split import LEAST, Split

# exp(x) is 1 to the last digit for scores below this; what is smaller than this share is lost in a sum.
NEGLIGIBLE = 1e-17
NEGLIGIBLE_LOG = math.log(NEGLIGIBLE)
# Within a stretch numbers are not scaled anew; squares and cubes of what stays above this do not underflow.
LEAST_UNSCALED = 1e-60

Layer = tuple[Prepared, Mixer]
"""Weights and mask of one layer."""


def scores_negligible(log_size: Tensor, log_ratio: Tensor, prepared: Sequence[Prepared]) -> Bool[Tensor, ...]:
    """Whether under none of these weights a score differs from its row's constant by what float64 could see."""
    by_tokens = 2.0 * log_size + log_ratio + (math.log(2) + max(one.log_strength for one in prepared))
    by_bias = max(one.log_bias_strength for one in prepared)
    if by_bias == -math.inf:
        return by_tokens < NEGLIGIBLE_LOG
    return torch.maximum(by_tokens, log_size + log_ratio + by_bias) < math.log(NEGLIGIBLE / 2)


def cubic_mixing(residual: Tensor, prepared: Prepared) -> Tensor:
    """The (..., d, d) matrix M of a layer of all-to-all attention: delta R = R M / n.

    The residual is centred here (the mean is the reference of every strongly connected mask), so that the covariance
    is R^T R / n and delta R = R (sum_h W_q W_k^T (R^T R / n) V_h): all heads in one product of d x d matrices.
    """
    second_moment = residual.mT @ residual
    if prepared.heads.heads == 1:
        return prepared.only_score_form @ second_moment @ prepared.value_sum
    return (prepared.score_forms @ second_moment[..., None, :, :] @ prepared.value_maps).sum(dim=-3)


def flat_stretch(state: Split, layers: Sequence[Layer]) -> Split | None:
    """The states after each of these layers, one behind the other: (layers * b) samples.

    They end in front of the first layer that would have needed another route; None when that is the first of all.
    Without biases, norm and residual connection only.
    """
    n, d = state.residual.shape[-2:]
    common, residual, reference = state.common[:, None], state.residual, state.reference[:, None]
    if state.batch == 1:  # single matrices multiply several times faster than a batch of one
        common, residual, reference = common[0], residual[0], reference[0]
    still, unscaled = torch.zeros_like(common), torch.ones_like(residual[..., :1, :1])
    made: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for prepared, mixer in layers:
        value = prepared.value_sum
        common = common @ value
        if mixer.complete:
            # Nothing acts on the tokens' side: rounding in their reference grows no faster than any other.
            mixing = cubic_mixing(residual, prepared)
            factor = torch.linalg.vector_norm(mixing, dim=(-2, -1), keepdim=True).clamp_min_(LEAST)
            residual, moved = residual @ mixing.div_(factor), still
        else:
            residual, factor = mixer.average(residual @ value), unscaled
            moved = reference @ residual
            residual = residual.sub_(moved)
        made.append((common, residual, moved, factor))
    commons, residuals, moves, factors = zip(*made, strict=True)
    shape = (len(layers), state.batch)
    return _right_part(
        state,
        torch.stack(commons).reshape(*shape, d),
        torch.stack(residuals).reshape(*shape, n, d),
        torch.stack(moves).reshape(*shape, d),
        _log_units(state, torch.stack(factors).reshape(shape), [mixer.complete for _, mixer in layers]),
        [prepared for prepared, _ in layers],
    )


def _log_units(start: Split, factors: Tensor, complete: Sequence[bool]) -> Tensor:
    """Logarithms of the units in which a stretch carries the residual: cubed and divided by n where all see all."""
    unit, units = start.log_size + start.log_ratio, []
    for grown, cubic in zip((factors.log() - math.log(start.count)).unbind(), complete, strict=True):
        unit = torch.add(grown, unit, alpha=3.0) if cubic else unit
        units.append(unit)
    return torch.stack(units)


def _right_part(
    start: Split, common: Tensor, residual: Tensor, moved: Tensor, log_unit: Tensor, prepared: Sequence[Prepared]
) -> Split | None:
    """Normal form of all states at once, up to the first that is not to be trusted.

    A state is right when the scores in front of its layer were negligible, what was moved from the residual to the
    common part would have been lost there, and neither part came near underflow.
    """
    size, top = common.abs().amax(dim=-1), residual.abs().amax(dim=(-2, -1))
    log_size = start.log_size + size.log()
    log_ratio = log_unit + top.log() - log_size
    before = [
        torch.cat([first[None], later[:-1]])
        for first, later in ((start.log_size, log_size), (start.log_ratio, log_ratio))
    ]
    lost = log_unit + moved.abs().amax(dim=-1).log() - log_size < NEGLIGIBLE_LOG
    scaled = (size > LEAST_UNSCALED) & log_size.isfinite()
    scaled &= (top > LEAST_UNSCALED) | (start.log_ratio == -torch.inf)
    right = scores_negligible(before[0], before[1], prepared) & lost & scaled
    count = int(right.all(dim=1).long().cumprod(dim=0).sum())
    if count == 0:
        return None
    return Split(
        (common[:count] / size[:count, :, None]).flatten(0, 1),
        residual[:count].div_(top[:count].clamp_min(LEAST)[..., None, None]).flatten(0, 1),
        log_size[:count].flatten(),
        log_ratio[:count].flatten(),
        start.reference.repeat(count, 1),
    )
