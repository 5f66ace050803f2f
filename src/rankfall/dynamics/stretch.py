"""A stretch of layers whose scores nothing can see: plain averages, so that all of it is computed before one look."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rankfall.dynamics.mixing import Mixer
from rankfall.dynamics.split import LEAST, Split
from rankfall.dynamics.split_attention import NEGLIGIBLE_LOG, cubic_mixing, scores_negligible
from rankfall.dynamics.weights import PreparedHeads

# Within a stretch numbers are not scaled anew; squares and cubes of what stays above this do not underflow.
LEAST_UNSCALED = 1e-60

Layer = tuple[PreparedHeads, Mixer]
"""Weights and mask of one layer."""


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
    start: Split, common: Tensor, residual: Tensor, moved: Tensor, log_unit: Tensor, prepared: Sequence[PreparedHeads]
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
