"""Reasons about masks: what pure attention under the observed mask would do, beside what the model does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rankfall.audit.depth import DepthRow
from rankfall.audit.masks import ObservedMask
from rankfall.audit.verdict.reason import Reason
from rankfall.audit.verdict.tokens import measured_rate


def mask_reason(rows: Sequence[DepthRow], masks: Sequence[ObservedMask]) -> Reason | None:
    """The masks by kind, the predicted rate of pure attention and the measured one."""
    named = [one for one in masks if one.mask is not None]
    if not named:
        return None
    kinds = Counter(str(one.mask) for one in named)
    listed = " and ".join(f"{name} ({count} layers)" for name, count in kinds.most_common())
    rates = sorted({one.rate for one in named if one.rate is not None})
    ours = measured_rate(rows)
    text = f"attention saw {listed}"
    if rates:
        text += f"; in the long run pure attention would multiply differences by {_factor(rates)} a layer"
    if ours is not None:
        text += f", the whole model multiplies them by {ours:.3f}"
    return Reason("mask", text, {"masks": dict(kinds), "predicted_rates": rates, "measured_rate": ours})


def _factor(rates: Sequence[float]) -> str:
    return " or ".join("less than any factor" if rate == 0 else f"{rate:.3f}" for rate in rates)
