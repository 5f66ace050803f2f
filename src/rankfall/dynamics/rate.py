"""The measured rate of collapse: a robust straight line through log mu against depth, or the cubic law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from scipy.stats import theilslopes

Law = Literal["exponential", "cubic", "equal", "none"]

# Theil-Sen looks at all pairs of points; more than this many are thinned evenly.
MOST_POINTS = 400
# The last half of the layers: transients of the attention's non-normality lie in the first.
TAIL_SHARE = 0.5
# log mu must fall by at least this much over the fitted layers to count as collapse at all.
LEAST_FALL = 1e-6
CONFIDENCE = 0.95


@final
@dataclass(frozen=True)
class MeasuredRate:
    """mu falls by the factor `rate` per layer between `first_layer` and `last_layer`; low and high bound it (95 %).

    law: `exponential`; `cubic` (log mu triples each layer, rate 0 in the limit); `equal` (all tokens became exactly
    equal); `none` (mu does not fall). `order` is the power p in mu' ~ mu^p, 1 for exponential.
    """

    law: Law
    rate: float
    low: float
    high: float
    first_layer: int
    last_layer: int
    r_squared: float
    order: float = 1.0


def measured_rate(layers: Sequence[int], log_mu: Sequence[float]) -> MeasuredRate | None:
    """Fit natural log mu on depth; None with fewer than three layers."""
    depth, value = np.asarray(layers, dtype=float), np.asarray(log_mu, dtype=float)
    finite = np.isfinite(value)
    if len(depth) >= 2 and not finite.all() and finite.sum() < 4:
        last = int(depth[finite][-1]) if finite.any() else int(depth[0])
        return MeasuredRate("equal", 0.0, 0.0, 0.0, last, last + 1, 1.0, math.inf)
    depth, value = depth[finite], value[finite]
    cubic = _cubic(depth, value)
    if cubic is not None:
        return cubic
    if len(depth) < 3:
        return None
    tail = depth >= depth[0] + TAIL_SHARE * (depth[-1] - depth[0])
    if tail.sum() < 3:
        tail[-3:] = True
    depth, value = depth[tail], value[tail]
    if len(depth) > MOST_POINTS:
        chosen = np.linspace(0, len(depth) - 1, MOST_POINTS).round().astype(int)
        depth, value = depth[chosen], value[chosen]
    slope, intercept, low, high = theilslopes(value, depth, CONFIDENCE)
    fall = value[0] - value[-1]
    return MeasuredRate(
        law="exponential" if fall > LEAST_FALL and high < 0 else "none",
        rate=math.exp(slope),
        low=math.exp(low),
        high=math.exp(high),
        first_layer=int(depth[0]),
        last_layer=int(depth[-1]),
        r_squared=_r_squared(value, intercept + slope * depth),
    )


def _cubic(depth: np.ndarray, value: np.ndarray) -> MeasuredRate | None:
    """mu' ~ C mu^3: every fall of log mu is three times the one before, whatever C is."""
    steps = np.diff(depth)
    falls = -np.diff(value)
    if len(falls) < 4 or not (steps == 1).all() or not (falls[-4:] > 1).all():
        return None
    growth = falls[-3:] / falls[-4:-1]
    order = float(np.median(growth))
    if not 2.5 < order < 3.5 or np.abs(growth - order).max() > 0.5:
        return None
    rate = math.exp(-min(float(falls[-1]), 700.0))
    return MeasuredRate("cubic", rate, rate, rate, int(depth[-4]), int(depth[-1]), 1.0, order)


def _r_squared(value: np.ndarray, fitted: np.ndarray) -> float:
    total = float(((value - value.mean()) ** 2).sum())
    return 1.0 - float(((value - fitted) ** 2).sum()) / total if total > 0 else 1.0
