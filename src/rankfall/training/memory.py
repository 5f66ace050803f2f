"""How much device memory a stack takes, estimated before it is built."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rankfall.training.attention_seam import LONG
from rankfall.training.cell import Cell
from rankfall.training.data import window_bytes
from rankfall.training.kernels.choice import HAS_TRITON, shape_misfit
from rankfall.training.parameters import layout


def stack_bytes(cells: Sequence[Cell], device: str = "cuda") -> int:
    """Bytes for weights, gradients and moments, activations kept for the gradient, and batches drawn ahead.

    Activations per layer and token: q, k, v and the mixed values, the feed-forward's two hidden tensors, about eight
    of the width (residuals, norms); scores and weights where attention keeps them; half as much again in passing.
    """
    item = 8 if cells[0].dtype == "float64" else 4
    streams = len({(cell.seed, cell.data) for cell in cells})
    return sum(item * _numbers(cell, device) for cell in cells) + window_bytes(cells[0], streams, device)


def _numbers(cell: Cell, device: str) -> int:
    sequence = cell.batch * cell.tokens
    scored, valued = cell.heads * cell.rank, cell.heads * cell.value_width
    kept = 2 * scored + 2 * valued + 2 * cell.feed_forward + 8 * cell.width
    if cell.tokens <= LONG and not _by_kernel(cell, device):
        kept += 2 * cell.heads * cell.task_object.context(cell.points)
    return 6 * layout(cell).size + (3 * sequence * kept * cell.layers) // 2


def _by_kernel(cell: Cell, device: str) -> bool:
    """Whether attention goes through the fused kernel, which keeps no scores."""
    rank = max(cell.rank, cell.value_width)
    return device == "cuda" and HAS_TRITON and shape_misfit(getattr(torch, cell.dtype), cell.tokens, rank) is None
