"""The verdict of an audit: one word, one headline, and the reasons, each a sentence with the numbers it rests on."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, final

import numpy as np

from rankfall.models.controls import Control
from rankfall.models.depth.rows import DepthRow
from rankfall.models.depth.sinks import Sink
from rankfall.models.heads.ranks import HeadRecord
from rankfall.models.masks import ObservedMask
from rankfall.models.thresholds import COLLAPSED_VARIANT, MISLEADING, THRESHOLDS, USED_SHARE, Thresholds
from rankfall.theory.head_bounds import HeadClass, mse_floor


@final
@dataclass(frozen=True)
class Reason:
    """A sentence, what it is about, and the numbers it rests on."""

    topic: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


Status = Literal["kept", "reduced", "collapsed"]
WORDS: dict[Status, str] = {
    "kept": "keeps its token rank",
    "reduced": "loses part of its token rank",
    "collapsed": "has collapsed",
}


@final
@dataclass(frozen=True)
class Verdict:
    """`status` follows from the thresholds alone; `reasons` explain, the first of them what decided."""

    status: Status
    headline: str
    reasons: tuple[Reason, ...]
    thresholds: Thresholds

    def record(self) -> dict[str, Any]:
        """The verdict as `--json` prints it."""
        reasons = [{"topic": one.topic, "text": one.text, "numbers": dict(one.numbers)} for one in self.reasons]
        return {
            "status": self.status,
            "headline": self.headline,
            "reasons": reasons,
            "thresholds": asdict(self.thresholds),
        }


def judge(
    name: str,
    rows: Sequence[DepthRow],
    *,
    masks: Sequence[ObservedMask] = (),
    controls: Sequence[Control] = (),
    more: Sequence[Reason] = (),
    thresholds: Thresholds = THRESHOLDS,
) -> Verdict:
    """Judge the block boundaries of an audit."""
    boundaries = [row for row in rows if row.part == "boundary"]
    status, decided = _status(boundaries, thresholds)
    reasons = [
        decided,
        depth_reason(boundaries),
        alikeness_reason(boundaries),
        sink_reason(boundaries),
        mask_reason(boundaries, masks),
        control_reason(boundaries, controls),
        *more,
    ]
    headline = f"{name} {WORDS[status]}: {decided.text}"
    given = [one for one in reasons if one is not None]
    return Verdict(status, headline, (*given, advice(status, given)), thresholds)


def _status(rows: Sequence[DepthRow], thresholds: Thresholds) -> tuple[Status, Reason]:
    unit = rows[-1].values["unit"]
    ranks = [row.values["unit"]["energy_rank"] for row in rows]
    share = ranks[-1] / max(ranks) if max(ranks) > 0 else 0.0
    checks: list[tuple[Status, bool, str]] = [
        (
            "collapsed",
            unit["relative_mu"] < thresholds.collapsed_relative_mu,
            f"relative mu {unit['relative_mu']:.3g} at the last layer is below {thresholds.collapsed_relative_mu}",
        ),
        (
            "collapsed",
            unit["energy_rank"] < thresholds.collapsed_energy_rank,
            f"energy rank {unit['energy_rank']:.3g} at the last layer is below {thresholds.collapsed_energy_rank}",
        ),
        (
            "reduced",
            share < thresholds.reduced_share,
            f"the last layer keeps {share:.0%} of the highest energy rank, below {thresholds.reduced_share:.0%}",
        ),
        (
            "reduced",
            unit["relative_mu"] < thresholds.reduced_relative_mu,
            f"relative mu {unit['relative_mu']:.2f} at the last layer is below {thresholds.reduced_relative_mu}",
        ),
        (
            "reduced",
            unit["mean_abs_cosine"] > thresholds.reduced_cosine,
            f"mean |cosine| {unit['mean_abs_cosine']:.2f} at the last layer is above {thresholds.reduced_cosine}",
        ),
    ]
    numbers = {"kept_share": share, **{name: unit[name] for name in ("relative_mu", "energy_rank")}}
    hit = [(status, text) for status, holds, text in checks if holds]
    if not hit:
        text = f"the last layer keeps {share:.0%} of the highest energy rank, and no threshold is crossed"
        return "kept", Reason("status", text, numbers)
    status = hit[0][0]
    return status, Reason("status", "; ".join(text for kind, text in hit if kind == status), numbers)


def depth_reason(rows: Sequence[DepthRow]) -> Reason:
    """Where the rank starts, where it is lowest and where it ends, and the layer that costs most."""
    ranks = [row.values["unit"]["energy_rank"] for row in rows]
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


def alikeness_reason(rows: Sequence[DepthRow]) -> Reason:
    """How alike the tokens are at the end."""
    unit = rows[-1].values["unit"]
    return Reason(
        "alikeness",
        f"at the last layer tokens differ from their mean by {unit['relative_mu']:.0%} of their length, and two of"
        f" them have a mean |cosine| of {unit['mean_abs_cosine']:.2f}",
        {"relative_mu": unit["relative_mu"], "mean_abs_cosine": unit["mean_abs_cosine"]},
    )


def sink_reason(rows: Sequence[DepthRow]) -> Reason | None:
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
    raw, unit = row.values["raw"]["energy_rank"], row.values["unit"]["energy_rank"]
    text = (
        f"token {worst.position} ({worst.token!r}) of text {worst.text + 1} is a sink in layers {spans(layers)}: at"
        f" layer {layer} it is {worst.norm_ratio:.1f} times as long as the median token and holds"
        f" {worst.energy_share:.1%} of the energy, {worst.coordinate_share:.0%} of that in coordinate"
        f" {worst.coordinate}; energy rank there: {raw:.1f} raw, {unit:.1f} with tokens of length one"
    )
    if row.without_sinks is not None:
        text += f", {row.without_sinks['unit']['energy_rank']:.1f} without sinks"
    if raw < MISLEADING * unit:
        text += ", so raw numbers mislead"
    others = len(held) - 1
    text += f"; {others} other tokens stand out somewhere" if others else ""
    return Reason("sinks", text, {"token": worst.token, "position": worst.position, "layers": layers})


def control_reason(rows: Sequence[DepthRow], controls: Sequence[Control]) -> Reason | None:
    """The last layer beside that of each control, the median of its draws."""
    ours = rows[-1].values["unit"]["energy_rank"]
    drawn: dict[str, list[float]] = {}
    for one in controls:
        if one.rows:
            drawn.setdefault(one.name, []).append(one.rows[-1].values["unit"]["energy_rank"])
    if not drawn:
        return None
    ends = {name: statistics.median(values) for name, values in drawn.items()}
    parts = [f"{name.replace('_', ' ')} {ends[name]:.1f}{_range(values)}" for name, values in drawn.items()]
    return Reason("controls", f"at the last layer the energy rank is {ours:.1f}; controls: {', '.join(parts)}", ends)


def _range(values: Sequence[float]) -> str:
    """From lowest to highest of several draws, where the printed digits differ."""
    low, high = (f"{value:.1f}" for value in (min(values), max(values)))
    return f" ({low} to {high} in {len(values)} draws)" if low != high else ""


def layer_rate(rows: Sequence[DepthRow]) -> float | None:
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


def heads_reason(heads: Sequence[HeadRecord]) -> Reason | None:
    """Is head rank the bottleneck? The heads' use of their rank, and the bound of paper A for the shape."""
    if not heads:
        return None
    width, rank, count = heads[0].width, heads[0].head_dim, heads[0].heads
    used = statistics.median(head.qk_energy_rank / head.head_dim for head in heads)
    text = (
        f"each layer has {count} heads of rank {rank} in width {width} (H r / d = {count * rank / width:.2g}); the"
        f" median head spreads its query/key form over {used * rank:.1f} of {rank} directions, so heads"
    )
    text += " use the rank they have" if used > USED_SHARE else " have rank to spare on this measure"
    floor = mse_floor(HeadClass(dim=width, rank=min(rank, width), skip=True), count)
    if floor.mse > 0:
        text += (
            "; asked for the nearer of two points, no layer of this shape gets its squared error below"
            f" {floor.mse:.4f}, whatever its weights: without heads it is {floor.baseline:.4f}, with one head of full"
            f" rank 0, so for such tasks rank {rank} is the bottleneck"
        )
    else:
        text += "; the lower bound forbids nothing for this shape, so head rank need not be the bottleneck"
    numbers = {
        "width": width,
        "head_dim": rank,
        "heads": count,
        "used_share": used,
        "mse_lower_bound": floor.mse,
        "mse_without_heads": floor.baseline,
    }
    return Reason("head rank", text, numbers)


def mask_reason(rows: Sequence[DepthRow], masks: Sequence[ObservedMask]) -> Reason | None:
    """The masks by kind, the predicted rate of pure attention and the measured one."""
    named = [one for one in masks if one.mask is not None]
    if not named:
        return None
    kinds = Counter(str(one.mask) for one in named)
    listed = " and ".join(f"{name} ({count} layers)" for name, count in kinds.most_common())
    rates = sorted({one.rate for one in named if one.rate is not None})
    ours = layer_rate(rows)
    text = f"attention saw {listed}"
    if rates:
        text += f"; in the long run pure attention would {' or '.join(_effect(rate) for rate in rates)}"
    if ours is not None:
        text += f"; the whole model multiplies them by {ours:.3f} a layer"
    return Reason("mask", text, {"masks": dict(kinds), "predicted_rates": rates, "measured_rate": ours})


def _effect(rate: float) -> str:
    if rate == 0:
        return "make differences between tokens vanish faster than exponentially"
    return f"multiply differences between tokens by {rate:.3f} a layer"


PURE, FULL = "attention", "full model"


def parts_reason(rows: Sequence[Mapping[str, Any]]) -> Reason | None:
    """The ends of all variants, scale-matched where a variant comes both ways."""
    ends = variant_ends(rows)
    if PURE not in ends or FULL not in ends:
        return None
    listed = ", ".join(f"{name} {value:.2g}" for name, value in ends.items())
    text = f"relative mu at the last layer by parts of the block: {listed}"
    single = {name: ends[name] for name in ("attention + norm", "attention + residual") if name in ends}
    holding = [name.removeprefix("attention + ") for name, value in single.items() if value >= COLLAPSED_VARIANT]
    if ends[PURE] < COLLAPSED_VARIANT:
        if holding:
            text += f"; attention alone collapses, and the {' or the '.join(holding)} is enough to prevent it"
        elif ends.get("attention + norm + residual", 0.0) >= COLLAPSED_VARIANT:
            text += "; attention alone collapses, and only norm and residual together prevent it"
        else:
            text += "; attention collapses with norm and residual too, and only the feed-forward layers hold it up"
    else:
        text += "; not even attention alone collapses within this depth"
    return Reason("what holds it up", text, ends)


def variant_ends(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean relative mu at the last layer by variant, at the model's own temperature and mask."""
    found: dict[str, list[float]] = {}
    if not rows:
        return {}
    last = max(int(row["layer"]) for row in rows)
    for row in rows:
        plain = row.get("mask") is None and row.get("temperature", 1.0) == 1.0
        value = row.get("relative_mu")
        wanted = "raw" if row["variant"] == FULL else "matched"
        here = int(row["layer"]) == last and row.get("scaling", wanted) == wanted
        if plain and here and value is not None and math.isfinite(float(value)):
            found.setdefault(str(row["variant"]), []).append(float(value))
    return {name: sum(values) / len(values) for name, values in found.items()}


def advice(status: str, reasons: Sequence[Reason]) -> Reason:
    """One sentence per finding that calls for something; says so when nothing does."""
    found = {reason.topic: dict(reason.numbers) for reason in reasons}
    lines: list[str] = []
    heads = found.get("head rank")
    if heads and heads.get("mse_lower_bound", 0.0) > 0:
        lines.append(
            f"if the task needs comparisons across the whole width, fewer heads of higher rank at equal parameters: "
            f"`rankfall plan --dim {heads['width']:.0f} --layers L --context N` lists them"
        )
    if status != "kept":
        lines.append(
            "tokens grow alike: try a local mask, a stronger residual, a norm before instead of after the branch, "
            "or fewer layers; `rankfall simulate` shows what each does"
        )
    if "sinks" in found:
        lines.append("a sink dominates raw numbers: judge this model by tokens of length one, as done here")
    if not lines:
        lines.append("nothing here calls for a change")
    return Reason("what to change", "; ".join(lines), {})
