"""Beyond the papers, evidence for A-conj8: what the two-layer vote of rank-1 heads becomes as the context grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankfall.constructions.base import Law, sampled_error
from rankfall.constructions.linear_regime import LinearRegime
from rankfall.constructions.vote_quality import plurality_floor, vote_curve
from rankfall.drawing.canvas import COLOURS, MARKERS, canvas
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.progress import Progress, silent
from rankfall.theory.votes import plurality_error_asymptotic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAWS: tuple[Law, ...] = ("orthonormal", "independent")
Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How much to compute."""

    dim: int
    points: tuple[int, ...]
    heads: tuple[int, ...]
    samples: int
    code_points: tuple[int, ...]
    code_samples: int


SIZES: dict[Scale, Size] = {
    "smoke": Size(16, (2, 3, 8), (100, 1_000), 150, (8,), 60),
    "quick": Size(64, (2, 3, 4, 8, 16, 32, 64), (100, 1_000, 10_000), 300, (4, 8, 16, 32), 100),
    "paper": Size(64, (2, 3, 4, 8, 16, 32, 64), (100, 1_000, 10_000, 100_000), 2_000, (4, 8, 16, 32, 64), 400),
}


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    size = SIZES[scale]
    votes = _votes(size, progress)
    codes = _codes(size, progress)
    floor = plurality_floor(size.dim, samples=20_000 if scale == "smoke" else 200_000, seed=3)
    rows = [*votes, *codes]
    return FigureOutcome(
        points=[_point(row) for row in rows],
        claims=_claims(size, votes, codes, floor.wrong),
        draw=lambda: _draw(size.dim, votes, codes, floor.wrong),
        notes=(
            "nothing like this is published: the conjecture is about all constructions, this is about one",
            f"three independent points, H infinite: {floor.wrong:.4f} wrong, s.e. {floor.standard_error:.4f}",
        ),
    )


def _point(row: Row) -> Row:
    kept = {name: row[name] for name in ("what", "law", "points", "heads", "code_rank", "predicted")}
    return kept | {"published": None, "ours": row["wrong"], "agrees": None}


def _votes(size: Size, progress: Progress) -> list[Row]:
    rows: list[Row] = []
    # The work grows with the square of the number of points.
    whole, done = 2 * sum(n**2 for n in size.points), 0
    for law in LAWS:
        for n in size.points:
            progress(f"votes among {n} {law} points", 0.9 * done / whole)
            done += n**2
            for one in vote_curve(law, size.dim, n, size.heads, size.samples, seed=n):
                predicted = plurality_error_asymptotic(size.dim, n, one.heads or 1) if law == "orthonormal" else None
                rows.append(
                    {"what": "vote", "law": law, "points": n, "heads": one.heads, "code_rank": n}
                    | {"wrong": one.wrong, "standard_error": one.standard_error, "predicted": predicted}
                )
    return rows


def _codes(size: Size, progress: Progress) -> list[Row]:
    """The linear regime with codes of fewer coordinates than points: how much rank layer 2 needs."""
    rows: list[Row] = []
    for n in size.code_points:
        for rank in sorted({1, 2, n // 4, n // 2, 3 * n // 4, n - 2, n - 1} - {0}):
            progress(f"codes of rank {rank} for {n} points", 0.95)
            found = sampled_error(
                LinearRegime(size.dim, points=n, gain=1e-4, code_rank=rank),
                samples=size.code_samples // 4,
                seed=n,
                networks=4,
            )
            rows.append(
                {"what": "code", "law": "orthonormal", "points": n, "heads": size.dim + 1, "code_rank": rank}
                | {"wrong": found.wrong, "standard_error": found.standard_error / 2, "predicted": None}
            )
    return rows


def _claims(size: Size, votes: list[Row], codes: list[Row], floor: float) -> list[Claim]:
    most, fewest = size.heads[-1], size.heads[0]

    def wrong(law: str, n: int, heads: int) -> float:
        return next(
            float(row["wrong"]) for row in votes if (row["law"], row["points"], row["heads"]) == (law, n, heads)
        )

    n = max(size.points)
    enough = [row for row in codes if row["code_rank"] == row["points"] - 1]
    half = [row for row in codes if row["code_rank"] == row["points"] // 2 and row["points"] >= 8]
    return [
        Claim(
            "orthonormal points: more heads help at every context length",
            all(wrong("orthonormal", k, most) < wrong("orthonormal", k, fewest) for k in size.points),
            f"N={n}: from {wrong('orthonormal', n, fewest):.3f} to {wrong('orthonormal', n, most):.3f} wrong",
        ),
        Claim(
            "independent points, N = 3: infinitely many heads still err on more than a tenth",
            floor > 0.1,
            f"{floor:.4f}, from exact vote shares",
        ),
        Claim(
            "at a given number of heads the vote is worse the longer the context",
            wrong("orthonormal", n, most) > wrong("orthonormal", 2, most),
            f"{wrong('orthonormal', 2, most):.3f} at N=2, {wrong('orthonormal', n, most):.3f} at N={n}",
        ),
        Claim(
            "the second layer needs rank N - 1: with it no error, with half of it more than a quarter wrong",
            all(row["wrong"] < 0.01 for row in enough) and all(row["wrong"] > 0.25 for row in half),
            "; ".join(f"N={row['points']}, rank {row['code_rank']}: {row['wrong']:.3f}" for row in (*enough, *half)),
        ),
    ]


def _draw(dim: int, votes: list[Row], codes: list[Row], floor: float) -> Figure:
    """Three panels; `floor` is the error of infinitely many heads among three independent points."""
    figure, axes = canvas(1, 3, size=(4.6, 3.8))
    for axis, law in zip(axes[0, :2], ("orthonormal", "independent"), strict=True):
        _draw_votes(axis, [row for row in votes if row["law"] == law])
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


def _draw_votes(axis: Any, rows: list[Row]) -> None:
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
            series = {"gid": f"H = {heads}", "label": "_theory, many heads"}
            axis.plot(*zip(*told, strict=True), color=colour, linestyle="--", linewidth=1, **series)
    points = sorted({row["points"] for row in rows})
    axis.set(xscale="log", ylim=(-0.02, 1))
    axis.set_xticks(points, [str(n) for n in points])
    axis.minorticks_off()


def _by(rows: list[Row], field: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[field], []).append(row)
    return groups


REPRODUCTION = Reproduction(
    "rankfall/vote-quality",
    "Votes of rank-1 heads as the context grows, and the rank that the second layer needs",
    ("A-thm7", "A-conj8"),
    run,
    columns={
        "points": "points N to choose among",
        "code_rank": "rank of the code in which the votes are held",
        "predicted": "the asymptotic error of the vote",
    },
)
