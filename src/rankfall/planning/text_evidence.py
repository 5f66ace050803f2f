"""Language models as evidence: what held-out text costs at each head rank, over what it costs at the best one.

Only models whose heads share the width, H r = H u = d, at equal parameters count: what differs between them is how
the same weights are cut into heads. They ship with the project, or are a person's own, from a store or from results.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from rankfall.errors import RequestError
from rankfall.planning.evidence import Estimate, interpolation, listed
from rankfall.training.text.comparison import has_learned_little, pooled_deviation, seeds_margin
from rankfall.training.text.results import FEWEST, shared_width_curves, shares_width, text_results

Row = Mapping[str, Any]

FEWEST_OWN = 2
"""Ranks that a person's own models need to say anything."""
LITTLE_LEARNED = "the best of them has learned little beyond frequencies of tokens"
ONE_SEED = "each rank has one seed, so that nothing says how much of the differences is chance"
NEAR_WIDTH = 0.1
"""How far H r may be from d, as a share of it, for models with H r = d to stand for it."""
NEAR_TRAINED = 2.0
"""How many times wider than the widest of several trained widths a model may be for those to decide: from 128 to 512
the best rank stayed the same. In narrower ones it would soon be the whole width, which was not the best at 128."""


@final
@dataclass(frozen=True)
class TextPoint:
    """Models of one text, width and rank: their mean loss over the least of the curve, less one, and the margin of
    that difference."""

    rank: int
    excess: float
    margin: float
    seeds: int


@final
@dataclass(frozen=True)
class TextCurve:
    """All ranks of one text and width, least rank first."""

    domain: str
    width: int
    layers: tuple[int, ...]
    parameters: float
    tokens: float
    points: tuple[TextPoint, ...]
    unused: tuple[float, ...] = ()
    """Tokens of each model of the same text and width in other settings, which have fewer models."""
    doubt: str = ""
    """Why its models do not decide; empty where they do."""

    def at(self, rank: float) -> list[tuple[float, TextPoint]]:
        """The points on both sides of a rank, with the weights of interpolation in its logarithm."""
        places = [math.log(one.rank) for one in self.points]
        return [(weight, self.points[index]) for index, weight in interpolation(places, math.log(rank))]


@final
@dataclass(frozen=True)
class LanguageModels:
    """Language models, interpolated over log r and log d, in the mean of the texts with models of the width
    or on both sides of it; where none has, of the texts with the trained width nearest to it, by that width. Nothing
    stands for ranks beyond those that were trained there, where one head of full rank may cost more than two of half,
    nor for H r far from d.

    The range runs over texts and over the models that enter, each with its margin: Student's over seeds, or where
    all have one seed two standard errors of the loss over windows of held-out text.
    """

    name: ClassVar[str] = "text_excess"
    by_directions: ClassVar[bool] = False
    own: tuple[TextCurve, ...] | None = None
    """A person's own models; None for those that ship."""
    place: str = "trained here"
    """Where they are from, in words."""
    silent: str = ""
    """Which of them do not count beside the others, and why."""

    @property
    def curves(self) -> tuple[TextCurve, ...]:
        """What was trained, by text and width."""
        return _committed() if self.own is None else self.own

    def covers(self, width: int) -> bool:
        """Whether a text has models of that width, or on both sides of it."""
        texts: dict[str, list[int]] = {}
        for curve in self.curves:
            texts.setdefault(curve.domain, []).append(curve.width)
        return any(min(widths) <= width <= max(widths) for widths in texts.values())

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths that were trained, on whatever text."""
        return tuple(sorted({curve.width for curve in self.curves}))

    @property
    def about(self) -> str:
        curves = self.curves
        if not curves:
            return "No language models are installed here."
        ranks = [one.rank for curve in curves for one in curve.points]
        seeds = sorted({one.seeds for curve in curves for one in curve.points})
        several = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seed{'s' * (seeds[0] > 1)}"
        layers = sorted({number for curve in curves for number in curve.layers})
        sizes, tokens = ([getattr(curve, name) for curve in curves] for name in ("parameters", "tokens"))
        texts, widths = sorted({curve.domain for curve in curves}), sorted({curve.width for curve in curves})
        return (
            f"{len(ranks)} settings of decoder language models {self.place}, {several} each: texts "
            f"{', '.join(texts)}, d = {listed(widths)}, {listed(layers)} layer{'s' * (layers != [1])}, "
            f"{_span(sizes)} parameters, {_span(tokens)} tokens each, r from {min(ranks)} to {max(ranks)}, "
            "H r = H u = d with keys for every head, equal parameters at each width. Loss on fresh data (held-out "
            "text), as a share above that of the best rank; linear in log r and in log d between models, empty "
            f"beyond their ranks and for other heads. {self._unused()}Larger models, other texts and more than "
            f"{_span([max([*tokens, *(one for curve in curves for one in curve.unused)])])} tokens were not tried."
        )

    def _unused(self) -> str:
        """Models of other settings, which were trained and do not count here, in words."""
        others = [curve for curve in self.curves if curve.unused]
        silent = f"Left out are {self.silent}. " if self.silent else ""
        if not others:
            return silent
        told = " ".join(
            f"{len(one.unused)} other models on {one.domain} at d = {one.width}, of {_span(one.unused)} tokens,"
            for one in others
        )
        return f"{silent}Of each text and width only the setting with most models is used: {told} exist and are not. "

    def estimate(self, heads: int, rank: int, directions: int, width: int | None = None) -> Estimate | None:
        """The share of the loss that so many heads of that rank cost above the best rank of the width; without a
        number for ranks that were not trained there and for H r far from d."""
        texts: dict[str, dict[int, TextCurve]] = {}
        for curve in self.curves:
            texts.setdefault(curve.domain, {})[curve.width] = curve
        if not texts or width is None:
            return None
        outside, decides = [], True
        around = {text: own for text, own in texts.items() if min(own) <= width <= max(own)}
        if not around:
            ends = {text: min(max(width, min(own)), max(own)) for text, own in texts.items()}
            steps = {text: max(width / end, end / width) for text, end in ends.items()}
            around = {text: texts[text] for text, step in steps.items() if step == min(steps.values())}
            several, widest = len(self.widths) > 1, max(self.widths)
            decides = several and widest < width <= NEAR_TRAINED * widest
            near = sorted({ends[text] for text in around})
            outside.append(
                f"language models were trained at d = {listed(self.widths)}; at {width} those of {listed(near)} "
                "stand for it"
            )
        share = heads * rank / width
        if share != 1:
            outside.append(f"they have H r = d, not H r = {share:.3g} d")
        if abs(share - 1) > NEAR_WIDTH:
            return Estimate.missing(*outside)
        by_domain = [_along_width(own, width) for own in around.values()]
        doubts = dict.fromkeys(curve.doubt for curves in by_domain for _, curve in curves if curve.doubt)
        outside += doubts
        held = [[one.rank for one in curve.points] for curves in by_domain for _, curve in curves]
        least, most = max(map(min, held)), min(map(max, held))
        if not least <= rank <= most:
            return Estimate.missing(*outside, f"their ranks are {least} to {most}, none near {rank} was trained")
        points = [[(along * w, one) for along, curve in curves for w, one in curve.at(rank)] for curves in by_domain]
        entering = [point for parts in points for _, point in parts]
        return Estimate(
            statistics.fmean(sum(weight * point.excess for weight, point in parts) for parts in points),
            max(0.0, min(point.excess - point.margin for point in entering)),
            max(point.excess + point.margin for point in entering),
            tuple(outside),
            decides and not doubts,
        )


def _along_width(curves: Mapping[int, TextCurve], width: int) -> list[tuple[float, TextCurve]]:
    """The curves of one text on both sides of a width, with the weights of interpolation; one beyond the ends."""
    widths = sorted(curves)
    return [
        (weight, curves[widths[index]])
        for index, weight in interpolation([math.log(one) for one in widths], math.log(width))
    ]


def own_models(rows: Sequence[Row], place: str) -> LanguageModels:
    """The language models of a person's own rows; `place` names where they lie. An error where none can be compared.

    Two ranks are enough: they are asked for by name. Without two seeds anywhere they are shown and do not decide, nor
    do models that have learned little.
    """
    models = [{**row, "domain": str(row["corpus"])[:8]} for row in rows if row.get("nats_per_byte") is not None]
    curves = curves_of(models, FEWEST_OWN)
    if not curves:
        cut = sorted({(row["width"], row["rank"]) for row in models if shares_width(row)})
        told = ", ".join(f"rank {rank} at d = {width}" for width, rank in cut)
        raise RequestError(
            required=f"language models in {place} that compare ranks at one cost: at least {FEWEST_OWN} ranks of one "
            "text, width and setting, heads times rank and heads times value_rank equal to the width, keys for every "
            "head, equal parameters or operations",
            got=f"{len(models)} language models, of which such heads have {told or 'none'}",
            remedy="sweep a grid with heads_times_rank = WIDTH and rank = [8, 16, 32], best with seed = [0, 1, 2]",
        )
    if all(one.seeds == 1 for curve in curves for one in curve.points):
        curves = tuple(replace(curve, doubt=curve.doubt or ONE_SEED) for curve in curves)
    sound = tuple(curve for curve in curves if not curve.doubt)
    silent = [f"those on {one.domain} at d = {one.width}: {one.doubt}" for one in curves if sound and one.doubt]
    return LanguageModels(sound or curves, f"in {place}", "; ".join(silent))


def curves_of(rows: Sequence[Row], fewest: int = FEWEST) -> tuple[TextCurve, ...]:
    """The curves of finished language models, each row with the name of its text as `domain`: of every text and width
    the setting with most models."""
    found = []
    settings = shared_width_curves(rows, fewest)
    for curve in (one for one in settings if one.main):
        others = [one for one in settings if (one.corpus, one.width) == (curve.corpus, curve.width) and not one.main]
        models = curve.models
        every = [row for own in models.values() for row in own]
        means = {rank: statistics.fmean(float(row["nats_per_byte"]) for row in own) for rank, own in models.items()}
        best = min(means, key=lambda rank: means[rank])
        least, margins = means[best], _margins(models, best)
        points = [
            TextPoint(rank, means[rank] / least - 1, margins[rank] / least, len(own)) for rank, own in models.items()
        ]
        found.append(
            TextCurve(
                domain=every[0]["domain"],
                width=curve.width,
                layers=tuple(sorted({row["layers"] for row in every})),
                parameters=statistics.median(row["parameters"] for row in every),
                tokens=statistics.median(row["tokens_trained"] for row in every),
                points=tuple(points),
                unused=tuple(
                    float(row["tokens_trained"]) for one in others for own in one.models.values() for row in own
                ),
                doubt=LITTLE_LEARNED if has_learned_little(least, every[0].get("unigram_nats_per_byte")) else "",
            )
        )
    return tuple(found)


def _margins(models: Mapping[int, Sequence[Row]], best: int) -> dict[int, float]:
    """Of each rank's difference to the best: by the deviation over seeds that all ranks have in common, as in a
    sweep's own verdict; where no rank has two seeds, two standard errors over windows, which are the same for all."""
    losses = {rank: [float(row["nats_per_byte"]) for row in own] for rank, own in models.items()}
    pooled = pooled_deviation([(statistics.stdev(own), len(own)) for own in losses.values() if len(own) > 1])
    if pooled is None:
        return {rank: 2 * float(own[0].get("nats_per_byte_error") or 0.0) for rank, own in models.items()}
    return {rank: seeds_margin(pooled, *(len(losses[one]) for one in {rank, best})) for rank in models}


@functools.cache
def _committed() -> tuple[TextCurve, ...]:
    """From the rows that ship with the package."""
    return curves_of(text_results())


def _span(values: Sequence[float]) -> str:
    low, high = (
        f"{value / 1e6:.3g} million" if value >= 1e6 else f"{value:,.0f}" for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"


TEXT = LanguageModels()
"""Language models of this project's own experiment."""
