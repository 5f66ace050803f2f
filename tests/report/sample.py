"""A small report with everything in it, some of it hostile."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rankfall.drawing.canvas import canvas
from rankfall.report.document import Answer, Document, Grid, Picture, Section

HOSTILE = "<script>window.harmed = true</script><img src=x onerror='window.harmed=true'>\"'`${1}"
RIGHT_TO_LEFT = "مرحبا‮abc"
HUGE = "x" * 5000


def sample() -> Document:
    layers = np.arange(1, 30)
    figure, axes = canvas(1, 2)
    left, right = axes[0]
    left.semilogy(layers, np.exp(-layers / 3), label="causal", marker="o")
    left.semilogy(layers, np.exp(-layers / 9), label=HOSTILE, linestyle="--")
    left.fill_between(layers, np.exp(-layers / 3) / 2, np.exp(-layers / 3) * 2, alpha=0.2)
    # Zero has no place on a logarithmic axis, to which a reader may turn this one.
    left.axvspan(0, 2, alpha=0.1)
    left.axhline(1e-2, color="k", label="bound")
    left.set_xlabel("layer")
    left.set_ylabel(r"$\mu$")
    left.set_title(HOSTILE)
    right.imshow(np.tril(np.ones((6, 6))))
    bars, bar_axes = canvas()
    bar_axes[0, 0].bar(["one", "two"], [1.0, 3.0], label="bars")
    bar_axes[0, 0].scatter([0, 1], [2.0, 2.5], label="points")
    table = pd.DataFrame(
        {
            "layer": [10, 9, 100],
            "mu": [0.5, float("nan"), 1e-30],
            "name": [HOSTILE, RIGHT_TO_LEFT, HUGE],
            "ok": [True, False, True],
        }
    )
    return Document(
        title=f"Audit of {HOSTILE}",
        summary=RIGHT_TO_LEFT,
        answers=[
            Answer("Does it lose rank?", "Yes: after layer 3", "bad", [HOSTILE, "mu falls"]),
            Answer("Is a head a bottleneck?", "No", "good"),
        ],
        sections=[
            Section(
                "Depth",
                ["How tokens lose rank."],
                [
                    Picture("depth", "mu by depth", "A caption.", figure),
                    Grid("layers", "By layer", table, "All layers.", {"mu": "distance from all tokens being equal"}),
                ],
            ),
            Section("More", [HOSTILE], [Picture("bars", "Bars", "Another.", bars, command="rankfall survey")]),
        ],
        command=f"rankfall audit '{HOSTILE}'",
        provenance={"commit": "abc", "packages": {"torch": "2"}},
    )
