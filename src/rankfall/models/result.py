"""Everything that one audit found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, final

from rankfall.measures.profile import VIEWS
from rankfall.models.ablation.block import ReplayCheck
from rankfall.models.ablation.chaos import with_chaos
from rankfall.models.ablation.rows import AblationRow
from rankfall.models.attention.heads import HeadAttention
from rankfall.models.attention.masks import ObservedMask
from rankfall.models.controls.controls import Control
from rankfall.models.depth.pooled import Pooled
from rankfall.models.depth.rows import DepthRow
from rankfall.models.heads.cut_curve import CutCurve
from rankfall.models.heads.key_values import KeyValueRecord
from rankfall.models.heads.needed import HeadNeed
from rankfall.models.heads.random import by_layer
from rankfall.models.heads.record import HeadRecord
from rankfall.models.heads.spectra import HeadSpectrum
from rankfall.models.heads.study import by_layer as needs_by_layer
from rankfall.models.heads.subspaces import SpaceOverlap
from rankfall.models.recording.events import Coverage
from rankfall.models.stacks import (
    StackFindings,
    boundaries_of,
    depth_lines,
    first_draws,
    question_lines,
    stack_tables,
)
from rankfall.models.verdict.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd


@final
@dataclass(frozen=True)
class ModelFacts:
    """Which model was audited."""

    name: str
    source: str
    kind: str
    parameters: int
    layers: int
    width: int
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class TextFacts:
    """What it was given to read, and how well it predicted it: `loss` in nats per token, None for `loss_reason`."""

    texts: int
    tokens: tuple[int, ...]
    padded: bool
    loss: float | None = None
    loss_reason: str | None = None


@dataclass(frozen=True)
class AuditFindings:
    """`depth`, `controls`, `ablation` and the findings of `verdict` are about the blocks named `stack`, which
    `stack_label` tells from other blocks that ran; those have theirs in `other_stacks`. `missing` says, by part of
    the audit, why it is not there."""

    model: ModelFacts
    text: TextFacts
    depth: tuple[DepthRow, ...]
    masks: tuple[ObservedMask, ...]
    coverage: Coverage | None
    heads: tuple[HeadRecord, ...]
    controls: tuple[Control, ...]
    ablation: tuple[AblationRow, ...]
    verdict: Verdict
    missing: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    measured_rate: float | None = None
    random_heads: tuple[HeadRecord, ...] = ()
    pooled: tuple[Pooled, ...] = ()
    ablation_check: ReplayCheck | None = None
    stack: str = ""
    other_stacks: tuple[StackFindings, ...] = ()
    key_values: tuple[KeyValueRecord, ...] = ()
    head_needs: tuple[HeadNeed, ...] = ()
    random_head_needs: tuple[HeadNeed, ...] = ()
    head_cut: CutCurve | None = None
    head_overlaps: tuple[SpaceOverlap, ...] = ()
    head_spectra: tuple[HeadSpectrum, ...] = ()
    attention: tuple[HeadAttention, ...] = ()
    stack_label: str = ""

    @property
    def boundaries(self) -> list[DepthRow]:
        """The rows at the ends of blocks, the embeddings first."""
        return boundaries_of(self.depth)

    @property
    def layers_told(self) -> str:
        """How many layers each stack has: `3 layers of encoder.block, 2 of decoder.block`."""
        count = self.model.layers
        others = (f"{one.boundaries[-1].layer} of {one.name}" for one in self.other_stacks)
        return ", ".join([f"{count} layer{'' if count == 1 else 's'} of {self.stack}", *others])

    @property
    def advised(self) -> str | None:
        """What to change, each stack's advice after its name where there are several; None where there is none."""
        if not self.other_stacks:
            return self.verdict.advised
        each = [(self.stack_label, self.verdict), *((one.label, one.verdict) for one in self.other_stacks)]
        return "; ".join(f"{label}: {verdict.advised}" for label, verdict in each if verdict.advised) or None

    def control_boundaries(self) -> dict[str, list[DepthRow]]:
        """The first draw of each control by name, at the places of `boundaries`."""
        return first_draws(self.controls)

    def record(self) -> dict[str, Any]:
        """The result as `--json` prints it: `depth` holds block boundaries, `inside` everything between them."""
        return {
            "model": asdict(self.model),
            "text": asdict(self.text),
            "stack": self.stack,
            "stack_label": self.stack_label,
            "depth": [row.record() for row in self.boundaries],
            "other_stacks": [one.record() for one in self.other_stacks],
            "inside": [row.record() for row in self.depth if row.part != "boundary"],
            "pooled": [one.record() for one in self.pooled],
            "heads": [head.record() for head in self.heads],
            "random_heads": by_layer(self.random_heads),
            "key_values": [one.record() for one in self.key_values],
            "head_needs": [one.record() for one in self.head_needs],
            "random_head_needs": needs_by_layer(self.random_head_needs),
            "head_cut": None if self.head_cut is None else self.head_cut.record(),
            "head_overlaps": [one.record() for one in self.head_overlaps],
            "head_spectra": [one.record() for one in self.head_spectra],
            "attention": [head.record() for head in self.attention],
            "mask": [mask.record() for mask in self.masks],
            "measured_rate": self.measured_rate,
            "controls": [control.record() for control in self.controls],
            "ablation": with_chaos([row.record() for row in self.ablation]),
            "ablation_check": None if self.ablation_check is None else self.ablation_check.record(),
            "coverage": None if self.coverage is None else self.coverage.record(),
            "verdict": self.verdict.record(),
            "missing": dict(self.missing),
            "provenance": dict(self.provenance),
        }

    def tables(self) -> dict[str, pd.DataFrame]:
        """The result as flat tables by name; empty ones are left out."""
        import pandas as pd

        chance = {(one.layer, one.module, one.head): one.needed_rank for one in self.random_head_needs}
        made = {
            "depth": [line for row in self.depth for line in depth_lines(row, "model")],
            **stack_tables(self.other_stacks),
            "per_text": [
                {"layer": row.layer, "part": row.part, "text": one.text, "view": view, **one.values[view]}
                for row in self.depth
                for one in row.per_text
                for view in VIEWS
            ],
            "pooled": [one.record() for one in self.pooled],
            "sinks": [
                {"layer": row.layer, "part": row.part, **asdict(sink)} for row in self.depth for sink in row.sinks
            ],
            "controls": [
                {**line, "draw": one.draw}
                for one in self.controls
                for row in one.rows
                for line in depth_lines(row, one.name)
            ],
            "masks": [{**mask.record(), "first_roots": str(mask.record().get("first_roots"))} for mask in self.masks],
            "questions": question_lines(self.verdict),
            "heads": [head.line() for head in self.heads],
            "key_values": [one.line() for one in self.key_values],
            "key_value_energy": [line for one in self.key_values for line in one.energy_lines()],
            "ablation": with_chaos([row.record() for row in self.ablation]),
            "head_needs": [
                {**one.record(), "random_needed_rank": chance.get((one.layer, one.module, one.head))}
                for one in self.head_needs
            ],
            "head_cut": [] if self.head_cut is None else [one.record() for one in self.head_cut.points],
            "head_overlaps": [one.record() for one in self.head_overlaps],
            "head_spectra": [line for one in self.head_spectra for line in one.lines()],
            "attention": [head.line() for head in self.attention],
        }
        return {name: pd.DataFrame(rows) for name, rows in made.items() if rows}
