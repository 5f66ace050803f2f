"""What stands beside the answers of a verdict, and the first of it: rank by depth, and masks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from rankfall.models.attention.masks import ObservedMask
from rankfall.models.attention.positions import PositionMass
from rankfall.models.depth.rows import DepthRow, layers_named
from rankfall.models.verdict.asked import Stretch
from rankfall.models.verdict.judgement import middle

# More rates than this are told as a range.
FEW_RATES = 3


@final
@dataclass(frozen=True)
class Reason:
    """A sentence, what it is about, and the numbers it rests on."""

    topic: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The reason as `--json` prints it."""
        return {"topic": self.topic, "text": self.text, "numbers": dict(self.numbers)}


def depth_reason(rows: Sequence[DepthRow]) -> Reason:
    """Where the rank of tokens of length one starts, where it is lowest and where it ends: medians over passages."""
    run = Stretch.of(rows)
    low = min(run.stream, key=lambda row: _median(row, "energy_rank"))
    places = {"embeddings": run.embeddings, "lowest": low, "output": run.output}
    energy, effective = (
        {name: _median(row, measure) for name, row in places.items()} for measure in ("energy_rank", "effective_rank")
    )
    shapes = sorted({(one.tokens, one.width) for one in run.output.per_text})
    most = f", of at most {min(shapes[0])}" if len(shapes) == 1 else ""
    medians = "in the median passage " if len(run.output.per_text) > 1 else ""
    text = (
        f"{medians}tokens scaled to length one have an energy rank of {energy['embeddings']:.1f} at the embeddings,"
        f" {energy['lowest']:.1f} at {low.title}, the lowest of the stream, and {energy['output']:.1f} at the output;"
        f" their effective rank is {effective['embeddings']:.1f}, {effective['lowest']:.1f} and"
        f" {effective['output']:.1f}{most}"
    )
    numbers = {"energy_rank": energy, "effective_rank": effective, "lowest_layer": low.layer}
    return Reason("token rank", text, numbers)


def _median(row: DepthRow, measure: str) -> float:
    return middle([one.values["unit"][measure] for one in row.per_text]).median


def layer_rate(rows: Sequence[DepthRow]) -> float | None:
    """The factor a layer by which the unit view's relative mu changes: least squares on its logarithm."""
    values = [(row.layer, row.values["unit"]["relative_mu"]) for row in rows]
    points = [(layer, math.log(value)) for layer, value in values if value > 0]
    if len(points) < 2:
        return None
    layers, logs = np.array(points, dtype=np.float64).T
    slope = np.polyfit(layers, logs, 1)[0]
    return float(np.exp(slope))


def mask_reason(rows: Sequence[DepthRow], masks: Sequence[ObservedMask]) -> Reason | None:
    """The masks by kind and layer, the predicted rate of pure attention and the measured one."""
    kinds: dict[str, list[int]] = {}
    for one in masks:
        if one.mask is not None:
            kinds.setdefault(str(one.mask), []).append(one.layer)
    if not kinds:
        return None
    listed = " and ".join(f"{name} ({layers_named(layers)})" for name, layers in kinds.items())
    rates = sorted({one.rate for one in masks if one.mask is not None and one.rate is not None})
    ours = layer_rate(rows)
    text = listed
    if rates:
        text += f"; in the long run pure attention would {_effects(rates)}"
        if any(one.sinks is not None for one in masks):
            text += ", relative to their size, with the learned sinks"
    weights = [one.by_positions for one in masks if one.by_positions is not None]
    if weights:
        text += f"; by positions alone {_first_token(weights)}"
    if ours is not None:
        text += f"; whole blocks multiply differences between tokens by {ours:.3f} a layer"
    return Reason("mask", text, {"masks": kinds, "predicted_rates": rates, "measured_rate": ours})


def _first_token(weights: Sequence[PositionMass]) -> str:
    """The weight on the first token that mask and positions give: the median layer, uniform and rotary."""
    uniform, rotary = (
        [value for one in weights if (value := getattr(one, name)) is not None]
        for name in ("first_token_uniform", "first_token_rotary")
    )
    decayed = f" ({statistics.median(rotary):.1%} with rotary decay)" if rotary else ""
    return f"the first token would get {statistics.median(uniform):.1%} of the weight{decayed}"


def _effects(rates: Sequence[float]) -> str:
    """Each rate, or the range of more than three: learned sinks give every layer one of its own."""
    if len(rates) <= FEW_RATES:
        return " or ".join(_effect(rate) for rate in rates)
    return f"multiply differences between tokens by {rates[0]:.3f} to {rates[-1]:.3f} a layer"


def _effect(rate: float) -> str:
    if rate == 0:
        return "make differences between tokens vanish faster than exponentially"
    return f"multiply differences between tokens by {rate:.3f} a layer"
