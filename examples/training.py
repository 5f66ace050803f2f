"""For someone who trains a model and wants to know whether its representations collapse, now.

Run it as a script (`python examples/training.py`) or open it (`marimo edit examples/training.py`).
"""

import marimo

app = marimo.App(app_title="rankfall: while a model trains")


@app.cell
def _():
    import warnings

    import marimo as mo
    import torch
    from torch import nn

    from rankfall.drawing.canvas import canvas
    from rankfall.models.monitor.monitor import RankMonitor, RankWarning

    return RankMonitor, RankWarning, canvas, mo, nn, torch, warnings


@app.cell
def _(mo):
    mo.md("""
    # Is it collapsing?
    The same small encoder is trained twice to copy one token of a sequence to all places: once as people build them,
    once without residual connections and norms. `RankMonitor` watches three blocks while it trains and warns.
    """)
    return


@app.cell
def _(nn):
    class Block(nn.Module):
        """Attention alone, or with a residual connection and a norm."""

        def __init__(self, width: int, usual: bool) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
            self.norm = nn.LayerNorm(width)
            self.usual = usual

        def forward(self, tokens):
            mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0]
            return self.norm(tokens + mixed) if self.usual else mixed

    class Encoder(nn.Module):
        """Six blocks and a linear map."""

        def __init__(self, width: int, usual: bool) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block(width, usual) for _ in range(6))
            self.out = nn.Linear(width, width)

        def forward(self, tokens):
            for block in self.blocks:
                tokens = block(tokens)
            return self.out(tokens)

    return (Encoder,)


@app.cell
def _(Encoder, RankMonitor, RankWarning, torch, warnings):
    def watched(usual: bool) -> tuple[list[dict[str, float]], list[str]]:
        """Train for forty steps; the scalars that a logger would get, and the warnings."""
        torch.manual_seed(0)
        model, log = Encoder(32, usual), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", RankWarning)
            with RankMonitor(model, log, every=10):
                for _ in range(40):
                    tokens = torch.randn(8, 24, 32)
                    wanted = tokens[:, :1].expand_as(tokens)
                    loss = (model(tokens) - wanted).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        return log, [str(one.message) for one in heard if issubclass(one.category, RankWarning)]

    return (watched,)


@app.cell
def _(watched):
    usual_log, usual_warnings = watched(usual=True)
    bare_log, bare_warnings = watched(usual=False)
    last = "rankfall/blocks.5/energy_rank"
    for _name, _log, _heard in (("usual", usual_log, usual_warnings), ("bare", bare_log, bare_warnings)):
        print(_name, "energy rank at the last block:", [round(row[last], 2) for row in _log])
        for _line in _heard:
            print("  warned:", _line)
    return bare_log, bare_warnings, last, usual_log, usual_warnings


@app.cell
def _(bare_log, canvas, last, usual_log):
    picture, _axes = canvas()
    for _name, _log in (("usual", usual_log), ("without residual and norm", bare_log)):
        _axes[0, 0].plot([row["step"] for row in _log], [row[last] for row in _log], marker="o", label=_name)
    _axes[0, 0].set(xlabel="step", ylabel="energy rank at the last block", ylim=(0, None))
    _axes[0, 0].legend()
    return (picture,)


@app.cell
def _(bare_log, bare_warnings, last, mo, picture, usual_log, usual_warnings):
    mo.vstack(
        [
            picture,
            mo.ui.table(
                [
                    {"step": usual["step"], "usual": round(usual[last], 3), "bare": round(bare[last], 3)}
                    for usual, bare in zip(usual_log, bare_log, strict=True)
                ],
                selection=None,
            ),
            mo.md("Warnings of the usual model: " + ("; ".join(usual_warnings) or "none")),
            mo.md("Warnings without residual and norm: " + ("; ".join(bare_warnings) or "none")),
        ]
    )
    return


if __name__ == "__main__":
    app.run()
