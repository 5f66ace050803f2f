"""The foundation's two promises: cost follows the band of a mask, and measures beat a plain SVD loop."""

from __future__ import annotations

import torch

from benchmarks._harness import report, seconds
from rankfall.masks import Window
from rankfall.measures.base import measure
from rankfall.measures.measures import spectral_slope
from rankfall.mechanism.attend import attend

WIDTH, RANK = 16, 32


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    report("banded_against_dense", [_banded(n, device) for n in (1024, 4096, 16384)])
    report("measures_against_svd_loop", [_measures(device)])


def _banded(n: int, device: str) -> dict[str, object]:
    """Forward and backward under a window of 16, following the band and as a dense matrix."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, n, RANK, generator=generator).to(device).requires_grad_() for _ in range(3)]
    dense_mask = Window(WIDTH).dense(n, device=device)

    def step(mask: Window | torch.Tensor) -> None:
        attend(*inputs, mask).sum().backward()

    repeats = 7 if n <= 4096 else 3
    banded = seconds(lambda: step(Window(WIDTH)), repeats=repeats, device=device)
    dense = seconds(lambda: step(dense_mask), repeats=repeats, device=device)
    ratio = dense / banded
    return {
        "tokens": n,
        "banded_ms": 1e3 * banded,
        "dense_ms": 1e3 * dense,
        "ratio": ratio,
        "ratio_over_n_per_w": ratio / (n / WIDTH),
    }


def _measures(device: str) -> dict[str, object]:
    """All measures of 64 x 512 tokens x 768, against one SVD per sample and the same measures from its values."""
    tokens = torch.randn(64, 512, 768, generator=torch.Generator().manual_seed(0)).to(device)

    def loop() -> list[dict[str, torch.Tensor]]:
        return [_plainly(sample.double()) for sample in tokens]

    ours = seconds(lambda: measure(tokens), repeats=3, device=device)
    plain = seconds(loop, repeats=3, device=device)
    mine, theirs = measure(tokens), loop()
    worst = max(float((mine[k] - torch.stack([one[k] for one in theirs])).abs().max()) for k in theirs[0])
    return {"samples": 64, "ours_s": ours, "svd_loop_s": plain, "ratio": plain / ours, "largest_difference": worst}


def _plainly(sample: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every measure as one would first write it down."""
    values = torch.linalg.svdvals(sample)
    share = values.square() / values.square().sum()
    centred = sample - sample.mean(0)
    unit = sample / sample.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T).abs()
    n = len(sample)
    return {
        "mu": centred.norm(),
        "relative_mu": centred.norm() / sample.norm(),
        "rank": (values > 768 * torch.finfo(torch.float32).eps * values[0]).sum().double(),
        "effective_rank": torch.special.entr(values / values.sum()).sum().exp(),
        "energy_rank": torch.special.entr(share).sum().exp(),
        "first_direction_share": share[0],
        "alpha": spectral_slope(values),
        "stable_rank": values.square().sum() / values[0] ** 2,
        "participation_ratio": 1 / share.square().sum(),
        "mean_abs_cosine": (cosines.sum() - n) / (n * (n - 1)),
        "min_singular_value": values[-1],
        "max_singular_value": values[0],
        "rank_one_residual": values[1:].norm(),
        "largest_token_share": sample.square().sum(1).max() / sample.square().sum(),
    }


if __name__ == "__main__":
    main()
