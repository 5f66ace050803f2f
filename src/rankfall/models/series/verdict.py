"""The verdict over a series: where and when token rank falls or rises, which layers change, what the loss does."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from rankfall.models.series.halves import StackSeries, by_stack
from rankfall.models.series.records import (
    Row,
    audited,
    checkpoint_rows,
    column_of,
    depth_rows,
    head_differences,
    same_layers,
)
from rankfall.models.series.work import AuditedModel
from rankfall.models.verdict.reasons import Reason

Trend = Literal["steady", "rises", "falls", "rises, then falls", "falls, then rises", "goes up and down", "unknown"]
CHANGE = 0.1
"""A quantity that changes by less than this share is steady."""
NAMED_LAYERS = 3
COMPARED = ("layers", "heads", "loss", "depth")
"""What a comparison of two says of their differences."""
RELATED = 0.5
"""Loss and rank are said to go together where the rank correlation is at least this."""
OF_ALL = ("loss", "not audited")
"""What is about whole models, not about one stack of their blocks."""
FEWEST = 4
"""Below so many checkpoints a correlation says nothing."""


@final
@dataclass(frozen=True)
class SeriesVerdict:
    """`trend` is that of the effective rank at the last layer, of the first stack of blocks where there are several;
    `reasons` hold the numbers, each with its sentence."""

    trend: Trend
    headline: str
    reasons: tuple[Reason, ...]

    def record(self) -> dict[str, Any]:
        """The verdict as `--json` prints it."""
        return {"trend": self.trend, "headline": self.headline, "reasons": [one.record() for one in self.reasons]}


def judge_series(models: Sequence[AuditedModel]) -> SeriesVerdict:
    """Judge a series by the records of its audits; of models of several stacks of blocks, stack by stack."""
    series = by_stack(models)
    verdicts = [_judged(one.models) if one is series[0] or len(one.models) > 1 else _alone(one) for one in series]
    if len(series) == 1:
        return verdicts[0]
    first, *_ = verdicts
    reasons = [
        one
        if one.topic in OF_ALL
        else replace(one, text=f"{of.label}: {one.text}", numbers={**one.numbers, "stack": of.label})
        for of, verdict in zip(series, verdicts, strict=True)
        for one in verdict.reasons
    ]
    headline = ". ".join(f"{of.label}: {one.headline}" for of, one in zip(series, verdicts, strict=True))
    return SeriesVerdict(first.trend, headline, tuple(reasons))


def _alone(series: StackSeries) -> SeriesVerdict:
    return SeriesVerdict("unknown", f"only {series.models[0].label} has it, so there is nothing to compare", ())


def _judged(models: Sequence[AuditedModel]) -> SeriesVerdict:
    done = audited(models)
    failed = failed_reason(models)
    if len(done) < 2:
        text = f"{len(done)} of {len(models)} checkpoints could be audited, so there is nothing to compare"
        return SeriesVerdict("unknown", text, (failed,) if failed else ())
    rows = checkpoint_rows(done)
    ranks = [row["effective_rank"] for row in rows]
    kind = trend(ranks)
    text, numbers = path(rows, "effective_rank")
    headline = (
        f"from {rows[0]['model']} to {rows[-1]['model']} the effective rank at the last layer {words(kind)}: {text}"
    )
    found = [
        Reason("last layer", f"the effective rank at the last layer {words(kind)}: {text}", numbers),
        depth_reason(done),
        layers_reason(done),
        heads_reason(done),
        moment_reason(done),
        loss_reason(done),
        status_reason(rows),
        shape_reason(done),
        failed,
    ]
    return SeriesVerdict(kind, headline, tuple(one for one in found if one is not None))


def trend(values: Sequence[float]) -> Trend:
    """How a quantity moves; a rise or fall that is taken back counts if it exceeds CHANGE of both ends."""
    start, end, low, high = values[0], values[-1], min(values), max(values)
    dips, peaks = low < min(start, end) * (1 - CHANGE), high > max(start, end) * (1 + CHANGE)
    if dips and peaks:
        return "goes up and down"
    if dips:
        return "falls, then rises"
    if peaks:
        return "rises, then falls"
    if end > start * (1 + CHANGE):
        return "rises"
    return "falls" if end < start * (1 - CHANGE) else "steady"


def words(kind: Trend) -> str:
    """The trend as a verb."""
    return "stays as it is" if kind == "steady" else kind


def path(rows: Sequence[Row], column: str) -> tuple[str, dict[str, Any]]:
    """A quantity's ends, and its lowest and highest where these are neither."""
    values = [row[column] for row in rows]
    low, high = (pick(range(len(values)), key=values.__getitem__) for pick in (min, max))
    text = f"{values[0]:.4g} at {rows[0]['model']} and {values[-1]:.4g} at {rows[-1]['model']}"
    numbers: dict[str, Any] = {"first": values[0], "last": values[-1]}
    for name, at in (("lowest", low), ("highest", high)):
        numbers |= {name: values[at], f"{name}_at": rows[at]["model"]}
        if at not in (0, len(values) - 1):
            text += f", {name} {values[at]:.4g} at {rows[at]['model']}"
    return text, numbers


def depth_reason(done: Sequence[AuditedModel]) -> Reason:
    """The same for the mean over layers, and where in depth the lowest rank lies."""
    rows = checkpoint_rows(done)
    means = [{"model": one.label, "mean": _mean(one)} for one in done]
    text, numbers = path(means, "mean")
    kind = trend([row["mean"] for row in means])
    lowest = [row["lowest_layer"] for row in rows]
    moved = (
        f"the lowest layer is {lowest[0]} throughout"
        if len(set(lowest)) == 1
        else f"the lowest layer moves from {lowest[0]} to {lowest[-1]}"
    )
    text = f"averaged over layers it {words(kind)}: {text}; {moved}"
    return Reason("all layers", text, {**numbers, "trend": kind, "lowest_layers": lowest})


def layers_reason(done: Sequence[AuditedModel]) -> Reason | None:
    """The layers whose effective rank changes most between the first and the last checkpoint."""
    if not same_layers(done):
        return None
    first, last = ({row["layer"]: row["effective_rank"] for row in depth_rows([one])} for one in (done[0], done[-1]))
    factors = {layer: last[layer] / rank for layer, rank in first.items() if rank > 0 and last[layer] > 0}
    ordered = sorted(factors, key=lambda layer: -abs(math.log(factors[layer])))[:NAMED_LAYERS]
    risen = sum(factor > 1 + CHANGE for layer, factor in factors.items() if layer > 0)
    fallen = sum(factor < 1 - CHANGE for layer, factor in factors.items() if layer > 0)
    told = ", ".join(
        f"{f'layer {layer}' if layer else 'the embeddings'} ({first[layer]:.4g} to {last[layer]:.4g})"
        for layer in ordered
        if factors[layer] != 1
    )
    blocks = sum(layer > 0 for layer in factors)
    text = (
        f"from {done[0].label} to {done[-1].label} {risen} of {blocks} layers gain and {fallen} lose more than"
        f" {CHANGE:.0%} of their effective rank; {f'most change {told}' if told else 'none changes at all'}"
    )
    numbers = {"risen": risen, "fallen": fallen, "layers": ordered, "factors": [factors[layer] for layer in ordered]}
    return Reason("layers", text, numbers)


def heads_reason(done: Sequence[AuditedModel]) -> Reason | None:
    """How the median head changes, and which one changes most, between the first and the last checkpoint."""
    if not all(one.record and one.record["heads"] for one in (done[0], done[-1])):
        return None
    rows = head_differences(done[0], done[-1])
    if not rows:
        return Reason("heads", "their heads do not correspond, so only the median head of each layer is compared")
    median = statistics.median(row["qk_effective_rank"] for row in rows)
    most = max(rows, key=lambda row: abs(row["qk_effective_rank"]))
    where = (
        f"most in head {most['head']} of layer {most['layer']}"
        f"{' (cross-attention)' if most.get('kind') == 'cross' else ''}: {most['qk_effective_rank']:+.3g}"
        if most["qk_effective_rank"]
        else "in none at all"
    )
    text = (
        f"from {done[0].label} to {done[-1].label} the query/key effective rank of the {len(rows)} heads changes by"
        f" {median:+.3g} in the median, {where}"
    )
    return Reason("heads", text, {"median_change": median, "most": most})


def moment_reason(done: Sequence[AuditedModel]) -> Reason | None:
    """Between which two neighbours the mean over layers changes most."""
    means = [_mean(one) for one in done]
    if len(done) < 3 or min(means) <= 0:
        return None
    factors = [after / before for before, after in itertools.pairwise(means)]
    at = max(range(len(factors)), key=lambda place: abs(math.log(factors[place])))
    if 1 - CHANGE <= factors[at] <= 1 + CHANGE:
        return None
    before, after = done[at].label, done[at + 1].label
    verb = "rises" if factors[at] > 1 else "falls"
    text = (
        f"the largest single change is between {before} and {after}, where the mean over layers {verb} from"
        f" {means[at]:.4g} to {means[at + 1]:.4g}"
    )
    return Reason("when", text, {"before": before, "after": after, "factor": factors[at]})


def loss_reason(done: Sequence[AuditedModel]) -> Reason | None:
    """Whether the loss on the text moves with the rank; losses of models of different kinds are not compared."""
    rows = [row for row in checkpoint_rows(done) if row["loss"] is not None]
    kinds = {one.record["model"]["kind"] for one in done if one.record is not None}
    if len(rows) < 2 or len(kinds) > 1:
        return None
    text, numbers = path(rows, "loss")
    losses, ranks = ([row[column] for row in rows] for column in ("loss", "effective_rank"))
    loss_trend, rank_trend = trend(losses), trend(ranks)
    text = f"the loss on the text {words(loss_trend)}: {text}"
    related = correlation(losses, ranks) if len(rows) >= FEWEST else None
    if related is not None:
        together = (
            "the rank falls and rises with it"
            if related >= RELATED
            else "the rank rises as it falls, and falls as it rises"
            if related <= -RELATED
            else "the rank does not follow it"
        )
        text += f"; {together} (rank correlation {related:.2f} over {len(rows)} checkpoints)"
    elif (loss_trend, rank_trend) in (("falls", "falls"), ("falls", "rises")):
        text += f"; the rank {rank_trend} meanwhile"
    return Reason("loss", text, {**numbers, "trend": loss_trend, "rank_correlation": related})


def status_reason(rows: Sequence[Row]) -> Reason | None:
    """Where a status of the verdict changes from one checkpoint to the next."""
    names = [
        name
        for name in rows[0]
        if all(isinstance(row.get(name), str) for row in rows) and name not in ("model", "id")
    ]
    lines, changes = [], []
    for name in names:
        runs = [(word, list(group)) for word, group in itertools.groupby(rows, key=lambda row: row[name])]
        told = ", then ".join(f"{word} from {group[0]['model']}" for word, group in runs)
        lines.append(f"{name} {runs[0][0]} throughout" if len(runs) == 1 else f"{name} {told}")
        changes += [{"status": name, "word": word, "from": group[0]["model"]} for word, group in runs]
    if any(row.get("distinctions") == "not lost" for row in rows):
        lines.append("without --controls distinctions are not compared with random weights, so none is called kept")
    return Reason("verdicts", "; ".join(lines), {"runs": changes}) if lines else None


def shape_reason(done: Sequence[AuditedModel]) -> Reason | None:
    """Models of different depth are laid over each other by relative depth; that must be said."""
    if same_layers(done):
        return None
    counts = [one.record["model"]["layers"] for one in done if one.record is not None]
    listed = ", ".join(str(count) for count in dict.fromkeys(counts))
    text = f"the models have different layers ({listed}), so rows stand for relative depth, the nearest layer of each"
    return Reason("depth", text, {"layers": counts})


def failed_reason(models: Sequence[AuditedModel]) -> Reason | None:
    """Those without an audit, each with its reason."""
    failed = {one.label: one.reason or "it was not reached" for one in models if one.record is None}
    if not failed:
        return None
    text = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    return Reason("not audited", f"{len(failed)} of {len(models)} are missing: {text}", {"failed": failed})


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where one of them does not vary."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)


def _mean(one: AuditedModel) -> float:
    assert one.record is not None
    ranks = column_of(one.record, "effective_rank")
    return math.fsum(ranks) / len(ranks)
