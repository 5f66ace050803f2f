"""Whether the fused kernels compute what PyTorch computes on a device: tried once, on small layers of every form."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from rankfall.dynamics import kernels
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.split import split
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import random_tokens
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.masks import parse_mask

# Every kernel and every way to call it: along a band, with classes, of the whole, by scores and flat.
TRIED = (("window:4", 150), ("dilated:3:2", 150), ("causal", 20))
LAYERS, WIDTH, SAMPLES = 2, 8, 2
CLOSE = 1e-12
CAPABILITY = (8, 0)
"""Of NVIDIA's GPUs, the first with tile products in float64."""


@cache
def trust(device: str) -> bool:
    """Take the kernels on this device from now on, if they are right there; PyTorch serves where they are not.

    Compilers, drivers and GPUs differ more than tests can follow; half a second on first use tells.
    """
    if not kernels.HAS_TRITON or not _is_suited(device):
        return False
    plain = _layers(device)
    kernels.trusted.add(device)
    try:
        right = all(bool(((a - b).abs() <= CLOSE).all()) for a, b in zip(_layers(device), plain, strict=True))
    except Exception:  # whatever a compiler throws
        right = False
    if not right:
        kernels.trusted.discard(device)
    return right


def _is_suited(device: str) -> bool:
    if not device.startswith("cuda"):
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY


def _layers(device: str) -> list[Tensor]:
    """Everything that a few layers compute."""
    found: list[Tensor] = []
    for mask, n in TRIED:
        plan = MaskPlan(parse_mask(mask), SAMPLES, n, device)
        for query_key in ("random", "zero"):
            heads = DrawnWeights(WeightRecipe(WIDTH, query_key), range(SAMPLES), device=device).at(0)
            state = split(random_tokens(range(SAMPLES), n, WIDTH).to(device), plan.reference())
            for _ in range(LAYERS):
                state = split_step(state, heads, plan.at(0))
                found += [state.common, state.residual, state.log_size, state.log_ratio, *state.log_spread()]
    return found
