"""The verdict of an audit: three questions answered apart, a headline, and what stands beside the answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from rankfall.models.attention.masks import ObservedMask
from rankfall.models.controls.controls import Control
from rankfall.models.depth.rows import DepthRow, layers_named
from rankfall.models.thresholds import THRESHOLDS, Thresholds
from rankfall.models.verdict.advised_plan import AdvisedPlan
from rankfall.models.verdict.asked import Asked
from rankfall.models.verdict.findings import Finding, Status
from rankfall.models.verdict.questions import answers
from rankfall.models.verdict.reasons import Reason, depth_reason, mask_reason


@final
@dataclass(frozen=True)
class Verdict:
    """`findings` answer the questions, each with its own status; `reasons` are what else there is to say."""

    headline: str
    findings: tuple[Finding, ...]
    reasons: tuple[Reason, ...]
    thresholds: Thresholds

    @property
    def statuses(self) -> dict[str, Status]:
        """The answer to each question in a word or two."""
        return {one.question: one.status for one in self.findings}

    @property
    def too_little_text(self) -> str | None:
        """Why nothing was judged, where that is so."""
        return next((one.text for one in self.findings if one.status == "too little text"), None)

    @property
    def advised(self) -> str | None:
        """What to change; None where nothing calls for a change."""
        said = next((one.text for one in self.reasons if one.topic == "what to change"), NO_CHANGE)
        return None if said == NO_CHANGE else said

    def record(self) -> dict[str, Any]:
        """The verdict as `--json` prints it."""
        return {
            "headline": self.headline,
            "statuses": self.statuses,
            "findings": [one.record() for one in self.findings],
            "reasons": [one.record() for one in self.reasons],
            "thresholds": asdict(self.thresholds),
        }


def judge(
    name: str,
    rows: Sequence[DepthRow],
    *,
    masks: Sequence[ObservedMask] = (),
    controls: Sequence[Control] = (),
    more: Sequence[Reason] = (),
    of_heads: Sequence[Reason] = (),
    plan: AdvisedPlan | None = None,
    seed: int = 0,
    more_text: str | None = None,
    of_text: bool = True,
) -> Verdict:
    """Judge the stream and the output of an audit, each beside the same place of every control.

    `plan` is that of the stack's shape, which advice names with what `of_heads` says of the whole model's;
    `more_text` is what to do where there is too little of it, None where inputs were given; where these are no tokens
    of a text, not `of_text`, nothing is said of texts.
    """
    asked = Asked(rows, controls, seed)
    findings = answers(asked)
    given = [depth_reason(rows), mask_reason([row for row in rows if row.part == "boundary"], masks), *more]
    reasons = [one for one in given if one is not None]
    reasons.append(advice(findings, [*reasons, *of_heads], plan, more_text))
    headline = f"{name}: {_headline(asked, findings)}"
    if not of_text:
        headline = about_inputs(headline)
        findings = tuple(replace(one, sentences=tuple(map(about_inputs, one.sentences))) for one in findings)
        reasons = [replace(one, text=about_inputs(one.text)) for one in reasons]
    return Verdict(headline, findings, tuple(reasons), THRESHOLDS)


INPUT_WORDS = {
    "passage": "input",
    "passages": "inputs",
    "on this text": "on these inputs",
    "text": "input",
    "texts": "inputs",
}


def about_inputs(sentence: str) -> str:
    """What a sentence says of passages of a text, said of images, sounds or vectors; names of modules stay."""
    longest_first = "|".join(sorted(INPUT_WORDS, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])({longest_first})(?!\w|\.\w)", lambda found: INPUT_WORDS[found[0]], sentence)


CLAUSES: dict[Status, str] = {
    "not aligned": "tokens are not aligned",
    "aligned": "tokens are aligned",
    "collapsed": "tokens have collapsed onto one direction",
    "kept": "distinctions between tokens are kept",
    "not lost": "distinctions between tokens are not lost (not compared with random weights)",
    "reduced": "distinctions between tokens are fewer than random weights leave",
    "lost": "distinctions between tokens are lost",
    "not dominated": "no tokens dominate",
    "dominated": "a few tokens dominate",
}
OPEN = {
    "alignment": "it depends on the text whether tokens are aligned",
    "distinctions": "it depends on the text whether distinctions between tokens are kept",
    "domination": "it depends on the text whether a few tokens dominate",
}


def _headline(asked: Asked, findings: Sequence[Finding]) -> str:
    return asked.too_little or "; ".join(_clause(one) for one in findings)


def _clause(finding: Finding) -> str:
    """One clause where stream and output agree, one for each where they do not."""
    said = [
        CLAUSES.get(one.status, OPEN[finding.question]) + (f" ({one.partly})" if one.partly else "")
        for one in finding.places
    ]
    if len(set(said)) == 1:
        return said[0]
    stream, output = said
    return f"{stream} in the stream, {output} at the output"


MORE_INPUTS = (
    f"give more inputs: at least {THRESHOLDS.fewest_passages} of at least {THRESHOLDS.fewest_tokens} tokens each"
)
NO_CHANGE = "nothing here calls for a change"
# A layer whose median head spreads over less than this share of its rank has rank to spare.
SPARE_SHARE = 0.25
FEW_TITLES = 3


def need_advice(layers: Sequence[Mapping[str, Any]], plan: AdvisedPlan) -> list[str]:
    """What the ranks that heads of these layers need call for: what they need is measured, what weights spread over
    is not enough."""
    lines = []
    short = sum(one["at_limit"] for one in layers)
    if short and plan.wider:
        count = sum(one["heads"] for one in layers)
        lines.append(f"{short} of {count} heads need all of their rank: {plan.told} lists wider heads at equal cost")
    # Heads that need none attend as if they had no scores: what they would need at work is not known.
    low = [one for one in layers if 0 < one["needed_rank"] <= SPARE_SHARE * one["head_dim"]]
    if low and plan.lower:
        lines.append(
            f"in {_told(low, layers)} the median head needs at most {SPARE_SHARE:.0%} of its rank on this text:"
            f" {lower_rank(plan)}"
        )
    return lines


def spread_advice(layers: Sequence[Mapping[str, Any]], plan: AdvisedPlan) -> list[str]:
    """What the ranks that heads of these layers spread over call for."""
    low = [one for one in layers if one["qk_energy_rank"] < SPARE_SHARE * one["structural_rank"]]
    if not low or not plan.lower:
        return []
    return [
        f"in {_told(low, layers)} the median head spreads over less than {SPARE_SHARE:.0%} of its rank:"
        f" {lower_rank(plan)}"
    ]


def lower_rank(plan: AdvisedPlan) -> str:
    """What the plan shows of lower ranks: equal cost, and less cache where that is so."""
    return f"{plan.told} lists more heads of lower rank at equal cost{', with a smaller cache' * plan.saves}"


def _told(some: Sequence[Mapping[str, Any]], layers: Sequence[Mapping[str, Any]]) -> str:
    """How many of the layers of a stack, and which: by their titles where a number stands for several modules."""
    if all(one["title"] == f"layer {one['layer']}" for one in layers):
        return f"{len(some)} of {len(layers)} layers ({layers_named([one['layer'] for one in some])})"
    named = [one["title"] for one in some[:FEW_TITLES]] + ["..."] * (len(some) > FEW_TITLES)
    return f"{len(some)} of {len(layers)} attention modules ({', '.join(named)})"


def _alike(findings: Sequence[Finding]) -> str:
    """Where tokens collapse or lose their distinctions: for sure, or in some of the passages."""
    ends = [
        one for finding in findings for place in finding.places for one in place.decisions
        if one.condition in ("collapsed", "lost")
    ]  # fmt: skip
    if any(one.holds for one in ends):
        return "tokens grow alike"
    some = max((one for one in ends if one.holds is None and one.held), key=lambda one: one.held, default=None)
    return f"tokens grow alike in {some.held} of {some.passages} passages" if some is not None else ""


def advice(
    findings: Sequence[Finding],
    reasons: Sequence[Reason],
    plan: AdvisedPlan | None = None,
    more_text: str | None = None,
) -> Reason:
    """One sentence per finding that calls for something; says so when nothing does. `plan`, `more_text`: as for
    `judge`."""
    status = {one.question: one.status for one in findings}
    alike = _alike(findings)
    lines: list[str] = []
    if "too little text" in status.values():
        lines.append(more_text or MORE_INPUTS)
    if alike:
        lines.append(
            f"{alike}: try a local mask, a stronger residual, a norm before instead of after the branch, or"
            " fewer layers; `rankfall simulate` shows what each does"
        )
    if status.get("distinctions") == "reduced" and not alike:
        lines.append(
            "distinctions are fewer than random weights leave, but not lost: `rankfall compare` with a model of the"
            " same task tells whether the task or this model does that"
        )
    if status.get("alignment") == "aligned" and status.get("distinctions") != "lost":
        lines.append(
            "tokens share a direction: compare them after their mean is taken off (the centred views), where the"
            " distinctions between them are"
        )
    if status.get("domination") == "dominated":
        lines.append("raw numbers are about a few tokens: read those of tokens of length one, as is done here")
    if "depends" in status.values():
        lines.append(
            "an answer depends on the text: read the text that matters (`--text`), and more of it (`--passages`)"
            if more_text is not None
            else "an answer depends on the inputs: give those that matter, and more of them"
        )
    if plan is not None:
        layers = {
            topic: [layer for one in reasons if one.topic == topic for layer in one.numbers["layers"]]
            for topic in ("head need", "head rank")
        }
        own = {topic: [one for one in found if plan.stack.holds(one["module"])] for topic, found in layers.items()}
        lines += need_advice(own["head need"], plan) if layers["head need"] else spread_advice(own["head rank"], plan)
    return Reason("what to change", "; ".join(lines) or NO_CHANGE)
