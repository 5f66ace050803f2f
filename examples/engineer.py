"""For an engineer who picks head size, head count, depth, mask and norm: what each choice costs, and what it loses.

Run it as a script (`python examples/engineer.py`) or open it (`marimo edit examples/engineer.py`).
"""

import marimo

app = marimo.App(app_title="rankfall: for an engineer")


@app.cell
def _():
    import marimo as mo

    import rankfall

    return mo, rankfall


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
def _(mo, rankfall):
    planned = rankfall.plan(width=768, layers=12, context=1024, time=False)
    rows = planned.candidates
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
    picture = planned.plot()
    mo.vstack([mo.ui.table(head_choices, selection=None), picture])
    return head_choices, picture, rows


@app.cell
def _(mo, rankfall):
    counts = {rank: rankfall.bounds(768, rank, error=0.1).heads_needed for rank in (64, 128, 256, 384)}
    for _rank, _count in counts.items():
        print(f"error 0.1 at width 768 with rank {_rank}: at least {_count} heads")
    mo.md("Heads that an error of 0.1 needs: " + ", ".join(f"rank {r}: **{c}**" for r, c in counts.items()))
    return (counts,)


@app.cell
def _(mo):
    mo.md("""
    ## Depth, mask, norm and residual
    What is left of 64 tokens after 48 layers of attention with random weights: the energy rank, for four masks and
    four ways to treat tokens between layers.
    """)
    return


@app.cell
def _(mo, rankfall):
    treatments = {
        "attention alone": {},
        "unit norm": {"norm": "unit"},
        "residual, norm after": {"norm": "layer", "placement": "post", "residual": 1.0},
        "residual, norm before": {"norm": "layer", "placement": "pre", "residual": 1.0},
    }
    masks = ["complete", "causal", "window:4", "causal-window:4"]
    survivors = []
    for _name, _settings in treatments.items():
        _first = rankfall.simulate(masks, tokens=64, width=32, layers=48, thin=48, **_settings)
        _ranks = {one.mask: round(one.layers[-1]["energy_rank"], 2) for one in (_first, *_first.others)}
        survivors.append({"between layers": _name, **_ranks})
    for _row in survivors:
        print(_row)
    mo.ui.table(survivors, selection=None)
    return (survivors,)


if __name__ == "__main__":
    app.run()
