"""For a researcher who extends either paper: a mask of one's own, its theory and its measured collapse side by side.

Run it as a script (`python examples/researcher.py`) or open it (`marimo edit examples/researcher.py`).
"""

import marimo

app = marimo.App(app_title="rankfall: for a researcher")


@app.cell
def _():
    from dataclasses import dataclass
    from typing import ClassVar

    import marimo as mo
    import torch

    from rankfall.drawing.canvas import canvas
    from rankfall.drawing.collapse import curve_of, draw_collapse
    from rankfall.dynamics.experiment import Experiment, run
    from rankfall.dynamics.weights import WeightRecipe
    from rankfall.masks import Mask, MaskSchedule, parse_mask
    from rankfall.theory.head_bounds import HeadClass, mse_floor
    from rankfall.theory.random_features.best_fit import fit
    from rankfall.theory.random_features.kernel import draw_heads
    from rankfall.theory.random_features.learning_curve import predicted_error

    return (
        ClassVar,
        Experiment,
        HeadClass,
        Mask,
        MaskSchedule,
        WeightRecipe,
        canvas,
        curve_of,
        dataclass,
        draw_collapse,
        draw_heads,
        fit,
        mo,
        mse_floor,
        parse_mask,
        predicted_error,
        run,
        torch,
    )


@app.cell
def _(mo):
    mo.md("""
    # Extending the papers

    ## A mask that no paper has
    A mask is one predicate on positions. This one lets every token see itself and the tokens whose distance is a
    power of two, before it. Radius, roots and the theorem's hypotheses follow without further work.
    """)
    return


@app.cell
def _(ClassVar, Mask, dataclass, torch):
    @dataclass(frozen=True)
    class PowersOfTwo(Mask):
        """Token i sees i, i - 1, i - 2, i - 4, i - 8, ..."""

        name: ClassVar[str] = "powers-of-two"
        meaning: ClassVar[str] = "every token sees those at distances that are powers of two, before it"

        def allows(self, i, j, n):
            distance = i - j
            power = (distance > 0) & (torch.bitwise_and(distance, distance - 1) == 0)
            return power | (distance == 0)

    return (PowersOfTwo,)


@app.cell
def _(Experiment, MaskSchedule, PowersOfTwo, WeightRecipe, parse_mask, run):
    masks = [PowersOfTwo(), parse_mask("causal"), parse_mask("window:4")]
    reports = run(
        Experiment(
            masks=tuple(MaskSchedule((mask,)) for mask in masks),
            recipe=WeightRecipe(width=16),
            tokens=32,
            layers=300,
            thin=10,
        )
    )
    collapse = [
        {
            "mask": str(report.mask),
            "radius": report.theorem.facts.radius,
            "measured factor a layer": report.rates[0].rate if report.rates[0] else None,
            "tail by linear theory": report.tail_rate,
            "theorem's bound": report.theorem.bound.rate if report.theorem.bound else None,
            "log10 mu at the end": report.records[-1]["log10_mu"],
        }
        for report in reports
    ]
    for _row in collapse:
        print(_row)
    return collapse, reports


@app.cell
def _(collapse, curve_of, draw_collapse, mo, reports):
    picture = draw_collapse([curve_of(report) for report in reports], "32 tokens, random weights")
    mo.vstack(
        [
            mo.md("The bound holds, far from tight; the second eigenvalue of uniform attention gives the rate."),
            mo.ui.table(collapse, selection=None),
            picture,
        ]
    )
    return (picture,)


@app.cell
def _(mo):
    mo.md("""
    ## What heads of rank 1 can do
    Three numbers for the same heads: what no weights of one bare layer can beat, what random heads are
    predicted to reach, and what
    they reach when fitted exactly.
    """)
    return


@app.cell
def _(HeadClass, canvas, draw_heads, fit, mo, mse_floor, predicted_error):
    head_rank = []
    for _heads in (16, 64, 256):
        _queries, _keys = draw_heads("independent", dim=16, heads=_heads)
        head_rank.append(
            {
                "heads": _heads,
                "floor of any weights": mse_floor(HeadClass(16, 1), _heads).mse,
                "random heads, predicted": predicted_error("independent", 16, _heads),
                "random heads, fitted": float(fit(_queries, _keys).error),
            }
        )
    for _row in head_rank:
        print(_row)
    heads_picture, _axes = canvas()
    for _name in ("floor of any weights", "random heads, predicted", "random heads, fitted"):
        _axes[0, 0].plot([row["heads"] for row in head_rank], [row[_name] for row in head_rank], "o-", label=_name)
    _axes[0, 0].set(xscale="log", xlabel="heads of rank 1", ylabel="squared error", ylim=(0, None))
    _axes[0, 0].legend()
    mo.vstack([mo.ui.table(head_rank, selection=None), heads_picture])
    return head_rank, heads_picture


if __name__ == "__main__":
    app.run()
