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
    weights or in FLOPs. The loss on text is what language models lose over the best rank, the trained error that of
    small models on fresh data in matches of 64 directions; the bound is one that no bare layer of these heads goes
    below when it looks for the nearer of two points.
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
            "loss on text, %": None if row["text_excess"] is None else round(100 * row["text_excess"], 2),
            "trained error": round(row["trained_error"], 3),
            "bound with skip": round(row["mse_lower_bound_with_skip"], 4),
        }
        for row in rows
    ]
    for _row in head_choices:
        print(_row)
    advice = planned.recommendation
    print("recommended:", advice["words"], "because", advice["reason"])
    picture = planned.plot()
    mo.vstack(
        [
            mo.ui.table(head_choices, selection=None),
            mo.md(f"Recommended: **{advice['words']}**, because {advice['reason']}."),
            picture,
        ]
    )
    return advice, head_choices, picture, rows


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
    survivors, collapses = [], {}
    for _name, _settings in treatments.items():
        _first = rankfall.simulate(masks, tokens=64, width=32, layers=48, thin=4, **_settings)
        _ranks = {one.mask: round(one.layers[-1]["energy_rank"], 2) for one in (_first, *_first.others)}
        collapses[_name] = _first
        survivors.append({"between layers": _name, **_ranks})
    for _row in survivors:
        print(_row)
    bare = collapses["attention alone"].plot()
    mo.vstack([mo.ui.table(survivors, selection=None), bare])
    return bare, survivors


@app.cell
def _(mo):
    mo.md("""
    ## A model as it is
    An audit of a small random encoder, in memory: what its tokens and its heads do. `rankfall.audit("minilm")`, or
    the name of a folder or of a model on the hub, audits a trained one in the same way.
    """)
    return


@app.cell
def _(mo, rankfall):
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    small = BertConfig(
        vocab_size=200, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96
    )
    audited = rankfall.audit(
        BertModel(small).eval(), inputs=torch.randint(0, 200, (2, 32)), controls=False, ablate=False
    )
    print(audited)
    audit_picture = audited.plot()
    mo.vstack([mo.md(f"```\n{audited}\n```"), audit_picture])
    return audit_picture, audited


if __name__ == "__main__":
    app.run()
