"""Two audits side by side: what differs, layer by layer and head by head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, canvas
from rankfall.models.result import AuditResult
from rankfall.provenance import provenance
from rankfall.report.definitions import DEFINITIONS
from rankfall.report.document import Answer, Document, Grid, Picture, Section

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MEASURES = ("effective_rank", "relative_mu", "mean_abs_cosine", "min_singular_value")


def comparison_document(first: AuditResult, second: AuditResult, command: str) -> Document:
    """One report of two audits. Depth is drawn as a share, so that models of different depth lie over each other."""
    names = labels(first, second)
    pairs = list(zip(names, (first, second), strict=True))
    return Document(
        title=f"{names[0]} beside {names[1]}",
        summary="; ".join(
            f"{name}: {one.model.kind}, {one.model.layers} layers, {one.model.parameters:,} parameters"
            for name, one in pairs
        ),
        answers=[
            Answer("Which keeps more of its token rank?", _kept(pairs)),
            *(Answer(f"{name}: what is its verdict?", one.verdict.headline) for name, one in pairs),
        ],
        sections=[
            Section(
                "Token rank by depth",
                (),
                [
                    Picture(
                        "comparison",
                        "Both models over relative depth",
                        "Tokens scaled to length one; 0 is the embeddings, 1 the last layer.",
                        draw_comparison(pairs),
                    ),
                    Grid("depth", "Layer by layer", depth_table(pairs), definitions=DEFINITIONS),
                ],
            ),
            Section(
                "Head rank",
                (),
                [Grid("heads", "Median over the heads of each layer", heads_table(pairs), definitions=DEFINITIONS)],
            ),
        ],
        command=command,
        provenance=provenance(),
    )


def labels(first: AuditResult, second: AuditResult) -> tuple[str, str]:
    """The models' names, folders by their last part, told apart when they are the same."""
    one, two = (result.model.name.rstrip("/").rpartition("/")[2] for result in (first, second))
    return (one, two) if one != two else (f"{one} (A)", f"{two} (B)")


def depth_table(pairs: list[tuple[str, AuditResult]]) -> pd.DataFrame:
    """Measures of unit-length tokens at every block boundary of both models."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for name, one in pairs:
        last = max(row.layer for row in one.boundaries) or 1
        rows += [
            {"model": name, "layer": row.layer, "depth": row.layer / last, **row.values["unit"]}
            for row in one.boundaries
        ]
    return pd.DataFrame(rows)


def heads_table(pairs: list[tuple[str, AuditResult]]) -> pd.DataFrame:
    """Effective rank of query/key forms, as a median per layer and as a share of the head's width."""
    import pandas as pd

    heads = pd.DataFrame([{"model": name, **head.record()} for name, one in pairs for head in one.heads])
    if heads.empty:
        return pd.DataFrame({"model": [name for name, _ in pairs]})
    heads["share"] = heads["qk_effective_rank"] / heads["head_dim"]
    chosen = ["head_dim", "qk_rank", "qk_effective_rank", "share"]
    return heads.groupby(["model", "layer"], sort=False)[chosen].median().reset_index()


def draw_comparison(pairs: list[tuple[str, AuditResult]]) -> Figure:
    """Four measures over relative depth, one line per model."""
    figure, axes = canvas(2, 2, size=(5.0, 3.2))
    table = depth_table(pairs)
    for axis, measure in zip(axes.flat, MEASURES, strict=True):
        for (name, _), colour in zip(pairs, COLOURS, strict=False):
            mine = table[table["model"] == name]
            axis.plot(mine["depth"], mine[measure], marker="o", markersize=3, color=colour, label=name)
        axis.set_xlabel("depth")
        axis.set_ylabel(measure.replace("_", " "))
    axes[0, 0].legend()
    return figure


def _kept(pairs: list[tuple[str, AuditResult]]) -> str:
    shares = {}
    for name, one in pairs:
        ranks = [row.values["unit"]["effective_rank"] for row in one.boundaries]
        shares[name] = ranks[-1] / max(ranks)
    ahead, behind = sorted(shares, key=lambda name: -shares[name])
    told = (
        f"{name} ({shares[name]:.0%} of its highest effective rank at the last layer)" for name in (ahead, behind)
    )
    return " over ".join(told)
