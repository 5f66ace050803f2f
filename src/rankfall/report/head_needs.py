"""The part of an audit's report that answers whether the heads are the bottleneck."""

from __future__ import annotations

from rankfall.drawing.head_needs import draw_cut_curve, draw_needed_ranks
from rankfall.models.result import AuditFindings
from rankfall.report.document import Grid, Picture, Section

TITLE = "What heads need"


def needs_section(result: AuditFindings, tables: dict[str, Grid]) -> Section:
    """Pictures of needed ranks and of the loss with cut heads, and the tables behind them."""
    blocks: list[Picture | Grid] = []
    if result.head_needs:
        blocks.append(
            Picture(
                "needed_rank",
                "Rank that each head needs",
                f"The fewest directions of a head's scores that keep its attention on this text within"
                f" {result.head_needs[0].limit:g} nats a row, beside the same heads with random weights.",
                draw_needed_ranks(
                    tables["head_needs"].table, f"Directions that each head needs, {result.model.name}"
                ),
            )
        )
    if (curve := result.head_cut) is not None:
        measured = "loss in nats per token" if curve.loss is not None else "change of the output"
        blocks.append(
            Picture(
                "loss_by_rank",
                "The model with cut heads",
                f"Thick: every head cut to so many directions; thin: one layer at a time ({measured}). With all"
                f" directions kept the model is itself to {curve.error:.1g}, of {curve.tolerance:g} allowed.",
                draw_cut_curve(curve, f"Heads cut to k directions, {result.model.name}"),
            )
        )
    shown = ("head_needs", "head_cut", "head_overlaps", "head_spectra")
    return Section(TITLE, (), [*blocks, *(tables[name] for name in shown if name in tables)])
