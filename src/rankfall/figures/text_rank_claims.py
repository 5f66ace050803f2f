"""What we expected of head rank in language models, as claims that trained models can refute.

They were written before any of the models was trained. Every claim takes models of one corpus and setting whose heads
share the width, H r = H u = d, at equal parameters, which are then equal operations too; the loss is nats per byte of
held-out text, the mean over seeds. Widths are compared in the setting of each with most models. One thing was made
stricter after the runs: a curve with one seed for each rank took every difference for real, and now has the spread
over seeds of the other curves.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy import stats

from rankfall.figures.base import Claim
from rankfall.training.text.comparison import pooled_deviation
from rankfall.training.text.results import FEWEST, SharedWidthCurve, shared_width_curves

Row = Mapping[str, Any]
Curve = Mapping[int, Sequence[Row]]
"""The models of each rank, seeds side by side."""

NOTICEABLE = 0.01
"""Share of the loss that counts as a cost."""
RISES = 0.8
"""Least rank correlation at which something is said to rise."""


def text_rank_claims(rows: Sequence[Row], names: Mapping[str, str]) -> list[Claim]:
    """The claims that these models decide; `names` says what a corpus, known by its hash, holds."""
    curves = shared_width_curves(rows)
    spread = _relative_deviation(curve.models for curve in curves)
    claims: list[Claim | None] = []
    for where, models in named_curves(curves, names):
        claims += [_interior(where, models, spread), _low_rank_costs(where, models), _token_rank_rises(where, models)]
    for corpus in dict.fromkeys(curve.corpus for curve in curves):
        own = {curve.width: curve.models for curve in curves if curve.main and curve.corpus == corpus}
        claims.append(_share_falls(names.get(corpus, corpus), own))
    return [claim for claim in claims if claim is not None]


def named_curves(curves: Sequence[SharedWidthCurve], names: Mapping[str, str]) -> list[tuple[str, Curve]]:
    """The models of each curve with the words for it, by text and width."""
    ordered = sorted(curves, key=lambda curve: (names.get(curve.corpus, curve.corpus), curve.width, not curve.main))
    return [
        (
            f"{names.get(curve.corpus, curve.corpus)}, d = {curve.width}"
            + (f" ({curve.variant})" if curve.variant else ""),
            curve.models,
        )
        for curve in ordered
    ]


def best_rank(curve: Curve) -> int:
    """The rank of the least loss."""
    return min(curve, key=lambda rank: _loss(curve[rank]))


def _interior(where: str, curve: Curve, spread: float | None) -> Claim:
    """Both ends cost more than what lies between, by more than seeds differ."""
    ends = (min(curve), max(curve))
    inner = min((rank for rank in curve if rank not in ends), key=lambda rank: _loss(curve[rank]))
    above = {rank: _loss(curve[rank]) - _loss(curve[inner]) for rank in ends}
    chance = {rank: math.hypot(_error(curve[rank], spread), _error(curve[inner], spread)) for rank in ends}
    least = _loss(curve[inner])
    shown = ", ".join(
        f"r = {rank} {above[rank] / least:+.2%} (standard error {chance[rank] / least:.2%})" for rank in ends
    )
    return Claim(
        f"{where}: the best rank lies between the least and the largest, which both cost more by over two standard "
        "errors",
        all(above[rank] > 2 * chance[rank] for rank in ends),
        f"r = {inner} costs {least:.4f}; {shown}; {_seeds(curve)}",
    )


def _low_rank_costs(where: str, curve: Curve) -> Claim:
    """There is a rank r* above the least such that every rank below it costs over 1 % more than the best."""
    best = best_rank(curve)
    least = _loss(curve[best])
    enough = [rank for rank in curve if _loss(curve[rank]) <= (1 + NOTICEABLE) * least]
    threshold = min(enough)
    below = ", ".join(f"r = {rank} {_loss(curve[rank]) / least - 1:+.2%}" for rank in curve if rank < best)
    return Claim(
        f"{where}: too little rank costs more than {NOTICEABLE:.0%}",
        threshold > min(curve),
        f"best r = {best}; {below or 'no rank is lower'}; within {NOTICEABLE:.0%} from r* = {threshold} on",
    )


def _token_rank_rises(where: str, curve: Curve) -> Claim | None:
    """Token rank at the last layer against head rank."""
    known = {
        rank: statistics.fmean(values)
        for rank, models in curve.items()
        if (values := [float(row["token_rank_last"]) for row in models if row.get("token_rank_last") is not None])
    }
    if len(known) < FEWEST:
        return None
    correlation = float(stats.spearmanr(list(known), list(known.values())).statistic)
    shown = ", ".join(f"r = {rank} {value:.1f}" for rank, value in known.items())
    return Claim(
        f"{where}: the rank of tokens after the last layer rises with head rank (rank correlation at least {RISES})",
        correlation >= RISES,
        f"correlation {correlation:+.2f}: {shown}",
    )


def _share_falls(what: str, curves: Mapping[int, Curve]) -> Claim | None:
    """The best rank over the width, from each width to the next."""
    if len(curves) < 2:
        return None
    shares = [best_rank(curves[width]) / width for width in sorted(curves)]
    shown = ", ".join(f"d = {width} r = {best_rank(curves[width])}" for width in sorted(curves))
    return Claim(
        f"{what}: the best rank's share of the width falls as the width grows",
        all(wide < narrow for narrow, wide in itertools.pairwise(shares)),
        f"{shown}: shares {', '.join(f'{share:.3g}' for share in shares)}",
    )


def _loss(models: Sequence[Row]) -> float:
    return statistics.fmean(float(row["nats_per_byte"]) for row in models)


def _error(models: Sequence[Row], spread: float | None) -> float:
    """Standard error of the mean over seeds; one seed has the spread of other curves, or none where all have one."""
    losses = [float(row["nats_per_byte"]) for row in models]
    deviation = statistics.stdev(losses) if len(losses) > 1 else (spread or 0.0) * losses[0]
    return deviation / math.sqrt(len(losses))


def _relative_deviation(curves: Iterable[Curve]) -> float | None:
    """What seeds of one rank differ by, as a share of the loss, in all curves together."""
    groups = [[float(row["nats_per_byte"]) for row in models] for curve in curves for models in curve.values()]
    pooled = pooled_deviation(
        [(statistics.stdev(group) / statistics.fmean(group), len(group)) for group in groups if len(group) > 1]
    )
    return None if pooled is None else pooled[0]


def _seeds(curve: Curve) -> str:
    counts = sorted({len(models) for models in curve.values()})
    return (
        f"{counts[0]} seed{'s' if counts[0] > 1 else ''}"
        if len(counts) == 1
        else f"{counts[0]} to {counts[-1]} seeds"
    )
