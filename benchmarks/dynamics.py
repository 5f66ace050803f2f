"""The simulator against a straightforward dense PyTorch loop that does the same work: the same layers, mu after each.

python -m benchmarks.dynamics                      two cores: ratios, then scaling with N, T and batch
python -m benchmarks.dynamics --device cuda --out DIR   the same on a GPU, with the share of memory bandwidth reached
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._harness import alternately, seconds
from rankfall.dynamics.step import random_tokens
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.masks import Mask, parse_mask
from rankfall.mechanism.heads import Heads
from rankfall.provenance import provenance

DIM = 32
# Bytes per second that the named GPU's memory can move, from its data sheet.
BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12}


def dense_loop(tokens: Tensor, heads: Heads, mask: Mask | None, layers: int) -> Tensor:
    """What one writes without thinking of bands: all pairs scored, masked, softmaxed; mu after every layer.

    None stands for a loop written for one case only, in which all see all and there is nothing to mask.
    """
    blocked = None if mask is None else ~mask.dense(tokens.shape[-2], tokens.device)
    query, key, value = heads.query[:, 0] * heads.rank**-0.5, heads.key[:, 0], heads.value[:, 0]
    found = []
    for _ in range(layers):
        score = (tokens @ query) @ (tokens @ key).mT
        if blocked is not None:
            score = score.masked_fill(blocked, -torch.inf)
        tokens = torch.softmax(score, dim=-1) @ tokens @ value
        found.append(torch.linalg.vector_norm(tokens - tokens.mean(dim=-2, keepdim=True), dim=(-2, -1)))
    return torch.stack(found)


def compare(name: str, tokens: int, batch: int, layers: int, device: str) -> dict[str, Any]:
    """Both routes on the same input in one run, and how far their mu agree while the dense one still can."""
    mask = parse_mask(name)
    start = random_tokens(range(batch), tokens, DIM).to(device)
    weights = DrawnWeights(WeightRecipe(DIM), range(batch), device=device)
    heads = weights.at(0)
    ours = run_layers(start, weights, mask, layers, measures=(), ordinary=False).columns["mu"][1:]
    theirs = dense_loop(start, heads, mask, layers).cpu()
    visible = theirs > 1e-10
    difference = float(((ours - theirs).abs() / theirs)[visible].max())
    works: list[Callable[[], object]] = [
        partial(run_layers, start, weights, mask, layers, measures=(), ordinary=False),
        partial(dense_loop, start, heads, mask, layers),
    ]
    if name == "complete":
        works.append(partial(dense_loop, start, heads, None, layers))
    fast, slow, *bare = alternately(*works, repeats=3 if tokens > 1000 else 31, device=device)
    return {
        "mask": name,
        "tokens": tokens,
        "batch": batch,
        "layers": layers,
        "dense_ms_per_layer": 1e3 * slow / layers,
        "rankfall_ms_per_layer": 1e3 * fast / layers,
        "ratio": slow / fast,
        "ratio_to_a_loop_without_mask": bare[0] / fast if bare else None,
        "largest_relative_difference": difference,
    }


def scaling(device: str, quick: bool) -> list[dict[str, Any]]:
    """Time per layer as N, T and the batch grow."""
    mask = parse_mask("window:16")
    cells = [("N", n, 1, 10) for n in (1024, 4096, *(() if quick else (16384, 65536)))]
    cells += [("T", 1024, 1, layers) for layers in (20, 80, 320)]
    cells += [("batch", 256, batch, 10) for batch in (1, 8, 64)]
    rows = []
    for varied, tokens, batch, layers in cells:
        start = random_tokens(range(batch), tokens, DIM).to(device)
        weights = DrawnWeights(WeightRecipe(DIM), range(batch), device=device)
        run = partial(run_layers, start, weights, mask, layers, measures=(), thin=layers, ordinary=False)
        taken = seconds(run, device=device, repeats=2)
        rows.append(
            {
                "varied": varied,
                "tokens": tokens,
                "batch": batch,
                "layers": layers,
                "ms_per_layer": 1e3 * taken / layers,
                "ns_per_token_and_layer": 1e9 * taken / (layers * tokens * batch),
            }
        )
    return rows


def memory_share(device: str) -> list[dict[str, Any]]:
    """Share of the memory bandwidth that a layer reaches, counting each tensor once; uniform attention and scores.

    A layer must at least read the residual and write it once; the band's keys come from cache. A run of few layers
    also pays for its start.
    """
    if device == "cpu":
        return []
    peak = next((rate for name, rate in BANDWIDTH.items() if name in torch.cuda.get_device_name()), None)
    tokens, batch = 65536, 8
    start = random_tokens(range(batch), tokens, DIM).to(device)
    rows = []
    for query_key, layers in (("zero", 20), ("random", 20), ("zero", 200), ("random", 200)):
        weights = DrawnWeights(WeightRecipe(DIM, query_key), range(batch), device=device)
        run = partial(
            run_layers, start, weights, parse_mask("window:16"), layers, measures=(), thin=layers, ordinary=False
        )
        torch.cuda.reset_peak_memory_stats()
        taken = seconds(run, device=device, repeats=3, warm_up=2)
        rate = 2 * 8 * batch * tokens * DIM * layers / taken
        rows.append(
            {
                "tokens": tokens,
                "batch": batch,
                "query_key": query_key,
                "layers": layers,
                "ms_per_layer": 1e3 * taken / layers,
                "least_bytes_per_second": rate,
                "share_of_bandwidth": None if peak is None else rate / peak,
                "peak_memory_bytes": torch.cuda.max_memory_allocated(),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Records as a Markdown table."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print a table, then one JSON line; with --out, also write both into that folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cells")
    options, _ = parser.parse_known_args(arguments)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    cells = [("window:16", 4096, 1, 4), ("complete", 64, 64, 50), ("complete", 64, 1, 50), ("causal", 64, 64, 50)]
    if options.device != "cpu":
        cells += [("window:16", 4096, 1, 64), ("window:16", 16384, 1, 8)]
    text = ""

    def tell(title: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        nonlocal text
        if rows:
            section = f"## {title}\n\n{table(rows)}\n"
            print(section, flush=True)
            text += section + "\n"
        return rows

    wanted = cells[: 2 if options.quick else None]
    ratios = tell("Same work, dense loop beside", [compare(*cell, device=options.device) for cell in wanted])
    share = tell("Memory bandwidth", memory_share(options.device))
    scaled = tell("Scaling under window:16", scaling(options.device, options.quick))
    result = {
        "benchmark": "dynamics",
        "device": options.device,
        "ratios": ratios,
        "scaling": scaled,
        "memory": share,
        "provenance": provenance("python -m benchmarks.dynamics"),
    }
    print(json.dumps(result))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "dynamics.md").write_text(text + f"\n{result['provenance']}\n")
        (options.out / "dynamics.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
