"""The verdict: one word, one headline, the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from rankfall.models.controls import Control
from rankfall.models.depth.rows import DepthRow
from rankfall.models.masks import ObservedMask
from rankfall.models.verdict.reasons import (
    THRESHOLDS,
    Reason,
    Thresholds,
    advice,
    alikeness,
    compared,
    course,
    mask_reason,
    sinks,
)

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
        course(boundaries),
        alikeness(boundaries),
        sinks(boundaries),
        mask_reason(boundaries, masks),
        compared(boundaries, controls),
        *more,
    ]
    headline = f"{name} {WORDS[status]}: {decided.text}"
    given = [one for one in reasons if one is not None]
    return Verdict(status, headline, (*given, advice(status, given)), thresholds)


def _status(rows: Sequence[DepthRow], thresholds: Thresholds) -> tuple[Status, Reason]:
    unit = rows[-1].values["unit"]
    ranks = [row.values["unit"]["effective_rank"] for row in rows]
    share = ranks[-1] / max(ranks) if max(ranks) > 0 else 0.0
    checks: list[tuple[Status, bool, str]] = [
        (
            "collapsed",
            unit["relative_mu"] < thresholds.collapsed_relative_mu,
            f"relative mu {unit['relative_mu']:.3g} at the last layer is below {thresholds.collapsed_relative_mu}",
        ),
        (
            "collapsed",
            unit["effective_rank"] < thresholds.collapsed_effective_rank,
            f"effective rank {unit['effective_rank']:.3g} at the last layer is below"
            f" {thresholds.collapsed_effective_rank}",
        ),
        (
            "reduced",
            share < thresholds.reduced_share,
            f"the last layer keeps {share:.0%} of the highest effective rank, below {thresholds.reduced_share:.0%}",
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
    numbers = {"kept_share": share, **{name: unit[name] for name in ("relative_mu", "effective_rank")}}
    hit = [(status, text) for status, holds, text in checks if holds]
    if not hit:
        text = f"the last layer keeps {share:.0%} of the highest effective rank, and no threshold is crossed"
        return "kept", Reason("status", text, numbers)
    status = hit[0][0]
    return status, Reason("status", "; ".join(text for kind, text in hit if kind == status), numbers)
