"""Which kernel takes which shape, cut how: the fastest as measured on an H200 (`benchmarks.kernels`)."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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


LEAST_TILE = 16
"""Smallest side of a matrix unit's tile; narrower heads and shorter sequences are padded on chip."""
LOG2_E = 1.0 / math.log(2.0)
"""The kernels take powers of two, which the hardware has an instruction for."""

Biases = tuple[Tensor, Tensor, Tensor]
"""Of queries, keys and values, each (M, H * width)."""


@dataclass(frozen=True)
class Launch:
    """Which kernels, and how the work is cut: heads and sequences of one program, tokens of one block, warps."""

    family: str
    heads: int = 1
    sequences: int = 1
    block: int = 0
    warps: int = 4


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: Biases | None,
    mask: Tensor | None,
    scale: float,
    launch: Launch,
    out: Tensor | None = None,
) -> Tensor:
    """(M, B, n, H, u), contiguous, in `out` where that is given."""
    q, k, v = (_in_order(x) for x in (q, k, v))
    out = q.new_empty(*q.shape[:4], v.shape[-1]) if out is None else out
    kernel = _kernels(launch.family)[0]
    kernel[_grid(q, launch)](
        q, k, v, out, *_bias_pointers(q, biases), _mask_pointer(q, mask),
        *_strides(q, k, v), q.shape[1], q.shape[3], scale * LOG2_E, **_constants(q, k, v, biases, mask, launch),
    )  # fmt: skip
    return out


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    biases: Biases | None,
    mask: Tensor | None,
    scale: float,
    launch: Launch,
    grads: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, contiguous, in `grads` where these are given; and of the biases where there are any."""
    grad, q, k, v = (_in_order(x) for x in (grad, q, k, v))
    grads = grads or [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    sums = [x if biases is None else _bias_sums(x, launch) for x in (q, k, v)]
    bias, allowed = _bias_pointers(q, biases), _mask_pointer(q, mask)
    common = (*_strides(grad, q, k, v), q.shape[1], q.shape[3], scale * LOG2_E, scale)
    constants = _constants(q, k, v, biases, mask, launch)
    if launch.family == "long":
        _, of_queries, of_keys = _kernels("long")
        rows = q.new_empty(*q.shape[:2], q.shape[3], 2, q.shape[2], dtype=torch.float32)
        of_queries[_grid(q, launch)](grad, q, k, v, grads[0], rows, *bias, sums[0], allowed, *common, **constants)
        of_keys[_grid(k, launch)](grad, q, k, v, *grads[1:], rows, *bias, *sums[1:], allowed, *common, **constants)
    else:
        kernel = _kernels(launch.family)[1]
        kernel[_grid(q, launch)](grad, q, k, v, *grads, *bias, *sums, allowed, *common, **constants)
    if biases is None:
        return tuple(grads)
    return *grads, *(part.sum(dim=1).to(bias.dtype) for part, bias in zip(sums, biases, strict=True))


def padded(size: int) -> int:
    """The side of the tile that holds so many tokens or features."""
    return max(LEAST_TILE, 1 << (size - 1).bit_length())


def _kernels(family: str) -> tuple[Any, ...]:
    """Forward, backward; of longer sequences the gradients of queries and of keys and values apart."""
    module = importlib.import_module(f"rankfall.training.kernels.{family}")
    parts = ("forward", "query_grads", "key_grads") if family == "long" else ("forward", "backward")
    return tuple(getattr(module, f"{family}_{part}") for part in parts)


def _grid(x: Tensor, launch: Launch) -> tuple[int, int, int]:
    """Programs for the queries x or, of longer sequences, for the keys x."""
    models, batch, tokens, heads, _ = x.shape
    if launch.family == "long":
        return heads, batch * -(-tokens // launch.block), models
    return -(-heads // launch.heads), -(-batch // launch.sequences), models


def _bias_sums(x: Tensor, launch: Launch) -> Tensor:
    """Room for the partial sums of a bias gradient: one for each sequence, or for each block of it."""
    parts = _grid(x, launch)[1] if launch.family == "long" else x.shape[1]
    return x.new_empty(x.shape[0], parts, x.shape[3] * x.shape[4], dtype=torch.float32)


def _constants(
    q: Tensor, k: Tensor, v: Tensor, biases: Biases | None, mask: Tensor | None, launch: Launch
) -> dict[str, Any]:
    rank, value = q.shape[-1], v.shape[-1]
    constants: dict[str, Any] = {
        "TOKENS": q.shape[2],
        "CONTEXT": k.shape[2],
        "RANK": rank,
        "VALUE": value,
        "num_warps": launch.warps,
    }
    constants |= {"HAS_MASK": mask is not None, "HAS_BIAS": biases is not None}
    if launch.family != "lanes":
        constants |= {"RANK_PADDED": padded(rank), "VALUE_PADDED": padded(value), "PRECISION": precision()}
    if launch.family == "long":
        return constants | {"SIZE": launch.block}
    return constants | {"HEADS": launch.heads, "SEQUENCES": launch.sequences}


def precision() -> str:
    """Of float32 products: one pass through matrix units where TF32 is allowed, else three, as good as float32."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "widened"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _in_order(x: Tensor) -> Tensor:
    """As it is where heads and features lie in order, else a copy."""
    return x if x.stride(4) == 1 and x.stride(3) == x.shape[4] else x.contiguous()


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Of models, sequences and tokens."""
    return tuple(stride for x in tensors for stride in x.stride()[:3])


def _bias_pointers(q: Tensor, biases: Biases | None) -> tuple[Tensor, ...]:
    return (q, q, q) if biases is None else tuple(bias.contiguous() for bias in biases)


def _mask_pointer(q: Tensor, mask: Tensor | None) -> Tensor:
    return q if mask is None else mask.to(torch.int8).contiguous()
