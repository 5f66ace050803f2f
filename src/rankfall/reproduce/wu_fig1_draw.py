"""The picture of B-fig1: paths without and with the norm, the basin as an arc, mu by layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankfall.constructions.equilibria import TwoTokens
from rankfall.drawing.canvas import COLOURS, canvas

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FIRST, SECOND, ARC = COLOURS[0], COLOURS[1], COLOURS[2]
# Token 1, then token 2 inside and outside the arc, in degrees.
LEADER, INSIDE, OUTSIDE = 50.0, (150.0, 185.0, 235.0), (20.0, 100.0, 300.0)


def point(degrees: float) -> Tensor:
    """On the circle."""
    angle = math.radians(degrees)
    return torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)


def path(example: TwoTokens, start: Tensor, layers: int, *, norm: bool) -> Tensor:
    """All layers of a pair: (layers + 1, 2, 2)."""
    layer = example.layer
    weights = layer.attention(start)
    steps = [start]
    for _ in range(layers):
        mixed = weights @ steps[-1] @ layer.value
        steps.append(layer.project(mixed) if norm else mixed)
    return torch.stack(steps)


def draw(example: TwoTokens, basin: pd.DataFrame) -> Figure:
    """Four panels."""
    figure, axes = canvas(2, 2, size=(5.2, 4.6))
    _bare(axes[0, 0], example)
    _normed(axes[0, 1], example)
    _basin(axes[1, 0], example, basin)
    _spread(axes[1, 1], example)
    return figure


def _bare(axis: Any, example: TwoTokens) -> None:
    steps = path(example, torch.stack([point(LEADER), point(INSIDE[0])]), 7, norm=False).numpy()
    for token, colour, name in ((0, FIRST, "token 1"), (1, SECOND, "token 2")):
        axis.plot(steps[:, token, 0], steps[:, token, 1], "o-", color=colour, markersize=4, label=name)
        axis.plot(*steps[0, token], "o", color=colour, markersize=10, fillstyle="none")
    axis.set(title="without norm: the tokens meet", xlabel="$x_1$", ylabel="$x_2$")
    axis.legend(loc="upper left", title="circles: start")


def _normed(axis: Any, example: TwoTokens) -> None:
    around = np.linspace(0, 2 * np.pi, 400)
    axis.plot(np.cos(around), np.sin(around), color="lightgrey", linewidth=1)
    start, end = example.basin()
    arc = np.linspace(start, end, 200)
    axis.plot(
        np.cos(arc),
        np.sin(arc),
        color=ARC,
        linewidth=9,
        alpha=0.35,
        solid_capstyle="butt",
        label="token 2 stays apart",
    )
    for radius, (degrees, apart) in enumerate([(v, True) for v in INSIDE] + [(v, False) for v in OUTSIDE]):
        # Each path on a circle of its own, so that they do not cover each other.
        shrink = 0.93 - 0.09 * radius
        steps = path(example, torch.stack([point(90.0), point(degrees)]), 40, norm=True)[:, 1]
        angles = np.unwrap(torch.atan2(steps[:, 1], steps[:, 0]).numpy())
        fine = np.interp(np.linspace(0, len(angles) - 1, 2000), np.arange(len(angles)), angles)
        colour = ARC if apart else SECOND
        axis.plot(shrink * np.cos(fine), shrink * np.sin(fine), color=colour, linewidth=1)
        axis.plot(shrink * np.cos(angles), shrink * np.sin(angles), ".", color=colour, markersize=5)
        axis.plot(
            shrink * np.cos(angles[0]), shrink * np.sin(angles[0]), "o", color=colour, markersize=8, fillstyle="none"
        )
    for fixed in example.fixed_points():
        face = "black" if fixed.stable else "white"
        axis.plot(*fixed.point, "s", color="black", markerfacecolor=face, markersize=8, zorder=5)
        axis.annotate(fixed.name, fixed.point, textcoords="offset points", xytext=(8, 6), fontsize=9)
    axis.set_aspect("equal")
    axis.set(title="with norm, token 1 at (0, 1): paths of token 2", xlim=(-1.45, 1.45), ylim=(-1.3, 1.3))
    axis.legend(loc="lower right", fontsize=8)


def _basin(axis: Any, example: TwoTokens, basin: pd.DataFrame) -> None:
    turns = np.degrees(basin["angle"].to_numpy())
    apart = basin["apart"].to_numpy()
    ends = np.degrees(basin["end_angle"].to_numpy())
    axis.plot(turns[~apart], ends[~apart], ".", color=SECOND, markersize=3, label="simulated: together")
    axis.plot(turns[apart], ends[apart], ".", color=ARC, markersize=3, label="simulated: apart")
    for edge in example.basin():
        axis.axvline(math.degrees(edge), color="black", linewidth=0.8, linestyle="--")
    axis.set(
        title="where token 2 ends (dashed: closed form)",
        xlabel="start angle of token 2, degrees",
        ylabel="end angle, degrees",
        xticks=range(0, 361, 60),
        yticks=range(0, 361, 60),
    )
    axis.legend(loc="lower right")


def _spread(axis: Any, example: TwoTokens) -> None:
    start = torch.stack([point(LEADER), point(INSIDE[1])])
    for norm, colour, label in ((False, FIRST, "without norm"), (True, ARC, "with norm")):
        steps = path(example, start, 40, norm=norm)
        spread = (steps - steps.mean(dim=1, keepdim=True)).flatten(1).norm(dim=-1)
        axis.semilogy(spread.numpy(), "o-", color=colour, markersize=3, label=label)
    axis.set(title="distance from all tokens being equal", xlabel="layer", ylabel=r"$\mu$")
    axis.legend()
