"""What stands beside the answers of a verdict: rank by depth, masks, heads, blocks taken apart."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from rankfall.models.depth.rows import DepthRow, layer_title
from rankfall.models.heads.ranks import HeadRecord
from rankfall.models.judgement import Decision, decide, log, middle
from rankfall.models.layers import place_told
from rankfall.models.masks import ObservedMask
from rankfall.models.positions import PositionMass
from rankfall.models.questions import Stretch, spans
from rankfall.models.thresholds import SEPARATED, THRESHOLDS, Thresholds
from rankfall.theory.head_bounds import HeadClass, mse_floor

# More rates than this are told as a range.
FEW_RATES = 3


@final
@dataclass(frozen=True)
class Reason:
    """A sentence, what it is about, and the numbers it rests on."""

    topic: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


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
    listed = " and ".join(f"{name} (layers {spans(layers)})" for name, layers in kinds.items())
    rates = sorted({one.rate for one in masks if one.mask is not None and one.rate is not None})
    ours = layer_rate(rows)
    text = f"attention saw {listed}"
    if rates:
        text += f"; in the long run pure attention would {_effects(rates)}"
        if any(one.sinks is not None for one in masks):
            text += ", relative to their size, with the learned sinks"
    weights = [one.by_positions for one in masks if one.by_positions is not None]
    if weights:
        text += f"; by positions alone {_first_token(weights)}"
    if ours is not None:
        text += f"; the whole model multiplies them by {ours:.3f} a layer"
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


# How many of the lowest heads and layers are named.
NAMED = 3
# A median head within what nine of ten random heads have is like them.
CHANCE_RANGE = (0.05, 0.95)


def heads_reason(heads: Sequence[HeadRecord], random: Sequence[HeadRecord] = ()) -> Reason | None:
    """How far heads spread their query/key form over the rank that they have, beside random weights; lowest named.

    What a head needs of it is another question: `head_explanations`.
    """
    if not heads:
        return None
    shapes = Counter({(one.layer, one.module): (one.width, one.structural_rank, one.heads) for one in heads}.values())
    (width, rank, count), alike = shapes.most_common(1)[0]
    layers_with = "each layer has" if len(shapes) == 1 else f"{alike} of {shapes.total()} layers have"
    usual = statistics.median(head.qk_energy_rank for head in heads)
    of_rank = f" of {rank}" if len({shape[1] for shape in shapes}) == 1 else ""
    text = (
        f"{layers_with} {count} heads of rank {rank} in width {width} (H r / d = {count * rank / width:.2g}); the"
        f" median head spreads its query/key form over {usual:.1f}{of_rank} directions (energy rank)"
    )
    by_chance = statistics.median(head.qk_energy_rank for head in random) if random else None
    if by_chance is not None:
        low, high = np.quantile([head.qk_energy_rank for head in random], CHANCE_RANGE)
        like_chance = low <= usual <= high or abs(usual / by_chance - 1) < SEPARATED
        compared = "as many as" if like_chance else "fewer than" if usual < by_chance else "more than"
        text += f", {compared} with random weights ({by_chance:.1f}, nine heads of ten from {low:.1f} to {high:.1f})"
    text += _limits_and_gates(heads)
    layers: dict[tuple[int, str], list[float]] = {}
    for head in heads:
        layers.setdefault((head.layer, head.module), []).append(head.qk_energy_rank)
    lowest_layers = sorted(layers, key=lambda key: statistics.median(layers[key]))[:NAMED]
    lowest_heads = sorted(heads, key=lambda head: head.qk_energy_rank)[:NAMED]
    named = ", ".join(
        f"{layer_title(*key)} {statistics.median(layers[key]):.1f} ({min(layers[key]):.1f} to {max(layers[key]):.1f})"
        for key in lowest_layers
    )
    text += f"; lowest layers by their median head: {named}; lowest heads: " + ", ".join(
        f"head {head.head} of {place_told(head, heads)} with {head.qk_energy_rank:.1f}" for head in lowest_heads
    )
    numbers = {
        "width": width,
        "head_dim": heads[0].head_dim,
        "structural_rank": rank,
        "heads": count,
        "qk_energy_rank": usual,
        "random_qk_energy_rank": by_chance,
        "lowest_layers": [
            {
                "layer": layer,
                "module": module,
                "title": place_told(next(one for one in heads if one.module == module), heads),
                "qk_energy_rank": statistics.median(layers[layer, module]),
            }
            for layer, module in lowest_layers
        ],
        "lowest_heads": [
            {
                "layer": head.layer,
                "module": head.module,
                "head": head.head,
                "qk_energy_rank": head.qk_energy_rank,
            }
            for head in lowest_heads
        ],
    }
    return Reason("head rank", text, numbers)


def _limits_and_gates(heads: Sequence[HeadRecord]) -> str:
    """What bounds the rank besides the size of a head, and what stands between attention and W_O, in words."""
    first, said = heads[0], ""
    if first.structural_rank < min(first.head_dim, first.width):
        latents = []
        if first.structural_rank == first.q_latent:
            latents.append(f"queries come from a latent of {first.q_latent}")
        if first.kv_latent and first.structural_rank == first.kv_latent + first.rope_dims:
            beside = f" and {first.rope_dims} dimensions beside it" if first.rope_dims else ""
            latents.append(f"keys come from a latent of {first.kv_latent}{beside}")
        said += (
            f"; heads of size {first.head_dim} can have rank {first.structural_rank} at most: {', '.join(latents)}"
        )
    gates = [head.output_gate for head in heads if head.output_gate is not None]
    if gates:
        said += (
            f"; a gate stands between attention and W_O in {len(gates)} of {len(heads)} heads: value/output ranks are"
            f" those at the median of the gate, which is {statistics.median(gates):.2g}"
        )
    return said


def bound_reason(heads: Sequence[HeadRecord]) -> Reason | None:
    """A note: what the lower bound for one bare layer of this shape says, and whether it separates anything."""
    if not heads:
        return None
    width, rank, count = heads[0].width, heads[0].structural_rank, heads[0].heads
    floor = mse_floor(HeadClass(dim=width, rank=rank, skip=True), count)
    about = (
        f"the bound is about one bare attention layer of {count} heads of rank {rank} in width {width} that finds the"
        " nearer of two points, its output read linearly, with no norm after attention, no feed-forward layer, and"
        " the query not among the keys"
    )
    if floor.mse == 0:
        text = f"{about}; it forbids nothing for this shape"
        separates = False
    else:
        gap = 1 - floor.mse / floor.baseline
        separates = gap >= SEPARATED
        text = f"{about}; it is {floor.mse:.4f} for this shape and {floor.baseline:.4f} for no heads at all"
        text += f": {gap:.2%} apart"
        text += (
            ", which tells shapes apart"
            if separates
            else f", less than {SEPARATED:.0%}, so it separates nothing here"
        )
    numbers = {
        "width": width,
        "head_dim": heads[0].head_dim,
        "structural_rank": rank,
        "heads": count,
        "mse_lower_bound": floor.mse,
        "mse_lower_bound_without_heads": floor.baseline,
        "separates": separates,
    }
    return Reason("head bound", text, numbers)


PURE, NORM, RESIDUAL, BOTH, CROSS, FULL = (
    "attention",
    "attention + norm",
    "attention + residual",
    "attention + norm + residual",
    "attention + norm + residual + cross-attention",
    "full model",
)


def parts_reason(
    rows: Sequence[Mapping[str, Any]], thresholds: Thresholds = THRESHOLDS, *, too_little: str | None = None
) -> Reason | None:
    """Which variants of the block collapse, by the thresholds of the verdict, and in how many passages.

    Where there was `too_little` text to judge, numbers and counts are given, and nothing is concluded from them.
    """
    ends = variant_ends(rows)
    if PURE not in ends or FULL not in ends:
        return None
    decided = {name: _collapse(values, thresholds) for name, values in ends.items()}
    listed = "; ".join(
        f"{name}{'' if too_little else ' ' + _state(decided[name])}"
        f" (relative mu {middle([mu for mu, _ in values]).median:.2g}, energy rank"
        f" {middle([rank for _, rank in values]).median:.2g}, collapsed in {decided[name].held} of"
        f" {_passages(decided[name].passages)})"
        for name, values in ends.items()
    )
    text = (
        "blocks taken apart, scale-matched, tokens of length one at the last layer, before the final norm where the"
        f" replay shows that; collapsed is a relative mu below {thresholds.collapsed_relative_mu:g} or an energy rank"
        f" below {thresholds.collapsed_energy_rank:g}{'' if too_little else '; medians over passages'}: {listed}"
    )
    text = f"{too_little}; {text}" if too_little else f"{text}: {_holding(decided)}"
    numbers = {
        name: {
            "relative_mu": middle([mu for mu, _ in ends[name]]).median,
            "energy_rank": middle([rank for _, rank in ends[name]]).median,
            **one.record(),
        }
        for name, one in decided.items()
    }
    return Reason("what holds it up", text, numbers)


def variant_ends(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Relative mu and energy rank of tokens of length one at the last layer, by variant and passage, at the model's
    own temperature and mask; passages whose tokens overflowed are left out."""
    found: dict[str, list[tuple[float, float]]] = {}
    last = max((int(row["layer"]) for row in rows), default=0)
    for row in rows:
        own = row.get("mask") is None and row.get("temperature", 1.0) == 1.0 and int(row["layer"]) == last
        wanted = "raw" if row["variant"] == FULL else "matched"
        mu, rank = row.get("unit_relative_mu"), row.get("unit_energy_rank")
        if own and row.get("scaling", wanted) == wanted and mu is not None and rank is not None:
            found.setdefault(str(row["variant"]), []).append((float(mu), float(rank)))
    return found


def _collapse(values: Sequence[tuple[float, float]], t: Thresholds) -> Decision:
    margins = [
        max(log(t.collapsed_relative_mu) - log(mu), log(t.collapsed_energy_rank) - log(rank)) for mu, rank in values
    ]
    return decide("collapsed", t.collapsed_relative_mu, margins, clear_factor=t.clear_factor)


def _state(one: Decision) -> str:
    if one.holds is not None:
        return "collapses" if one.holds else "stands"
    if 0 < one.held < one.passages:
        return "collapses in some passages"
    return f"{'collapses' if one.held else 'stands'}, but not clearly"


def _passages(count: int) -> str:
    return f"{count} passage{'' if count == 1 else 's'}"


def _holding(decided: Mapping[str, Decision]) -> str:
    """What prevents the collapse, from which variants collapse (None: open)."""
    collapsed, full = {name: one.holds for name, one in decided.items()}, decided[FULL]
    enough = [name.removeprefix("attention + ") for name in (NORM, RESIDUAL) if collapsed.get(name, True) is False]
    without = [name for name in (NORM, RESIDUAL, BOTH) if name in collapsed]
    if collapsed[FULL]:
        return "the full model collapses too, so nothing holds it up"
    if full.held:
        where = "" if full.held == full.passages else " in these"
        found = f"the full model itself collapses in {full.held} of {full.passages} passages"
        return f"{found}, so nothing holds it up{where}"
    if collapsed[FULL] is None:
        return "the full model comes so near to collapse that another text may decide otherwise"
    if collapsed[PURE] is False:
        return "not even attention alone collapses within this depth"
    if collapsed[PURE] is None:
        return "whether attention alone collapses depends on the passage"
    if enough:
        return f"attention alone collapses, and the {' or the '.join(enough)} is enough to prevent it"
    if collapsed.get(BOTH) is False:
        unsure = [name.removeprefix("attention + ") for name in (NORM, RESIDUAL) if collapsed.get(name, True) is None]
        text = "attention alone collapses, and norm and residual prevent it together"
        return text + (
            f"; whether the {' or the '.join(unsure)} alone does depends on the passage"
            if unsure
            else ", not one without the other"
        )
    if all(collapsed[name] for name in without) and CROSS in collapsed:
        return {
            False: "attention alone collapses, and norm and residual do not prevent it; together with what"
            " cross-attention takes from the other half they do, without the feed-forward layers",
            True: "whatever is kept beside attention, also cross-attention, it collapses without the feed-forward"
            " layers: they do the work",
            None: "attention alone collapses, and norm and residual do not prevent it; whether they do with"
            " cross-attention depends on the passage",
        }[collapsed[CROSS]]
    if all(collapsed[name] for name in without):
        return "whatever is kept beside attention, it collapses without the feed-forward layers: they do the work"
    return (
        "attention alone collapses; whether norm and residual prevent it without the feed-forward layers depends on"
        " the passage"
    )
