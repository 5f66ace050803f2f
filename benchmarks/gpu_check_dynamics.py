"""Check simulations on a GPU against the processor, and say where a layer's time goes there.

    python -m benchmarks.gpu_check_dynamics --out DIR [--profile]

Every case runs twice on the GPU, so that layers prepared or captured anew and those of an earlier run are compared,
and once with half as many layers: log mu and log relative mu of all layers, relative to the larger of one and their
size.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from rankfall.dynamics.step import Rule, random_tokens
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.masks import parse_mask
from rankfall.norms import parse_norm
from rankfall.provenance import provenance

BARE = Rule()
CASES: list[tuple[str, str, int, int, int, Rule]] = [
    ("window:16", "random", 300, 2, 40, BARE),
    ("window:16", "zero", 300, 2, 40, BARE),
    ("window:16", "random", 6000, 1, 6, BARE),  # so many blocks that what they tell is gathered in steps
    ("causal-window:5", "random", 200, 1, 300, BARE),  # more layers than between two looks
    ("dilated:3:2", "random", 200, 2, 40, BARE),
    ("causal", "random", 24, 3, 60, BARE),
    ("complete", "random", 24, 3, 12, BARE),
    ("causal", "random", 24, 2, 40, Rule(parse_norm("unit"))),
    ("window:4", "random", 96, 2, 40, Rule(parse_norm("layer"))),
    ("complete", "random", 24, 2, 20, Rule(parse_norm("rms"), "pre", 1.0)),
]


def compare(mask: str, query_key: str, tokens: int, batch: int, layers: int, rule: Rule) -> dict[str, Any]:
    """The largest difference between the GPU's and the processor's logarithms."""
    start = random_tokens(range(batch), tokens, 16)
    start = rule.norm(start) if rule.placement == "post" else start
    found = []
    kept = {
        device: DrawnWeights(WeightRecipe(16, query_key), range(batch), device=device) for device in ("cpu", "cuda")
    }
    for device, count in (("cpu", layers), ("cuda", layers), ("cuda", layers), ("cuda", layers // 2)):
        done = run_layers(start.to(device), kept[device], parse_mask(mask), count, rule, measures=(), ordinary=False)
        found.append(torch.stack([done.columns[name] for name in ("log10_mu", "log10_relative_mu")]))
    plain, *others = found
    off = [_largest_difference(plain[:, : one.shape[1]], one) for one in others]
    return {
        "case": f"{mask} {query_key} {tokens} x {batch} {rule.norm.name} {rule.placement}",
        "first_run": off[0],
        "second_run": off[1],
        "half_as_many_layers": off[2],
        "least_log10_mu": float(plain[0].min()),
    }


def _largest_difference(plain: torch.Tensor, found: torch.Tensor) -> float:
    return float(((found - plain).abs() / plain.abs().clamp_min(1.0)).max())


def profile(mask: str, query_key: str, tokens: int, batch: int, layers: int) -> str:
    """The kernels of one run by the time they take, after two runs before it."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    start = random_tokens(range(batch), tokens, 32).cuda()
    weights = DrawnWeights(WeightRecipe(32, query_key), range(batch), device="cuda")
    for turn in range(3):
        with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            run_layers(start, weights, parse_mask(mask), layers, measures=(), thin=layers, ordinary=False)
            torch.cuda.synchronize()
        if turn == 2:
            rows = [e for e in seen.key_averages() if e.self_device_time_total > 0]
            rows.sort(key=lambda e: -e.self_device_time_total)
            lines = [f"{e.self_device_time_total:9.0f} us {e.count:5d} x {e.key[:90]}" for e in rows[:14]]
            total = sum(e.self_device_time_total for e in rows)
            calls = sum(e.count for e in rows)
            return "\n".join(
                [f"{mask} {query_key} {tokens} x {batch}, {layers} layers: {total:.0f} us in {calls}", *lines]
            )
    return ""


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each case; with --profile also the kernels of two large and two small runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-check-dynamics"))
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in CASES:
        rows.append(compare(*case))
        print(json.dumps(rows[-1]), flush=True)
    record = {"benchmark": "gpu_check_dynamics", "rows": rows, "provenance": provenance()}
    (options.out / "gpu-check-dynamics.json").write_text(json.dumps(record, indent=1) + "\n")
    if options.profile:
        runs = [("window:16", "zero", 65536, 8, 20), ("window:16", "random", 65536, 8, 20)]
        runs += [
            ("window:16", "random", 4096, 1, 32),
            ("causal", "random", 64, 64, 32),
            ("complete", "random", 64, 64, 50),
        ]
        for run in runs:
            text = profile(*run)
            print(text, flush=True)
            with (options.out / "profile.txt").open("a") as file:
                file.write(text + "\n\n")


if __name__ == "__main__":
    main()
