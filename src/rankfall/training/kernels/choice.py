"""Which kernel takes which shape, cut how: the fastest as measured on an H200 (`benchmarks.kernels`)."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from rankfall.training.kernels.launch import Launch, padded

MOST_TOKENS, MOST_RANK = 256, 64
SHORT = 16
"""Up to so many tokens a head's weights are one tile."""
LANE_RANK = {"forward": 4, "backward": 2}
"""Beyond these a thread's registers no longer hold a short head's keys and values, and their gradients."""
LANES = 128
DTYPES = (torch.float32, torch.bfloat16)
CAPABILITY = (8, 0)
"""Of NVIDIA's GPUs, the first with TF32 and bfloat16."""

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def misfit(device: str, dtype: torch.dtype, tokens: int, rank: int) -> str | None:
    """Why the kernels cannot take such heads here, or None where they can.

    `tokens` is the larger of queries and context, `rank` the larger of query/key and value rank.
    """
    if device != "cuda" and not INTERPRETED:
        return "it runs on GPUs only"
    if not HAS_TRITON:
        return "Triton is not installed"
    if reason := shape_misfit(dtype, tokens, rank):
        return reason
    if device == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability() < CAPABILITY:
        return f"this GPU has no compute capability {CAPABILITY[0]}.{CAPABILITY[1]}"
    return None


def shape_misfit(dtype: torch.dtype, tokens: int, rank: int) -> str | None:
    """The same, of any machine."""
    if dtype not in DTYPES:
        return f"it computes in float32 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if tokens > MOST_TOKENS or rank > MOST_RANK:
        return f"it takes up to {MOST_TOKENS} tokens and rank {MOST_RANK}, not {tokens} and {rank}"
    return None


def launch_for(q: Tensor, k: Tensor, v: Tensor, direction: str) -> Launch:
    """How to cut the work on these tensors (M, B, tokens, H, rank), forward or backward."""
    heads = q.shape[3]
    tokens, rank = max(q.shape[2], k.shape[2]), max(q.shape[-1], v.shape[-1])
    if tokens > SHORT:
        return Launch("long", block=min(64, padded(tokens)))
    if rank <= LANE_RANK[direction]:
        side = min(LANES, _power(heads))
        return Launch("lanes", side, LANES // side)
    batch_axis = 4 if rank <= 8 else 8 if rank <= 16 else 2
    side = min(batch_axis, _power(heads))
    return Launch("tiles", side, batch_axis // side, warps=batch_axis)


def _power(size: int) -> int:
    """The power of two from this size on."""
    return 1 << (size - 1).bit_length()
