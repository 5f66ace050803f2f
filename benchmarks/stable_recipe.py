"""What makes five layers train? Candidate recipes at d = 64, L = 5, d^2 parameters, where the published runs failed.

    python -m benchmarks.stable_recipe --out DIR [--device cuda] [--steps 3000] [--only NAME ...]

Each candidate stands in for the recipe `stable`; one stack holds its learning rates and ranks. Losses are on fresh
data. Outputting zero costs 1, so that a loss of 1 means that nothing was learned.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from rankfall.provenance import provenance
from rankfall.training import recipe
from rankfall.training.cell import Cell
from rankfall.training.recipe import TrainingRecipe
from rankfall.training.stack import Stack

GAINS = ("attention_norm_gain", "feed_forward_norm_gain")
SLOW_GAINS = dict.fromkeys(GAINS, 0.01)
SLOW_FEED_FORWARD = dict.fromkeys(("rise", "rise_bias", "fall", "fall_bias"), 0.1)

CANDIDATES: dict[str, tuple[TrainingRecipe, dict[str, Any]]] = {
    "published": (TrainingRecipe(), {}),
    "slow gains": (TrainingRecipe(rates=SLOW_GAINS), {}),
    "slow gains, zero branches": (TrainingRecipe(rates=SLOW_GAINS, branch_scale=0.0, warm_up=0.1), {}),
    "slow gains, clip": (TrainingRecipe(rates=SLOW_GAINS, clip=1.0, warm_up=0.1), {}),
    "slow gains, slow feed-forward": (TrainingRecipe(rates=SLOW_GAINS | SLOW_FEED_FORWARD, warm_up=0.1), {}),
    "pre": (TrainingRecipe(warm_up=0.1), {"placement": "pre"}),
    "pre, zero branches, clip": (TrainingRecipe(warm_up=0.1, clip=1.0, branch_scale=0.0), {"placement": "pre"}),
    "pre rms, by depth, clip": (
        TrainingRecipe(warm_up=0.1, clip=1.0, by_depth=True),
        {"placement": "pre", "norm": "rms"},
    ),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("stable-recipe"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.003, 0.001])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--points", type=int, default=16)
    parser.add_argument("--layers", type=int, default=5)
    options = parser.parse_args(arguments or [])
    if options.device == "cuda" and not torch.cuda.is_available():
        print("needs a GPU; --device cpu runs it without")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in options.only:
        recipe.STABLE, change = CANDIDATES[name]
        shape = {"dim": options.dim, "points": options.points, "layers": options.layers, "steps": options.steps}
        cells = [
            Cell(**shape, **change, rank=rank, learning_rate=rate, recipe="stable", data="fresh")
            for rate in options.rates
            for rank in options.ranks
        ]
        stack = Stack(cells, options.device, tf32=True)
        histories = [stack.advance() for _ in range(stack.chunks_total)]
        for index, (cell, summary) in enumerate(zip(cells, stack.summaries(), strict=True)):
            row = {
                "candidate": name, "rank": cell.rank, "learning_rate": cell.learning_rate,
                "status": summary["status"], "mse_fresh": summary["mse_fresh"],
                "losses": [round(h[index]["loss"], 4) for h in histories[4::5]],
                "gains": {n: round(float(w), 4) for n, w in stack.weights(index).items() if w.numel() == 1},
            }  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
        (options.out / "stable_recipe.json").write_text(
            json.dumps({"rows": rows, "provenance": provenance()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
