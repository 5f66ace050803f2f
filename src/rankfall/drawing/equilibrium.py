"""Pictures of equilibria: tokens, their spectrum and their multipliers; radius and conditioning by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas, heading, whole_ticks
from rankfall.linalg.spectra import singular_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Singular values and residuals of zero are drawn here on logarithmic axes.
BOTTOM = 1e-17


def draw_equilibrium(tokens: Tensor, multipliers: Sequence[np.ndarray], title: str) -> Figure:
    """Cosines between tokens, singular values, and the Jacobian's multipliers against the unit circle."""
    figure, axes = canvas(1, 3, size=(4.2, 3.8))
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    left, middle, right = axes[0]
    image = left.imshow((unit @ unit.mT).numpy(), vmin=-1, vmax=1, cmap="RdBu_r")
    figure.colorbar(image, ax=left, shrink=0.8)
    left.grid(False)
    left.set(title="cosine between tokens", xlabel="token", ylabel="token")
    values = singular_values(tokens).numpy()
    middle.semilogy(np.arange(1, len(values) + 1), np.maximum(values / values[0], BOTTOM), "o-", color=COLOURS[0])
    middle.axhline(max(tokens.shape) * np.finfo(float).eps, color="grey", linestyle=":", label="counts as zero below")
    middle.set(title="singular values, relative", xlabel="index")
    whole_ticks(middle.xaxis)
    middle.legend()
    draw_multipliers(right, multipliers)
    right.set_title("multipliers of the layer's derivative")
    heading(figure, title)
    return figure


def draw_multipliers(axis: Any, multipliers: Sequence[np.ndarray]) -> None:
    """Multipliers in the complex plane; those outside the circle grow."""
    angle = np.linspace(0, 2 * np.pi, 400)
    axis.plot(np.cos(angle), np.sin(angle), color="black", linewidth=0.8)
    values = np.concatenate(list(multipliers)) if multipliers else np.zeros(0)
    inside, outside = np.abs(values) < 1 - 1e-9, np.abs(values) > 1 + 1e-9
    for chosen, colour, label in (
        (inside, COLOURS[2], "return"),
        (~inside & ~outside, COLOURS[4], "neutral"),
        (outside, COLOURS[1], "grow"),
    ):
        if chosen.any():
            axis.scatter(values[chosen].real, values[chosen].imag, s=18, color=colour, label=label, zorder=3)
    axis.set_aspect("equal", adjustable="datalim")
    axis.set(xlabel="real part", ylabel="imaginary part")
    if len(values):
        axis.legend(loc="upper right")


def draw_by_rank(families: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Spectral radius and smallest singular value by rank, one line per family."""
    figure, axes = canvas(1, 2)
    for index, (family, rows) in enumerate(families.items()):
        style = {"color": COLOURS[index], "marker": MARKERS[index], "label": family}
        ranks = [row["requested_rank"] for row in rows]
        axes[0, 0].plot(ranks, [row["spectral_radius"] for row in rows], **style)
        smallest = [max(row["smallest_singular_value"], BOTTOM) for row in rows]
        axes[0, 1].plot(ranks, smallest, **style)
    axes[0, 0].axhline(1.0, color="black", linewidth=0.8)
    radii = [row["spectral_radius"] for rows in families.values() for row in rows]
    axes[0, 0].set_yscale("log" if max(radii) > 10 else "linear")
    worst = min(row["smallest_singular_value"] for rows in families.values() for row in rows)
    axes[0, 1].set_yscale("log" if worst < 0.1 else "linear")
    axes[0, 0].set(title="spectral radius (below the line: stable)", xlabel="rank")
    axes[0, 1].set(title="smallest singular value, relative", xlabel="rank")
    whole_ticks(*(panel.xaxis for panel in axes[0]))
    axes[0, 1].legend()
    return figure
