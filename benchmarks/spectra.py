"""Eigenvalues of many symmetric matrices at once on a GPU: our kernels beside the vendor's solver, checked, timed.

    python -m benchmarks.spectra --device cuda --out DIR

`spectra_seconds` is tridiagonal form and all eigenvalues as an audit runs them, recorded once and started with one
call; `launched_seconds` is the same without the recording, as `measure` on GPU tokens runs it. The error is that of
the worst eigenvalue relative to the largest, against the vendor's solver.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rankfall.linalg.device.recording import Recording

from benchmarks._harness import report, seconds
from rankfall.linalg import batched
from rankfall.provenance import provenance


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments or [])
    device = torch.device(options.device)
    rows = [_row(size, batch, device) for size in options.sizes for batch in options.batches]
    report("spectra", rows)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        kept = {"benchmark": "spectra", "rows": rows, "provenance": provenance()}
        (options.out / "spectra.json").write_text(json.dumps(kept, indent=1))


def _row(size: int, batch: int, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(batch, size, size + 64, generator=generator, dtype=torch.float64).to(device)
    x *= torch.logspace(0, -3, size + 64, dtype=torch.float64, device=device)
    gram = x @ x.mT
    work = torch.empty_like(gram)

    def ours() -> torch.Tensor:
        work.copy_(gram)
        return batched.tridiagonal_eigenvalues(*batched.tridiagonalise(work))

    recording = Recording(ours, device)
    found, expected = recording.run().clone(), torch.linalg.eigvalsh(gram)
    error = ((found - expected).abs().amax(dim=-1) / expected[:, -1]).max()
    spectra = seconds(recording.run, repeats=5, device=device.type)
    vendor = seconds(lambda: torch.linalg.eigvalsh(gram), repeats=2, device=device.type)
    return {
        "size": size,
        "batch": batch,
        "spectra_seconds": spectra,
        "launched_seconds": seconds(ours, repeats=3, device=device.type),
        "vendor_seconds": vendor,
        "times_faster": vendor / spectra,
        "worst_error": float(error),
    }


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
