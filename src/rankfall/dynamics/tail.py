"""The rate at which linear theory lets an experiment end, or why it gives none; what may not be laid beside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankfall.dynamics.rate import MeasuredRate
from rankfall.dynamics.split_attention import log_score_gap
from rankfall.dynamics.trajectory import Trajectory
from rankfall.dynamics.weights import DrawnWeights, PreparedHeads
from rankfall.errors import RequestError
from rankfall.masks import MaskSchedule
from rankfall.theory.sub_stochastic import sink_rate
from rankfall.theory.uniform_attention import tail_rate

if TYPE_CHECKING:
    from rankfall.dynamics.experiment import Experiment

# Linear theory speaks of uniform attention; scores that differ by less than this give it to three digits.
FLAT = 1e-3
# Of tokens that agree so far even sharp scores are flat.
LOG10_FLAT = -10.0
# A part of the differences below this share of the others has lost its digits beside them.
LEAST_KEPT = 1e-13
# A measured rate below this share of theory's is another one.
BELOW_THEORY = 0.999
EQUAL_AT_START = (
    "theory speaks of tokens that all differ at the start; here some start equal and stay so, and mu falls faster"
)


def tail_of(experiment: Experiment, mask: MaskSchedule, weights: DrawnWeights) -> tuple[float | None, str | None]:
    """The tail rate where linear theory gives it, or why not."""
    recipe, rule = experiment.recipe, experiment.rule
    if experiment.sink_shows:
        return _tail_with_sink(experiment, mask)
    orthogonal = recipe.value in ("identity", "orthogonal") and recipe.heads == 1
    identity = recipe.value == "identity"
    if (orthogonal or identity) and rule.residual == 0:
        only_scales = rule.norm.scaling(recipe.width) is not None and not rule.norm.centres
        if rule.norm.identity or (only_scales and rule.placement != "pre"):
            return tail_rate(mask, experiment.tokens), None
        return None, "only known for no norm, unit norm and RMS norm after the layer"
    if not rule.norm.identity:
        return None, "only known with orthogonal values and no residual once there is a norm"
    if recipe.per_layer or mask.period > 1:
        return None, "only known for the same weights and mask in every layer unless values are orthogonal"
    # Scores vanish as tokens merge: all heads then average alike, and their value maps add up.
    value = weights.at(0).value[0].sum(dim=0)
    return tail_rate(mask, experiment.tokens, torch.linalg.eigvals(value).numpy(), rule.residual), None


def _tail_with_sink(experiment: Experiment, mask: MaskSchedule) -> tuple[float | None, str | None]:
    """The rate of alignment where tokens vanish and scores with them, or why it is not known."""
    assert experiment.sink is not None
    if not experiment.rule.norm.identity or experiment.rule.residual != 0:
        return None, "with a sink only known for no residual connection, and no norm or one of fixed length after it"
    if experiment.recipe.value not in ("identity", "orthogonal"):
        return None, "with a sink only known for orthogonal values"
    if experiment.recipe.heads > 1 and experiment.recipe.value != "identity":
        return None, "with a sink only known for one head, or identity values"
    found = sink_rate(mask, experiment.tokens, experiment.sink)
    if not found.everywhere:
        return None, "the tokens that decide do not reach all others, which keep directions of their own"
    return found.rate, None


def shrink_rate(experiment: Experiment, mask: MaskSchedule) -> float | None:
    if experiment.sink is None or not experiment.sink_shows:
        return None
    return sink_rate(mask, experiment.tokens, experiment.sink).leading


def too_far_for_a_tail(experiment: Experiment, done: Trajectory, samples: range) -> str | None:
    """Why linear theory says nothing yet about tokens that no theorem brings together; None where it does."""
    gap = _last_gap(experiment, done, samples)
    if gap > FLAT:
        return f"scores have not flattened: at the last layer they may still differ by {gap:.2g}"
    # A norm of tokens that point apart is not linear, however flat attention is: they may stay as they are for good.
    apart = float(done.columns["log10_relative_mu"][-1, samples.start : samples.stop].max())
    if not experiment.rule.norm.identity and apart > math.log10(FLAT):
        return f"the tokens have not merged: relative mu is still {10**apart:.2g} at the last layer"
    return None


def _last_gap(experiment: Experiment, done: Trajectory, samples: range) -> float:
    """The most by which a score of these samples may differ from its row's constant after the last layer."""
    state = done.final.take(slice(samples.start, samples.stop))
    drawn = DrawnWeights(experiment.recipe, experiment.seeds, [experiment.temperature] * len(experiment.seeds))
    last = PreparedHeads(drawn.at(max(0, experiment.layers - 1)))
    return float(log_score_gap(state.log_size, state.log_ratio, [last]).max().clamp_max(300.0).exp())


def require_kept(done: Trajectory, mask: MaskSchedule, samples: range, tail: float) -> None:
    """Refuse layers in which differences could decide that were rounded away when they were small beside the others.

    Once scores are flat no part of the differences shrinks faster than the tail rate for ever. Where what we follow
    did so by more than float64 has digits, and some tokens agree to the last of them without being the reference,
    sharp attention had made them so, and how far these still differ nobody knows; it is larger in the end.
    """
    if tail <= 0:
        return
    layers = torch.tensor(done.layers, dtype=torch.float64)
    for sample in samples:
        flat = done.columns["log10_relative_mu"][:, sample] < LOG10_FLAT
        excess = (done.log_mu[:, sample] - layers * math.log(tail)).where(flat, -math.inf)
        lost = excess.isfinite() & (excess < excess.cummax(dim=0).values + math.log(LEAST_KEPT))
        if bool(lost.any()) and _some_agree(done.final.residual[sample]):
            last = done.layers[int(lost.long().argmax()) - 1]
            raise RequestError(
                required="tokens whose differences float64 can follow",
                got=f"attention under {mask} so sharp that some tokens came to agree to their last digit; what still"
                f" tells them apart shrinks more slowly than all else and could decide after layer {last}",
                remedy=f"raise the temperature, or stop after {last} layers",
            )


def _some_agree(residual: Tensor) -> bool:
    """Whether two tokens are away from the reference by the same, to the last digits: sorted, they are neighbours."""
    size = residual.abs().amax(dim=-1)
    rows = residual[size > 0]
    rows = rows[rows[:, 0].argsort()]
    apart = (rows[1:] - rows[:-1]).abs().amax(dim=-1)
    return bool((apart < LEAST_KEPT * rows[1:].abs().amax(dim=-1)).any())


def why_below(tail: float, measured: MeasuredRate | None, start: Tensor, residual: Tensor) -> str | None:
    """Why a measured rate lies below the tail rate; None where it does not, or nobody knows.

    `start` are the tokens (n, d) of the experiment, `residual` what tells them apart at its end.
    """
    if measured is None or measured.rate >= BELOW_THEORY * tail:
        return None
    # the same at the start and at the end
    stay_equal = len(torch.cat([start, residual], dim=-1).unique(dim=0)) < len(start)
    return EQUAL_AT_START if stay_equal else None
