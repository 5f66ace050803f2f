"""From numbers per passage to an answer: medians of logarithms, with an interval over passages.

A condition is asked as a margin: the logarithm of how far a passage is beyond the threshold, positive where the
condition holds. Medians of logarithms do not care that numbers span decades, and one odd passage does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from rankfall.models.depth.rows import CONFIDENCE, RESAMPLES
from rankfall.models.thresholds import THRESHOLDS

# Logarithms of zero: far below every threshold, and finite.
NOTHING = 1e-30


def log(value: float) -> float:
    """The logarithm, of zero a very small number's."""
    return math.log(max(value, NOTHING))


@final
@dataclass(frozen=True)
class Middle:
    """The median over passages by logarithms, its 95 % bootstrap interval, and the passages' own values."""

    median: float
    low: float
    high: float
    passages: tuple[float, ...]

    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"median": self.median, "interval": [self.low, self.high], "passages": list(self.passages)}


def middle(values: Sequence[float], seed: int = 0) -> Middle:
    """Of one positive number per passage."""
    median, low, high = (_exp(one) for one in _interval([log(value) for value in values], seed))
    return Middle(median, low, high, tuple(values))


def _exp(value: float) -> float:
    """Of the logarithm of nothing, zero again."""
    return math.exp(value) if value > math.log(2 * NOTHING) else 0.0


@final
@dataclass(frozen=True)
class Decision:
    """Whether a condition holds: in `held` of `passages`; None where that depends.

    `ratio` is the median of number over threshold, the way round that makes it larger than 1 where the condition
    holds, and `low` and `high` its interval over passages. `reason` says on what an open answer depends.
    """

    condition: str
    threshold: float
    holds: bool | None
    held: int
    passages: int
    ratio: float
    low: float
    high: float
    reason: str | None = None

    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def collapse_margin(relative_mu: float, energy_rank: float) -> float:
    """Of tokens scaled to length one: collapsed by either number, so by the one that is farther beyond."""
    t = THRESHOLDS
    return max(log(t.collapsed_relative_mu) - log(relative_mu), log(t.collapsed_energy_rank) - log(energy_rank))


def decide(
    condition: str, threshold: float, margins: Sequence[float], *, clear_factor: float, seed: int = 0
) -> Decision:
    """From one margin per passage: decided where the whole interval is beyond the factor, on one side."""
    held, passages = sum(one > 0 for one in margins), len(margins)
    median, low, high = _interval(margins, seed)
    clear = math.log(clear_factor)
    holds = True if low > clear else False if high < -clear else None
    reason = None
    if holds is None:
        reason = (
            f"the passages disagree: {condition} in {held} of {passages}"
            if 0 < held < passages
            else f"{condition} in {held or 'none'} of {passages} passages, but the interval over them comes within a"
            f" factor of {clear_factor:g} of the threshold, so that another text may decide otherwise"
        )
    ratio, least, most = (math.exp(one) for one in (median, low, high))
    return Decision(condition, threshold, holds, held, passages, ratio, least, most, reason)


def _interval(logs: Sequence[float], seed: int) -> tuple[float, float, float]:
    """Median, and the percentile interval of the medians of passages drawn again with replacement."""
    values = np.array(logs, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(values[drawn], axis=1), (tail, 1 - tail))
    return float(np.median(values)), float(low), float(high)
