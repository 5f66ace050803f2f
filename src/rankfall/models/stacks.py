"""Several stacks of blocks in one model: each that ran has depth, controls, ablation and a verdict of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from torch import nn

from rankfall.errors import reason_of
from rankfall.models.ablation.ablation import Ablation, ablate
from rankfall.models.ablation.block import ReplayCheck
from rankfall.models.ablation.chaos import with_chaos
from rankfall.models.ablation.rows import AUDITED, AblationRow
from rankfall.models.attention.masks import ObservedMask
from rankfall.models.controls.changes import Given
from rankfall.models.controls.controls import Control, run_controls
from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.rows import DepthRow
from rankfall.models.heads.record import HeadRecord
from rankfall.models.heads.seen import SeenWatch
from rankfall.models.inputs.given import Reading
from rankfall.models.recording.blocks import BlockStack
from rankfall.models.verdict.advised_plan import AdvisedPlan, advised_plan
from rankfall.models.verdict.asked import too_little_text
from rankfall.models.verdict.parts_reason import parts_reason
from rankfall.models.verdict.reasons import Reason, layer_rate
from rankfall.models.verdict.verdict import Verdict, judge
from rankfall.progress import Progress, silent

# What of a verdict's reasons is about one stack; the others are about all heads of the model.
OF_A_STACK = ("token rank", "mask", "what holds it up", "what to change")


@final
@dataclass(frozen=True)
class StackFindings:
    """What was found in another stack of blocks that ran: a decoder beside its encoder, a tower of images.

    `label` is the part of its name that tells it from the others.
    """

    name: str
    label: str
    depth: tuple[DepthRow, ...]
    controls: tuple[Control, ...]
    ablation: tuple[AblationRow, ...]
    verdict: Verdict
    ablation_check: ReplayCheck | None = None

    @property
    def boundaries(self) -> list[DepthRow]:
        """The rows at the ends of blocks."""
        return boundaries_of(self.depth)

    def record(self) -> dict[str, Any]:
        """The stack as `--json` prints it, its parts named as those of the first."""
        return {
            "name": self.name,
            "label": self.label,
            "depth": [row.record() for row in self.boundaries],
            "inside": [row.record() for row in self.depth if row.part != "boundary"],
            "measured_rate": layer_rate(self.boundaries),
            "controls": [control.record() for control in self.controls],
            "ablation": with_chaos([row.record() for row in self.ablation]),
            "ablation_check": None if self.ablation_check is None else self.ablation_check.record(),
            "verdict": self.verdict.record(),
        }


def boundaries_of(rows: Sequence[DepthRow]) -> list[DepthRow]:
    """The rows at the ends of blocks, the embeddings first."""
    return [row for row in rows if row.part == "boundary"]


def first_draws(controls: Sequence[Control]) -> dict[str, list[DepthRow]]:
    """The first draw of each control by name, at the ends of blocks."""
    return {one.name: boundaries_of(one.rows) for one in controls if one.rows and one.draw == 0}


def labels(names: Sequence[str]) -> list[str]:
    """What tells names of stacks apart: `encoder` and `decoder` of `model.encoder.layers` and `model.decoder.layers`;
    the names themselves where one word of each does not."""
    parts = [name.split(".") for name in names]
    while len(parts) > 1 and all(len(one) > 1 and one[0] == parts[0][0] for one in parts):
        parts = [one[1:] for one in parts]
    short = [one[0] for one in parts]
    return short if len(set(short)) == len(short) and all(short) else list(names)


def masks_without(masks: Sequence[ObservedMask], others: Sequence[BlockStack]) -> list[ObservedMask]:
    """The masks that were seen elsewhere than in these stacks."""
    return [one for one in masks if not any(stack.holds(one.module) for stack in others)]


def study_stack(
    network: nn.Module,
    given: Reading,
    stack: BlockStack,
    label: str,
    *,
    masks: Sequence[ObservedMask],
    controls: bool,
    draws: int,
    ablation: bool,
    seed: int,
    missing: dict[str, str],
    of_heads: Sequence[Reason] = (),
    heads: Sequence[HeadRecord] = (),
) -> StackFindings:
    """Measure, compare, take apart and judge one more stack; what fails is named in `missing` with the stack.
    `heads`, and what is said `of_heads`, are those of the whole model."""
    rows = measure_depth(network, given.calls, real=given.real, names=given.names, seed=seed, stack=stack)
    own: dict[str, str] = {}
    parts = ablation_of(network, given, stack, own) if ablation else Ablation(())
    compared = controls_of(network, given, stack, rows[-1].layer, draws, seed, own) if controls else ()
    reason = None
    with noted(own, "words about what holds it up"):
        reason = parts_reason([row.record() for row in parts.rows], too_little=too_little_text(rows))
    missing |= {f"in {stack.name}, {name}": why for name, why in own.items()}
    seen = [one for one in masks if stack.holds(one.module)]
    more = [] if reason is None else [reason]
    verdict = judge(
        label,
        rows,
        masks=seen,
        controls=compared,
        more=more,
        of_heads=of_heads,
        plan=plan_of(network, heads, stack, rows, seen, label),
        seed=seed,
        more_text=given.more_text,
        of_text=given.batch is not None,
    )
    return StackFindings(stack.name, label, tuple(rows), compared, parts.rows, verdict, parts.check)


def plan_of(
    network: nn.Module,
    heads: Sequence[HeadRecord],
    stack: BlockStack,
    rows: Sequence[DepthRow],
    masks: Sequence[ObservedMask],
    label: str = "",
) -> AdvisedPlan | None:
    """The plan for the shape of a stack that was measured."""
    end = boundaries_of(rows)[-1]
    return advised_plan(
        network,
        heads,
        stack,
        layers=end.layer,
        tokens=max(one.tokens for one in end.per_text),
        label=label,
        caches=any(stack.holds(one.module) and (one.name or "").startswith("causal") for one in masks),
    )


def joined(verdict: Verdict, others: Sequence[StackFindings]) -> Verdict:
    """The verdict of the first stack, its headline followed by those of the others."""
    return replace(verdict, headline=". ".join([verdict.headline, *(one.verdict.headline for one in others)]))


def controls_of(
    network: nn.Module,
    given: Reading,
    stack: BlockStack,
    layers: int,
    draws: int,
    seed: int,
    missing: dict[str, str],
) -> tuple[Control, ...]:
    """The controls of one stack; why there are none is noted."""
    made: tuple[Control, ...] = ()
    read = Given(given.calls, given.real, given.names, given.batch, stack, given.text_axis)
    with noted(missing, "controls"):
        made = run_controls(network, read, layers=layers, seed=seed, draws=draws)
    missing |= {f"control {one.name}": one.reason for one in made if one.reason is not None}
    return made


def ablation_of(
    network: nn.Module,
    given: Reading,
    stack: BlockStack,
    missing: dict[str, str],
    also: SeenWatch | None = None,
    progress: Progress = silent,
) -> Ablation:
    """The blocks of one stack taken apart; why they cannot be is noted."""
    found = Ablation(())
    inputs = given.calls[0] if given.singles is None else given.singles
    with noted(missing, "ablation"):
        found = ablate(network, inputs, measures=AUDITED, stack=stack, also=also, progress=progress)
    if found.refusal is not None:
        missing["ablation"] = found.refusal
    if found.cross_refusal is not None:
        missing["cross-attention in the ablation"] = found.cross_refusal
    return found


@contextlib.contextmanager
def noted(missing: dict[str, str], name: str) -> Iterator[None]:
    """A part of an audit that fails is noted as missing, with its reason; the audit goes on."""
    try:
        yield
    except Exception as error:
        missing[name] = reason_of(error)


def depth_lines(row: DepthRow, run: str) -> list[dict[str, Any]]:
    """A row of depth as lines of a table: one for each view, with and without the massive tokens."""
    lines = []
    for sinks, values in (("with", row.values), ("without", row.without_sinks)):
        for view in values or ():
            assert values is not None
            line: dict[str, Any] = {"run": run, "layer": row.layer, "part": row.part, "view": view, "sinks": sinks}
            line |= values[view]
            if row.interval is not None and sinks == "with":
                for rank in ("effective_rank", "energy_rank"):
                    low, high = row.interval[view][rank]
                    line |= {f"{rank}_low": low, f"{rank}_high": high}
            lines.append(line)
    return lines


def question_lines(verdict: Verdict) -> list[dict[str, Any]]:
    """The numbers behind each answer of a verdict as lines of a table."""
    return [
        {
            "question": finding.question,
            "place": one.place,
            "layer": one.layer,
            "module": one.module,
            "status": one.status,
            "number": name,
            "median": number.median,
            "low": number.low,
            "high": number.high,
        }
        for finding in verdict.findings
        for one in finding.places
        for name, number in one.numbers.items()
    ]


def stack_tables(stacks: Sequence[StackFindings]) -> dict[str, list[dict[str, Any]]]:
    """Rows of the tables about other stacks, each with the name of its stack."""
    return {
        "other_stacks": [
            {"stack": one.name, **line} for one in stacks for row in one.depth for line in depth_lines(row, "model")
        ],
        "other_stacks_controls": [
            {"stack": one.name, **line, "draw": control.draw}
            for one in stacks
            for control in one.controls
            for row in control.rows
            for line in depth_lines(row, control.name)
        ],
        "other_stacks_questions": [
            {"stack": one.name, **line} for one in stacks for line in question_lines(one.verdict)
        ],
        "other_stacks_ablation": [
            {"stack": one.name, **line}
            for one in stacks
            for line in with_chaos([row.record() for row in one.ablation])
        ],
    }
