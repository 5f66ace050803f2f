"""Beyond the papers: what each family of equilibria costs, and the twisted states that escape B-thm2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas
from rankfall.equilibria.examine import examine, examine_equilibrium
from rankfall.equilibria.families import families
from rankfall.equilibria.known import twisted, twisted_multipliers
from rankfall.equilibria.stability import multipliers
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Tokens, width, and tokens on the ring.
SIZES: dict[Scale, tuple[int, int, int]] = {"smoke": (5, 4, 16), "quick": (12, 8, 32), "paper": (16, 9, 64)}


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Spectral radius, conditioning and transient growth by rank; multipliers of twisted states by turns."""
    count, width, around = SIZES[scale]
    rows: list[dict[str, Any]] = []
    for index, family in enumerate(families()):
        progress(f"family {family.name}", index / len(families()))
        for rank in range(1, family.limit(count, width) + 1):
            seen = examine_equilibrium(family(count, width, rank)).record()
            promised = family.strict(count, width, rank)
            rows.append({"family": family.name, "wanted": rank, "promised_stable": promised, **seen})
    turns = [twisted_row(around, q, d) for d in (2, 3) for q in range((around - 1) // 3 + 1)]
    return FigureOutcome(
        points=[],
        claims=claims(rows, turns),
        tables={"families": rows, "twisted": turns},
        draw=lambda: draw(rows, turns, around),
        notes=(
            "strict stability is local: a disturbance first grows by the transient growth, so the basin is about "
            "its inverse; families window and chain trade that against the conditioning of the tokens",
        ),
    )


def twisted_row(count: int, turns: int, width: int) -> dict[str, Any]:
    """Predicted and measured largest multiplier (rigid rotations left out) of one twisted state."""
    built = twisted(count, turns, width)
    inside, outside = twisted_multipliers(count, turns)
    predicted = torch.cat([inside[1:]] + [outside] * (width - 2)).abs().max()
    found = np.sort(np.concatenate([np.abs(values) for values, _, _ in multipliers(built.layer, built.tokens)]))
    # The rigid rotation in the plane is exactly neutral: take one multiplier nearest to one away.
    measured = np.delete(found, np.abs(found - 1).argmin()).max()
    return {
        "tokens": count,
        "width": width,
        "turns": turns,
        "predicted": float(predicted),
        "measured": float(measured),
        "residual": built.layer.residual(built.tokens),
        "verdict": examine(built.layer, built.tokens).verdict,
    }


def claims(rows: Sequence[Mapping[str, Any]], turns: Sequence[Mapping[str, Any]]) -> tuple[Claim, ...]:
    """Statements that can fail."""
    residual = max(row["residual"] for row in rows)
    missed = [row for row in rows if row["rank"] != row["wanted"]]
    broken = [row for row in rows if row["promised_stable"] != row["stable"]]
    gap = max(abs(row["predicted"] - row["measured"]) for row in turns)
    quarter = [row for row in turns if row["width"] == 2 and 0 < 4 * row["turns"] < row["tokens"]]
    lifted = [row for row in turns if row["width"] == 3 and row["turns"] > 0]
    return (
        Claim("every family's tokens are fixed", residual < 1e-12, f"largest residual {residual:.2g}"),
        Claim("every rank asked for is the rank found", not missed, f"{len(missed)} of {len(rows)} differ"),
        Claim("strictly stable exactly where promised", not broken, f"{len(broken)} of {len(rows)} differ"),
        Claim("twisted states have the multipliers of the closed form", gap < 1e-6, f"largest difference {gap:.2g}"),
        Claim(
            "in the plane, less than a quarter turn between neighbours is stable up to rotation",
            all(row["measured"] < 1 for row in quarter),
            f"{len(quarter)} states, largest {max(row['measured'] for row in quarter):.5f}",
        ),
        Claim(
            "in three dimensions every twisted state is unstable",
            all(row["measured"] > 1 for row in lifted),
            f"{len(lifted)} states, smallest {min(row['measured'] for row in lifted):.5f}",
        ),
    )


def draw(rows: Sequence[Mapping[str, Any]], turns: Sequence[Mapping[str, Any]], around: int) -> Figure:
    """Four panels."""
    figure, axes = canvas(2, 2, size=(5.4, 3.8))
    panels = (
        (axes[0, 0], "spectral_radius", "spectral radius (below the line: strictly stable)"),
        (axes[0, 1], "smallest_singular_value", "smallest singular value of the tokens, relative"),
        (axes[1, 0], "transient_growth", "transient growth (the basin is about its inverse)"),
    )
    for axis, column, title in panels:
        for index, family in enumerate(families()):
            mine = [row for row in rows if row["family"] == family.name]
            values = [row[column] if row[column] is not None else math.nan for row in mine]
            style = {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 5, "label": family.name}
            axis.semilogy([row["wanted"] for row in mine], values, **style)
        axis.set(title=title, xlabel="rank")
    axes[0, 0].axhline(1.0, color="black", linewidth=0.8)
    axes[0, 0].legend()
    for width, colour in ((2, COLOURS[2]), (3, COLOURS[1])):
        mine = [row for row in turns if row["width"] == width]
        label = "in the plane" if width == 2 else "in three dimensions"
        axes[1, 1].plot([r["turns"] for r in mine], [r["predicted"] for r in mine], color=colour, label=label)
        axes[1, 1].plot([r["turns"] for r in mine], [r["measured"] for r in mine], "o", color=colour, markersize=5)
    axes[1, 1].axhline(1.0, color="black", linewidth=0.8)
    axes[1, 1].axvline(around / 4, color="grey", linestyle=":", label="a quarter turn per token")
    axes[1, 1].set(
        title=f"twisted states on a ring of {around} tokens",
        xlabel="turns around the ring",
        ylabel="largest multiplier (line: closed form)",
        yscale="log",
    )
    axes[1, 1].legend()
    return figure


REPRODUCTION = Reproduction(
    "rankfall/equilibria",
    "Equilibria of every rank: how stable, how well conditioned, how far a disturbance grows",
    ("B-thm2", "B-thm3"),
    run,
    columns={
        "wanted": "rank asked for",
        "rank": "rank found",
        "promised_stable": "whether the family is proved to be stable",
        "rank_tolerance": "singular values below this count as zero",
        "smallest_singular_value": "smallest singular value that counts",
        "next_singular_value": "largest singular value that does not",
        "spectral_radius": "spectral radius of the Jacobian on the tangent space; below 1 is stable",
        "spectral_radius_float64": "the same, in ordinary precision",
        "uncertainty": "how far the spectral radius can be off by rounding",
        "digits": "digits of the arithmetic that decided, where float64 could not",
        "stable": "whether the fixed point is strictly stable",
        "neutral_directions": "directions that neither grow nor shrink",
        "transient_growth": "most that a small disturbance grows before it shrinks",
        "dimension": "dimension of the tangent space",
        "residual": "how far a layer moves the tokens",
        "turns": "times that the twisted state goes around the circle",
        "predicted": "the largest multiplier of the Jacobian by its closed form",
        "measured": "the largest multiplier of the Jacobian, the rigid rotation left out",
    },
)
