"""Attention whose rows do not sum to one: learned sinks and off-by-one softmax, and the rate at which tokens align.

A sink of logit s takes e^s of every softmax's total and gives nothing, so that a row of attention sums to less than
one. As tokens vanish their scores flatten, and a layer tends to

    U_s = diag(1 / (deg_i + e^s)) mask,        off-by-one softmax: s = 0,

whose leading eigenvalue is below one: all tokens shrink, and differences matter only beside what is left of them. An
extension of paper B; hypotheses and proof are in docs/theory/token-rank.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order
from scipy.special import logsumexp

from rankfall.errors import require
from rankfall.masks import Mask, MaskSchedule
from rankfall.theory.uniform_attention import allowed_pairs, per_layer, strong_classes, weighted_eigenvalues


@final
@dataclass(frozen=True)
class AlignmentRate:
    """X_t = B^t X_0 for an operator B that is not negative.

    leading     largest eigenvalue: the factor by which all tokens shrink (or grow) in a layer
    rate        |second eigenvalue| / leading: the factor by which X_t approaches rank one, relative to its size
    everywhere  whether the leading class reaches every token: then all tokens tend to one direction, at this rate;
                else those that it does not reach keep a direction of their own and vanish beside the others
    """

    leading: float
    rate: float
    everywhere: bool


def sink_attention(mask: Mask, n: int, sinks: float | Sequence[float]) -> np.ndarray:
    """Uniform attention with a sink of this logit, (n, n); of several, one for each head, the mean over heads."""
    allowed = mask.dense(n).cpu().numpy()
    return np.exp(row_weights(allowed.sum(axis=1), sinks))[:, None] * allowed


def alignment_rate(operator: np.ndarray) -> AlignmentRate:
    """Rate of a given operator: (n, n), no entry negative.

    Eigenvalues are taken class by class: over its strongly connected classes the matrix is block triangular, so that
    triangular ones are exact although their Jordan chains survive no eigenvalue routine.
    """
    require(
        operator.ndim == 2 and operator.shape[0] == operator.shape[1] and bool((operator >= 0).all()),
        required="a square matrix without negative entries",
        got=f"shape {operator.shape}, least entry {operator.min(initial=math.inf):.3g}",
        remedy="give attention weights, or their product over layers",
    )
    blocks = [(one, operator[np.ix_(one, one)]) for one in strong_classes(operator > 0)]
    return _rate([(one, np.abs(np.linalg.eigvals(block))) for one, block in blocks], operator > 0, 0.0)


def sink_rate(masks: Mask | MaskSchedule, n: int, sinks: float | Sequence[float]) -> AlignmentRate:
    """Rate of uniform attention with a sink, of a mask or per layer of a schedule's period.

    -inf is no sink: then the leading eigenvalue is 1 and the rate is |lambda_2(U)|.
    """
    schedule = MaskSchedule.of(masks)
    if schedule.period > 1:
        product = np.eye(n)
        for layer in range(schedule.period):
            product = sink_attention(schedule.at(layer), n, sinks) @ product
        found, period = alignment_rate(product), schedule.period
        return AlignmentRate(found.leading ** (1 / period), per_layer(found.rate, period), found.everywhere)
    allowed = allowed_pairs(schedule.at(0), n)
    log_weights = row_weights(allowed.sum(axis=1), sinks)
    # Of huge logits all weights are tiny alike: what they have in common is put back at the end.
    common = float(log_weights.max())
    weights = np.exp(log_weights - common)
    classes = strong_classes(allowed)
    spectra = [(one, np.abs(weighted_eigenvalues(allowed[one][:, one], weights[one]))) for one in classes]
    return _rate(spectra, allowed, common)


def causal_sink_rate(sinks: float | Sequence[float]) -> float:
    """(1 + e^s) / (2 + e^s): eigenvalues of causal U_s are 1 / (i + e^s) for the i-th token, i = 1, ..., N.

    Of several heads 1 / (i + e^s) is the mean over their sinks.
    """
    first, second = row_weights(np.array([1, 2]), sinks)
    return math.exp(second - first)


def row_weights(degrees: np.ndarray, sinks: float | Sequence[float]) -> np.ndarray:
    """log of the mean over heads of 1 / (Z_i + e^s_h) for rows of such totals Z_i."""
    given = np.atleast_1d(np.asarray(sinks, dtype=float))
    require(
        given.ndim == 1 and given.size > 0 and not bool(np.isnan(given).any()) and bool((given < math.inf).all()),
        required="a sink's logit, or one for each head",
        got=sinks,
        remedy="a number: 0 is off-by-one softmax",
    )
    rows = -np.logaddexp(np.log(degrees)[:, None], given[None, :])
    found: np.ndarray = logsumexp(rows, axis=1) - math.log(given.size)
    return found


def _rate(
    spectra: list[tuple[np.ndarray, np.ndarray]], pattern: np.ndarray | csr_array, log_common: float
) -> AlignmentRate:
    values = np.sort(np.concatenate([moduli for _, moduli in spectra]))[::-1]
    leading = float(values[0])
    if leading == 0:
        return AlignmentRate(0.0, 0.0, False)
    first, _ = max(spectra, key=lambda one: float(one[1].max()))
    # Row i takes from column j: information goes from j to i.
    reached = breadth_first_order(csr_array(pattern.T), int(first[0]), return_predecessors=False)
    rate = float(values[1]) / leading if len(values) > 1 else 0.0
    return AlignmentRate(leading * math.exp(log_common), rate, len(reached) == pattern.shape[0])
