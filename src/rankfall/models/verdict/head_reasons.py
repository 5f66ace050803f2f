"""What is said of heads: the rank that they have and spread over, what they need of it, what cutting them costs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rankfall.models.depth.rows import layer_title
from rankfall.models.heads.cut_curve import CutCurve, CutPoint
from rankfall.models.heads.needed import HeadNeed
from rankfall.models.heads.record import HeadRecord
from rankfall.models.recording.layers import module_noun, place_told
from rankfall.models.thresholds import SEPARATED
from rankfall.models.verdict.reasons import Reason
from rankfall.models.verdict.verdict import SPARE_SHARE
from rankfall.theory.head_bounds import HeadClass, mse_floor

# How many of the lowest heads and layers are named.
NAMED = 3
# A median head within what nine of ten random heads have is like them.
CHANCE_RANGE = (0.05, 0.95)
# A layer or model counts as unharmed by a cut up to here: nats per token, and of the output.
LITTLE_LOSS, LITTLE_CHANGE = 0.02, 0.05
# From this share of heads at their limit on, more rank is what the heads lack.
MANY_AT_LIMIT = 0.1


def heads_reason(heads: Sequence[HeadRecord], random: Sequence[HeadRecord] = ()) -> Reason | None:
    """How far heads spread their query/key form over the rank that they have, beside random weights; lowest named.

    What a head needs of it is another question: `needs_reason`.
    """
    if not heads:
        return None
    most, alike, modules = _usual_shape(heads)
    width, rank, count = most.width, most.structural_rank, most.heads
    noun = module_noun(heads)
    layers_with = f"each {noun} has" if alike == modules else f"{alike} of {modules} {noun}s have"
    usual = statistics.median(head.qk_energy_rank for head in heads)
    of_rank = f" of {rank}" if len({one.structural_rank for one in heads}) == 1 else ""
    text = (
        f"{layers_with} {count} heads of rank {rank} in width {width} (H r / d = {count * rank / width:.2g})"
        f"{_other_shapes(heads, most)}; the median head spreads its query/key form over"
        f" {usual:.1f}{of_rank} directions (energy rank)"
    )
    by_chance = statistics.median(head.qk_energy_rank for head in random) if random else None
    if by_chance is not None:
        low, high = np.quantile([head.qk_energy_rank for head in random], CHANCE_RANGE)
        like_chance = low <= usual <= high or abs(usual / by_chance - 1) < SEPARATED
        compared = "as many as" if like_chance else "fewer than" if usual < by_chance else "more than"
        text += f", {compared} with random weights ({by_chance:.1f}, nine heads of ten from {low:.1f} to {high:.1f})"
    text += _limits_and_gates(heads, most)
    layers: dict[tuple[int, str], list[float]] = {}
    for head in heads:
        layers.setdefault((head.layer, head.module), []).append(head.qk_energy_rank)
    lowest_layers = sorted(layers, key=lambda key: statistics.median(layers[key]))[:NAMED]
    lowest_heads = sorted(heads, key=lambda head: head.qk_energy_rank)[:NAMED]
    named = ", ".join(
        f"{layer_title(*key)} {statistics.median(layers[key]):.1f} ({min(layers[key]):.1f} to {max(layers[key]):.1f})"
        for key in lowest_layers
    )
    text += f"; lowest {noun}s by their median head: {named}; lowest heads: " + ", ".join(
        f"head {head.head} of {place_told(head, heads)} with {head.qk_energy_rank:.1f}" for head in lowest_heads
    )
    firsts = {(head.layer, head.module): head for head in reversed(heads)}
    by_layer = {
        key: {
            "layer": key[0],
            "module": key[1],
            "title": place_told(firsts[key], heads),
            "structural_rank": firsts[key].structural_rank,
            "qk_energy_rank": statistics.median(found),
        }
        for key, found in layers.items()
    }
    numbers = {
        "width": width,
        "head_dim": most.head_dim,
        "structural_rank": rank,
        "heads": count,
        "qk_energy_rank": usual,
        "random_qk_energy_rank": by_chance,
        "layers": list(by_layer.values()),
        "lowest_layers": [by_layer[key] for key in lowest_layers],
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


def _usual_shape(heads: Sequence[HeadRecord]) -> tuple[HeadRecord, int, int]:
    """A head of the shape that most attention modules have, how many have it, and how many modules there are."""
    firsts = {(one.layer, one.module): one for one in reversed(heads)}
    shapes = {key: (one.width, one.structural_rank, one.heads) for key, one in reversed(firsts.items())}
    ((shape, alike),) = Counter(shapes.values()).most_common(1)
    return next(firsts[key] for key, found in shapes.items() if found == shape), alike, len(shapes)


def _other_shapes(heads: Sequence[HeadRecord], most: HeadRecord) -> str:
    """The heads of the modules that do not have the shape of most, in words."""
    usual = (most.width, most.structural_rank, most.heads)
    shapes = {(one.layer, one.module): (one.width, one.structural_rank, one.heads) for one in heads}
    others = Counter(shape for shape in shapes.values() if shape != usual).most_common(NAMED)
    return "".join(
        f", {alike} {'has' if alike == 1 else 'have'} {count} of rank {rank}"
        + (f" in width {width}" if width != most.width else "")
        for (width, rank, count), alike in others
    )


def _limits_and_gates(heads: Sequence[HeadRecord], first: HeadRecord) -> str:
    """What bounds the rank besides the size of a head, and what stands between attention and W_O, in words."""
    said = ""
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
    most, alike, modules = _usual_shape(heads)
    width, rank, count = most.width, most.structural_rank, most.heads
    of_most = "" if alike == modules else f", the shape of {alike} of {modules} {module_noun(heads)}s,"
    floor = mse_floor(HeadClass(dim=width, rank=rank, skip=True), count)
    about = (
        f"the bound is about one bare attention layer of {count} heads of rank {rank} in width {width}{of_most}"
        " that finds the nearer of two points, its output read linearly, with no norm after attention, no"
        " feed-forward layer, and the query not among the keys"
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
        "head_dim": most.head_dim,
        "structural_rank": rank,
        "heads": count,
        "mse_lower_bound": floor.mse,
        "mse_lower_bound_without_heads": floor.baseline,
        "separates": separates,
    }
    return Reason("head bound", text, numbers)


def needs_reason(needs: Sequence[HeadNeed], random: Sequence[HeadNeed] = ()) -> Reason | None:
    """How many directions heads need of those that they have, beside random weights; the extremes are named."""
    if not needs:
        return None
    ranks = [one.needed_rank for one in needs]
    sizes = sorted({one.head_dim for one in needs})
    size = sizes[0] if len(sizes) == 1 else sizes[-1]
    usual = statistics.median(ranks)
    limit = sum(one.at_limit for one in needs)
    spare = sum(one.needed_rank <= SPARE_SHARE * one.head_dim for one in needs)
    most = sorted(needs, key=lambda one: (-one.needed_rank / one.head_dim, one.layer, one.head))[:NAMED]
    text = (
        f"on this text the median head reproduces its attention within {needs[0].limit:g} nats a row with {usual:g}"
        f"{f' of {size}' if len(sizes) == 1 else ''} directions of its scores"
    )
    by_chance = statistics.median(one.needed_rank for one in random) if random else None
    flat = statistics.median(one.divergence_without for one in random) if random else None
    if by_chance is not None:
        text += (
            f" (random weights: {by_chance:g}; their attention is {flat:.2g} nats a row from having no scores at all,"
            f" the model's {statistics.median(one.divergence_without for one in needs):.2g})"
        )
    text += (
        f"; {limit} of {len(needs)} heads need all that they have, {spare} need at most {SPARE_SHARE:.0%}; the most:"
    )
    text += " " + ", ".join(f"head {one.head} of {place_told(one, needs)} with {one.needed_rank}" for one in most)
    text += f": {_bottleneck(limit, len(needs), most[0])}"
    layers: dict[tuple[int, str], list[HeadNeed]] = {}
    for one in needs:
        layers.setdefault((one.layer, one.module), []).append(one)
    numbers = {
        "needed_rank": usual,
        "head_dim": size,
        "limit": needs[0].limit,
        "heads": len(needs),
        "at_limit": limit,
        "spare": spare,
        "random_needed_rank": by_chance,
        "random_divergence_without": flat,
        "layers": [
            {
                "layer": layer,
                "module": module,
                "title": place_told(found[0], needs),
                "heads": len(found),
                "at_limit": sum(one.at_limit for one in found),
                "head_dim": found[0].head_dim,
                "needed_rank": statistics.median(one.needed_rank for one in found),
            }
            for (layer, module), found in layers.items()
        ],
    }
    return Reason("head need", text, numbers)


def _bottleneck(limit: int, heads: int, most: HeadNeed) -> str:
    if most.needed_rank == 0:
        return "no head needs its scores on this text: mask and positions alone give its attention"
    if limit == 0:
        return f"no head is at its limit, the fullest uses {most.needed_rank / most.head_dim:.0%} of its rank"
    share = limit / heads
    if share < MANY_AT_LIMIT:
        return f"{share:.1%} of the heads are at their limit, the others are not short of rank"
    return f"{share:.0%} of the heads are at their limit, and for these the rank is a bottleneck"


def cut_reason(curve: CutCurve | None) -> Reason | None:
    """What the model loses with every head cut, and which layer alone costs most."""
    if curve is None:
        return None
    by_loss = curve.loss is not None
    little = LITTLE_LOSS if by_loss else LITTLE_CHANGE
    cuts = [one for one in curve.together if one.rank < curve.head_dim]
    enough = next((one.rank for one in curve.together if _value(one, by_loss) <= little), curve.head_dim)
    base = f"the loss of {curve.loss:.3f} nats a token changes" if by_loss else "the output changes"
    text = (
        f"with every head cut to {', '.join(str(one.rank) for one in cuts)} of {curve.head_dim} directions {base} by"
        f" {', '.join(_cost(one, by_loss) for one in cuts)}; "
    )
    told = f"{little:g} nats" if by_loss else f"{little:.0%}"
    text += (
        f"{enough} direction{' keeps' if enough == 1 else 's keep'} it within {told}"
        if enough < curve.head_dim
        else f"no cut keeps it within {told}, so the directions beyond {cuts[-1].rank if cuts else 0} do work"
    )
    text += f"; with each head cut to what it needs alone, {curve.at_needs.rank} in the mean, it changes by"
    text += f" {_cost(curve.at_needs, by_loss)}"
    alone = _worst_layers(curve, by_loss)
    if alone:
        rank = alone[0].rank
        named = ", ".join(f"{layer_title(one.layer or 0, one.module or '')} {_cost(one, by_loss)}" for one in alone)
        text += f"; one layer at a time, cut to {rank}, it costs most in {named}"
    if not by_loss:
        text += f" (no loss: {curve.loss_reason}; the output's change is the root mean square over tokens)"
    numbers = {
        "loss": curve.loss,
        "head_dim": curve.head_dim,
        "enough": enough,
        "within": little,
        "together": {str(one.rank): _value(one, by_loss) for one in curve.together},
        "at_needs": _value(curve.at_needs, by_loss),
        "verified_to": curve.error,
    }
    return Reason("head cut", text, numbers)


def _worst_layers(curve: CutCurve, by_loss: bool) -> list[CutPoint]:
    """The costliest layers at a quarter of the directions, or the next fewer that was run."""
    ranks = sorted({one.rank for one in curve.alone})
    wanted = [rank for rank in ranks if rank <= SPARE_SHARE * curve.head_dim] or ranks
    if not wanted:
        return []
    points = [one for one in curve.alone if one.rank == wanted[-1]]
    return sorted(points, key=lambda one: -_value(one, by_loss))[:NAMED]


def _value(point: CutPoint, by_loss: bool) -> float:
    return point.loss_change if by_loss and point.loss_change is not None else point.output_change


def _cost(point: CutPoint, by_loss: bool) -> str:
    value = _value(point, by_loss)
    return f"{value:+.3f}" if by_loss else f"{value:.1%}"
