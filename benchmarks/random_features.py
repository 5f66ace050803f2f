"""Best weights of H random heads: time and peak memory of the tiled solver against a plain dense solve.

    python -m benchmarks random_features
    python -m benchmarks.random_features --most 16 --dims 8 64 --device cuda --out DIR

Each cell runs in its own process, so that peak memory is its own. The dense solve builds C and b in float64 and calls
a Cholesky solve; it is left out where its two float64 matrices exceed --dense-gib.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from rankfall.provenance import provenance
from rankfall.theory.hardmax import target_overlap
from rankfall.theory.random_features.best_fit import fit
from rankfall.theory.random_features.kernel import draw_heads
from rankfall.theory.random_features.learning_curve import predicted_error

COLUMNS = (
    "dim",
    "heads",
    "seconds",
    "gib",
    "dense_seconds",
    "dense_gib",
    "ratio",
    "error",
    "predicted",
    "difference",
)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.cell:
        print(json.dumps(cell(*options.cell, options.device)))
        return
    rows = []
    print("  ".join(name.rjust(13) for name in COLUMNS), flush=True)
    for dim in options.dims:
        for power in range(options.least, options.most + 1):
            row = compare(dim, 2**power, options)
            rows.append(row)
            print("  ".join(_text(row[name]).rjust(13) for name in COLUMNS), flush=True)
    threads = torch.get_num_threads()
    result = {"benchmark": "random_features", "device": options.device, "threads": threads, "rows": rows}
    result["provenance"] = provenance()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"random-features-{options.device}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--least", type=int, default=10, help="smallest H, as a power of two")
    parser.add_argument("--most", type=int, default=13, help="largest H, as a power of two")
    parser.add_argument("--dense-gib", type=float, default=9.0, help="most memory for the dense solve's two matrices")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--cell", nargs=3, default=None, metavar=("METHOD", "DIM", "HEADS"), help=argparse.SUPPRESS)
    return parser.parse_args([] if arguments is None else arguments)


def compare(dim: int, heads: int, options: argparse.Namespace) -> dict[str, Any]:
    ours = _separately("tiled", dim, heads, options.device)
    dense_fits = 2 * 8 * heads**2 <= options.dense_gib * 2**30
    dense = _separately("dense", dim, heads, options.device) if dense_fits else {}
    return {
        "dim": dim,
        "heads": heads,
        "seconds": ours["seconds"],
        "gib": ours["gib"],
        "dense_seconds": dense.get("seconds"),
        "dense_gib": dense.get("gib"),
        "ratio": dense["seconds"] / ours["seconds"] if dense else None,
        "error": ours["error"],
        "predicted": predicted_error("independent", dim, heads),
        "difference": abs(dense["error"] - ours["error"]) if dense else None,
        **{name: ours[name] for name in ("residual", "excess", "condition", "iterations", "refinements")},
    }


def _separately(method: str, dim: int, heads: int, device: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.random_features", "--device", device]
    done = subprocess.run(
        [*command, "--cell", method, str(dim), str(heads)], capture_output=True, text=True, check=True
    )
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def cell(method: str, dim: str, heads: str, device: str) -> dict[str, Any]:
    """One solve, with the time from drawn heads to the error and the peak memory of this process or GPU."""
    queries, keys = (one.to(device) for one in draw_heads("independent", int(dim), int(heads)))
    _ready(device)
    before = _peak(device)
    start = time.perf_counter()
    found = _dense(queries, keys) if method == "dense" else _tiled(queries, keys)
    _ready(device)
    return {**found, "seconds": time.perf_counter() - start, "gib": (_peak(device) - before) / 2**30}


def _tiled(queries: torch.Tensor, keys: torch.Tensor) -> dict[str, Any]:
    found = fit(queries, keys)
    names = ("error", "residual", "excess", "condition", "iterations", "refinements")
    return {name: getattr(found, name) for name in names}


def _dense(queries: torch.Tensor, keys: torch.Tensor) -> dict[str, Any]:
    # The agreement of heads, 1/2 + (2/pi^2) asin<q,q'> asin<k,k'>, formed whole.
    angles = [torch.asin((one @ one.mT).clamp(-1, 1)) for one in (queries, keys)]
    kernel = 0.5 + (2 / math.pi**2) * angles[0] * angles[1]
    kernel.diagonal().fill_(1.0 + 1e-12)
    overlap = target_overlap((queries * keys).sum(-1), queries.shape[1])
    weights = torch.cholesky_solve(overlap[:, None], torch.linalg.cholesky(kernel))[:, 0]
    return {"error": float(1 - overlap @ weights)}


def _ready(device: str) -> None:
    if device.startswith("cuda"):
        torch.linalg.cholesky(torch.eye(8, device=device, dtype=torch.float64))  # loads the solver library
        torch.cuda.synchronize()


def _peak(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(sys.argv[1:])
