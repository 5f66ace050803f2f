"""Vote quality as one picture: errors against the context for two laws of points, and against the rank of layer 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def draw_vote_quality(dim: int, votes: Rows, codes: Rows, floor: float) -> Figure:
    """Three panels; `floor` is the error of infinitely many heads among three independent points."""
    figure, axes = canvas(1, 3, size=(4.6, 3.8))
    for axis, law in zip(axes[0, :2], ("orthonormal", "independent"), strict=True):
        _votes(axis, [row for row in votes if row["law"] == law])
        axis.set(title=f"vote among {law} points, d = {dim}", xlabel="points N")
    axes[0, 1].plot([3], [floor], color="black", marker="*", ms=10, ls="", label="H infinite, exact, N = 3")
    axes[0, 0].set_ylabel("share of wrong answers")
    axes[0, 0].legend(fontsize=8, title="dashed: theory, many heads", title_fontsize=8)
    axes[0, 1].legend(fontsize=8)
    last = axes[0, 2]
    for (n, members), colour, marker in zip(_by(codes, "points").items(), COLOURS, MARKERS, strict=False):
        share = [row["code_rank"] / (n - 1) for row in members]
        last.plot(share, [row["wrong"] for row in members], color=colour, marker=marker, ms=4, label=f"N = {n}")
    last.set(title="linear regime: rank of layer 2", xlabel="rank of layer 2 over N - 1", ylim=(-0.02, 1))
    last.legend(fontsize=8)
    return figure


def _votes(axis: Any, rows: Rows) -> None:
    for (heads, members), colour, marker in zip(_by(rows, "heads").items(), COLOURS, MARKERS, strict=False):
        n = [row["points"] for row in members]
        axis.errorbar(
            n,
            [row["wrong"] for row in members],
            yerr=[2 * row["standard_error"] for row in members],
            color=colour,
            marker=marker,
            ms=4,
            capsize=2,
            label=f"H = {heads}",
        )
        told = [(row["points"], row["predicted"]) for row in members if (row["predicted"] or 1) < 0.6]
        if told:
            axis.plot(*zip(*told, strict=True), color=colour, linestyle="--", linewidth=1)
    points = sorted({row["points"] for row in rows})
    axis.set(xscale="log", ylim=(-0.02, 1))
    axis.set_xticks(points, [str(n) for n in points])
    axis.minorticks_off()


def _by(rows: Rows, field: str) -> dict[Any, list[Mapping[str, Any]]]:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[field], []).append(row)
    return groups
