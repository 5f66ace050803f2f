"""For an engineer who picks head size, head count, depth, mask and norm: what each choice costs, and what it loses.

Run it as a script (`python examples/engineer.py`) or open it (`marimo edit examples/engineer.py`).
"""

import marimo

app = marimo.App(app_title="rankfall: for an engineer")


@app.cell
def _():
    import marimo as mo

    from rankfall.drawing.plan import draw_plan
    from rankfall.dynamics.experiment import Experiment, run
    from rankfall.dynamics.step import Rule
    from rankfall.dynamics.weights import WeightRecipe
    from rankfall.masks import parse_schedule
    from rankfall.norms import parse_norm
    from rankfall.planning.candidates import Sharing, candidates, reference_shape
    from rankfall.planning.table import floor_column, plan
    from rankfall.theory.head_bounds import HeadClass, heads_needed

    return (
        Experiment,
        HeadClass,
        WeightRecipe,
        Rule,
        Sharing,
        candidates,
        draw_plan,
        floor_column,
        heads_needed,
        mo,
        parse_norm,
        parse_schedule,
        plan,
        reference_shape,
        run,
    )


@app.cell
def _(mo):
    mo.md("""
    # Choosing an architecture

    ## Head size and head count
    A model of width 768 with twelve layers. Every row costs what the usual twelve heads of rank 64 cost, in attention
    weights or in FLOPs; the floor is the error below which no such layer can find the nearer of two points.
    """)
    return


@app.cell
def _(Sharing, candidates, draw_plan, floor_column, mo, plan, reference_shape):
    reference = reference_shape(dim=768, layers=12, context=1024, heads=12, hidden=3072, sharing=Sharing())
    rows = plan(candidates(reference, Sharing()), [floor_column])
    head_choices = [
        {
            "heads": row["heads"],
            "rank": row["rank"],
            "costs the same in": ", ".join(row["equal"]),
            "FLOPs over usual": round(row["flops_over_reference"], 3),
            "KV cache, MiB": row["kv_cache_bytes"] / 2**20,
            "error floor": round(row["mse_lower_bound"], 4),
        }
        for row in rows
    ]
    for _row in head_choices:
        print(_row)
    picture = draw_plan([{"step_seconds": None} | row for row in rows], "width 768: floors at equal cost")
    mo.vstack([mo.ui.table(head_choices, selection=None), picture])
    return head_choices, picture, rows


@app.cell
def _(HeadClass, heads_needed, mo):
    counts = {rank: heads_needed(HeadClass(768, rank), 0.1) for rank in (64, 128, 256, 384)}
    for _rank, _count in counts.items():
        print(f"error 0.1 at width 768 with rank {_rank}: at least {_count} heads")
    mo.md("Heads that an error of 0.1 needs: " + ", ".join(f"rank {r}: **{c}**" for r, c in counts.items()))
    return (counts,)


@app.cell
def _(mo):
    mo.md("""
    ## Depth, mask, norm and residual
    What is left of 64 tokens after 48 layers of attention with random weights: the effective rank, for four masks and
    four ways to treat tokens between layers.
    """)
    return


@app.cell
def _(Experiment, WeightRecipe, Rule, mo, parse_norm, parse_schedule, run):
    treatments = {
        "attention alone": Rule(),
        "unit norm": Rule(parse_norm("unit")),
        "residual, norm after": Rule(parse_norm("layer"), "post", 1.0),
        "residual, norm before": Rule(parse_norm("layer"), "pre", 1.0),
    }
    spellings = ("complete", "causal", "window:4", "causal-window:4")
    masks = tuple(parse_schedule(text) for text in spellings)
    survivors = []
    for _name, _rule in treatments.items():
        _reports = run(
            Experiment(masks, WeightRecipe(width=32), tokens=64, layers=48, rule=_rule, thin=48, checks=False)
        )
        _ranks = {str(one.mask): round(one.records[-1]["effective_rank"], 2) for one in _reports}
        survivors.append({"between layers": _name, **_ranks})
    for _row in survivors:
        print(_row)
    mo.ui.table(survivors, selection=None)
    return (survivors,)


if __name__ == "__main__":
    app.run()
