"""Cells of paper A's experiments as a kind: their keys, memory, operations and programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch

from rankfall.training.attention_seam import LONG
from rankfall.training.cell import Cell
from rankfall.training.data import window_bytes
from rankfall.training.kernels.launch import HAS_TRITON, misfit, shape_misfit
from rankfall.training.kernels.layer import layer_misfit
from rankfall.training.kinds import CellKind
from rankfall.training.parameters import layout
from rankfall.training.stack import Stack, stack_key

CPU_STACK = 32
"""Cells of a stack on a processor: beyond that, steps per second hardly grow, and results come later."""
CPU_STEP_FLOPS = 1.2e9
"""Operations of a step of a stack on a processor. Stacking saves the fixed cost of each call, a factor of three for
cells of 4e6; a larger stack outgrows the caches and is slower than its cells alone (`benchmarks.stack_sizes`)."""


@final
class PointsKind(CellKind):
    """Encoders on points: ranks, seeds, rates and data of one shape train together."""

    cell = Cell
    errors = ("mse_best", "mse_final")

    def stack_key(self, cell: Cell) -> tuple[Any, ...]:
        return stack_key(cell)

    def order(self, cell: Cell) -> tuple[int, int]:
        """Low ranks, which have most heads, first; equal ranks together, so that a stack has few distinct ones."""
        return cell.rank, cell.value_width

    def widest(self, cells: Sequence[Cell], device: str) -> int:
        """On a processor no more than train faster together than one at a time."""
        if device != "cpu":
            return len(cells)
        return min(CPU_STACK, max(1, int(CPU_STEP_FLOPS // max(map(self.step_flops, cells)))))

    def stack_bytes(self, cells: Sequence[Cell], device: str) -> int:
        """Bytes for weights, gradients and moments, activations kept for the gradient, and batches drawn ahead.

        Activations per layer and token: q, k, v and the mixed values, about eight of the width (residuals, norms);
        the feed-forward's two hidden tensors, and scores and weights, where no kernel computes them again; half as
        much again in passing.
        """
        item = 8 if cells[0].dtype == "float64" else 4
        streams = len({(cell.seed, cell.data) for cell in cells})
        return sum(item * _numbers(cell, device) for cell in cells) + window_bytes(cells[0], streams, device)

    def step_flops(self, cell: Cell) -> float:
        """Per layer and token: projections 2 width (2 H r + 2 H v), scores and mixing 2 context H (r + v), and the
        feed-forward 4 width f. Queries and keys are both taken as all tokens, which is exact for self-attention."""
        scored, valued = cell.heads * cell.rank, cell.heads * cell.value_width
        projections = 4 * cell.width * (scored + valued)
        mixing = 2 * cell.tokens * (scored + valued)
        feed_forward = 4 * cell.width * cell.feed_forward
        return 3.0 * cell.batch * cell.tokens * cell.layers * (projections + mixing + feed_forward)

    def size(self, cell: Cell) -> str:
        return f"layers={cell.layers}, rank={cell.rank}, multiplier={cell.multiplier}, batch={cell.batch}"

    def build(
        self, cells: Sequence[Cell], device: str, compile: bool, tf32: bool, folder: Path | None = None
    ) -> Stack:
        return Stack(cells, device, compile, tf32)

    def slower(self, cells: Sequence[Cell], device: str) -> str | None:
        """On a GPU, how many cells cannot use the fused attention kernel and why the first of them cannot."""
        if not device.startswith("cuda"):
            return None
        reasons = [
            misfit("cuda", getattr(torch, cell.dtype), cell.tokens, max(cell.rank, cell.value_width))
            for cell in cells
        ]
        found = [reason for reason in reasons if reason is not None]
        if not found:
            return None
        return f"{len(found)} of {len(cells)} cells train without the fused attention kernel: {found[0]}"


def _numbers(cell: Cell, device: str) -> int:
    sequence = cell.batch * cell.tokens
    scored, valued = cell.heads * cell.rank, cell.heads * cell.value_width
    kept = 2 * scored + 2 * valued + 8 * cell.width
    if device != "cuda" or layer_misfit("cuda", getattr(torch, cell.dtype), cell.width, cell.feed_forward):
        kept += 2 * cell.feed_forward
    if cell.tokens <= LONG and not _by_kernel(cell, device):
        kept += 2 * cell.heads * cell.task_object.context(cell.points)
    return 6 * layout(cell).size + (3 * sequence * kept * cell.layers) // 2


def _by_kernel(cell: Cell, device: str) -> bool:
    """Whether attention goes through the fused kernel, which keeps no scores."""
    rank = max(cell.rank, cell.value_width)
    return device == "cuda" and HAS_TRITON and shape_misfit(getattr(torch, cell.dtype), cell.tokens, rank) is None


POINTS = PointsKind()
