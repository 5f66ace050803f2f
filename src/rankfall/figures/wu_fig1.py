"""B-fig1: two tokens in the plane meet without a norm, and may stay apart with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from rankfall.drawing.canvas import COLOURS, canvas
from rankfall.equilibria.examine import examine
from rankfall.equilibria.known import TwoTokens
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.progress import Progress, silent

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


STARTS: dict[Scale, tuple[int, int, int]] = {
    "smoke": (2_000, 1_000, 1_000),
    "quick": (200_000, 20_000, 2_000),
    "paper": (2_000_000, 200_000, 5_000),
}
LAYERS = 300
BARE_LAYERS = 80
# Farther than this from the fixed point after so many layers is not there.
ARRIVED = 1e-9


@final
@dataclass(frozen=True)
class Basin:
    """Where token 2 ended for each start angle, token 1 held at (0, 1)."""

    angles: Tensor
    ends: Tensor
    apart: Tensor
    together: Tensor
    predicted: Tensor


def circle(angles: Tensor) -> Tensor:
    """Points at these angles."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def simulate_basin(example: TwoTokens, count: int) -> Basin:
    """Token 2 from `count` starts spread evenly, never exactly on the arc's ends."""
    angles = (torch.arange(count, dtype=torch.float64) + 0.5 - 1 / math.pi) * (2 * math.pi / count)
    ends = example.listen(circle(angles), LAYERS)
    there = {point.name: torch.tensor(point.point, dtype=torch.float64) for point in example.fixed_points()}
    apart, together = ((ends - there[name]).norm(dim=-1) < ARRIVED for name in ("apart", "together"))
    return Basin(angles, ends, apart, together, example.in_basin(angles))


def simulate_pairs(example: TwoTokens, starts: Tensor, layers: int, *, norm: bool) -> Tensor:
    """Pairs (b, 2, 2) after so many layers, with or without the norm."""
    layer = example.layer
    other, own = layer.attention(starts[0])[1].tolist()
    leader, listener = starts[:, 0], starts[:, 1]
    for _ in range(layers):
        leader, listener = leader @ layer.value, (other * leader + own * listener) @ layer.value
        if norm:
            leader, listener = layer.project(leader), layer.project(listener)
    return torch.stack([leader, listener], dim=1)


def spread(tokens: Tensor) -> Tensor:
    """mu of each pair."""
    return (tokens - tokens.mean(dim=-2, keepdim=True)).flatten(-2).norm(dim=-1)


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """The paper's picture is qualitative; the claims it makes are tested here, and the basin is counted."""
    import pandas as pd

    grid, pairs, layers = STARTS[scale]
    example = TwoTokens(w=2.0)
    progress("token 2 from every start", 0.0)
    basin = simulate_basin(example, grid)
    progress("random pairs", 0.3)
    generator = torch.Generator().manual_seed(0)
    starts = circle(torch.rand(pairs, 2, generator=generator, dtype=torch.float64) * 2 * math.pi)
    ends = simulate_pairs(example, starts, layers, norm=True)
    progress("without norm", 0.9)
    bare = simulate_pairs(example, starts, BARE_LAYERS, norm=False)
    fraction = float(basin.apart.double().mean())
    joint = float((torch.linalg.det(ends).abs() > 0.1).double().mean())
    rows = [
        {"what": "share of starts of token 2 that end apart", "published": None, "ours": fraction, "agrees": None}
        | {"closed_form": example.basin_fraction()},
        {"what": "share of random pairs that end apart", "published": None, "ours": joint, "agrees": None}
        | {"closed_form": None},
    ]
    table = pd.DataFrame(
        {
            "angle": basin.angles,
            "end_angle": torch.atan2(basin.ends[:, 1], basin.ends[:, 0]) % (2 * math.pi),
            "apart": basin.apart,
            "predicted_apart": basin.predicted,
        }
    )

    thinned = table.iloc[:: max(1, len(table) // 4000)]
    return FigureOutcome(
        points=rows,
        claims=claims(example, basin, starts, ends, layers, bare),
        tables={"basin": thinned, "fixed_points": fixed_point_table(example)},
        draw=lambda: draw(example, thinned),
        notes=(
            "the pair of the paper's example is only marginal: token 1 has multiplier exactly one and arrives "
            "like 1/(w t); W_V = [[1, w], [0, 1 + delta]] with delta > 0 makes it strictly stable",
            f"the arc is a share {example.basin_fraction():.5f} of the circle for token 2, token 1 in place; "
            f"when both start at random only {joint:.3f} of the pairs end apart",
        ),
    )


def fixed_point_table(example: TwoTokens) -> pd.DataFrame:
    """Fixed points of token 2 with their multipliers."""
    import pandas as pd

    return pd.DataFrame(
        [
            {"name": p.name, "x": p.point[0], "y": p.point[1], "multiplier": p.multiplier, "rank": p.rank}
            for p in example.fixed_points()
        ]
    )


def claims(
    example: TwoTokens, basin: Basin, starts: Tensor, ends: Tensor, layers: int, bare: Tensor
) -> tuple[Claim, ...]:
    """What the figure says, as statements that can fail."""
    meets = float(spread(bare).max())
    first = starts[:, 0]
    expected = torch.stack([first[:, 0], first[:, 1] + layers * example.w * first[:, 0]], dim=-1)
    off = float((ends[:, 0] - expected / expected.norm(dim=-1, keepdim=True)).norm(dim=-1).max())
    pole = torch.stack([torch.zeros_like(first[:, 0]), first[:, 0].sign()], dim=-1)
    near = float(((ends[:, 0] - pole).norm(dim=-1) < 2 / (example.w * layers)).double().mean())
    wrong = int((basin.apart != basin.predicted).sum() + (basin.together != ~basin.predicted).sum())
    built = example.equilibrium()
    seen = examine(built.layer, built.tokens)
    strict = TwoTokens(example.w, delta=0.1).equilibrium()
    cured = examine(strict.layer, strict.tokens)
    return (
        Claim(
            "without LayerNorm the tokens meet from every start",
            meets < 1e-12,
            f"largest mu after 80 layers {meets:.2g}",
        ),
        Claim(
            "with LayerNorm token 1 goes to (0, +-1), the sign of x_1: along (x_1, x_2 + t w x_1) at layer t",
            off < 1e-9 and near > 0.95,
            f"farthest from that {off:.2g}; {near:.1%} within 2/(w t) of their pole after {layers} layers",
        ),
        Claim(
            "token 2 stays apart exactly when it starts in the arc of the closed form",
            wrong == 0,
            f"{wrong} of {len(basin.angles)} starts differ",
        ),
        Claim(
            "apart is a fixed point of rank two",
            seen.residual < 1e-12 and seen.rank == 2,
            f"residual {seen.residual:.2g}, rank {seen.rank}, smallest singular value {seen.smallest:.3g}",
        ),
        Claim(
            "yet it is only marginal: the spectral radius is one, and delta = 0.1 makes it strictly stable",
            seen.verdict == "marginal" and cured.verdict == "stable",
            f"spectral radius {seen.spectral_radius:.12g} with delta 0, {cured.spectral_radius:.6g} with delta 0.1",
        ),
    )


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


# Starts on the circle for token 2; random pairs of starts, and for how many layers they run.


REPRODUCTION = Reproduction(
    "wu/fig1",
    "Two tokens: they meet without LayerNorm, and may stay apart with it",
    ("B-fig1", "B-thm3"),
    run,
    columns={
        "end_angle": "angle at which the second token ends",
        "apart": "whether the two tokens stayed apart",
        "predicted_apart": "whether the closed form of the basin says so",
        "x": "first coordinate of the second token",
        "y": "second coordinate of the second token",
        "multiplier": "factor by which a layer moves a neighbour of the fixed point towards it or away",
        "closed_form": "the value by formula",
    },
)
