"""Reasons about token rank: its course through the layers, sinks, and what the controls say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from rankfall.audit.controls import Control
from rankfall.audit.depth import DepthRow, Sink
from rankfall.audit.verdict.reason import Reason

# Where the raw effective rank is below this share of the unit one, one long token speaks for all.
MISLEADING = 0.7


def course(rows: Sequence[DepthRow]) -> Reason:
    """Where the rank starts, where it is lowest and where it ends, and the layer that costs most."""
    ranks = [row.values["unit"]["effective_rank"] for row in rows]
    low = int(np.argmin(ranks))
    text = (
        f"the tokens span {ranks[0]:.1f} effective directions at the embeddings and {ranks[-1]:.1f} after layer"
        f" {rows[-1].layer}; the lowest is {ranks[low]:.1f} at layer {rows[low].layer}"
    )
    numbers = {"first": ranks[0], "last": ranks[-1], "lowest": ranks[low], "lowest_layer": rows[low].layer}
    if len(ranks) > 1:
        factors = [after / before if before > 0 else 1.0 for before, after in itertools.pairwise(ranks)]
        steepest = int(np.argmin(factors))
        if factors[steepest] < 1:
            lost = 1 - factors[steepest]
            before, after = rows[steepest].layer, rows[steepest + 1].layer
            where = f"in layer {after}" if after == before + 1 else f"between layers {before} and {after}"
            text += f"; the steepest single loss is {lost:.0%} {where}"
            numbers |= {"steepest_layer": rows[steepest + 1].layer, "steepest_loss": lost}
    return Reason("token rank", text, numbers)


def alikeness(rows: Sequence[DepthRow]) -> Reason:
    """How alike the tokens are at the end."""
    unit = rows[-1].values["unit"]
    return Reason(
        "alikeness",
        f"at the last layer tokens differ from their mean by {unit['relative_mu']:.0%} of their length, and two of"
        f" them have a mean |cosine| of {unit['mean_abs_cosine']:.2f}",
        {"relative_mu": unit["relative_mu"], "mean_abs_cosine": unit["mean_abs_cosine"]},
    )


def sinks(rows: Sequence[DepthRow]) -> Reason | None:
    """The strongest sink, where it is, and how much it distorts the raw numbers."""
    held: dict[tuple[int, int], list[tuple[int, Sink]]] = {}
    for row in rows:
        for sink in row.sinks:
            held.setdefault((sink.text, sink.position), []).append((row.layer, sink))
    if not held:
        return None
    strongest = max(held.values(), key=lambda found: max(sink.energy_share for _, sink in found))
    layer, worst = max(strongest, key=lambda pair: pair[1].energy_share)
    layers = [one for one, _ in strongest]
    row = next(row for row in rows if row.layer == layer)
    raw, unit = row.values["raw"]["effective_rank"], row.values["unit"]["effective_rank"]
    text = (
        f"token {worst.position} ({worst.token!r}) of text {worst.text + 1} is a sink in layers {spans(layers)}: at"
        f" layer {layer} it is {worst.norm_ratio:.1f} times as long as the median token and holds"
        f" {worst.energy_share:.1%} of the energy, {worst.coordinate_share:.0%} of that in coordinate"
        f" {worst.coordinate}; effective rank there: {raw:.1f} raw, {unit:.1f} with tokens of length one"
    )
    if row.without_sinks is not None:
        text += f", {row.without_sinks['unit']['effective_rank']:.1f} without sinks"
    if raw < MISLEADING * unit:
        text += ", so raw numbers mislead"
    others = len(held) - 1
    text += f"; {others} other tokens stand out somewhere" if others else ""
    return Reason("sinks", text, {"token": worst.token, "position": worst.position, "layers": layers})


def compared(rows: Sequence[DepthRow], controls: Sequence[Control]) -> Reason | None:
    """The last layer beside the last layer of each control."""
    ours = rows[-1].values["unit"]["effective_rank"]
    ends = {one.name: one.rows[-1].values["unit"]["effective_rank"] for one in controls if one.rows}
    if not ends:
        return None
    words = {
        "random_weights": "random weights",
        "shuffled_tokens": "shuffled tokens",
        "random_tokens": "random tokens",
    }
    parts = [f"{words.get(name, name)} {value:.1f}" for name, value in ends.items()]
    return Reason(
        "controls", f"at the last layer the effective rank is {ours:.1f}; controls: {', '.join(parts)}", ends
    )


def measured_rate(rows: Sequence[DepthRow]) -> float | None:
    """The factor a layer by which the unit view's relative mu changes: least squares on its logarithm."""
    values = [(row.layer, row.values["unit"]["relative_mu"]) for row in rows]
    points = [(layer, math.log(value)) for layer, value in values if value > 0]
    if len(points) < 2:
        return None
    layers, logs = np.array(points, dtype=np.float64).T
    slope = np.polyfit(layers, logs, 1)[0]
    return float(np.exp(slope))


def spans(layers: Sequence[int]) -> str:
    """Layers as people write them: 3, 12-30."""
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
