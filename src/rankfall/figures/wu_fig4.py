"""B-fig4: the geometry of tokens by layer in pretrained models, beside the same models with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall.drawing.canvas import COLOURS, canvas
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.figures.pretrained import Subject, subjects
from rankfall.measures.base import measure
from rankfall.models.depth.capture import Place, capture
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PANELS = {
    "full_rank_share": "share of inputs of full rank",
    "unit_min_singular_value": "smallest singular value, unit tokens",
    "min_singular_value": "smallest singular value, raw",
    "mean_abs_cosine": "mean |cosine| of token pairs",
}

LINES = ("-", "--")

# Near 100 % in the paper's words.
NEARLY_ALL = 0.95


NOTES = (
    "the last layer is taken before the final norm; means over passages",
    "layer 0 of a model that adds no positions to its embeddings has equal vectors for equal words: no full rank",
    "full rank is asked for after the blocks, not of the embeddings, for that reason",
    "raw singular values follow the size of the stream, which grows with depth in pre-norm models; unit ones do not",
)


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """One forward pass a model; every layer is measured on each passage alone, raw and on unit tokens."""
    import pandas as pd

    notes: list[str] = []
    rows: list[dict[str, Any]] = []
    for number, subject in enumerate(subjects(scale, notes)):
        progress(subject.label, number / 4)
        rows += _rows(subject)
        notes += [note for note in _opening_notes(subject) if note not in notes]
    table = pd.DataFrame(rows)
    by_layer = table.groupby(["model", "weights", "layer"], as_index=False).mean(numeric_only=True)
    points = [
        {"published": None, "agrees": None, "ours": row["full_rank_share"], **row} for row in _records(by_layer)
    ]
    return FigureOutcome(
        points=points,
        claims=_claims(by_layer),
        tables={"layers": by_layer},
        draw=lambda: _draw(by_layer),
        notes=(*notes, *NOTES),
    )


def _rows(subject: Subject) -> list[dict[str, Any]]:
    """One record per passage and layer."""
    rows: list[dict[str, Any]] = []

    def on_tokens(place: Place, tokens: Tensor) -> None:
        # The final norm is no block: where it follows, the last block's own output is what continues the curve.
        known = any(row["layer"] == place.layer for row in rows)
        if place.part == "before_final_norm" or (place.part == "boundary" and not known):
            rows[:] = [row for row in rows if row["layer"] != place.layer]
            rows.extend(_measured(subject, place.layer, tokens))

    capture(subject.network, subject.batch.inputs(subject.network), on_tokens)
    return rows


def _opening_notes(subject: Subject) -> list[str]:
    """Passages that cannot have full rank in a causal model without added positions, whatever its weights.

    Token 1 then averages two equal values, and stays equal to token 0 in every layer.
    """
    ids = subject.batch.inputs(subject.network)["input_ids"]
    twice = int((ids[:, 0] == ids[:, 1]).sum())
    if not twice:
        return []
    return [
        f"{subject.model}: {twice} of {len(ids)} passages open with the same token twice; where tokens see only"
        " earlier ones and positions are not added to them, the two stay equal in every layer: no full rank"
    ]


def _measured(subject: Subject, layer: int, tokens: Tensor) -> list[dict[str, Any]]:
    full = min(tokens.shape[-2:])
    values = measure(tokens, ("rank", "min_singular_value", "mean_abs_cosine"))
    unit = measure(tokens / torch.linalg.vector_norm(tokens, dim=-1, keepdim=True), ("min_singular_value",))
    return [
        {
            "model": subject.model,
            "weights": subject.weights,
            "layer": layer,
            "full_rank_share": float(values["rank"][text] == full),
            "min_singular_value": float(values["min_singular_value"][text]),
            "unit_min_singular_value": float(unit["min_singular_value"][text]),
            "mean_abs_cosine": float(values["mean_abs_cosine"][text]),
        }
        for text in range(tokens.shape[0])
    ]


def _claims(table: pd.DataFrame) -> list[Claim]:
    claims = []
    for (model, weights), rows in table.groupby(["model", "weights"]):
        # Before any block two equal words are equal vectors, unless positions are added to them.
        deep = rows[rows["layer"] > 0].sort_values("layer")
        who = f"{model}, {weights}"
        share = float(deep["full_rank_share"].min())
        claims.append(
            Claim(
                f"{who}: at least {NEARLY_ALL:.0%} of the inputs have full rank after every block",
                share >= NEARLY_ALL,
                f"the least share is {share:.0%}",
            )
        )
        if weights == "pretrained":
            claims.append(_moved(who, "the mean |cosine| rises", deep["mean_abs_cosine"], up=True))
            claims.append(_moved(who, "the smallest singular value falls", deep["min_singular_value"], up=False))
            unit = deep["unit_min_singular_value"]
            claims.append(_moved(who, "the smallest singular value of unit tokens falls", unit, up=False))
    return claims


def _moved(who: str, words: str, values: pd.Series[float], *, up: bool) -> Claim:
    """The paper's statement taken at its word: from the first block to the last."""
    first, last = float(values.iloc[0]), float(values.iloc[-1])
    return Claim(
        f"{who}: {words} from the first block to the last",
        last > first if up else last < first,
        f"{first:.3g} to {last:.3g}; largest {float(values.max()):.3g}",
    )


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _draw(table: pd.DataFrame) -> Figure:
    models = list(table["model"].unique())
    figure, axes = canvas(len(models), len(PANELS), size=(3.7, 2.9))
    for row, model in enumerate(models):
        for column, (name, title) in enumerate(PANELS.items()):
            axis = axes[row, column]
            for number, (weights, rows) in enumerate(table[table["model"] == model].groupby("weights")):
                # Curves on top of each other must both be seen.
                axis.plot(rows["layer"], rows[name], LINES[number], marker=".", color=COLOURS[number], label=weights)
            axis.set_title(f"{model}: {title}", fontsize=9)
            axis.set_xlabel("layer")
            if "singular" in name:
                axis.set_yscale("log")
                # Rounding at layer 0, where equal words are equal vectors, would squeeze everything else.
                after = table[(table["model"] == model) & (table["layer"] > 0)][name]
                axis.set_ylim(float(after.min()) / 3, float(after.max()) * 3)
            else:
                axis.set_ylim(-0.03, 1.05)
        axes[row, 0].legend()
    return figure


REPRODUCTION = Reproduction(
    "wu/fig4",
    "share of full-rank inputs, smallest singular value and mean |cosine| by layer",
    ("B-fig4",),
    run,
    columns={
        "full_rank_share": "share of texts whose tokens have full numerical rank",
        "unit_min_singular_value": "smallest singular value of tokens scaled to length one",
    },
)
