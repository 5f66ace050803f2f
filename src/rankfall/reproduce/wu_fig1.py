"""B-fig1: two tokens in the plane meet without LayerNorm; with it they stay apart if one starts in a certain arc."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from rankfall.constructions.equilibria import TwoTokens
from rankfall.dynamics.equilibria import examine
from rankfall.reproduce.base import Claim, Outcome, Progress, Reproduction, Scale, silent

if TYPE_CHECKING:
    import pandas as pd

# Starts on the circle for token 2; random pairs of starts, and for how many layers they run.
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


@final
class WuFig1(Reproduction):
    """The paper's picture is qualitative; the claims it makes are tested here, and the basin is counted."""

    id: ClassVar[str] = "wu/fig1"
    title: ClassVar[str] = "Two tokens: they meet without LayerNorm, and may stay apart with it"
    statements: ClassVar[tuple[str, ...]] = ("B-fig1", "B-thm3")

    def run(self, scale: Scale, progress: Progress = silent) -> Outcome:
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
        from rankfall.reproduce.wu_fig1_draw import draw

        thinned = table.iloc[:: max(1, len(table) // 4000)]
        return Outcome(
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
    built = example.construction()
    seen = examine(built.layer, built.tokens)
    strict = TwoTokens(example.w, delta=0.1).construction()
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


REPRODUCTION = WuFig1()
