"""The fused attention kernels on a GPU: equal to float64, and how fast beside PyTorch's ways.

    python -m benchmarks.kernels [--out DIR] [--only check|time]

The check goes over every rank, lengths from 4 to 256, masks, biases, two models and both types. The times are of
attention alone, forward and gradient, 4096 columns (heads times rank) over 4096 tokens, captured as a graph. Without
a GPU only the check runs, where Triton's interpreter is asked for (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfall.provenance import provenance
from rankfall.training.attention_seam import attend

RANKS = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (4, 16, 33, 64, 100, 256)
TIMED = [(16, rank) for rank in RANKS] + [(64, rank) for rank in (1, 8, 64)] + [(256, rank) for rank in (1, 8, 64)]
COLUMNS, TOKENS = 4096, 4096
ALLOWED = {"tf32": 5e-3, "float32": 2e-5, "bfloat16": 3e-2}
"""Relative errors; TF32 and bfloat16 keep 10 and 7 bits of each factor, and scores here reach 10."""


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result: dict[str, Any] = {"benchmark": "kernels", "provenance": provenance()}
    if options.only != "time":
        result["check"] = check(device, options.lengths)
        worst = {name: max(row["worst"] for row in result["check"] if row["rounding"] == name) for name in ALLOWED}
        print("largest relative error:", {name: f"{error:.1e}" for name, error in worst.items()}, flush=True)
        bad = [row for row in result["check"] if not row["worst"] <= ALLOWED[row["rounding"]]]
        if bad:
            sys.exit(f"not equal to float64: {bad}")
    if options.only != "check" and device == "cuda":
        result["rows"] = [timed(tokens, rank) for tokens, rank in TIMED]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        name = f"kernels-{options.only or 'all'}-{options.lengths[0]}.json"
        (options.out / name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", choices=("check", "time"), default=None)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="numbers of tokens to check")
    return parser.parse_args(arguments)


def check(device: str, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Largest relative error over output and gradients, for each shape and rounding."""
    rows = []
    for rounding, tokens, rank in itertools.product(ALLOWED, lengths, RANKS):
        dtype = torch.bfloat16 if rounding == "bfloat16" else torch.float32
        torch.set_float32_matmul_precision("highest" if rounding == "float32" else "high")
        heads = max(1, 12 // rank) + (tokens < 33)
        leaves, weight = drawn(2, 3, tokens, heads, rank, dtype, device)
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril() if rank % 3 == 1 else None
        truth = answers([leaf.double() for leaf in leaves], weight.double(), mask, "products")
        ours = answers(leaves, weight, mask, "kernel")
        # The gradient of the key's bias is zero but for rounding: nothing to be relative to.
        errors = [
            float((a.double() - b).norm() / b.norm())
            for i, (a, b) in enumerate(zip(ours, truth, strict=True))
            if i != 5
        ]
        rows.append({"rounding": rounding, "tokens": tokens, "rank": rank, "heads": heads, "worst": max(errors)})
    return rows


def timed(tokens: int, rank: int) -> dict[str, Any]:
    """Milliseconds of forward and gradient, ours and PyTorch's."""
    from triton.testing import do_bench_cudagraph

    torch.set_float32_matmul_precision("high")
    leaves, weight = drawn(1, TOKENS // tokens, tokens, COLUMNS // rank, rank, torch.float32, "cuda")
    # q, k, v read and the output written; then these and its gradient read and three gradients written
    traffic = 11 * weight.numel() * weight.element_size()
    row: dict[str, Any] = {"tokens": tokens, "rank": rank, "heads": COLUMNS // rank, "bytes": traffic}
    for way in ("kernel", "products", "fused"):
        # As a graph: outside of one, PyTorch's bookkeeping around an operator takes longer than the kernel.
        row[f"{way}_ms"] = do_bench_cudagraph(
            lambda way=way: answers(leaves, weight, None, way), rep=30, return_mode="median"
        )
    print(
        " ".join(f"{key}={value:.3f}" if "_ms" in key else f"{key}={value}" for key, value in row.items()), flush=True
    )
    return row


def drawn(
    models: int, batch: int, tokens: int, heads: int, rank: int, dtype: torch.dtype, device: str
) -> tuple[list[Tensor], Tensor]:
    """q, k, v, their biases, and the gradient of the output; new numbers for every shape."""
    generator = torch.Generator(device).manual_seed(1000 * tokens + rank)
    shape = (models, batch, tokens, heads, rank)
    shapes = [shape, shape, shape, *[(models, heads * rank)] * 3, shape]
    *leaves, weight = (torch.randn(*s, generator=generator, device=device).to(dtype) for s in shapes)
    return [leaf.requires_grad_() for leaf in leaves], weight


def answers(leaves: list[Tensor], weight: Tensor, mask: Tensor | None, way: str) -> list[Tensor]:
    """The output and the gradients of all leaves."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    q, k, v, *biases = leaves
    out = attend(q, k, v, mask, q.shape[-1] ** -0.5, (biases[0], biases[1], biases[2]), way=way)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight)]


if __name__ == "__main__":
    main(sys.argv[1:])
